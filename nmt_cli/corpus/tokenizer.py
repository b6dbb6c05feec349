"""Normalize text, and train and apply SentencePiece tokenizers.

Imported models may have a separate SentencePiece model with another vocabulary for target text, in
`tokenizer.target.model`. Instead of SentencePiece models, they may have the Moses tokenizers of `moses_bpe.py`.
"""

import functools
import io
import itertools
import re
import unicodedata
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from nmt_cli.corpus.moses_bpe import MOST_FIRST, MosesBpe, is_moses_file
from nmt_cli.storage import artefact
from nmt_cli.system.errors import DataError, MissingError

PAD, UNK, EOS = 0, 1, 2
# Chinese and Japanese characters and punctuation, for use within [] of a regular expression.
WIDE = "\u3001-\u30ff\u31f0-\u31ff\u3400-\u9fff\uf900-\ufaff\uff01-\uff9f\U00020000-\U0003ffff"
LANGUAGE = re.compile("\u2581?(>>[^<>]+<<)")  # matches a target-language or tag token
FIRST_TOKENS = re.compile(rf"(?:>>[^<>]+<< ?){{1,{MOST_FIRST}}}")  # matches all such tokens that begin a line
# All control characters, and all characters that some software treats as line ends.
_BREAKS = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_WITHIN_WORD = re.compile(rf"[^\W{WIDE}]|<0x..>$|<unk>$")  # matches tokens that may continue a word
# Control characters, spaces, byte order marks, and lone surrogates. SentencePiece does not accept lone surrogates. ZWJ,
# ZWNJ and soft hyphens are not included, because they may be part of a word.
_NOT_TEXT = re.compile("[\x00-\x1f\x7f-\xa0\u1680\u2000-\u200b\u2028\u2029\u202f\u205f\u3000\ufeff\ud800-\udfff]")
# Scripts without spaces between words. `visible` keeps U+200B in these scripts, because it separates words.
_UNSPACED = "\u0e00-\u0eff\u0f00-\u0fff\u1000-\u109f\u1780-\u17ff"
# Invisible characters that allow or forbid a line break. U+200B and U+FEFF beside _UNSPACED characters do not match.
_UNSEEN = re.compile(rf"[\u00ad\u2060]|(?<![{_UNSPACED}])[\u200b\ufeff](?![{_UNSPACED}])")
MOST_TRAINED_BYTES = 1 << 16  # longer lines are not used to train a tokenizer
MOST_MARKS = 30  # maximum combining marks in a row; no language uses more (UAX 15, Stream-Safe Text Format)
_MAYBE_MARKS = re.compile(rf"[^\0-\u02ff\w\s]{{{MOST_MARKS + 1},}}")  # also matches runs of other symbols


def first_tokens(pieces: Sequence[str]) -> int:
    """Return the number of target-language and tag tokens at the beginning of a source."""
    return sum(1 for _ in itertools.takewhile(LANGUAGE.fullmatch, pieces[:MOST_FIRST]))


def without_first_tokens(line: str) -> str:
    """Remove target-language and tag tokens from the beginning of a source line."""
    found = FIRST_TOKENS.match(line)
    return line[found.end() :] if found else line


def _cut_marks(text: re.Match[str]) -> str:
    runs = itertools.groupby(text[0], lambda char: unicodedata.combining(char) > 0)
    return "".join("".join(itertools.islice(run, MOST_MARKS if marks else None)) for marks, run in runs)


def bound_marks(line: str) -> str:
    """Keep at most 30 combining marks in a row. NFC takes quadratic time in the number of marks in a row."""
    sample = line[MOST_MARKS :: MOST_MARKS + 1]  # every run of more than MOST_MARKS contains one of these characters
    if sample.isascii() or not any(map(unicodedata.combining, sample)):
        return line
    return _MAYBE_MARKS.sub(_cut_marks, line)


# Not allowed in a line that is copied untranslated: line ends, control characters except tabs, surrogates, BOMs.
_NOT_WRITTEN = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029\ufeff\ud800-\udfff]")


