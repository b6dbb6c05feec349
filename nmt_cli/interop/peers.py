"""transformers and CTranslate2 as translators of our ids, to be compared with our own search.

Their limit on the length of a translation holds for a whole batch, so a sentence may get longer than with ours.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from nmt_cli.corpus.tokenizer import EOS, PAD, Tokenizer
from nmt_cli.interop import hf

BATCH = 32


def _groups(sources: Sequence[Sequence[int]]) -> Iterator[list[int]]:
    """Yield the places of BATCH sources of similar length at a time."""
    order = sorted(range(len(sources)), key=lambda i: len(sources[i]))
    for start in range(0, len(order), BATCH):
        yield order[start : start + BATCH]


class Transformers:
    """A directory that transformers loads.

    Args:
        directory: of the model.
        order: their id of each of our pieces.
    """

    def __init__(self, directory: Path, order: list[int]) -> None:
        transformers = hf.library("transformers")
        self.options = {"local_files_only": True, "trust_remote_code": False}
        self.directory, self.auto = directory, transformers.AutoTokenizer
        load = transformers.AutoModelForSeq2SeqLM.from_pretrained
        self.model: Any = load(directory, use_safetensors=True, dtype=torch.float32, **self.options).eval()
        self.order = torch.tensor(order)
        self.ours, self.pad = self.order.argsort().tolist(), order[PAD]

    def encode(self, lines: list[str]) -> list[list[int]]:
        """Return each line's ids by their tokenizer, as ours."""
        tokenizer = self.auto.from_pretrained(self.directory, **self.options)
        return [self._our(ids) for ids in tokenizer(lines)["input_ids"]]

    def _our(self, ids: list[int]) -> list[int]:
        return [self.ours[i] for i in ids]

    def _their(self, sentences: Sequence[Sequence[int]]) -> torch.Tensor:
        longest = max(map(len, sentences))
        return self.order[torch.tensor([[*ids, *[PAD] * (longest - len(ids))] for ids in sentences])]

    @torch.inference_mode()
    def translate(self, sources: Sequence[Sequence[int]], beam: int, extra_length: int) -> list[list[int]]:
        """Return the likeliest translation (no length penalty) of every source that `beam` finds, without EOS."""
        results: list[list[int]] = [[] for _ in sources]
        for group in _groups(sources):
            src = self._their([sources[i] for i in group])
            limit = src.shape[1] + extra_length
            found = self.model.generate(
                src,
                attention_mask=(src != self.pad).long(),
                num_beams=beam,
                max_new_tokens=limit,
                length_penalty=0.0,
                early_stopping=False,
            )
            for i, row in zip(group, found.tolist(), strict=True):
                results[i] = _until_eos(self._our(row[1:]))
        return results

    @torch.inference_mode()
    def force(self, pairs: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[list[float]]:
        """Return the log-probability of every target token; both sides are closed by EOS."""
        results = []
        for start in range(0, len(pairs), BATCH):
            part = pairs[start : start + BATCH]
            src, out = self._their([s for s, _ in part]), self._their([t for _, t in part])
            tgt = self._their([[PAD, *t[:-1]] for _, t in part])
            logits = self.model(input_ids=src, attention_mask=(src != self.pad).long(), decoder_input_ids=tgt)
            gold = torch.log_softmax(logits.logits, -1).gather(2, out[:, :, None])[:, :, 0]
            results += [row[: len(t)].tolist() for row, (_, t) in zip(gold, part, strict=True)]
        return results


class CTranslate2:
    """A directory that `write_ctranslate2` wrote, loaded by CTranslate2 on the CPU."""

    def __init__(self, directory: Path, tokenizer: Tokenizer) -> None:
        self.translator: Any = hf.library("ctranslate2").Translator(str(directory), compute_type="default")
        self.names = tokenizer.pieces(list(range(tokenizer.vocabulary_size)))
        self.ids = {name: i for i, name in enumerate(self.names)}

    def _their(self, ids: Sequence[int]) -> list[str]:
        return [self.names[i] for i in ids]

    def translate(self, sources: Sequence[Sequence[int]], beam: int, extra_length: int) -> list[list[int]]:
        """As `Transformers.translate`."""
        results: list[list[int]] = [[] for _ in sources]
        for group in _groups(sources):
            found = self.translator.translate_batch(
                [self._their(sources[i]) for i in group],
                beam_size=beam,
                length_penalty=0.0,
                min_decoding_length=0,  # it would forbid an empty translation
                max_decoding_length=len(sources[group[-1]]) + extra_length,
            )
            for i, result in zip(group, found, strict=True):
                results[i] = [self.ids[name] for name in result.hypotheses[0]]
        return results

    def force(self, pairs: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[list[float]]:
        """As `Transformers.force`."""
        sides = [[self._their(pair[0]) for pair in pairs], [self._their(pair[1][:-1]) for pair in pairs]]
        return [list(found.log_probs) for found in self.translator.score_batch(*sides, max_batch_size=BATCH)]


def _until_eos(ids: list[int]) -> list[int]:
    return ids[: ids.index(EOS)] if EOS in ids else ids
