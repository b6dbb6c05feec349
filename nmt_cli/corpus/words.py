"""Count the words of the source text. Translation corrects typos with these counts (nmt_cli/translation/spelling.py).

The counts are in a file beside the tokenizer: a line for each word, `word<TAB>count`, most frequent first. Words are in
lowercase. Scripts without letter case are left out, because many of them do not separate words, or leave out vowels.
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
WORD = re.compile(r"[^\W\d_]+")
MAX_LETTERS = 40  # longer strings are not words
MOST_WORDS = 200_000  # words in a file, so that reading it takes less than 0.1 s


def count(lines: Iterable[str], language: str) -> Counter[str]:
    """Count the words of normalized lines. Language and tag tokens at the beginning of a line are not counted."""
    found = Counter[str]()
    for line in lines:
        found.update(WORD.findall(without_first_tokens(line)))
    counts = Counter[str]()
    for word, number in found.items():
        small = letter_case.lower(word, language)
        if small.islower() and len(small) <= MAX_LETTERS:
            counts[small] += number
    return counts


def to_bytes(counts: Counter[str]) -> bytes:
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return "".join(f"{word}\t{number}\n" for word, number in ordered[:MOST_WORDS]).encode()


def beside(tokenizer_file: Path) -> Path:
    """Return the path of the words for a tokenizer. The file may not exist."""
    return tokenizer_file.with_name(FILE)


def copy(tokenizer_file: Path, to: Path) -> None:
    """Put the words for a tokenizer beside another file of this tokenizer, or remove them there if there are none."""
    if beside(tokenizer_file).is_file():
        artefact.replace_file(beside(to), beside(tokenizer_file).read_bytes())
    else:
        beside(to).unlink(missing_ok=True)


def read(file: Path) -> Counter[str]:
    """Read a file of words. Raises DataError if it is damaged."""
    try:
        rows = (line.split("\t") for line in file.read_text("utf-8").splitlines())
        return Counter({word: int(number) for word, number in rows})
    except ValueError as error:  # also wrong UTF-8
        raise DataError(f"{file} is damaged: each line must have a word, a tab and a number ({error})") from None