def normalize(line: str) -> str:
    """Normalize a line for the model. This function is idempotent.

    The result is in NFC and stripped. Each run of control characters and separators becomes one space. At most 30
    combining marks in a row remain.
    """
    if not line.isascii():
        line = bound_marks(line)
        if not unicodedata.is_normalized("NFC", line):
            line = bound_marks(unicodedata.normalize("NFC", line))  # again, because NFC splits some marks in two
    if not line.isprintable():  # a fast test that most lines pass; _NOT_TEXT characters are not printable
        line = _NOT_TEXT.sub(" ", line)
    return " ".join(line.split())


def writable(line: str) -> str:
    """Strip a line, and replace control characters other than tabs with spaces. This function is idempotent."""
    return _NOT_WRITTEN.sub(" ", line).strip()


def has_letter(text: str) -> bool:
    """Return whether `text` contains a letter (Unicode category L), such as an ideograph. Marks are not letters."""
    return any(map(str.isalpha, text))


def visible(line: str) -> str:
    """Remove soft hyphens and zero-width characters, because the tokenizer would split words at them."""
    return line if line.isprintable() else _UNSEEN.sub("", line)


def train(lines: Iterable[str], vocabulary_size: int, languages: Iterable[str] = (), tags: Iterable[str] = ()) -> bytes:
    """Train a joint byte-pair model, and return the content of its file.

    The same lines give the same bytes on any number of cores. Each of `tags` becomes a single token at the beginning of
    a line. If `languages` has a code for Chinese, Japanese or Korean, the rarest characters become byte tokens. Raises
    DataError if training fails, for example because the text does not allow this vocabulary size.
    """
    import sentencepiece

    model = io.BytesIO()
    many_characters = any(code.lower().startswith(("zh", "ja", "ko")) for code in languages)
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines),
            model_writer=model,
            vocab_size=vocabulary_size,
            model_type="bpe",
            byte_fallback=True,
            character_coverage=0.9995 if many_characters else 1.0,  # the rarest characters fall back to bytes
            normalization_rule_name="identity",
            pad_id=PAD,
            unk_id=UNK,
            eos_id=EOS,
            bos_id=-1,
            user_defined_symbols=[f"\u2581{tag}" for tag in dict.fromkeys(tags)],
            num_threads=1,  # stored in the model, so another number changes its bytes
            max_sentence_length=MOST_TRAINED_BYTES,
            minloglevel=2,
        )
    except RuntimeError as error:
        reason = str(error)
        if allowed := re.search(r"<= (\d+)", reason):
            reason = f"this text allows at most {allowed[1]}. Lower corpus.tokenizer.vocabulary_size"
        elif "required_chars" in reason:
            advice = "Raise corpus.tokenizer.vocabulary_size. For Chinese, Japanese or Korean, use code zh, ja or ko"
            reason = f"the text has more distinct characters than that. {advice}"
        elif "sentences_.empty()" in reason:
            reason = f"the text has no line of at most {MOST_TRAINED_BYTES:,} bytes"
        else:
            reason = re.sub(r"^\w+: \S+\(\d+\) \[.*?\] ?", "", reason) or "SentencePiece rejects the text"
        raise DataError(f"cannot train a tokenizer of {vocabulary_size} tokens: {reason[:200]}") from None
    return model.getvalue()


def copy(file: Path, to: Path) -> None:
    """Copy a tokenizer file and, if there is one, the tokenizer for target text."""
    for old, new in ((file, to), (target_file(file), target_file(to))):
        if old.is_file():
            artefact.replace_file(new, old.read_bytes())


def target_file(file: Path) -> Path:
    """Return the path of the tokenizer for target text. The file may not exist."""
    return file.with_suffix(".target.model")


def files_of(file: Path) -> list[Path]:
    """Return the files of a tokenizer: `file` and, if there is one, the tokenizer for target text."""
    return [file, *(each for each in [target_file(file)] if each.is_file())]


