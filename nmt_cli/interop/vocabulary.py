"""The vocabulary of another toolkit's model in our order, and its SentencePiece models with their tokens in it."""

from pathlib import Path
from typing import Any

from nmt_cli.corpus.tokenizer import LANGUAGE
from nmt_cli.interop.marian import library
from nmt_cli.system.errors import DataError

Numbers = dict[str, int]  # their id of each token, in our order
UNKNOWN, CONTROL, USER_DEFINED, UNUSED, UNIGRAM = 2, 3, 4, 5, 1  # types of SentencePiece's tokens, and of its models
UNNAMED = "<unused "  # how names begin that are ours, of ids without a token
SPECIAL = {"<pad>": CONTROL, "<unk>": UNKNOWN, "</s>": CONTROL}  # our first three tokens


def in_our_order(ids: Numbers, size: int, where: Path) -> Numbers:
    """Return their id of each token: our first three, then the others by their ids. Ids without a token get a name."""
    numbers = [number for number in ids.values() if type(number) is int and 0 <= number < size]
    if missing := [name for name in SPECIAL if name not in ids]:
        raise DataError(f"{where} has no token {missing[0]}")
    if len(numbers) < len(ids) or len({*numbers}) < len(numbers):
        raise DataError(f"{where} does not number its tokens below {size}, each by a number of its own")
    ids = ids | {f"{UNNAMED}{number}>": number for number in {*range(size)} - {*numbers}}
    return {name: ids[name] for name in [*SPECIAL, *sorted(ids.keys() - SPECIAL.keys(), key=ids.__getitem__)]}


def tokenizers(files: list[Path], numbers: list[Numbers], separate: bool) -> list[bytes]:
    """Return our SentencePiece model, or two, of source text and of target text, for theirs.

    `separate`: the ids of one side mean nothing on the other.
    """
    if not separate and files[0].read_bytes() == files[1].read_bytes():
        files = files[:1]
    models = [_renumbered(file, [*side]) for file, side in zip(files, numbers, strict=False)]
    if not separate and len(models) == 2 and any(model.trainer_spec.model_type != UNIGRAM for model in models):
        raise DataError(f"{files[0].parent} has two BPE models over one vocabulary. Two unigram models are supported")
    return [model.SerializeToString() for model in models]


def read_model(file: Path) -> Any:
    """Return a SentencePiece model as the message of its file."""
    messages = library("sentencepiece.sentencepiece_model_pb2")
    try:
        return messages.ModelProto.FromString(file.read_bytes())
    except Exception:  # protobuf's DecodeError
        raise DataError(f"{file} is not a SentencePiece model") from None


def _renumbered(file: Path, order: list[str]) -> Any:
    """Return a SentencePiece model with the tokens in this order; those it did not have can only be decoded, but for
    target-language tokens, which each word of their name becomes."""
    model = read_model(file)
    tokens = {token.piece: token for token in model.pieces}
    if [*tokens] == order:
        return model
    new = type(model).SentencePiece
    ordered = [tokens.get(name) or new(piece=name, type=UNUSED) for name in order]
    for name, token in zip(order, ordered, strict=True):
        token.type = SPECIAL.get(name, UNUSED if token.type in SPECIAL.values() else token.type)
        if LANGUAGE.fullmatch(name):
            token.piece, token.type = f"\u2581{name}", USER_DEFINED  # as it stands at the beginning of a text
    model.pieces.extend(ordered)  # copies them
    del model.pieces[: -len(order)]
    return model
