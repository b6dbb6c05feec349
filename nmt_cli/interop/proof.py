"""Is an exported model the same? Token log-probabilities and translations of both toolkits. All ids end with EOS.

Without length penalty, and without translations that reach our limit on the length, since theirs differ in both.
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from torch.nn.utils.rnn import pad_sequence

from nmt_cli.corpus.tokenizer import EOS, PAD, Tokenizer
from nmt_cli.interop.marian import library
from nmt_cli.system.console import table
from nmt_cli.system.errors import DataError
from nmt_cli.translation.translator import Translator

BATCH = 32
LOCAL = {"local_files_only": True, "trust_remote_code": False}
TOLERANCE = 1e-4  # nats per token, or this fraction where a token has less than one in e: float32 in another order
# Rounding decides between two hypotheses nearly as likely, in about one line of 8,000; other ways of searching change
# many lines. One line more is allowed, for a comparison of few lines.
MAX_DIFFERING = 0.02
Ids = list[int]


class Peer(Protocol):
    """Another toolkit with the same model."""

    beam: int | None  # with which it searches as ours does; None: with any
    differs: str  # why its translations are others, if they are, though the scores are the same

    def translate(self, sources: list[Ids], beam: int, limit: int) -> Iterator[Ids]: ...

    def score(self, pairs: list[tuple[Ids, Ids]]) -> Iterator[list[float]]: ...


class Transformers:
    """A directory that transformers loads; `ids` are its ids of our tokens, of the source and of the target."""

    beam: int | None = None
    differs = ""

    def __init__(self, directory: Path, ids: list[Ids]) -> None:
        # A pickle is read by torch.load(weights_only=True): one that would execute code is refused.
        safe = any(directory.glob("model.safetensors*"))
        options = {"use_safetensors": safe, "weights_only": True, "dtype": torch.float32, **LOCAL}
        options["output_loading_info"] = True
        self.model, report = library("transformers").AutoModelForSeq2SeqLM.from_pretrained(directory, **options)
        self.missing = [name for name in sorted(report["missing_keys"]) if "embed_positions" not in name]
        self.ids, self.pad = [*map(torch.tensor, ids)], ids[1][PAD]
        self.start = self.model.generation_config.decoder_start_token_id
        if self.start is None:
            self.start = self.model.config.decoder_start_token_id
        self.ours = [side.argsort() for side in self.ids]

    def check_ids(self, tokenizer: Tokenizer, lines: list[str], targets: list[str], allowed: int = 0) -> None:
        """Raise DataError if their tokenizer splits these lines of source and target text differently from ours."""
        theirs = library("transformers").AutoTokenizer.from_pretrained(self.model.name_or_path, **LOCAL)
        theirs.punc_normalizer = str  # what sacremoses changes before that is said in the export's README
        split = theirs(lines)["input_ids"], [theirs(text_target=line)["input_ids"] for line in targets]
        both = zip(split, self.ours, (tokenizer.encode(lines), tokenizer.target.encode(targets)), strict=True)
        rows = [(ours[row].tolist(), mine) for side, ours, own in both for row, mine in zip(side, own, strict=True)]
        if (different := sum(row != [*mine, EOS] for row, mine in rows)) > allowed:
            raise DataError(f"MarianTokenizer splits {different} of {len(rows)} lines differently from ours")

    def _padded(self, sentences: Sequence[Ids], side: int) -> torch.Tensor:
        return pad_sequence([self.ids[side][ids] for ids in sentences], batch_first=True, padding_value=self.pad)

    @torch.inference_mode()
    def translate(self, sources: list[Ids], beam: int, limit: int) -> Iterator[Ids]:
        options = {"num_beams": beam, "length_penalty": 0.0, "early_stopping": False, "max_new_tokens": limit}
        for start in range(0, len(sources), BATCH):
            src = self._padded(sources[start : start + BATCH], 0)
            for row in self.model.generate(src, attention_mask=(src != self.pad).long(), **options):
                ids = [*self.ours[1][row[1:]].tolist(), EOS]
                yield ids[: ids.index(EOS) + 1]

    @torch.inference_mode()
    def score(self, pairs: list[tuple[Ids, Ids]]) -> Iterator[list[float]]:
        for start in range(0, len(pairs), BATCH):
            batch = pairs[start : start + BATCH]
            src, tgt = self._padded([ids for ids, _ in batch], 0), self._padded([[PAD, *ids] for _, ids in batch], 1)
            tgt[:, 0] = self.start
            mask = (src != self.pad).long()
            logits = self.model(input_ids=src, attention_mask=mask, decoder_input_ids=tgt[:, :-1]).logits
            gold = torch.log_softmax(logits, -1).gather(2, tgt[:, 1:, None])[:, :, 0]
            yield from (row[: len(ids)].tolist() for row, (_, ids) in zip(gold, batch, strict=True))


class CTranslate2:
    """A directory that CTranslate2 loads, on the CPU; its tokens are named as ours."""

    beam: int | None = None
    differs = ""

    def __init__(self, directory: Path, tokenizer: Tokenizer) -> None:
        self.translator: Any = library("ctranslate2").Translator(str(directory), compute_type="default")
        self.names = tokenizer.tokens(list(range(tokenizer.vocabulary_size)))
        self.ids = {name: i for i, name in enumerate(self.names)}

    def _named(self, sentences: Iterable[Ids]) -> list[list[str]]:
        return [[self.names[i] for i in ids] for ids in sentences]

    def translate(self, sources: list[Ids], beam: int, limit: int) -> Iterator[Ids]:
        options = {"beam_size": beam, "length_penalty": 0.0, "max_decoding_length": limit, "max_batch_size": BATCH}
        for result in self.translator.translate_batch(self._named(sources), min_decoding_length=0, **options):
            yield [*(self.ids[name] for name in result.hypotheses[0]), EOS]

    def score(self, pairs: list[tuple[Ids, Ids]]) -> Iterator[list[float]]:
        sides = self._named(src for src, _ in pairs), self._named(tgt[:-1] for _, tgt in pairs)
        yield from (result.log_probs for result in self.translator.score_batch(*sides, max_batch_size=BATCH))


def largest_difference(ours: Iterable[list[float]], theirs: Iterable[list[float]]) -> float:
    """Return the largest difference of a token's log-probability in nats, relative where it is below -1."""
    both = [pair for rows in zip(ours, theirs, strict=True) for pair in zip(*rows, strict=True)]
    return max(abs(p - q) / max(1.0, -p) for p, q in both)