def _sentencepiece(file: Path, data: bytes) -> Any:
    import sentencepiece

    try:
        # SentencePieceProcessor accepts b"" and loads nothing, so replace it with data that raises an error.
        model = sentencepiece.SentencePieceProcessor(model_proto=data or b"empty")
    except RuntimeError as error:
        raise DataError(f"{file} is not a SentencePiece model: {str(error)[:100]}") from None
    ids = (model.pad_id(), model.unk_id(), model.eos_id(), model.bos_id())
    if ids != (PAD, UNK, EOS, -1):
        raise DataError(f"{file} has the ids {ids} for pad, unk, eos and bos, but nmt requires (0, 1, 2, -1)")
    return model


class Tokenizer:
    """A SentencePiece or Moses tokenizer, loaded from a file. `target` is the tokenizer for target text, often itself.

    The ids of the special tokens must be 0 for PAD, 1 for UNK and 2 for EOS, without BOS. Raises DataError otherwise,
    and MissingError if the file does not exist.
    """

    def __init__(self, file: Path) -> None:
        if not file.is_file():
            raise MissingError(f"the tokenizer {file} does not exist. Check the path")
        data = file.read_bytes()
        self.moses = MosesBpe(file) if is_moses_file(data) else None
        self._model: Any = self.moses or _sentencepiece(file, data)
        self.vocabulary_size = int(self._model.get_piece_size())
        self.target = Tokenizer(target_file(file)) if target_file(file).is_file() else self

    def encode(self, lines: list[str]) -> list[list[int]]:
        """Return the token ids of normalized lines, without EOS."""
        return [self._model.encode(line) for line in lines]  # a call with a list starts threads, which takes 2 ms

    def encode_pair(self, src: str, tgt: str) -> list[list[int]]:
        """Return the token ids of a source line and a target line, with EOS. Normalizes the lines first."""
        return [[*side.encode([normalize(text)])[0], EOS] for side, text in ((self, src), (self.target, tgt))]

    def language(self, ids: list[int]) -> list[int]:
        """Return the ids of the target-language and tag tokens (`>>deu<< >>tm<<`) at the beginning of a source."""
        return ids[: first_tokens(self.tokens(ids[:MOST_FIRST]))]

    def encode_arrays(self, lines: list[str]) -> list[Any]:
        """Return an int32 array of token ids for each normalized line, without EOS."""
        if self.moses:
            import numpy as np

            return [np.array(ids, np.int32) for ids in self.encode(lines)]
        return self._model.encode(lines, out_type="numpy", num_threads=1)  # type: ignore[no-any-return]

    def decode(self, ids: list[list[int]]) -> list[str]:
        """Return one line of text for each list of ids. Control characters and line breaks become spaces."""
        return [_BREAKS.sub(" ", self._model.decode(line)) for line in ids]

    def tokens(self, ids: list[int]) -> list[str]:
        """Return the text of each token. ▁ stands for a space."""
        return self.moses.spell(ids) if self.moses else [self._model.id_to_piece(i) for i in ids]

    @functools.cached_property
    def vocabulary(self) -> list[str]:
        """The name of each token."""
        return [self._model.id_to_piece(i) for i in range(self.vocabulary_size)]

    def score(self, token: int) -> float:
        """Return the score of a token. In byte-pair models, merges that were learned earlier have higher scores."""
        if self.moses:
            raise DataError("corpus.augment.bpe_dropout requires a SentencePiece model, not a Moses tokenizer")
        return float(self._model.get_score(token))

    def prefix(self, token: str) -> list[int]:
        """Return [id] for a token, or [] for "". Raises DataError if the token is not in the vocabulary."""
        ids = [self._model.piece_to_id(token)] if token else []
        if ids == [UNK]:
            raise DataError(f"the vocabulary lacks the token {token[:40]!r} of decoding.target_prefix")
        return ids

    @functools.cached_property
    def begins(self) -> bytes:
        """One byte per token: 0 if it may continue the word before it, 1 if that word is complete, as before EOS.

        In Moses models, all bytes are 1: a word is complete after its last token, the one without @@.
        """
        if self.moses:
            return b"\1" * self.vocabulary_size
        return bytes(not _WITHIN_WORD.match(token) for token in self.vocabulary)
