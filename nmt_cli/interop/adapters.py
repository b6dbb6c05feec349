"""A common interface to models of transformers, CTranslate2 and Marian, for comparison with our models.

The methods take and return token ids of our tokenizer. Every list of ids ends with EOS.
"""

import contextlib
import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

from nmt_cli.corpus.tokenizer import EOS, PAD, UNK, Tokenizer
from nmt_cli.interop.packages import import_package
from nmt_cli.interop.vocabulary import UNNAMED_PREFIX, ForeignIds, IdMaps
from nmt_cli.system.errors import DataError, printable

BATCH = 32  # maximum sentences per batch
OFFLINE = {"local_files_only": True, "trust_remote_code": False}
# Code for python -c that runs Marian's command line.
MARIAN = "import sys, _pymarian; sys.exit(_pymarian.main(sys.argv[1:]))"
MARIAN_OPTIONS = ("--cpu-threads", "1", "--quiet")
PRE_NORM = (
    "translations were not compared, because with pre-norm, Marian normalizes keys and values in training and in "
    "scoring, but not in decoding."
)
TokenIds = list[int]


class Adapter:
    """A model that another toolkit runs."""

    beam: int | None = None  # the toolkit searches as we do only at this beam size; None: at all sizes
    # The reason why translations may differ although token probabilities agree, or "". If set, translations are not
    # compared.
    difference = ""

    def check_tokenizer(self, tokenizer: Tokenizer, sources: list[str], targets: list[str], allowed: int = 0) -> None:
        """Raise DataError if the toolkit tokenizes more than `allowed` of these lines differently from `tokenizer`.

        The method of the base class checks nothing.
        """

    def translate(self, sources: list[TokenIds], beam: int, limit: int) -> Iterator[TokenIds]:
        """Yield the best translation of each source, without length penalty. Allow at least `limit` tokens in each."""
        raise NotImplementedError

    def score(self, pairs: list[tuple[TokenIds, TokenIds]]) -> Iterator[list[float]]:
        """For each (source, target), yield the log-probabilities of the target tokens, in nats."""
        raise NotImplementedError


class Transformers(Adapter):
    """A model directory of transformers. `id_maps[side][i]` is the model's id of our token i (side 0: source)."""

    def __init__(self, directory: Path, id_maps: IdMaps) -> None:
        options = {
            "use_safetensors": any(directory.glob("model.safetensors*")),
            "weights_only": True,  # refuse pickles that could execute code
            "dtype": torch.float32,
            "output_loading_info": True,
            **OFFLINE,
        }
        self.model, report = import_package("transformers").AutoModelForSeq2SeqLM.from_pretrained(directory, **options)
        # Tensors that the files lack. Position embeddings are left out, because transformers can compute them.
        self.missing = [name for name in sorted(report["missing_keys"]) if "embed_positions" not in name]
        self.pad = id_maps[1][PAD]
        self.start = self.model.generation_config.decoder_start_token_id
        if self.start is None:
            self.start = self.model.config.decoder_start_token_id
        self.their_ids = [torch.tensor(ids) for ids in id_maps]
        self.our_ids = [ids.argsort() for ids in self.their_ids]

    def check_tokenizer(self, tokenizer: Tokenizer, sources: list[str], targets: list[str], allowed: int = 0) -> None:
        their_tokenizer = import_package("transformers").AutoTokenizer.from_pretrained(
            self.model.name_or_path, **OFFLINE
        )
        their_tokenizer.punc_normalizer = str  # turn off sacremoses, which changes punctuation (see card.md)
        their_targets = [their_tokenizer(text_target=line)["input_ids"] for line in targets]
        sides = zip(
            (their_tokenizer(sources)["input_ids"], their_targets),
            (tokenizer.encode(sources), tokenizer.target.encode(targets)),
            self.our_ids,
            strict=True,
        )
        different = sum(
            our_ids[theirs].tolist() != [*ours, EOS]
            for their_lines, our_lines, our_ids in sides
            for theirs, ours in zip(their_lines, our_lines, strict=True)
        )
        if different > allowed:
            lines = len(sources) + len(targets)
            raise DataError(f"MarianTokenizer splits {different} of {lines} lines differently from ours")

    def _pad(self, sentences: Sequence[TokenIds], side: int) -> torch.Tensor:
        rows = [self.their_ids[side][ids] for ids in sentences]
        return pad_sequence(rows, batch_first=True, padding_value=self.pad)

    @torch.inference_mode()
    def translate(self, sources: list[TokenIds], beam: int, limit: int) -> Iterator[TokenIds]:
        options = {"num_beams": beam, "length_penalty": 0.0, "early_stopping": False, "max_new_tokens": limit}
        for start in range(0, len(sources), BATCH):
            src = self._pad(sources[start : start + BATCH], 0)
            for row in self.model.generate(src, attention_mask=(src != self.pad).long(), **options):
                ids = [*self.our_ids[1][row[1:]].tolist(), EOS]
                yield ids[: ids.index(EOS) + 1]

    @torch.inference_mode()
    def score(self, pairs: list[tuple[TokenIds, TokenIds]]) -> Iterator[list[float]]:
        for start in range(0, len(pairs), BATCH):
            batch = pairs[start : start + BATCH]
            src = self._pad([ids for ids, _ in batch], 0)
            tgt = self._pad([[PAD, *ids] for _, ids in batch], 1)
            tgt[:, 0] = self.start
            mask = (src != self.pad).long()
            logits = self.model(input_ids=src, attention_mask=mask, decoder_input_ids=tgt[:, :-1]).logits
            gold = torch.log_softmax(logits, -1).gather(2, tgt[:, 1:, None])[:, :, 0]
            yield from (row[: len(ids)].tolist() for row, (_, ids) in zip(gold, batch, strict=True))


