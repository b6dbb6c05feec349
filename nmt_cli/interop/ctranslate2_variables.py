"""The variables of CTranslate2's Transformer: their names, and the features that our model lacks."""

from collections.abc import Iterator

from nmt_cli.interop.ctranslate2_binary import Binary
from nmt_cli.interop.ctranslate2_config import UNSUPPORTED
from nmt_cli.system.errors import DataError, printable

# Name of an architecture -> default number of heads.
SPECS = {"TransformerSpec": 8, "TransformerBase": 8, "TransformerBig": 16}
# Our name of each module in a layer -> CTranslate2's name.
ENCODER = {
    "self_attention.query_key_value": "self_attention/linear_0",
    "self_attention.output": "self_attention/linear_1",
    "residuals.0.norm": "self_attention/layer_norm",
    "feed_forward.inner": "ffn/linear_0",
    "feed_forward.outer": "ffn/linear_1",
    "residuals.1.norm": "ffn/layer_norm",
}
DECODER = {
    **ENCODER,
    "cross_attention.query": "attention/linear_0",
    "cross_attention.key_value": "attention/linear_1",
    "cross_attention.output": "attention/linear_2",
    "residuals.1.norm": "attention/layer_norm",
    "residuals.2.norm": "ffn/layer_norm",
}
# Part of a variable's name -> the variable's feature, which our model lacks.
FEATURES = {
    "rotary": "rotary positions",
    "relative": "relative positions",
    "alibi": "ALiBi",
    "linear_0_noact": "gated feed-forward layers",
    "embeddings_1/": "source features",
    "num_heads_kv": "multi-query attention",
    "multi_query": "multi-query attention",
    "layernorm_embedding": "layer normalization of embeddings",
    "project_": "embedding projections",
    "sliding_window": "sliding-window attention",
    "q_norm": "query normalization",
    "queries_scale": "query scaling",
    "scale_outputs": "logit scaling",
    "softcapping": "logit soft-capping",
}
OFF = "alibi", "multi_query_attention"  # attributes that must be 0
WITHOUT_EFFECT = (  # attributes that matter only with ALiBi, or that read_config reads
    *("alibi_use_positive_positions", "scale_alibi", "unk_token", "bos_token", "eos_token"),
    *("with_source_bos", "with_source_eos", "with_target_bos", "user_decoder_start_tokens"),
)


def with_current_names(binary: Binary) -> Binary:
    """Rename variables of older revisions as in the newest revision, and return the model."""
    variables = dict(binary.variables)
    for name in ("num_heads", "pre_norm", "activation"):
        if (variable := variables.pop(name, None)) is not None:
            for side in ("encoder", "decoder"):
                variables.setdefault(f"{side}/{name}", variable)
    for side, name in (("encoder", "embeddings_merge"), ("decoder", "alignment_layer"), ("decoder", "alignment_heads")):
        if (variable := variables.pop(name, None)) is not None:
            variables.setdefault(f"{side}/{name}", variable)
    for end in ("weight", "weight_scale", "multiply_by_sqrt_depth"):
        if (variable := variables.pop(f"encoder/embeddings/{end}", None)) is not None:
            variables.setdefault(f"encoder/embeddings_0/{end}", variable)
    for side, module in (("encoder", "embeddings_0"), ("decoder", "embeddings")):
        if (variable := variables.pop(f"{side}/{module}/multiply_by_sqrt_depth", None)) is not None:
            variables.setdefault(f"{side}/scale_embeddings", variable)
    return Binary(binary.path, binary.version, binary.spec, binary.revision, variables)


def check_features(binary: Binary) -> None:
    """Raise DataError if our model does not support a variable, or if its value is out of range.

    An attribute of a feature that our model lacks is allowed if it turns the feature off or has no effect.
    """
    known = {name for _, name in modules(binary)}
    known |= {f"{side}/{end}" for side in ("encoder", "decoder") for end in ("num_heads", "pre_norm", "activation")}
    known |= {f"{side}/scale_embeddings" for side in ("encoder", "decoder")}
    known |= {f"{side}/position_encodings/encodings" for side in ("encoder", "decoder")}
    known |= {"decoder/start_from_zero_embedding"}
    for module in ("encoder/embeddings_0", "decoder/embeddings", "decoder/projection"):
        known |= {f"{module}/{end}" for end in ("weight", "weight_scale", "bias")}
    layers = depth(binary, "decoder")
    heads = binary.number("decoder/num_heads", SPECS[binary.spec])
    ranges = {  # CTranslate2 does not check these ranges
        "encoder/embeddings_merge": (0, 1),
        "decoder/alignment_layer": (-layers, layers - 1),
        "decoder/alignment_heads": (0, int(min(heads, 1 << 20)) if heads > 0 else 0),  # heads may be NaN
    }
    for name, variable in binary.variables.items():
        last = name.rpartition("/")[2]
        if name in known or last in WITHOUT_EFFECT or (last in OFF and not binary.number(name, 0)):
            continue
        if name in ranges:
            low, high = ranges[name]
            if variable.is_integer and low <= binary.number(name, 0) <= high:
                continue
            raise DataError(f"{binary.path} is damaged: {name} must be a whole number from {low} to {high}")
        feature = next((text for part, text in FEATURES.items() if part in name), f"the variable {name}")
        raise DataError(f"{binary.path} cannot be imported: {UNSUPPORTED} {printable(feature, 100)}")


def depth(binary: Binary, side: str) -> int:
    """Return the number of layers of `side`, "encoder" or "decoder"."""
    count = 0
    while f"{side}/layer_{count}/ffn/linear_0/weight" in binary.variables:
        count += 1
    return count


def modules(binary: Binary) -> Iterator[tuple[str, str]]:
    """Yield our name and CTranslate2's name of each tensor in layers and final norms, including quantization scales."""
    for side, layer in (("encoder", ENCODER), ("decoder", DECODER)):
        pairs = {f"{side}_norm": f"{side}/layer_norm"} if binary.number(f"{side}/pre_norm", 1) else {}
        for i in range(depth(binary, side)):
            pairs |= {f"{side}.{i}.{ours}": f"{side}/layer_{i}/{theirs}" for ours, theirs in layer.items()}
        for ours, theirs in pairs.items():
            if ours.endswith("norm"):
                yield f"{ours}.weight", f"{theirs}/gamma"
                yield f"{ours}.bias", f"{theirs}/beta"
            else:
                yield f"{ours}.weight", f"{theirs}/weight"
                yield f"{ours}.weight_scale", f"{theirs}/weight_scale"
                yield f"{ours}.bias", f"{theirs}/bias"
