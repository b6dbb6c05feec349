"""A model in Marian's own files: model.npz with its options inside, vocabularies (.yml or .spm), perhaps decoder.yml.

Its tensors are named here as transformers names them, which is one step from ours. Names and meaning of options:
marian-dev, src/models/transformer.h.
"""

import math
import re
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from nmt_cli.interop.marian import BIAS, EMBEDDINGS, Foreign, described
from nmt_cli.interop.marian_peer import Marian
from nmt_cli.interop.vocabulary import Numbers, in_our_order, read_model, tokenizers
from nmt_cli.recipe import schema, yaml_file
from nmt_cli.system.errors import DataError, MissingError, UsageError, printable

OPTIONS = "special:model.yml"  # a text among the tensors
LONGEST = 512  # positions: Marian's are computed for any length
MOST_EXPANSION = 4  # bytes of arrays by bytes of a compressed file: weights hardly shrink
MOST_YAML_BYTES, MOST_YAML_VALUES = 1 << 25, 2_100_000  # a vocabulary of a million tokens
UNREADABLE = OSError, ValueError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error  # of zipfile and NumPy
Options = dict[str, Any]  # values as text, lists of text, or dicts
Numbers32 = npt.NDArray[Any]
# By option: its default, and what else ours computes.
COMPUTED: dict[str, list[Any]] = {
    "type": ["transformer"],
    "transformer-decoder-autoreg": ["self-attention"],
    "transformer-ffn-activation": ["swish", "relu"],  # Marian's gelu is an approximation
    "transformer-ffn-depth": ["2"],
    "transformer-decoder-ffn-depth": ["0", "2"],
    "transformer-postprocess-emb": ["d", ""],
    "transformer-attention-mask": ["default"],
    "transformer-tied-layers": [[]],
    "input-types": [[], ["sequence", "sequence"]],
    "lemma-dim-emb": ["0"],
}
UNKNOWN = [  # options that ours has nothing like, unless they are false
    *("right-left", "ulr", "output-omit-bias", "transformer-pool", "transformer-no-projection"),
    *("transformer-no-bias", "transformer-no-affine", "transformer-train-position-embeddings"),
    *("transformer-train-positions", "transformer-disable-position-embeddings"),
]
# Options that hold a number and have no default here, and the least that it may be.
NUMBERS = {"enc-depth": 0, "dec-depth": 0, "transformer-heads": 1, "transformer-dim-ffn": 1}
NORMS = {("", "an", ""): "post", ("n", "a", "n"): "pre"}  # by the operations before and after sub-layers, and on top
LINEAR = {  # by our names of transformers' modules
    **{f"self_attn.{side}_proj": f"self_{{}}{side}" for side in "qkv"},
    **{f"encoder_attn.{side}_proj": f"context_{{}}{side}" for side in "qkv"},
    **{"self_attn.out_proj": "self_{}o", "encoder_attn.out_proj": "context_{}o", "fc1": "ffn_{}1", "fc2": "ffn_{}2"},
}
NORM = {"self_attn_layer_norm": "self_Wo", "encoder_attn_layer_norm": "context_Wo", "final_layer_norm": "ffn_ffn"}


def _models(directory: Path) -> list[Path]:
    return [file for file in sorted(directory.glob("*.npz")) if not file.name.endswith(".optimizer.npz")]


def present(directory: Path) -> bool:
    return bool(_models(directory)) and not (directory / "config.json").is_file()


def read(directory: Path) -> Foreign:
    """Read a directory of Marian, or raise DataError that says what ours cannot compute."""
    file, vocabularies = _files(directory)
    arrays = _arrays(file)
    if OPTIONS not in arrays:
        raise DataError(f"{file} has no {OPTIONS}: it is not a model of Marian")
    options = _yaml(arrays.pop(OPTIONS).tobytes().rstrip(b"\0"), file)
    _check(options, file)
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items() if "special:" not in name}
    theirs = _as_transformers(tensors, options, file)
    numbers, models = _vocabularies(directory, vocabularies, [len(theirs[EMBEDDINGS[s]]) - 1 for s in ("src", "tgt")])
    ids = [[*side.values()] for side in numbers]
    settings = _recipe(theirs, options, numbers)
    peer = Marian.where_installed(file, numbers, settings.model.norm)
    return Foreign(theirs, settings, ids, ids[1][0], models, [file], peer)


def _arrays(file: Path) -> dict[str, Numbers32]:
    """Return the arrays of an .npz file; DataError, before memory is taken, where they claim more than it can hold."""
    arrays, left = dict[str, Numbers32](), MOST_EXPANSION * file.stat().st_size
    try:
        with zipfile.ZipFile(file) as archive:
            for member in archive.infolist():
                left -= member.file_size
                if left < 0 or member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                    raise ValueError(f"{member.filename} would have more bytes than weights can have")
                with archive.open(member) as stream:
                    arrays[member.filename.removesuffix(".npy")] = _array(stream, member)
    except UNREADABLE as error:
        raise DataError(f"{file} is damaged: {printable(error, 150)}") from None
    return arrays


