"""Convert vocabularies and SentencePiece models of other toolkits to our order of tokens: PAD, UNK, EOS, others."""

import json
from pathlib import Path
from typing import Any

from nmt_cli.corpus import moses_bpe
from nmt_cli.corpus.tokenizer import LANGUAGE
from nmt_cli.interop.formats import read_unpacked
from nmt_cli.interop.packages import import_package
from nmt_cli.system.errors import DataError

ForeignIds = dict[str, int]  # the foreign id of each token, in our order
IdMaps = list[list[int]]  # for source and target: the foreign id of each of our tokens
UNKNOWN, CONTROL, USER_DEFINED, UNUSED = 2, 3, 4, 5  # types of SentencePiece tokens
UNIGRAM = 1  # a type of SentencePiece models
MAX_TOKEN = 1000  # maximum characters of a token; the longest tokens of real models have about 100
UNNAMED_PREFIX = "<unused "  # prefix of the names that we give to ids without a token
SPECIAL = {"<pad>": CONTROL, "<unk>": UNKNOWN, "</s>": CONTROL}  # our first three tokens


def in_our_order(ids: ForeignIds, size: int, source: Path) -> ForeignIds:
    """Return a vocabulary of `size` ids in our order: our first three tokens, then the others sorted by id.

    Ids without a token get a token that begins with UNNAMED_PREFIX. Raises DataError if one of our first three tokens
    is missing, if ids are not distinct numbers below `size`, or if a token is so long that tokenizers would be slow.
    """
    numbers = [number for number in ids.values() if type(number) is int and 0 <= number < size]
    if missing := [name for name in SPECIAL if name not in ids]:
        raise DataError(f"{source} has no token {missing[0]}")
    if (longest := max(map(len, ids))) > MAX_TOKEN:
        raise DataError(f"{source} has a token of {longest:,} characters; at most {MAX_TOKEN:,} are supported")
    if len(numbers) < len(ids) or len({*numbers}) < len(numbers):
        raise DataError(f"the token numbers in {source} must be distinct and below {size}")
    ids = ids | {f"{UNNAMED_PREFIX}{number}>": number for number in {*range(size)} - {*numbers}}
    return {name: ids[name] for name in [*SPECIAL, *sorted(ids.keys() - SPECIAL.keys(), key=ids.__getitem__)]}


def convert_tokenizers(files: list[Path], vocabularies: list[ForeignIds], separate: bool) -> list[bytes]:
    """Return the content of our tokenizer files: one file for both languages if possible, otherwise two.

    If `separate` is true, source and target ids are unrelated. Moses tokenizers are always converted to two files.
    """
    if moses_bpe.is_moses_file(read_unpacked(files[0])):
        values = [moses_bpe.read_file(file) for file in files]
        sides = zip(values, vocabularies, strict=True)
        return [moses_bpe.to_bytes(each["language"], each["codes"], [*side]) for each, side in sides]
    if not separate and read_unpacked(files[0]) == read_unpacked(files[1]):
        files = files[:1]
    models = [_renumber(file, [*side]) for file, side in zip(files, vocabularies, strict=False)]
    if not separate and len(models) == 2 and any(model.trainer_spec.model_type != UNIGRAM for model in models):
        raise DataError(
            f"{files[0].parent} has two BPE models for one vocabulary. Only unigram models may share a vocabulary"
        )
    return [model.SerializeToString() for model in models]


def read_sentencepiece(file: Path) -> Any:
    """Return a SentencePiece model as a protobuf message."""
    messages = import_package("sentencepiece.sentencepiece_model_pb2")
    data = read_unpacked(file)
    try:
        model = messages.ModelProto.FromString(data)
    except Exception:  # protobuf's DecodeError
        raise DataError(f"{file} is not a SentencePiece model") from None
    if not all(isinstance(token.piece, str) for token in model.pieces):  # protobuf returns invalid UTF-8 as bytes
        raise DataError(f"{file} is damaged: a token is not UTF-8")
    return model


def hidden(model: bytes, token: str) -> bytes:
    """Change the content of a tokenizer file to decode `token` to "". Raise DataError if it does not have the token."""
    missing = DataError(f"the vocabulary does not have the token {token[:40]!r}, with which translations begin")
    if moses_bpe.is_moses_file(model):
        values = json.loads(model)
        if token not in values["tokens"]:
            raise missing
        return moses_bpe.to_bytes(**values | {"hidden": [token]})
    parsed = import_package("sentencepiece.sentencepiece_model_pb2").ModelProto.FromString(model)
    found = [piece for piece in parsed.pieces if piece.piece == token]
    if not found:
        raise missing
    found[0].type = CONTROL
    parsed.trainer_spec.bos_piece = "<none>"  # a control token <s> would become BOS, which our models do not have
    return parsed.SerializeToString()  # type: ignore[no-any-return]


def _renumber(file: Path, order: list[str]) -> Any:
    """Read a SentencePiece model, and change its list of tokens to `order`.

    Tokens for target languages match at the beginning of a line. If the file lacks any other token in `order`, the
    returned model can decode this token, but it never encodes text to it.
    """
    model = read_sentencepiece(file)
    tokens = {token.piece: token for token in model.pieces}
    if [*tokens] == order:
        return model
    new = type(model).SentencePiece
    ordered = [tokens.get(name) or new(piece=name, type=UNUSED) for name in order]
    for name, token in zip(order, ordered, strict=True):
        token.type = SPECIAL.get(name, UNUSED if token.type in SPECIAL.values() else token.type)
        if LANGUAGE.fullmatch(name):
            token.piece = f"\u2581{name}"  # as it appears at the beginning of a line
            token.type = USER_DEFINED
    model.pieces.extend(ordered)  # makes copies
    del model.pieces[: -len(order)]
    return model
