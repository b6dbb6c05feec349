"""SentencePiece models with their tokens in another order: Marian's ids are those of vocab.json, not of the model.

The file is a protocol buffer message. Its field 1 repeats a token (1 text, 2 score, 3 type), field 2 tells how it was
trained (3 algorithm). sentencepiece has a reader of its own, but that needs protobuf, which nothing here installs.
"""

from collections.abc import Iterator

SPECIAL = ["<pad>", "<unk>", "</s>"]  # our first three tokens
NORMAL, UNKNOWN, CONTROL, UNUSED = 1, 2, 3, 5
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
        start, integer = at, 0
        key, at = _varint(data, at)
        size = {1: 8, 5: 4}.get(key & 7)
        if size is None:
            integer, at = _varint(data, at)
            size = integer if key & 7 == 2 else 0
        if at + size > len(data):
            raise IndexError("a field is cut short")
        yield key >> 3, integer, data[at : at + size], data[start : at + size]
        at += size


def _token_field(token: bytes) -> bytes:
    length, rest = b"", len(token)
    while rest > 127:
        length, rest = length + bytes([rest & 127 | 128]), rest >> 7
    return b"\x0a" + length + bytes([rest]) + token


def tokens(model: bytes) -> dict[str, tuple[bytes, int]]:
    """Return every token's message and type by its text, in the order of the ids.

    Raises:
        IndexError, KeyError, UnicodeDecodeError: it is no SentencePiece model.
    """
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
    """Return a model that splits text as `model` does and numbers tokens as `order`, which begins with SPECIAL.

    Tokens that `model` does not have can be decoded only.
    """
    present, result = tokens(model), b""
    if list(present) == order:
        return model
    for text in order:
        token, kind = present.get(text, (_token_field(text.encode()), UNUSED))
        if text in SPECIAL:
            token, kind = _token_field(text.encode()), UNKNOWN if text == SPECIAL[1] else CONTROL
        elif kind in (UNKNOWN, CONTROL):
            kind = UNUSED
        result += _token_field(token + bytes([3 << 3, kind]))  # a second type replaces the first
    return result + b"".join(whole for number, _, _, whole in _fields(model) if number != 1)