def _array(stream: Any, member: zipfile.ZipInfo) -> Numbers32:
    """Return an array of numbers, in float32 but for a text; ValueError where its size is not its header's."""
    version = np.lib.format.read_magic(stream)
    if version != (1, 0):
        raise ValueError(f"{member.filename} has version {version} of the format .npy, not 1.0")
    try:
        shape, in_columns, kind = np.lib.format.read_array_header_1_0(stream)
    except (MemoryError, RecursionError, TokenError):  # of Python's parser
        raise ValueError(f"{member.filename} has no header of .npy") from None
    size = math.prod(shape) * kind.itemsize
    if kind.kind not in "iuf" or min(shape, default=0) < 0 or stream.tell() + size != member.file_size:
        raise ValueError(f"{member.filename} claims {shape} of {kind} in {member.file_size:,} bytes")
    data = stream.read(size + 1)  # one more: zipfile checks the sum at the end
    array = np.frombuffer(data, kind).reshape(shape, order="F" if in_columns else "C")
    return array if "special:" in member.filename else array.astype(np.float32)


def _files(directory: Path) -> tuple[Path, list[Path]]:
    """Return the model and the vocabularies of source and target: those that decoder.yml names, or the only ones."""
    for name in ("decoder.yml", "model.npz.decoder.yml"):
        if (directory / name).is_file():
            decoder = _read_yaml(directory / name)
            models, vocabularies = (
                [Path(each).name for each in decoder.get(key, ()) if isinstance(each, str)]
                for key in ("models", "vocabs")
            )
            break
    else:
        models = [file.name for file in _models(directory)]
        vocabularies = [file.name for kind in ("*.spm", "vocab*.yml", "*.vocab.yml") for file in directory.glob(kind)]
        vocabularies = [name for name in vocabularies if name not in ("source.spm", "target.spm")] or vocabularies
    if len(models) != 1:
        raise DataError(f"{directory} has {len(models)} models ({', '.join(models)}). Give each a directory of its own")
    if len(vocabularies) == 1:
        vocabularies *= 2
    if len(vocabularies) != 2:
        raise DataError(f"{directory}: which vocabulary is of which side? Name two in decoder.yml, under vocabs")
    paths = [directory / name for name in (models[0], *vocabularies)]
    if missing := [path for path in paths if not path.is_file()]:
        raise MissingError(f"no file {missing[0]}")
    return paths[0], paths[1:]


def _yaml(data: bytes, where: Path) -> Any:
    """Return the mapping of a YAML text, which may be a vocabulary."""
    if len(data) > MOST_YAML_BYTES:
        raise DataError(f"{where} is too large for YAML: {MOST_YAML_BYTES:,} bytes at most")
    try:
        return yaml_file.mapping(data, where, MOST_YAML_VALUES)
    except UsageError as error:
        raise DataError(str(error)) from None


def _read_yaml(file: Path) -> Any:
    with file.open("rb") as stream:
        return _yaml(stream.read(MOST_YAML_BYTES + 1), file)


