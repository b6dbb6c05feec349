"""Count the words of the source text. nmt_cli/translation/spelling.py corrects typos with these counts.

The counts are in a file beside the tokenizer: a line `word<TAB>count` for each word, most frequent first. Words are in
lower case. Words in scripts without letter case are not counted, because many of these scripts omit vowels or spaces
between words.
"""

import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from nmt_cli.corpus import letter_case
from nmt_cli.corpus.tokenizer import without_first_tokens
from nmt_cli.storage import artefact
from nmt_cli.system.errors import DataError

FILE = "tokenizer.words"
APOSTROPHES = "'\u2019"
MAX_LETTERS = 40  # longer strings are not words
MOST_WORDS = 200_000  # maximum words in a file, so that reading it takes less than 0.1 s
_WORD = re.compile(rf"[^\W\d_]+(?:[{APOSTROPHES}][^\W\d_]+)*")
_LINE = re.compile(r"([^\s\d_]+)\t([1-9][0-9]{0,17})")


def count(lines: Iterable[str], language: str) -> Counter[str]:
    """Count the words of normalized lines, in lower case. Ignore language and tag tokens at the beginning of a line.

    A word with an apostrophe also counts as its parts. For example, "don't" counts as "don't", "don" and "t".
    """
    found = Counter[str]()
    for line in lines:
        found.update(_WORD.findall(without_first_tokens(line)))
    counts = Counter[str]()
    for word, number in found.items():
        small = letter_case.lower(word, language).replace("\u2019", "'")
        parts = small.split("'")
        for each in {small, *parts}:
            if len(each) <= MAX_LETTERS and is_word(each.replace("'", "")):
                counts[each] += number
    return counts


def is_word(text: str) -> bool:
    """Return whether `text` consists of lowercase letters. Scripts without case have no lowercase letters."""
    return text.isalpha() and all(map(str.islower, text))


def to_bytes(counts: Counter[str]) -> bytes:
    """Return the content of a file with the MOST_WORDS most frequent words."""
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return "".join(f"{word}\t{number}\n" for word, number in ordered[:MOST_WORDS]).encode()


def beside(tokenizer_file: Path) -> Path:
    """Return the path of the word counts for a tokenizer. The file may not exist."""
    return tokenizer_file.with_name(FILE)


def copy(tokenizer_file: Path, to: Path) -> None:
    """Copy the word counts of a tokenizer into the directory of `to`. If there are none, remove the counts there."""
    if beside(tokenizer_file).is_file():
        artefact.replace_file(beside(to), beside(tokenizer_file).read_bytes())
    else:
        beside(to).unlink(missing_ok=True)


def read(file: Path) -> Counter[str]:
    """Return the counts in a file that `to_bytes` made. Raises DataError if it is damaged."""
    counts = Counter[str]()
    try:
        lines = file.read_text("utf-8").split("\n")
    except UnicodeDecodeError:
        raise DataError(f"{file} is damaged: it is not UTF-8") from None
    for number, line in enumerate(lines[:-1], 1):
        if not (found := _LINE.fullmatch(line)):
            raise DataError(f"{file}, line {number:,} is damaged: it must have a word, a tab and a number")
        counts[found[1]] = int(found[2])
    if lines[-1]:
        raise DataError(f"{file} is damaged: its last line is incomplete")
    return counts
