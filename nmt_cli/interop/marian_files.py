"""Read a model directory of Marian.

Such a directory contains vocabularies (.yml or .spm) and a model file (.npz or .bin), which also contains the options.
The models of Firefox have the same format, with file names such as model.ende.intgemm.alphas.bin and vocab.ende.spm.
The tensors first get the names that they would have in Hugging Face transformers, and then those of our models. For the
meaning of the options, see marian-dev, src/models/transformer.h.
"""

import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nmt_cli.interop.adapters import Marian
from nmt_cli.interop.foreign import ForeignModel, foreign_recipe, sizes_of
from nmt_cli.interop.formats import PACKED, PAIR, files_like, is_marian_binary, unpacked_name
from nmt_cli.interop.marian_binary import read_items
from nmt_cli.interop.marian_lexicon import read_lexicon
from nmt_cli.interop.npz import TEXT_PREFIX, read_arrays
from nmt_cli.interop.transformers_marian import EMBEDDINGS, OUTPUT_BIAS, from_transformers
from nmt_cli.interop.vocabulary import ForeignIds, convert_tokenizers, in_our_order, read_sentencepiece
from nmt_cli.recipe import schema, yaml_file
from nmt_cli.system.errors import DataError, MissingError, UsageError
from nmt_cli.transformer.weights import check_shapes

OPTIONS = f"{TEXT_PREFIX}model.yml"  # name of the array that contains the options as YAML
MAX_LENGTH = 512  # maximum positions of the imported model; Marian has no limit
MAX_YAML_BYTES, MAX_YAML_VALUES = 1 << 25, 2_100_000  # enough for a vocabulary of a million tokens
Options = dict[str, Any]  # the values are text, lists of text, or mappings
# For each option, the values that our model supports. The first is Marian's default.
SUPPORTED: dict[str, list[Any]] = {
    "type": ["transformer"],
    "transformer-decoder-autoreg": ["self-attention", "rnn"],
    "transformer-ffn-activation": ["swish", "relu"],  # not Marian's gelu, which is an approximation
    "transformer-ffn-depth": ["2"],
    "transformer-decoder-ffn-depth": ["0", "2"],
    "transformer-postprocess-emb": ["d", ""],
    "transformer-attention-mask": ["default"],
    "transformer-tied-layers": [[]],
    "input-types": [[], ["sequence", "sequence"]],
    "lemma-dim-emb": ["0"],
}
UNSUPPORTED = [  # options that must be false
    *("right-left", "ulr", "output-omit-bias", "transformer-pool", "transformer-no-projection"),
    *("transformer-no-bias", "transformer-no-affine", "transformer-train-position-embeddings"),
    *("transformer-train-positions", "transformer-disable-position-embeddings"),
]
# Required options -> minimum values.
REQUIRED = {"enc-depth": 0, "dec-depth": 0, "transformer-heads": 1, "transformer-dim-ffn": 1}
# Additional options of recurrent decoders, with the values that our model supports.
SUPPORTED_RNN = {"dec-cell": ["ssru"], "layer-normalization": ["false"], "transformer-rnn-projection": ["false"]}
# (operations before sublayers, after sublayers, and after the last layer) -> model.norm in the recipe. The operation
# "a" adds the residual, and "n" normalizes.
NORMS = {("", "an", ""): "post", ("n", "a", "n"): "pre"}
# Name of a module in transformers -> name of its tensors in Marian, where {} stands for W or b.
LINEAR = {
    **{f"self_attn.{side}_proj": f"self_{{}}{side}" for side in "qkv"},
    **{f"encoder_attn.{side}_proj": f"context_{{}}{side}" for side in "qkv"},
    **{"self_attn.out_proj": "self_{}o", "encoder_attn.out_proj": "context_{}o", "fc1": "ffn_{}1", "fc2": "ffn_{}2"},
}
NORM = {"self_attn_layer_norm": "self_Wo", "encoder_attn_layer_norm": "context_Wo", "final_layer_norm": "ffn_ffn"}
RECURRENT = {"rnn_value.weight": "rnn_W", "rnn_forget.weight": "rnn_Wf", "rnn_forget.bias": "rnn_bf"}
ALPHA = "_QuantMultA"  # suffix of the names of tensors that scale 8-bit activations


def _model_files(directory: Path) -> list[Path]:
    archives = [file for file in sorted(directory.glob("*.npz")) if not file.name.endswith(".optimizer.npz")]
    return archives + [file for file in files_like(directory, "*.bin") if is_marian_binary(file)]


