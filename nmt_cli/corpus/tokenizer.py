"""SentencePiece: one joint byte-pair model for both languages; bytes stand in for characters it has not seen.

An imported model may split target text by a model of its own, in `tokenizer.target.model`. Then its ids are those of
target text: the same, or of a separate vocabulary.
"""

import functools
import io
import itertools
import re
import unicodedata
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from nmt_cli.storage import artefact
from nmt_cli.system.errors import DataError, MissingError

PAD, UNK, EOS = 0, 1, 2
# Chinese and Japanese characters and punctuation, which stand without spaces: within [] of a regular expression.
WIDE = "\u3001-\u30ff\u31f0-\u31ff\u3400-\u9fff\uf900-\ufaff\uff01-\uff9f\U00020000-\U0003ffff"
LANGUAGE = re.compile("\u2581?(>>[^<>]+<<)")  # the token of the target language, at the beginning of a text
# Every character that some reader takes for the end of a line, and the other controls.
_BREAKS = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_WITHIN_WORD = re.compile(rf"[^\W{WIDE}]|<0x..>$|<unk>$")  # what a token begins with that goes on with a word
# Also lone surrogates: JSON can hold them, SentencePiece cannot. ZWJ, ZWNJ and soft hyphens stay: words need them.
_NOT_TEXT = re.compile("[\x00-\x1f\x7f-\xa0\u1680\u2000-\u200b\u2028\u2029\u202f\u205f\u3000\ufeff\ud800-\udfff]")
# Where a word may be cut, or must not be. Scripts without spaces between words part them by U+200B.
_UNSPACED = "\u0e00-\u0eff\u0f00-\u0fff\u1000-\u109f\u1780-\u17ff"
_UNSEEN = re.compile(rf"[\u00ad\u2060]|(?<![{_UNSPACED}])[\u200b\ufeff](?![{_UNSPACED}])")
MOST_MARKS = 30  # combining marks in a row; no language needs more (UAX 15, Stream-Safe Text Format)
_MAYBE_MARKS = re.compile(rf"[^\0-\u02ff\w\s]{{{MOST_MARKS + 1},}}")  # also symbols, punctuation


def _cut_marks(text: re.Match[str]) -> str:
    runs = itertools.groupby(text[0], lambda char: unicodedata.combining(char) > 0)
    return "".join("".join(itertools.islice(run, MOST_MARKS if marks else None)) for marks, run in runs)


def bound_marks(line: str) -> str:
    """Return a line without the combining marks beyond 30 in a row: the time of NFC is quadratic in their number."""
    sample = line[MOST_MARKS :: MOST_MARKS + 1]  # a longer run covers one of its characters
    if sample.isascii() or not any(map(unicodedata.combining, sample)):
        return line
    return _MAYBE_MARKS.sub(_cut_marks, line)


# Not allowed in a line that is copied: line ends, other controls but tabs, surrogates, byte order marks.
_NOT_WRITTEN = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029\ufeff\ud800-\udfff]")


def normalise(line: str) -> str:
    """Return a line as the model sees it: NFC, controls and separators as single spaces, stripped; idempotent.

    Combining marks beyond 30 in a row are left out, since the model knows no such text.
    """
    if not line.isascii():
        line = bound_marks(line)
        if not unicodedata.is_normalized("NFC", line):
            line = bound_marks(unicodedata.normalize("NFC", line))  # again: NFC splits some marks in two
    if not line.isprintable():  # false for all that _NOT_TEXT holds; true for most lines, and faster
        line = _NOT_TEXT.sub(" ", line)
    return " ".join(line.split())


def writable(line: str) -> str:
    """Return a line as written, with its spaces, tabs and composition: controls as spaces, stripped; idempotent."""
    return _NOT_WRITTEN.sub(" ", line).strip()


def has_letter(text: str) -> bool:
    """Return whether a character is a letter: Unicode category L, ideographs included, marks and numbers not."""
    return any(map(str.isalpha, text))


def visible(line: str) -> str:
    """Return a line without the soft hyphens and zero-width signs within its words: a model would know only half of the
    word."""
    return line if line.isprintable() else _UNSEEN.sub("", line)


