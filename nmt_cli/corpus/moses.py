"""Normalize and tokenize text by the rules of Moses, and lower-case it, as older publications did.

Unlike Moses, this module does not escape special characters as entities.
"""

from collections.abc import Callable, Iterable, Iterator

from nmt_cli.corpus.readers import Chunk
from nmt_cli.system.errors import UsageError

Line = bytes | None


def converter(language: str) -> Callable[[Line], Line]:
    """Return a function that normalizes, tokenizes and lower-cases a line in this language.

    None and lines that are not UTF-8 are returned unchanged. Raises UsageError if sacremoses is not installed.
    """
    try:
        from sacremoses import MosesPunctNormalizer, MosesTokenizer
    except ImportError:
        raise UsageError('corpus.moses needs sacremoses. Install it: pip install "nmt-cli[moses]"') from None
    normalizer, tokenizer = MosesPunctNormalizer(lang=language), MosesTokenizer(lang=language)

    def convert(line: Line) -> Line:
        try:
            text = (line or b"").decode("utf-8-sig")
        except UnicodeDecodeError:
            return line  # cleaning drops such lines
        tokens: str = tokenizer.tokenize(normalizer.normalize(text), return_str=True, escape=False)
        return None if line is None else tokens.lower().encode()

    return convert


def convert(chunks: Iterable[Chunk], src: str, tgt: str) -> Iterator[Chunk]:
    """Yield the same pairs with each side converted by the rules of its language."""
    sides = converter(src), converter(tgt)
    for chunk in chunks:
        yield Chunk([sides[0](line) for line in chunk.src], [sides[1](line) for line in chunk.tgt], chunk.repetition)