def has_marian_model(directory: Path) -> bool:
    """Return whether a directory contains a model of Marian, and no model of transformers."""
    return bool(_model_files(directory)) and not (directory / "config.json").is_file()


def read_marian(directory: Path) -> ForeignModel:
    """Read a model directory of Marian. Raise DataError if the model has features that ours does not support."""
    file, vocabulary_files = find_files(directory)
    arrays, eight_bits = (read_arrays(file), False) if file.suffix == ".npz" else read_items(file)
    if OPTIONS not in arrays:
        raise DataError(f"{file} has no {OPTIONS}: it is not a model of Marian")
    options = parse_yaml(arrays[OPTIONS].tobytes().rstrip(b"\0"), file)
    check_options(options, file)
    weights = {name: array for name, array in arrays.items() if not (TEXT_PREFIX in name or name.endswith(ALPHA))}
    tensors = rename_tensors({name: torch.from_numpy(array) for name, array in weights.items()}, options, file)
    sizes = [len(tensors[EMBEDDINGS[side]]) - 1 for side in ("src", "tgt")]
    vocabularies, tokenizers = read_vocabularies(directory, vocabulary_files, sizes)
    id_maps = [[*side.values()] for side in vocabularies]
    recipe = _with_pair(recipe_of(tensors, options, vocabularies), file)
    ours = from_transformers(tensors, recipe.model, id_maps, id_maps[1][0], directory)
    check_shapes(ours, recipe.model, len(id_maps[1]), file)
    # Marian would round the activations of a model with 8-bit weights, and it cannot read packed files. In both cases,
    # give Marian float32 weights for the comparison.
    float32_model = {OPTIONS: arrays[OPTIONS], **weights} if eight_bits or file.suffix in PACKED else None
    adapter = Marian(file, vocabularies, recipe.model.norm, float32_model) if find_spec("_pymarian") else None
    lexicons = files_like(directory, "lex.*.bin")
    shortlist = read_lexicon(lexicons[0], id_maps) if lexicons else None
    note = "The 8-bit weights were converted to float32 for the comparison." if eight_bits and adapter else ""
    return ForeignModel(ours, recipe, tokenizers, [file], adapter, note, shortlist=shortlist)


def _with_pair(recipe: schema.Recipe, file: Path) -> schema.Recipe:
    """If the file name contains languages, as in Firefox's models, set these languages and beam 1 in the recipe."""
    if not (pair := PAIR.search(file.name)):
        return recipe
    corpus = recipe.corpus.model_copy(update={"src": pair[1], "tgt": pair[2]})
    return recipe.model_copy(
        update={"corpus": corpus, "decoding": recipe.decoding.model_copy(update={"beam": 1})},
    )


def find_files(directory: Path) -> tuple[Path, list[Path]]:
    """Return the model file, and the vocabulary files of source and target.

    If there is a decoder.yml, it names these files. Otherwise, the directory must contain exactly one model, and one
    vocabulary for both languages or one for each.
    """
    for name in ("decoder.yml", "model.npz.decoder.yml"):
        if (directory / name).is_file():
            decoder = _read_yaml(directory / name)
            models = _file_names(decoder.get("models"))
            vocabularies = _file_names(decoder.get("vocabs"))
            break
    else:
        models = [file.name for file in _model_files(directory)]
        kinds = "*.spm", "vocab*.yml", "*.vocab.yml"
        vocabularies = [file.name for kind in kinds for file in files_like(directory, kind)]
        vocabularies = [name for name in vocabularies if name not in ("source.spm", "target.spm")] or vocabularies
        if all(name.startswith(("srcvocab.", "trgvocab.")) for name in vocabularies):
            vocabularies.sort()
    if len(models) != 1:
        advice = "Give each a directory of its own" if models else "Name one in decoder.yml, under models"
        raise DataError(f"{directory} has {len(models)} models ({', '.join(models)}). {advice}")
    if len(vocabularies) == 1:
        vocabularies *= 2
    if len(vocabularies) != 2:
        raise DataError(f"{directory} needs a source and a target vocabulary. List both in decoder.yml, under vocabs")
    paths = [directory / name for name in (models[0], *vocabularies)]
    if missing := [path for path in paths if not path.is_file()]:
        raise MissingError(f"no file {missing[0]}")
    return paths[0], paths[1:]