def train(lines: Iterable[str], vocabulary_size: int, languages: Iterable[str] = (), tags: Iterable[str] = ()) -> bytes:
    """Train a joint BPE model and return its file; the same lines give the same bytes on any number of cores.

    `tags` become tokens where they stand at the beginning of a text.
    """
    import sentencepiece

    model, many_characters = io.BytesIO(), any(code.lower().startswith(("zh", "ja", "ko")) for code in languages)
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines),
            model_writer=model,
            vocab_size=vocabulary_size,
            model_type="bpe",
            byte_fallback=True,
            character_coverage=0.9995 if many_characters else 1.0,  # the rarest, of thousands, are spelled in bytes
            normalization_rule_name="identity",
            pad_id=PAD,
            unk_id=UNK,
            eos_id=EOS,
            bos_id=-1,
            user_defined_symbols=[f"\u2581{tag}" for tag in dict.fromkeys(tags)],
            num_threads=1,  # the number is stored in the model: another one gives another file
            max_sentence_length=65536,
            minloglevel=2,
        )
    except RuntimeError as error:
        if allowed := re.search(r"<= (\d+)", fix := str(error)):
            fix = f"this text allows at most {allowed[1]}. Lower corpus.tokenizer.vocabulary_size"
        elif "required_chars" in fix:
            fix = "it has more characters. Raise corpus.tokenizer.vocabulary_size, or name the language zh, ja or ko"
        raise DataError(f"cannot train a tokenizer of {vocabulary_size} tokens: {fix[:200]}") from None
    return model.getvalue()


def copy(file: Path, to: Path) -> None:
    """Copy a model's file, and that of target text where it has one."""
    for old, new in ((file, to), (target_file(file), target_file(to))):
        if old.is_file():
            artefact.replace_file(new, old.read_bytes())


def target_file(file: Path) -> Path:
    return file.with_suffix(".target.model")


def files_of(file: Path) -> list[Path]:
    """Return the files of a tokenizer: `file`, and that of target text where it has one."""
    return [file, *(each for each in [target_file(file)] if each.is_file())]


class Tokenizer:
    """A trained model, loaded; DataError if it is not one of this package (PAD 0, UNK 1, EOS 2, no BOS).

    Target text is encoded and decoded by `target`, which is this model itself where there is no other.
    """

    def __init__(self, file: Path) -> None:
        import sentencepiece

        if not file.is_file():
            raise MissingError(f"no tokenizer {file}")
        try:
            self._model: Any = sentencepiece.SentencePieceProcessor(model_proto=file.read_bytes() or b"empty")
        except RuntimeError as error:
            raise DataError(f"{file} is not a SentencePiece model: {str(error)[:100]}") from None
        ids = (self._model.pad_id(), self._model.unk_id(), self._model.eos_id(), self._model.bos_id())
        if ids != (PAD, UNK, EOS, -1):
            raise DataError(f"{file} has pad, unk, eos, bos = {ids}; nmt prepare makes models with (0, 1, 2, -1)")
        self.vocabulary_size = int(self._model.get_piece_size())
        self.target = Tokenizer(target_file(file)) if target_file(file).is_file() else self

    def encode(self, lines: list[str]) -> list[list[int]]:
        """Return the token ids of every normalised line, without EOS."""
        return [self._model.encode(line) for line in lines]  # a list's call starts threads: 2 ms beside our allocator

    def encode_pair(self, src: str, tgt: str) -> list[list[int]]:
        """Return the token ids of two lines, which need not be normalised, closed by EOS."""
        return [[*side.encode([normalise(text)])[0], EOS] for side, text in ((self, src), (self.target, tgt))]

    def language(self, ids: list[int]) -> list[int]:
        """Return the target-language token (`>>deu<<`) that a source begins with; [] if it begins with none."""
        return ids[:1] if ids and LANGUAGE.fullmatch(self._model.id_to_piece(ids[0])) else []

    def encode_arrays(self, lines: list[str]) -> list[Any]:
        return self._model.encode(lines, out_type="numpy", num_threads=1)  # type: ignore[no-any-return]

    def decode(self, ids: list[list[int]]) -> list[str]:
        """Return one line of text for every list of ids; tokens that spell a line break become spaces."""
        return [_BREAKS.sub(" ", self._model.decode(line)) for line in ids]

    def tokens(self, ids: list[int]) -> list[str]:
        return [self._model.id_to_piece(i) for i in ids]

    @functools.cached_property
    def begins(self) -> bytes:
        """A byte for each token: 1 where a word cannot go on with it, so that one before it has ended, as by EOS."""
        tokens = self.tokens(list(range(self.vocabulary_size)))
        return bytes(not _WITHIN_WORD.match(token) for token in tokens)