def _is_number(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch("[0-9]{1,9}", value) is not None


def _norms(options: Options) -> tuple[str, str, str]:
    keys = {"preprocess": "", "postprocess": "dan", "postprocess-top": ""}
    chosen = (str(options.get(f"transformer-{key}", default)) for key, default in keys.items())
    before, after, top = (operations.replace("d", "") for operations in chosen)
    return before, after, top


def _check(options: Options, where: Path) -> None:
    """Raise DataError that names every option by which this model computes what ours does not, or that is no number."""
    for key, least in NUMBERS.items():
        value = options.get(key, "not there")
        if not (_is_number(value) and int(value) >= least):
            raise DataError(f"{where} is damaged: its option {key} is {str(value)[:40]}")
    computed = COMPUTED | {"transformer-decoder-dim-ffn": ["0", options.get("transformer-dim-ffn")]}
    computed |= {key: ["false"] for key in UNKNOWN}
    wrong = [f"{key} {options[key]}" for key, values in computed.items() if options.get(key, values[0]) not in values]
    if _norms(options) not in NORMS:
        wrong.append(f"the operations {' / '.join(_norms(options))} before, after and above its layers")
    if wrong:
        raise DataError(f"{where} cannot be imported: the model of nmt does not have {', '.join(wrong)}")


def _layers(options: Options) -> Iterator[tuple[str, str, bool]]:
    """Yield transformers' name of each tensor but the embeddings, Marian's, and whether it is a matrix."""
    pre = "_pre" if NORMS[_norms(options)] == "pre" else ""
    for stack, depth in (("encoder", options["enc-depth"]), ("decoder", options["dec-depth"])):
        for number in range(int(depth)):
            ours, theirs = f"model.{stack}.layers.{number}.", f"{stack}_l{number + 1}_"
            for module, name in LINEAR.items():
                if stack == "decoder" or "encoder_attn" not in module:
                    yield f"{ours}{module}.weight", theirs + name.format("W"), True
                    yield f"{ours}{module}.bias", theirs + name.format("b"), False
            for module, name in NORM.items():
                if stack == "decoder" or "encoder_attn" not in module:
                    yield f"{ours}{module}.weight", f"{theirs}{name}_ln_scale{pre}", False
                    yield f"{ours}{module}.bias", f"{theirs}{name}_ln_bias{pre}", False
        if pre:
            yield f"model.{stack}.layer_norm.weight", f"{stack}_top_ln_scale", False
            yield f"model.{stack}.layer_norm.bias", f"{stack}_top_ln_bias", False


def _as_transformers(tensors: dict[str, Tensor], options: Options, where: Path) -> dict[str, Tensor]:
    """Return the tensors by transformers' names, with a zero embedding more, from which Marian's decoder starts."""
    left, result = dict(tensors), {}

    def take(name: str, is_matrix: bool = True) -> Tensor:
        if name not in tensors:
            raise DataError(f"{where} has no tensor {name}")
        left.pop(name, None)
        if is_matrix and tensors[name].dim() != 2:
            raise DataError(f"{where} cannot be imported: its tensor {name} is no matrix")
        return tensors[name] if is_matrix else tensors[name].flatten()

    tied = {key: options.get(f"tied-embeddings{key}", "false") == "true" for key in ("", "-src", "-all")}
    one = tied["-src"] or tied["-all"]
    src, tgt = (take("Wemb" if one else f"{side}_Wemb") for side in ("encoder", "decoder"))
    output = tgt if tied[""] or tied["-all"] else take("decoder_ff_logit_out_W").t()
    for side, matrix in zip(EMBEDDINGS, (src, tgt, output), strict=True):
        result[EMBEDDINGS[side]] = torch.cat([matrix, matrix.new_zeros(1, matrix.shape[1])])
    bias = take("decoder_ff_logit_out_b", False)
    result[BIAS] = torch.cat([bias, bias.new_zeros(1)])[None]
    for ours, theirs, is_matrix in _layers(options):
        result[ours] = take(theirs).t() if is_matrix else take(theirs, False)
    if left:
        raise DataError(f"{where} cannot be imported: the model of nmt has nothing like its tensor {min(left)}")
    return result


def _vocabularies(directory: Path, files: list[Path], sizes: list[int]) -> tuple[list[Numbers], list[bytes]]:
    """Return their id of each of our tokens on both sides, and our SentencePiece models.

    A .spm file is vocabulary and SentencePiece model in one; with .yml, source.spm and target.spm split the text.
    """
    numbers = []
    for file, size in zip(files, sizes, strict=True):
        if file.suffix == ".spm":
            ids = {token.piece: number for number, token in enumerate(read_model(file).pieces)}
        elif file.suffix in (".yml", ".yaml"):
            entries = _read_yaml(file).items()
            ids = {name: int(number) if _is_number(number) else number for name, number in entries}
        else:
            raise DataError(f"{file} is a vocabulary that cannot be imported; .spm and .yml can")
        if "<pad>" in ids:
            ids["<pad> of Marian"] = ids.pop("<pad>")
        numbers.append(in_our_order({**ids, "<pad>": size}, size + 1, file))
    spm = files if files[0].suffix == ".spm" else [directory / f"{side}.spm" for side in ("source", "target")]
    if missing := [file for file in spm if not file.is_file()]:
        raise MissingError(f"no file {missing[0]}: a .yml vocabulary does not say how text is split into its tokens")
    return numbers, tokenizers(spm, numbers, separate=numbers[0] != numbers[1])


def _recipe(tensors: dict[str, Tensor], options: Options, numbers: list[Numbers]) -> schema.Recipe:
    src, tgt, output = (tensors[name] for name in EMBEDDINGS.values())
    heads, encoder_layers, decoder_layers = (
        int(options[key]) for key in ("transformer-heads", "enc-depth", "dec-depth")
    )
    size, activation = src.shape[1] // heads, options.get("transformer-ffn-activation", "swish")
    model = {
        **{"num_layers": encoder_layers, "d_model": src.shape[1], "num_heads": heads, "d_k": size, "d_v": size},
        **{"d_ff": int(options["transformer-dim-ffn"]), "dropout": options.get("transformer-dropout", "0")},
        **{"norm": NORMS[_norms(options)], "positions": "marian", "max_length": LONGEST},
        **{"attention_bias": True, "output_bias": True, "activation": activation},
        "source_vocabulary": 0 if numbers[0] == numbers[1] and torch.equal(src, tgt) else len(src),
        "tied_output": torch.equal(tgt, output),
    }
    if decoder_layers != encoder_layers:
        model |= {"encoder_layers": encoder_layers, "decoder_layers": decoder_layers}
    corpus = {"name": None, "src": "src", "tgt": "tgt"}
    return described({"name": "marian", "corpus": corpus, "model": model}, OPTIONS)