class CTranslate2(Adapter):
    """A model directory of CTranslate2, on the CPU.

    `names` lists the model's source and target tokens in the order of our ids. `check_tokenizer` compares the
    SentencePiece files `spm`, if any, with our tokenizer. If `ends_source` is true, pass sources with EOS. The
    `compute_type` "default" is the type of the stored weights. Translations begin with the token `prefix`, if any.
    """

    def __init__(
        self,
        directory: Path,
        names: Sequence[list[str]],
        spm: Sequence[bytes] = (),
        ends_source: bool = True,
        compute_type: str = "default",
        prefix: str = "",
    ) -> None:
        translator = import_package("ctranslate2").Translator
        try:
            self.translator: Any = translator(str(directory), compute_type=compute_type)
        except (RuntimeError, ValueError) as error:
            raise DataError(f"CTranslate2 cannot load {directory}: {printable(error, 150)}") from None
        self.names = names
        self.spm = spm
        self.ends_source = ends_source
        self.prefix = [prefix] if prefix else []
        self.ids = {name: i for i, name in enumerate(names[1])}

    def check_tokenizer(self, tokenizer: Tokenizer, sources: list[str], targets: list[str], allowed: int = 0) -> None:
        """See Adapter. Skip lines that begin with a language token, because SentencePiece files lack such tokens."""
        import sentencepiece

        different = 0
        for model, names, ours, lines in zip(
            self.spm, self.names, (tokenizer, tokenizer.target), (sources, targets), strict=False
        ):
            try:
                theirs = sentencepiece.SentencePieceProcessor(model_proto=model)
            except RuntimeError as error:
                raise DataError(f"SentencePiece cannot load the model's tokenizer: {printable(error, 150)}") from None
            ids = {name: i for i, name in enumerate(names)}
            for line, expected in zip(lines, ours.encode(lines), strict=True):
                if not ours.language(expected):
                    different += [ids.get(piece, UNK) for piece in theirs.encode(line, out_type=str)] != expected
        if different > allowed:
            count = len(sources) + len(targets)
            raise DataError(f"SentencePiece splits {different} of {count} lines differently from ours")

    def _tokens(self, sentences: Iterable[TokenIds], side: int) -> list[list[str]]:
        ends = self.ends_source and not side
        return [[self.names[side][i] for i in (ids if ends else ids[:-1])] for ids in sentences]

    def translate(self, sources: list[TokenIds], beam: int, limit: int) -> Iterator[TokenIds]:
        options = {"beam_size": beam, "length_penalty": 0.0, "max_decoding_length": limit, "max_batch_size": BATCH}
        inputs = self._tokens(sources, 0), [self.prefix] * len(sources)
        with self._errors():
            results = self.translator.translate_batch(*inputs, min_decoding_length=0, **options)
        for result in results:
            yield [*(self.ids[name] for name in result.hypotheses[0]), EOS]

    def score(self, pairs: list[tuple[TokenIds, TokenIds]]) -> Iterator[list[float]]:
        sides = self._tokens((src for src, _ in pairs), 0), self._tokens((tgt for _, tgt in pairs), 1)
        with self._errors():
            results = self.translator.score_batch(*sides, max_batch_size=BATCH)
        yield from (result.log_probs for result in results)

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (RuntimeError, ValueError) as error:
            raise DataError(f"CTranslate2 cannot run the model: {printable(error, 150)}") from None