def compare(translator: Translator, peer: Peer, lines: dict[int, str], exact: bool) -> tuple[str, list[Ids], list[Ids]]:
    """Translate `lines` (by their index in the file) with both; where `exact`, raise DataError if they differ."""
    beam, numbers = peer.beam or translator.recipe.decoding.beam, [*lines]
    texts = lines.values()
    translations = translator.translate(texts, beam=beam, alpha=0.0, split=False, copy_wordless=False)
    found = [translation.segments[0] for translation in translations]
    pairs = [(segment.ids, [*segment.hypotheses[0].ids, EOS]) for segment in found]
    sources, ours = [src for src, _ in pairs], [tgt for _, tgt in pairs]
    limits = [len(source) + translator.recipe.decoding.extra_length for source in sources]
    theirs = ours if peer.differs else list(peer.translate(sources, beam, max(limits)))
    ended = [i for i, limit in enumerate(limits) if max(len(ours[i]), len(theirs[i])) < limit]
    differing = [i for i in ended if ours[i] != theirs[i]]
    largest = largest_difference(translator.score_ids(pairs), peer.score(pairs))
    same = f"{len(ended) - len(differing)} of {len(ended)} translations that end within the limit are the same."
    text = (
        f"On {len(lines)} sentences ({sum(map(len, ours)):,} tokens), beam {beam}, without length penalty: the largest "
        f"difference of a token's log-probability is {largest:.1e}; {peer.differs or same}"
    )
    if exact and differing:
        decode = translator.tokenizer.target.decode
        rows = [[str(numbers[i] + 1), *decode([ours[i][:-1], theirs[i][:-1]])] for i in differing[:20]]
        table("lines that differ", ["line", "ours", "theirs"], rows)
    if exact and not (len(differing) <= 1 + MAX_DIFFERING * len(ended) and largest <= TOLERANCE):
        must = f"log-probabilities must agree within {TOLERANCE:g}, and translations but for {MAX_DIFFERING:.0%}"
        raise DataError(f"the copy is not kept: {must}. {text}")
    return text, ours, theirs
