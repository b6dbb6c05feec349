"""Is an exported model the same? Token log-probabilities and translations of both toolkits, side by side.

Both translate without length penalty, since theirs is another function. Their limit on the length of a translation
holds for all sentences at once, so lines where either side reaches ours are not compared.
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from nmt_cli import recipe
from nmt_cli.console import table
from nmt_cli.corpus.tokenizer import EOS, PAD, Tokenizer
from nmt_cli.errors import DataError
from nmt_cli.interop.marian import library
from nmt_cli.transformer.cache import for_inference
from nmt_cli.transformer.model import Transformer
from nmt_cli.translation.lines import translate_ids
from nmt_cli.translation.lines import force
from nmt_cli.translation.search import SearchSettings

BATCH = 32
TOLERANCE = 1e-4  # nats per token, or this fraction where a token has less than one in e: float32 in another order
# Where two hypotheses are nearly as likely, rounding decides: about one line in 8,000. Another way of searching
# changes many lines. One line more is allowed, so that a comparison of few lines may meet such a tie.
MAX_DIFFERING = 0.02
Ids = Sequence[int]
Pair = tuple[Ids, Ids]  # source and target, both closed by EOS


class Transformers:
    """A directory that transformers loads; `ids` are its ids of our tokens."""

    def __init__(self, directory: Path, ids: list[int]) -> None:
        transformers, self.options = library("transformers"), {"local_files_only": True, "trust_remote_code": False}
        self.directory, self.tokenizers = directory, transformers.AutoTokenizer
        load = transformers.AutoModelForSeq2SeqLM.from_pretrained
        options = {"use_safetensors": True, "dtype": torch.float32, "output_loading_info": True, **self.options}
        self.model, report = load(directory, **options)
        self.missing = sorted(report["missing_keys"])
        self.ids, self.pad = torch.tensor(ids), ids[PAD]
        self.ours = self.ids.argsort()

    def encode(self, lines: list[str]) -> list[list[int]]:
        """Return each line's ids by their tokenizer, as ours."""
        tokenizer = self.tokenizers.from_pretrained(self.directory, **self.options)
        return [self.ours[ids].tolist() for ids in tokenizer(lines)["input_ids"]]

    def _padded(self, sentences: Sequence[Ids]) -> torch.Tensor:
        longest = max(map(len, sentences))
        return self.ids[torch.tensor([[*ids, *[PAD] * (longest - len(ids))] for ids in sentences])]

    @torch.inference_mode()
    def translate(self, sources: Sequence[Ids], beam: int, limit: int) -> Iterator[list[int]]:
        options = {"num_beams": beam, "length_penalty": 0.0, "early_stopping": False, "max_new_tokens": limit}
        for start in range(0, len(sources), BATCH):
            src = self._padded(sources[start : start + BATCH])
            for row in self.model.generate(src, attention_mask=(src != self.pad).long(), **options):
                ids = self.ours[row[1:]].tolist()
                yield ids[: ids.index(EOS)] if EOS in ids else ids

    @torch.inference_mode()
    def score(self, pairs: Sequence[Pair]) -> Iterator[list[float]]:
        for start in range(0, len(pairs), BATCH):
            sources, targets = zip(*pairs[start : start + BATCH], strict=True)
            src, tgt = self._padded(sources), self._padded([[PAD, *ids] for ids in targets])
            mask = (src != self.pad).long()
            logits = self.model(input_ids=src, attention_mask=mask, decoder_input_ids=tgt[:, :-1]).logits
            gold = torch.log_softmax(logits, -1).gather(2, tgt[:, 1:, None])[:, :, 0]
            yield from (row[: len(ids)].tolist() for row, ids in zip(gold, targets, strict=True))


