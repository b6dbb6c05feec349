"""Text as older published figures have it: normalised and tokenised as by Moses, lower-cased; entities stay as is."""

from collections.abc import Callable, Iterable, Iterator

from nmt_cli.corpus.readers import Chunk
from nmt_cli.system.errors import UsageError

Line = bytes | None


def converter(language: str) -> Callable[[Line], Line]:
    """Return what normalises, tokenises and lower-cases a line by the rules of its language."""
    try:
        from sacremoses import MosesPunctNormalizer, MosesTokenizer
    except ImportError:
        raise UsageError('corpus.moses needs sacremoses. Install it: pip install "nmt-cli[moses]"') from None
    normaliser, tokeniser = MosesPunctNormalizer(lang=language), MosesTokenizer(lang=language)

    def convert(line: Line) -> Line:
        try:
            text = (line or b"").decode("utf-8-sig")
        except UnicodeDecodeError:
            return line  # cleaning drops it
        tokens: str = tokeniser.tokenize(normaliser.normalize(text), return_str=True, escape=False)
        return None if line is None else tokens.lower().encode()

    return convert


def convert(chunks: Iterable[Chunk], src: str, tgt: str) -> Iterator[Chunk]:
    """Yield the same pairs, normalised, tokenised and lower-cased by the rules of their languages."""
    sides = converter(src), converter(tgt)
    for chunk in chunks:
        yield Chunk([sides[0](line) for line in chunk.src], [sides[1](line) for line in chunk.tgt], chunk.repetition)
