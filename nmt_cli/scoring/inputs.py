"""What `score` is asked and what it reads: options, UTF-8 lines, a prepared corpus's references."""

import sys
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from nmt_cli import artefact
from nmt_cli.errors import DataError, MissingError, UsageError, from_os_error, printable

# Options' names, and how their results are called.
METRICS = {
    "bleu": "BLEU",
    "chrf": "chrF2",
    "ter": "TER",
    "paper-bleu": "paper-BLEU",
    "paper-bleu-quotes": "paper-BLEU-quotes",
    "brackets": "bracket F1",
}
TOKENIZERS = ("13a", "intl", "char", "zh", "none")
FORMATS = ("text", "markdown", "json")


@dataclass(frozen=True)
class ScoreOptions:
    """What `nmt score` was asked. References come from files, from a named test set or from a prepared corpus."""

    hypothesis: Path | None = None  # None or "-": standard input
    references: tuple[Path, ...] = ()
    source: Path | None = None
    test_set: str | None = None  # sacreBLEU's name, such as wmt14/full
    language_pair: str | None = None  # such as en-de
    corpus: Path | None = None
    split: str = "test"
    language: str | None = None  # of the hypotheses; default: the corpus's or the language pair's
    metrics: tuple[str, ...] = ()  # empty: bleu, chrf, paper-bleu for the paper's target languages; brackets for trees
    tokenize: str = "13a"
    lowercase: bool = False
    baseline: Path | None = None
    fail_under: float | None = None
    fail_if_worse: bool = False
    details: bool = False
    segments: Path | None = None
    format: str = "text"

    def check(self) -> None:
        """Refuse options that are wrong alone or together, before anything is read.

        Raises:
            UsageError: naming the option.
        """
        if sum((bool(self.references), self.test_set is not None, self.corpus is not None)) != 1:
            raise UsageError("give the references in one way: --reference FILE, --test-set NAME or --corpus DIRECTORY")
        chosen = [("--format", self.format, FORMATS), ("--tokenize", self.tokenize, TOKENIZERS)]
        chosen += [("--metric", metric, tuple(METRICS)) for metric in self.metrics]
        for option, value, allowed in chosen:
            if value not in allowed:
                raise UsageError(f"{option} must be one of {', '.join(allowed)}, not {printable(value, 40)!r}")
        if self.fail_under is not None and not 0 <= self.fail_under <= 100:
            raise UsageError(f"--fail-under must be between 0 and 100, not {self.fail_under}")
        if self.fail_under is not None and self.metrics[:1] == ("ter",):
            raise UsageError("--fail-under needs a first --metric of which more is better; TER is an error rate")
        if "brackets" in self.metrics and (self.baseline or len(self.references) > 1):
            raise UsageError("--metric brackets takes one --reference and no --baseline: it has no significance test")
        if self.fail_if_worse and self.baseline is None:
            raise UsageError("--fail-if-worse needs --baseline FILE, the hypotheses to compare with")


@dataclass(frozen=True)
class Text:
    """The lines of one input, and the SHA-256 of its bytes."""

    name: str
    lines: list[str]
    sha256: str

    def facts(self) -> dict[str, Any]:
        """Return what a report says of it."""
        return {"name": self.name, "lines": len(self.lines), "sha256": self.sha256}


def split_lines(data: bytes, name: str) -> Text:
    """Split UTF-8 bytes on line feeds only.

    Raises:
        DataError: the bytes are not UTF-8; names the line.
    """
    try:
        lines = data.decode().split("\n")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise DataError(f"{name}, line {line:,} is not UTF-8. Convert it, for example with iconv") from None
    return Text(name, lines[:-1] if lines[-1] == "" else lines, sha256(data).hexdigest())


def read(path: Path | None) -> Text:
    """Read a file; standard input for None or "-"."""
    try:
        if path is not None and str(path) != "-":
            return split_lines(path.read_bytes(), printable(path, 120))
        if sys.stdin is None:
            raise MissingError("standard input is closed. Name a file of hypotheses")
        return split_lines(sys.stdin.buffer.read(), "standard input")
    except OSError as error:
        raise from_os_error(error) from None


def read_corpus(directory: Path, split: str) -> tuple[Text, Text, str]:
    """Return the source and target text of a prepared corpus's split, and its target language.

    Raises:
        MissingError: there is no such corpus or split.
        DataError: it is damaged.
    """
    if not artefact.present(directory):
        raise MissingError(f"no prepared corpus in {directory}. Run: nmt prepare {directory.name}")
    manifest = artefact.verify(directory, "corpus", content=False)
    texts = []
    for name in (f"{split}.src", f"{split}.tgt"):
        if name not in manifest["files"]:
            raise MissingError(f"{directory} has no {name}. Choose another --split, or prepare the corpus with one")
        texts.append(read(directory / name))
        if texts[-1].sha256 != manifest["files"][name]["sha256"]:
            raise DataError(f"{directory / name} is damaged: it is not what was prepared. Run nmt prepare again")
    return texts[0], texts[1], str(manifest["tgt"])