def _file_names(value: Any) -> list[str]:
    """Return the last component of each path in a list. Leave out nulls. As in Marian, a string is a list of one."""
    paths = value if isinstance(value, list) else [value]
    return [Path(each).name for each in paths if isinstance(each, str) and each.lower() not in ("", "~", "null")]


def parse_yaml(data: bytes, source: Path) -> Any:
    """Return the mapping in YAML (options or a vocabulary). Raise DataError if it is too large or not a mapping."""
    if len(data) > MAX_YAML_BYTES:
        raise DataError(f"{source} contains too much YAML: more than {MAX_YAML_BYTES:,} bytes")
    try:
        return yaml_file.parse_mapping(data, source, MAX_YAML_VALUES)
    except UsageError as error:
        raise DataError(str(error)) from None


def _read_yaml(file: Path) -> Any:
    with file.open("rb") as stream:
        return parse_yaml(stream.read(MAX_YAML_BYTES + 1), file)


def _is_number(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch("[0-9]{1,9}", value) is not None


def _norms(options: Options) -> tuple[str, str, str]:
    """Return the operations before sublayers, after sublayers, and after the last layer. Leave out dropout."""
    defaults = {"preprocess": "", "postprocess": "dan", "postprocess-top": ""}
    chosen = (str(options.get(f"transformer-{key}", default)) for key, default in defaults.items())
    before, after, top = (operations.replace("d", "") for operations in chosen)
    return before, after, top


def check_options(options: Options, source: Path) -> None:
    """Raise DataError if a required option is not a valid number, or if we do not support the value of an option."""
    for key, least in REQUIRED.items():
        value = options.get(key, "missing")
        if not (_is_number(value) and int(value) >= least):
            raise DataError(f"{source} is damaged: its option {key} is {str(value)[:40]}")
    supported = SUPPORTED | {"transformer-decoder-dim-ffn": ["0", options.get("transformer-dim-ffn")]}
    if is_recurrent(options):
        supported |= SUPPORTED_RNN
    supported |= {key: ["false"] for key in UNSUPPORTED}
    wrong = [f"{key} {options[key]}" for key, values in supported.items() if options.get(key, values[0]) not in values]
    if _norms(options) not in NORMS:
        wrong.append(
            f"the operations {' / '.join(_norms(options))} (before sublayers / after sublayers / after the last layer)"
        )
    if wrong:
        raise DataError(f"{source} cannot be imported: nmt does not support {', '.join(wrong)}")


def is_recurrent(options: Options) -> bool:
    return options.get("transformer-decoder-autoreg") == "rnn"


def _layer_tensors(options: Options) -> Iterator[tuple[str, str, bool]]:
    """For each tensor of the layers, yield its names in transformers and in Marian, and whether it is a matrix."""
    pre = "_pre" if NORMS[_norms(options)] == "pre" else ""
    for stack, depth in (("encoder", options["enc-depth"]), ("decoder", options["dec-depth"])):
        for number in range(int(depth)):
            ours = f"model.{stack}.layers.{number}."
            theirs = f"{stack}_l{number + 1}_"
            recurrent = stack == "decoder" and is_recurrent(options)
            for module, name in RECURRENT.items() if recurrent else ():
                yield ours + module, theirs + name, module.endswith("weight")
            for module, name in LINEAR.items():
                if (stack == "decoder" or "encoder_attn" not in module) and not (recurrent and "self_attn" in module):
                    yield f"{ours}{module}.weight", theirs + name.format("W"), True
                    yield f"{ours}{module}.bias", theirs + name.format("b"), False
            for module, name in (NORM | {"self_attn_layer_norm": "rnn_ffn"} if recurrent else NORM).items():
                if stack == "decoder" or "encoder_attn" not in module:
                    yield f"{ours}{module}.weight", f"{theirs}{name}_ln_scale{pre}", False
                    yield f"{ours}{module}.bias", f"{theirs}{name}_ln_bias{pre}", False
        if pre:
            yield f"model.{stack}.layer_norm.weight", f"{stack}_top_ln_scale", False
            yield f"model.{stack}.layer_norm.bias", f"{stack}_top_ln_bias", False


def rename_tensors(tensors: dict[str, Tensor], options: Options, source: Path) -> dict[str, Tensor]:
    """Return Marian's tensors with their names and shapes in transformers.

    Adds a row of zeros to each embedding matrix, because Marian's decoder starts from a zero embedding. Raises
    DataError if a tensor is missing or unknown.
    """
    unused = dict(tensors)

    def take(name: str, is_matrix: bool = True) -> Tensor:
        if name not in tensors:
            raise DataError(f"{source} has no tensor {name}")
        unused.pop(name, None)
        if is_matrix and tensors[name].dim() != 2:
            raise DataError(f"{source} cannot be imported: its tensor {name} is not a matrix")
        return tensors[name] if is_matrix else tensors[name].flatten()

    tied = {key: options.get(f"tied-embeddings{key}", "false") == "true" for key in ("", "-src", "-all")}
    shared = tied["-src"] or tied["-all"]
    src, tgt = (take("Wemb" if shared else f"{side}_Wemb") for side in ("encoder", "decoder"))
    output = tgt if tied[""] or tied["-all"] else take("decoder_ff_logit_out_W").t()
    result = {}
    for side, matrix in zip(EMBEDDINGS, (src, tgt, output), strict=True):
        result[EMBEDDINGS[side]] = torch.cat([matrix, matrix.new_zeros(1, matrix.shape[1])])
    bias = take("decoder_ff_logit_out_b", False)
    result[OUTPUT_BIAS] = torch.cat([bias, bias.new_zeros(1)])[None]
    for ours, theirs, is_matrix in _layer_tensors(options):
        result[ours] = take(theirs).t() if is_matrix else take(theirs, False)
    if unused:
        raise DataError(f"{source} cannot be imported: nmt has no equivalent of its tensor {min(unused)}")
    return result


def read_vocabularies(directory: Path, files: list[Path], sizes: list[int]) -> tuple[list[ForeignIds], list[bytes]]:
    """Return both vocabularies in the order of our ids, and our SentencePiece models.

    A .spm file, which may be packed, is both a vocabulary and a SentencePiece model. If the vocabularies are .yml
    files, the SentencePiece models are source.spm and target.spm. `sizes` gives the number of Marian's embeddings
    for each vocabulary. Our token <pad> is added to the vocabulary, with this number as its id. A <pad> in Marian's
    vocabulary is renamed and remains an ordinary token.
    """
    vocabularies = []
    for file, size in zip(files, sizes, strict=True):
        if unpacked_name(file).endswith(".spm"):
            ids = {token.piece: number for number, token in enumerate(read_sentencepiece(file).pieces)}
        elif file.suffix in (".yml", ".yaml"):
            entries = _read_yaml(file).items()
            ids = {name: int(number) if _is_number(number) else number for name, number in entries}
        else:
            raise DataError(f"{file} cannot be imported: a vocabulary must be a .spm or .yml file")
        if "<pad>" in ids:
            ids["<pad> of Marian"] = ids.pop("<pad>")
        vocabularies.append(in_our_order({**ids, "<pad>": size}, size + 1, file))
    beside = [directory / f"{side}.spm" for side in ("source", "target")]
    spm = files if unpacked_name(files[0]).endswith(".spm") else beside
    if missing := [file for file in spm if not file.is_file()]:
        raise MissingError(f"no file {missing[0]}. With a .yml vocabulary, this SentencePiece model is required")
    return vocabularies, convert_tokenizers(spm, vocabularies, separate=vocabularies[0] != vocabularies[1])


def recipe_of(tensors: dict[str, Tensor], options: Options, vocabularies: list[ForeignIds]) -> schema.Recipe:
    src, tgt, output = (tensors[name] for name in EMBEDDINGS.values())
    layers = int(options["enc-depth"]), int(options["dec-depth"])
    model = {
        **sizes_of(src.shape[1], int(options["transformer-heads"]), layers),
        "d_ff": int(options["transformer-dim-ffn"]),
        "dropout": options.get("transformer-dropout", "0"),
        "norm": NORMS[_norms(options)],
        "positions": "marian",
        "max_length": MAX_LENGTH,
        "attention_bias": True,
        "output_bias": True,
        "activation": options.get("transformer-ffn-activation", "swish"),
        "source_vocabulary": 0 if vocabularies[0] == vocabularies[1] and torch.equal(src, tgt) else len(src),
        "tied_output": torch.equal(tgt, output),
        "decoder_cell": "ssru" if is_recurrent(options) else "attention",
    }
    return foreign_recipe({"name": "marian", "model": model}, OPTIONS)
