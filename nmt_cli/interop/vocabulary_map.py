"""Read CTranslate2's vocabulary maps (vmap.txt) as shortlists.

Each line contains a source n-gram, a tab and target tokens, separated by spaces. A translation of the n-gram may need
these tokens. If the n-gram is empty, every translation may need them.
"""

from pathlib import Path

from nmt_cli.corpus.readers import split_lines
from nmt_cli.corpus.tokenizer import EOS, UNK, Tokenizer
from nmt_cli.storage import artefact
from nmt_cli.system.console import say
from nmt_cli.system.errors import DataError, MissingError
from nmt_cli.transformer.directory import open_model
from nmt_cli.translation.shortlist import FILE, Shortlist

VMAP = "vmap.txt"
MAX_BYTES = 1 << 28


def read_vocabulary_map(file: Path, tokenizer: Tokenizer) -> Shortlist:
    """Return a shortlist for a model with this tokenizer.

    The shortlist assigns the target tokens of an n-gram to the first token of the n-gram, so it allows every token that
    CTranslate2 allows. Tokens that the tokenizer lacks are left out. Raises DataError if no token is left, if the
    file is too large, or if a line has no tab.
    """
    if file.stat().st_size > MAX_BYTES:
        raise DataError(f"{file} is too large for a vocabulary map: {MAX_BYTES:,} bytes at most")
    sides = [side.vocabulary for side in (tokenizer, tokenizer.target)]
    source_ids, target_ids = ({name: number for number, name in enumerate(side) if number} for side in sides)
    frequent, lists = {EOS, UNK}, [set[int]() for _ in range(tokenizer.vocabulary_size)]
    for number, line in enumerate(split_lines(file.read_bytes(), str(file)), 1):
        ngram, tab, names = line.partition("\t")
        if not tab:
            raise DataError(f"{file}, line {number:,} has no tab: it is not a vocabulary map of CTranslate2")
        targets = {target_ids[name] for name in names.split(" ") if name in target_ids}
        first = ngram.split(" ")[0]
        if not ngram:
            frequent |= targets
        elif first in source_ids:
            lists[source_ids[first]] |= targets
    if not any(lists) and frequent == {EOS, UNK}:
        raise DataError(f"{file} has no token of this model")
    ends, flat = list[int](), list[int]()
    for each in lists:
        flat += sorted(each)
        ends.append(len(flat))
    return Shortlist(sorted(frequent), ends, flat)


def import_vocabulary_map(model: Path, file: Path) -> int:
    """Convert a vocabulary map to a shortlist in a model directory. Returns the exit code."""
    opened = open_model(model)
    if not file.is_file():
        raise MissingError(f"no file {file}")
    found = read_vocabulary_map(file, opened.tokenizer)
    artefact.replace_file(opened.directory / FILE, found.to_bytes(opened.tokenizer_file))
    say(f"{opened.directory / FILE}: {len(found.frequent):,} frequent tokens, {len(found.targets):,} listed tokens")
    return 0