class CTranslate2:
    """A directory that CTranslate2 loads, on the CPU; its tokens are named as ours."""

    def __init__(self, directory: Path, tokenizer: Tokenizer) -> None:
        self.translator: Any = library("ctranslate2").Translator(str(directory), compute_type="default")
        self.names = tokenizer.pieces(list(range(tokenizer.vocabulary_size)))
        self.ids = {name: i for i, name in enumerate(self.names)}

    def _named(self, sentences: Iterable[Ids]) -> list[list[str]]:
        return [[self.names[i] for i in ids] for ids in sentences]

    def translate(self, sources: Sequence[Ids], beam: int, limit: int) -> Iterator[list[int]]:
        options = {"length_penalty": 0.0, "min_decoding_length": 0, "max_batch_size": BATCH}  # it may be empty
        for result in self.translator.translate_batch(
            self._named(sources), beam_size=beam, max_decoding_length=limit, **options
        ):
            yield [self.ids[name] for name in result.hypotheses[0]]

    def score(self, pairs: Sequence[Pair]) -> Iterator[list[float]]:
        sides = self._named(src for src, _ in pairs), self._named(tgt[:-1] for _, tgt in pairs)
        yield from (result.log_probs for result in self.translator.score_batch(*sides, max_batch_size=BATCH))


def our_scores(model: Transformer, pairs: Sequence[Pair]) -> Iterator[list[float]]:
    for start in range(0, len(pairs), BATCH):
        yield from force(model, torch.float32, pairs[start : start + BATCH])


def largest_difference(ours: Iterable[list[float]], theirs: Iterable[list[float]]) -> float:
    """Return the largest difference of a token's log-probability in nats, relative where it is below -1."""
    both = [pair for rows in zip(ours, theirs, strict=True) for pair in zip(*rows, strict=True)]
    return max(abs(p - q) / max(1.0, -p) for p, q in both)


def compare(
    model: Transformer,
    tokenizer: Tokenizer,
    peer: Transformers | CTranslate2,
    sources: dict[int, list[int]],
    decoding: recipe.Decoding,
    exact: bool,
) -> tuple[str, list[list[int]], list[list[int]]]:
    """Translate with both, greedily and by beam search; return what this shows, and our and their beam translations.

    Args:
        model: ours.
        tokenizer: ours.
        peer: the exported model in another toolkit.
        sources: ids, closed by EOS, by line number.
        decoding: its beam and extra_length.
        exact: show the lines that differ, and refuse what is not the same model.

    Raises:
        DataError: `exact`, and the log-probabilities or too many translations differ.
    """
    mine, numbers, batch = for_inference(model, torch.float32), [*sources], [*sources.values()]
    largest, rows, same, reasons = 0.0, [], [], []
    for width in sorted({1, decoding.beam}):
        name = f"beam-{width}" if width > 1 else "greedy"
        settings = SearchSettings(width, 0.0, decoding.extra_length)
        ours = [best[0].ids for best in translate_ids([mine], torch.float32, batch, settings)]
        theirs = list(peer.translate(batch, width, max(map(len, batch)) + decoding.extra_length))
        limits = [len(source) + decoding.extra_length - 1 for source in batch]
        ended = [i for i, limit in enumerate(limits) if max(len(ours[i]), len(theirs[i])) < limit]
        differing = [i for i in ended if ours[i] != theirs[i]]
        targets = [*enumerate(ours), *((i, theirs[i]) for i in differing)]
        pairs = [(batch[i], [*ids, EOS]) for i, ids in targets]
        scores = list(our_scores(mine, pairs))
        largest = max(largest, largest_difference(scores, peer.score(pairs)))
        for i, row in zip(differing, scores[len(batch) :], strict=True):
            likelier = sum(scores[i]) - sum(row)
            rows.append([f"{name} {numbers[i] + 1}", *tokenizer.decode([ours[i], theirs[i]]), f"{likelier:.1e}"])
        same.append(f"{name} output is the same for {len(ended) - len(differing)} of {len(ended)}")
        if len(differing) > 1 + MAX_DIFFERING * len(ended):
            reasons.append(f"more than {MAX_DIFFERING:.0%} of its {name} translations differ")
    if largest > TOLERANCE:
        reasons.insert(0, f"its log-probabilities differ by more than {TOLERANCE:g}")
    text = (
        f"On {len(batch)} sentences ({sum(len(ids) + 1 for ids in ours):,} tokens), without length penalty: the "
        f"largest difference of a token's log-probability is {largest:.1e}; {', '.join(same)} that end within the limit."
    )
    if exact and rows:
        table("lines that differ", ["search, line", "ours", "theirs", "ours likelier by (nats)"], rows[:20])
    if exact and reasons:
        raise DataError(f"the exported model is not the same and is not kept: {' and '.join(reasons)}. {text}")
    return text, ours, theirs
