"""transformers and CTranslate2 as translators of our ids, to be compared with our own search.

Both translate without length penalty and give ids without EOS; pairs to be scored are closed by EOS. Their limit on
the length of a translation holds for a whole batch, so a sentence may get longer than with ours.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from nmt_cli.corpus.tokenizer import EOS, PAD, Tokenizer
from nmt_cli.interop.marian import library

BATCH = 32
Pair = tuple[Sequence[int], Sequence[int]]


class Transformers:
    """A directory that transformers loads; `ids` are its ids of our tokens."""

    def __init__(self, directory: Path, ids: list[int]) -> None:
        transformers = library("transformers")
        self.directory, self.tokenizers = directory, transformers.AutoTokenizer
        self.options = {"local_files_only": True, "trust_remote_code": False}
        self.model: Any
        self.model, report = transformers.AutoModelForSeq2SeqLM.from_pretrained(
            directory, use_safetensors=True, dtype=torch.float32, output_loading_info=True, **self.options
        )
        self.missing = sorted(report["missing_keys"])
        self.ids, self.pad = torch.tensor(ids), ids[PAD]
        self.ours = self.ids.argsort()

    def encode(self, lines: list[str]) -> list[list[int]]:
        """Return each line's ids by their tokenizer, as ours."""
        tokenizer = self.tokenizers.from_pretrained(self.directory, **self.options)
        return [self.ours[ids].tolist() for ids in tokenizer(lines)["input_ids"]]

    def _padded(self, sentences: Sequence[Sequence[int]]) -> torch.Tensor:
        longest = max(map(len, sentences))
        return self.ids[torch.tensor([[*ids, *[PAD] * (longest - len(ids))] for ids in sentences])]

    @torch.inference_mode()
    def translate(self, sources: Sequence[Sequence[int]], beam: int, extra_length: int) -> Iterator[list[int]]:
        options = {"num_beams": beam, "length_penalty": 0.0, "early_stopping": False}
        for start in range(0, len(sources), BATCH):
            src = self._padded(sources[start : start + BATCH])
            limit, mask = src.shape[1] + extra_length, (src != self.pad).long()
            for row in self.model.generate(src, attention_mask=mask, max_new_tokens=limit, **options):
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

    def _named(self, sentences: Sequence[Sequence[int]]) -> list[list[str]]:
        return [[self.names[i] for i in ids] for ids in sentences]

    def translate(self, sources: Sequence[Sequence[int]], beam: int, extra_length: int) -> Iterator[list[int]]:
        options = {"beam_size": beam, "length_penalty": 0.0, "min_decoding_length": 0}  # 0: it may be empty
        for start in range(0, len(sources), BATCH):
            batch = sources[start : start + BATCH]
            limit = max(map(len, batch)) + extra_length
            for result in self.translator.translate_batch(self._named(batch), max_decoding_length=limit, **options):
                yield [self.ids[name] for name in result.hypotheses[0]]

    def score(self, pairs: Sequence[Pair]) -> Iterator[list[float]]:
        sides = self._named([src for src, _ in pairs]), self._named([tgt[:-1] for _, tgt in pairs])
        yield from (result.log_probs for result in self.translator.score_batch(*sides, max_batch_size=BATCH))
