"""Random models built like OpenNMT's, written by ctranslate2's own classes, and Argos packages that hold them."""

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece
from ctranslate2.specs import common_spec, transformer_spec
from random_marian import SOURCE

from nmt_cli.transformer.model import sinusoids

D, FF, HEADS = 16, 24, 4
_PROCESSOR = sentencepiece.SentencePieceProcessor(model_proto=SOURCE)
_PIECES = _PROCESSOR.id_to_piece(list(range(len(_PROCESSOR))))
# In OpenNMT-py's order.
TOKENS = ["<unk>", "<blank>", "<s>", "</s>", *(piece for piece in _PIECES if piece not in ("<unk>", "<s>", "</s>"))]
OTHER_TOKENS = [*TOKENS[:4], *TOKENS[:3:-1], "zz"]
METADATA = {
    "package_version": "1.0",
    "argos_version": "1.9",
    "from_code": "en",
    "from_name": "English",
    "to_code": "de",
    "to_name": "German",
}


def _fill(spec: Any, draw: np.random.Generator, positions: str, bias: bool) -> None:
    def numbers(*shape: int) -> Any:
        return draw.normal(0, 0.3, shape).astype(np.float32)

    def linear(layer: Any, outputs: int, inputs: int, biased: bool = True) -> None:
        layer.weight = numbers(outputs, inputs)
        if biased:
            layer.bias = numbers(outputs)

    def norm(layer: Any) -> None:
        layer.gamma = 1 + numbers(D)
        layer.beta = numbers(D)

    for stack in (spec.encoder, spec.decoder):
        if hasattr(stack, "layer_norm"):
            norm(stack.layer_norm)
        if positions == "sinusoidal":
            stack.position_encodings.encodings = sinusoids(200, D).numpy()
        elif positions == "learned":
            stack.position_encodings.encodings = numbers(200, D)
        for layer in stack.layer:
            attentions = [(layer.self_attention, [3 * D, D])]
            if stack is spec.decoder:
                attentions.append((layer.attention, [D, 2 * D, D]))
            for attention, outputs in attentions:
                norm(attention.layer_norm)
                for projection, size in zip(attention.linear, outputs, strict=True):
                    linear(projection, size, D, bias)
            norm(layer.ffn.layer_norm)
            linear(layer.ffn.linear_0, FF, D)
            linear(layer.ffn.linear_1, D, FF)


def opennmt_model(
    out: Path,
    quantization: str | None = None,
    positions: str = "sinusoidal",
    shared: bool = True,
    alike: bool = True,
    bias: bool = True,
    scaled: bool = True,
    source_eos: bool = False,
    layers: tuple[int, int] = (2, 2),
    tokens: list[str] = TOKENS,
    **options: Any,
) -> Path:
    """Save a random model, and return its directory. `options` are those of TransformerSpec.from_config.

    With positions "computed", CTranslate2 computes the positional encodings. Without `alike`, the two sides have
    different embeddings although they share a vocabulary.
    """
    draw = np.random.default_rng(7)
    options["activation"] = common_spec.Activation[options.get("activation", "RELU")]
    spec = transformer_spec.TransformerSpec.from_config(layers, HEADS, **options)
    _fill(spec, draw, positions, bias)
    target = tokens if shared else OTHER_TOKENS
    spec.encoder.embeddings[0].weight = draw.normal(0, 0.3, (len(tokens), D)).astype(np.float32)
    spec.decoder.embeddings.weight = spec.encoder.embeddings[0].weight
    if not (shared and alike):
        spec.decoder.embeddings.weight = draw.normal(0, 0.3, (len(target), D)).astype(np.float32)
    spec.decoder.projection.weight = spec.decoder.embeddings.weight
    spec.decoder.projection.bias = draw.normal(0, 0.3, len(target)).astype(np.float32)
    spec.decoder.projection.bias[tokens.index("</s>")] += 3  # translations end
    spec.encoder.scale_embeddings = spec.decoder.scale_embeddings = scaled
    spec.config.add_source_eos = source_eos
    spec.register_source_vocabulary(tokens)
    spec.register_target_vocabulary(target)
    spec.validate()
    spec.optimize(quantization)
    out.mkdir(parents=True)
    spec.save(str(out))
    (out / "sentencepiece.model").write_bytes(SOURCE)
    return out


def argos_folder(model: Path, out: Path, **metadata: Any) -> Path:
    """Save a model as argostranslate installs it, and return its directory."""
    (out / "model").mkdir(parents=True)
    for file in model.iterdir():
        (out / "model" / file.name).write_bytes(file.read_bytes())
    (out / "model" / "sentencepiece.model").rename(out / "sentencepiece.model")
    (out / "metadata.json").write_text(json.dumps(METADATA | metadata))
    return out


def argos_file(folder: Path, out: Path, **more: bytes) -> Path:
    """Save an installed package as a file. `more` are further members by name."""
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(path for path in folder.rglob("*") if path.is_file()):
            archive.write(file, f"translate-en_de-1_0/{file.relative_to(folder)}")
        for name, data in more.items():
            archive.writestr(name, data)
    return out
