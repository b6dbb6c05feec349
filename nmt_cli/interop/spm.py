"""SentencePiece models rewritten piece by piece: Marian numbers pieces otherwise than the model that cuts them.

A model is a protocol buffer message; its field 1 repeats a piece (1 text, 2 score, 3 type). The rest, such as the
rules that normalise text, is kept byte for byte.
"""

import struct
from collections.abc import Iterator

PAD_PIECE, UNK_PIECE, EOS_PIECE = "<pad>", "<unk>", "</s>"
NORMAL, UNKNOWN, CONTROL, UNUSED = 1, 2, 3, 5
UNIGRAM = 1


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise ValueError("a number is cut short")
        value |= (data[at] & 127) << shift
        at, shift = at + 1, shift + 7
        if data[at - 1] < 128:
            return value, at


def _fields(data: bytes) -> Iterator[tuple[int, bytes, bytes]]:
    """Yield (number, content, the whole field) of every field of a message."""
    at = 0
    while at < len(data):
        start = at
        key, at = _varint(data, at)
        size = {1: 8, 5: 4}.get(key & 7)
        if key & 7 == 2:
            size, at = _varint(data, at)
        end = at + size if size is not None else _varint(data, at)[1]
        if key & 7 not in (0, 1, 2, 5) or end > len(data):
            raise ValueError("a field is cut short")
        yield key >> 3, data[at:end], data[start:end]
        at = end


def _number(value: int) -> bytes:
    return bytes([value]) if value < 128 else bytes([value & 127 | 128]) + _number(value >> 7)


def _bytes_field(number: int, content: bytes) -> bytes:
    return bytes([number << 3 | 2]) + _number(len(content)) + content


def _piece(text: str, score: float, kind: int) -> bytes:
    return _bytes_field(
        1, _bytes_field(1, text.encode()) + b"\x15" + struct.pack("<f", score) + b"\x18" + _number(kind)
    )


def pieces(model: bytes) -> dict[str, tuple[float, int]]:
    """Return the score and type of every piece, in the model's order.

    Raises:
        ValueError: it is no SentencePiece model.
    """
    found = {}
    for number, content, _ in _fields(model):
        if number == 1:
            parts = {n: value for n, value, _ in _fields(content)}
            score = struct.unpack("<f", parts.get(2, bytes(4)))[0]
            found[parts.get(1, b"").decode()] = score, _varint(parts.get(3, b"\x01"), 0)[0]
    return found


def is_unigram(model: bytes) -> bool:
    """Whether the model finds the likeliest pieces (unigram), rather than merging pairs or something else."""
    for number, content, _ in _fields(model):
        if number == 2:
            kinds = [_varint(value, 0)[0] for n, value, _ in _fields(content) if n == 3]
            return not kinds or kinds[-1] == UNIGRAM
    return True


def renumbered(model: bytes, order: list[str]) -> bytes:
    """Return a model that cuts text as `model` does and numbers pieces as `order` does.

    Args:
        model: a SentencePiece model.
        order: pieces; the first three are PAD, UNK and EOS. What `model` has not can be decoded but is never cut.
    """
    known = pieces(model)
    if list(known) == order:
        return model
    result = [_piece(text, 0.0, kind) for text, kind in zip(order, (CONTROL, UNKNOWN, CONTROL), strict=False)]
    for text in order[3:]:
        score, kind = known.get(text, (0.0, UNUSED))
        result.append(_piece(text, score, UNUSED if kind in (UNKNOWN, CONTROL) else kind))
    return b"".join(result) + b"".join(whole for number, _, whole in _fields(model) if number != 1)
