"""Merges in subword-nmt's format, and tokenizer files for Moses tokens with a small vocabulary."""

from pathlib import Path

from nmt_cli.corpus import moses_bpe

MERGES = [
    *("t h", "th e</w>", "c a", "ca t</w>", "o l", "ol d</w>", "d o", "do g</w>", "s e", "se e", "see s</w>"),
    *("& a", "&a p", "&ap o", "&apo s", "&apos ;", "&apos; s</w>"),
]
CODES = "#version: 0.2\n" + "".join(f"{merge}\n" for merge in MERGES)
NAMES = [
    *("the", "cat", "old", "dog", "sees", "&apos;s", ".", ",", "a", "s", "d", "t", "e", "g", "h", "o"),
    *(f"{part}@@" for part in ("th", "ca", "ol", "do", "se", "see", "a", "c", "d", "e", "g", "h", "l", "o", "s", "t")),
]
SPECIAL = ["<pad>", "<unk>", "</s>"]


def write_tokenizer(file: Path, languages: tuple[str, str], size: int = len(SPECIAL + NAMES)) -> Path:
    """Write the tokenizer files of source and target, which share a vocabulary of `size` tokens."""
    more = [f"extra{number}" for number in range(size - len(SPECIAL + NAMES))]
    for path, language in zip((file, file.with_suffix(".target.model")), languages, strict=True):
        path.write_bytes(moses_bpe.to_bytes(language, CODES, [*SPECIAL, *NAMES, *more]))
    return file
