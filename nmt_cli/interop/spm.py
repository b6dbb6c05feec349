"""SentencePiece models with their tokens in another order: Marian's ids are those of vocab.json, not of the model.

The file is a protocol buffer message. Its field 1 repeats a token (1 text, 3 type), field 2 tells how it was trained
(3 algorithm). sentencepiece has a reader of its own, but that needs protobuf, which nothing here installs.
"""

from collections.abc import Iterator

SPECIAL = {"<pad>": 3, "<unk>": 2, "</s>": 3}  # our first three tokens and their types
NORMAL, UNUSED = 1, 5
UNIGRAM = 1


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while data[at] & 128:
        value |= (data[at] & 127) << shift
        at, shift = at + 1, shift + 7
    return value | data[at] << shift, at + 1


def _fields(data: bytes) -> Iterator[tuple[int, int, bytes, bytes]]:
    """Yield every field of a message: its number, its value as an integer and as bytes, and the whole field."""
    at = 0
    while at < len(data):
        start = at
        key, at = _varint(data, at)
        number, size = 0, {1: 8, 5: 4}.get(key & 7)
        if size is None:
            number, at = _varint(data, at)
            size = number if key & 7 == 2 else 0
        if at + size > len(data):
            raise IndexError("a field is cut short")
        yield key >> 3, number, data[at : at + size], data[start : at + size]
        at += size


def _field(content: bytes) -> bytes:
    """Return a field 1. (Two bytes for its length: a varint may be longer than it must.)"""
    return bytes([1 << 3 | 2, len(content) & 127 | 128, len(content) >> 7]) + content


def tokens(model: bytes) -> dict[str, tuple[bytes, int]]:
    """Return every token's message and type by its text; IndexError, KeyError or ValueError if `model` is none."""
    result = {}
    for number, _, token, _ in _fields(model):
        if number == 1:
            values = {n: (integer, content) for n, integer, content, _ in _fields(token)}
            result[values[1][1].decode()] = token, values.get(3, (NORMAL, b""))[0]
    return result


def is_unigram(model: bytes) -> bool:
    """Whether the model splits text into the likeliest tokens, rather than by merging pairs."""
    training = b"".join(content for number, _, content, _ in _fields(model) if number == 2)
    return all(algorithm == UNIGRAM for number, algorithm, _, _ in _fields(training) if number == 3)


def renumbered(model: bytes, order: list[str]) -> bytes:
    """Return a model that splits text as `model` does with the ids of `order`; further tokens can be decoded only."""
    present, result = tokens(model), b""
    if list(present) == order:
        return model
    for text in order:
        token, kind = present.get(text, (_field(text.encode()), UNUSED))
        kind = SPECIAL.get(text, UNUSED if kind in SPECIAL.values() else kind)
        result += _field(token + bytes([3 << 3, kind]))  # of two types in a message the last one counts
    return result + b"".join(whole for number, _, _, whole in _fields(model) if number != 1)
