"""Finished lines to text, n-best lists or JSON lines, with alignments where they are wanted."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nmt_cli.console import Progress
from nmt_cli.corpus.tokenizer import EOS, Tokenizer
from nmt_cli.errors import UsageError
from nmt_cli.transformer.attention_weights import attention_weights
from nmt_cli.transformer.model import Transformer
from nmt_cli.transformer.weights import save_tensors
from nmt_cli.translation.search import Hypothesis, length_penalty
from nmt_cli.translation.stream import write_lines

MAX_ATTENTION_BYTES = 1 << 30


@dataclass
class Part:
    """A stretch of a line that is searched by itself.

    Attributes:
        ids: its pieces, closed by EOS.
        prefix: what its translation must begin with.
        place: its number in its line, before any was halved.
        depth: how often it was halved.
        hypotheses: what was found; as many as were asked for.
        halves: what it was translated in instead.
    """

    ids: list[int]
    prefix: list[int] = field(default_factory=list)
    place: int = 0
    depth: int = 0
    hypotheses: list[Hypothesis] = field(default_factory=list)
    halves: list["Part"] = field(default_factory=list)

    def leaves(self) -> list["Part"]:
        """Return the parts whose translations stand."""
        return [leaf for half in self.halves for leaf in half.leaves()] if self.halves else [self]


@dataclass
class Line:
    """One line of input on its way to one line of output.

    Attributes:
        number: from 1.
        text: normalised.
        parts: none for a line without text.
        open: searches that have not come back.
    """

    number: int
    text: str
    parts: list[Part]
    open: int = 0


@dataclass(frozen=True)
class Format:
    """What is written for a line.

    Attributes:
        kind: "text" or "jsonl".
        best: hypotheses per line.
        alpha: of the length penalty.
        alignments: whether to add which source word each target word comes from.
        attention: a safetensors file for all attention weights; None for none.
    """

    kind: str
    best: int
    alpha: float
    alignments: bool
    attention: Path | None


class Output:
    """Writes finished lines.

    Args:
        descriptor: where.
        form: what is written for a line.
        tokenizer: of the model.
        model: computes attention, where that is wanted; as `for_inference` returns it.
        dtype: its arithmetic.
        progress: is told how many lines are done.
    """

    def __init__(
        self,
        descriptor: int,
        form: Format,
        tokenizer: Tokenizer,
        model: Transformer,
        dtype: torch.dtype,
        progress: Progress,
    ) -> None:
        self.descriptor, self.form, self.tokenizer, self.progress = descriptor, form, tokenizer, progress
        self.model, self.dtype = model, dtype
        self._attention: dict[str, Tensor] = {}
        self._attention_bytes = 0

    def write(self, lines: list[Line]) -> None:
        """Write finished lines, whole and at once."""
        write_lines(self.descriptor, [text for line in lines for text in self._texts(line)])
        self.progress.advance(len(lines))

    def close(self) -> None:
        """Write the attention file, if there is to be one."""
        if self.form.attention:
            save_tensors(self.form.attention, self._attention)

    def _texts(self, line: Line) -> list[str]:
        leaves = [leaf for part in line.parts for leaf in part.leaves()]
        found = [self._hypothesis(leaves, rank) for rank in range(self.form.best)]
        if self.form.alignments or self.form.attention:
            alignment = self._aligned(line.number, leaves)
            if self.form.alignments:
                found[0]["alignment"] = " ".join(f"{a}-{b}" for a, b in alignment)
        if self.form.kind == "jsonl":
            return [json.dumps({"line": line.number, "hypotheses": found}, ensure_ascii=False)]
        texts = [f"{one['text']} ||| {one['alignment']}" if "alignment" in one else one["text"] for one in found]
        if self.form.best == 1:
            return texts
        return [f"{line.number - 1} ||| {text} ||| {one['score']:.6g}" for text, one in zip(texts, found, strict=True)]

    def _hypothesis(self, leaves: Sequence[Part], rank: int) -> dict[str, Any]:
        """Return a line's hypothesis of this rank, put together from its parts'."""
        chosen: list[Hypothesis] = [leaf.hypotheses[min(rank, len(leaf.hypotheses) - 1)] for leaf in leaves]
        texts = self.tokenizer.decode([h.ids for h in chosen])
        text = texts[0] if len(texts) == 1 else " ".join(filter(None, map(str.strip, texts)))
        if self.form.kind == "text" and self.form.best == 1:
            return {"text": text}
        total = math.fsum(h.log_probability for h in chosen)
        length = sum(len(h.token_log_probabilities) for h in chosen)
        return (
            {
                "text": text,
                "log_probability": total,
                "score": total / float(length_penalty(length, self.form.alpha)) if len(chosen) > 1 else chosen[0].score,
                "tokens": [piece for h in chosen for piece in self.tokenizer.pieces([*h.ids, EOS])],
                "token_log_probabilities": [value for h in chosen for value in h.token_log_probabilities],
            }
            if chosen
            else {"text": "", "log_probability": 0.0, "score": 0.0, "tokens": [], "token_log_probabilities": []}
        )

    def _aligned(self, number: int, leaves: Sequence[Part]) -> list[tuple[int, int]]:
        """Return (source word, target word) pairs of a line, and keep its attention if that is wanted.

        Each target piece belongs to the source piece that the heads of the last layer but one look at most, on
        average. Source: Garg et al. 2019.
        """
        pairs: set[tuple[int, int]] = set()
        src_words = tgt_words = 0
        for place, leaf in enumerate(leaves):
            target = leaf.hypotheses[0].ids
            weights = attention_weights(self.model, self.dtype, leaf.ids, [*target, EOS])
            if self.form.attention:
                self._keep(
                    f"{number}.{place}", {**weights, "source": torch.tensor(leaf.ids), "target": torch.tensor(target)}
                )
            cross_TS = weights["cross"][max(0, len(weights["cross"]) - 2)].mean(0)[:-1, :-1]
            src, tgt = (self._words(ids) for ids in (leaf.ids[:-1], target))
            for piece, origin in enumerate(cross_TS.argmax(1).tolist() if len(src) and len(tgt) else []):
                pairs.add((src_words + src[origin], tgt_words + tgt[piece]))
            src_words, tgt_words = (
                n + (words[-1] + 1 if words else 0) for n, words in ((src_words, src), (tgt_words, tgt))
            )
        return sorted(pairs)

    def _words(self, ids: list[int]) -> list[int]:
        """Return the number of the word that each piece belongs to."""
        words: list[int] = []
        for piece in self.tokenizer.pieces(ids):
            words.append((words[-1] + piece.startswith("\u2581")) if words else 0)
        return words

    def _keep(self, name: str, tensors: dict[str, Tensor]) -> None:
        for kind, tensor in tensors.items():
            self._attention[f"{name}.{kind}"] = tensor
            self._attention_bytes += tensor.numel() * tensor.element_size()
        if self._attention_bytes > MAX_ATTENTION_BYTES:
            raise UsageError("--attention: the weights of so many lines take over 1 GB. Give fewer lines")