class Marian(Adapter):
    """A model file that Marian runs (pip install pymarian).

    Marian gets .yml vocabularies and lines of tokens separated by spaces, so it does not tokenize. `check_tokenizer`
    checks nothing, because Marian's tokenizer would use the same SentencePiece files as ours.
    """

    beam = 1  # at larger sizes, Marian shrinks the beam after every finished hypothesis

    def __init__(self, model: Path, vocabularies: list[ForeignIds], norm: str, arrays: Any = None) -> None:
        """If `arrays` is given, Marian reads the weights and options in it instead of the file `model`."""
        self.difference = PRE_NORM if norm == "pre" else ""
        self.model = model.resolve()
        self.arrays = arrays
        self.vocabularies = vocabularies
        self.names = [[*side] for side in vocabularies]
        self.ids = [{name: i for i, name in enumerate(side)} for side in self.names]

    def translate(self, sources: list[TokenIds], beam: int, limit: int) -> Iterator[TokenIds]:
        factor = math.ceil(limit / min(map(len, sources)))
        options = ("--beam-size", beam, "--normalize", 0, "--max-length-factor", factor, "--allow-unk")
        for line in self._run("decode", [sources], "--quiet-translation", *options):
            yield [*(self.ids[1][name] for name in line.split()), EOS]

    def score(self, pairs: list[tuple[TokenIds, TokenIds]]) -> Iterator[list[float]]:
        sides = [[pair[side] for pair in pairs] for side in (0, 1)]
        for line in self._run("score", sides, "--word-scores"):
            yield [float(number) for number in line.rpartition("WordScores=")[2].split()]

    def _run(self, command: str, sides: Sequence[Iterable[TokenIds]], *options: object) -> list[str]:
        """Run a Marian command on sources, or on sources and targets. Return its lines of output."""
        with tempfile.TemporaryDirectory() as directory:
            vocabulary_files = [Path(directory) / f"{side}.yml" for side in ("source", "target")]
            text_files = [Path(directory) / side for side in ("source", "target")]
            for file, side in zip(vocabulary_files, self.vocabularies, strict=True):
                known = {name: i for name, i in side.items() if name != "<pad>" and not name.startswith(UNNAMED_PREFIX)}
                file.write_text(json.dumps(known), "utf-8")
            for file, sentences, names in zip(text_files, sides, self.names, strict=False):
                file.write_text("".join(f"{' '.join(names[i] for i in ids[:-1])}\n" for ids in sentences), "utf-8")
            inputs = ["--input", text_files[0]] if len(sides) == 1 else ["--train-sets", *text_files]
            file = self.model
            if self.arrays:
                file = Path(directory) / "model.npz"
                np.savez(file, **self.arrays)
            model = ["--models" if command == "decode" else "--model", file]
            arguments = [command, *model, *inputs, "--vocabs", *vocabulary_files, *MARIAN_OPTIONS, *options]
            line = [sys.executable, "-c", MARIAN, *map(str, arguments)]
            done = subprocess.run(line, capture_output=True, text=True)  # noqa: S603
        if done.returncode:
            raise DataError(f"Marian cannot {command} with {self.model}: {(done.stderr or done.stdout)[-300:].strip()}")
        return done.stdout.removesuffix("\n").split("\n")
