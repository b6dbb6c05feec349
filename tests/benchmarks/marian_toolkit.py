"""Export our models and settings to the Marian C++ toolkit (pip install pymarian)."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import torch

from nmt_cli.corpus.tokenizer import Tokenizer
from nmt_cli.interop.transformers_marian import OUTPUT_BIAS, SHARED_EMBEDDING, to_transformers
from nmt_cli.recipe import schema
from nmt_cli.transformer.weights import LoadedModel
from nmt_cli.translation.translator import Translator

COMMAND = "import sys, _pymarian; sys.exit(_pymarian.main(sys.argv[1:]))"  # Marian's command line, for python -c
NORMS = {"self_attn_layer_norm": "self_Wo", "encoder_attn_layer_norm": "context_Wo", "final_layer_norm": "ffn_ffn"}


def model_options(model: schema.Model) -> dict[str, object]:
    top = "n" if model.norm == "pre" else ""
    return {
        **{"type": "transformer", "dim-emb": model.d_model, "transformer-dim-ffn": model.d_ff},
        **{"enc-depth": model.depths[0], "dec-depth": model.depths[1], "transformer-heads": model.num_heads},
        **{"transformer-preprocess": top, "transformer-postprocess-top": top, "tied-embeddings-all": True},
        **{"transformer-ffn-activation": model.activation, "transformer-postprocess": "da" if top else "dan"},
    }


def _name(transformers: str) -> str:
    """Return Marian's name for a tensor that transformers calls "model.STACK.layers.NUMBER.MODULE.KIND"."""
    _, stack, _, layer, *module, kind = transformers.split(".")
    if module[0] in NORMS:
        return f"{stack}_l{int(layer) + 1}_{NORMS[module[0]]}_ln_{'scale' if kind == 'weight' else 'bias'}"
    part = {"fc1": "ffn", "fc2": "ffn", "self_attn": "self", "encoder_attn": "context"}[module[0]]
    suffix = module[1][0] if module[1:] else module[0][2]  # "q" of q_proj, or "1" of fc1
    return f"{stack}_l{int(layer) + 1}_{part}_{'W' if kind == 'weight' else 'b'}{suffix}"


def write_model(loaded: LoadedModel, directory: Path, kinds: list[str]) -> None:
    """Write a post-norm model with one vocabulary as model.npz and vocab.spm, and convert it to each GEMM type."""
    size = loaded.model.vocabulary_size
    tensors = to_transformers(loaded.model.state_dict(), loaded.recipe.model, [[*range(size)]] * 2)
    arrays = {"Wemb": tensors.pop(SHARED_EMBEDDING).numpy(), "decoder_ff_logit_out_b": tensors.pop(OUTPUT_BIAS).numpy()}
    for name, tensor in tensors.items():
        arrays[_name(name)] = np.ascontiguousarray(np.atleast_2d(tensor.numpy().T))
    options = model_options(loaded.recipe.model) | {"dim-vocabs": [size, size], "version": "v1.12.0"}
    arrays["special:model.yml"] = np.frombuffer(json.dumps(options).encode() + b"\0", np.int8)
    directory.mkdir(exist_ok=True)
    np.savez(directory / "model.npz", **arrays)
    (directory / "vocab.spm").write_bytes(loaded.tokenizer_file.read_bytes())
    for kind in kinds:
        options = f"convert --from model.npz --to {kind}.bin --gemm-type {kind}".split()
        subprocess.run([sys.executable, "-c", COMMAND, *options], cwd=directory, check=True, capture_output=True)


def translate_with_marian_positions(loaded: LoadedModel, lines: list[str], beam: int) -> list[str]:
    """Translate with our float32 search and Marian's positions: only these reach wavelength 2 pi * 10,000."""
    sinusoids = loaded.model.get_buffer("sinusoids")
    last = sinusoids.shape[1] // 2 - 1
    angles = torch.arange(len(sinusoids))[:, None] * 10000 ** (-torch.arange(last + 1, dtype=torch.float64) / last)
    sinusoids.copy_(torch.stack([angles.sin(), angles.cos()], -1).flatten(1))
    translator = Translator.of(loaded.model, Tokenizer(loaded.tokenizer_file), loaded.recipe, torch.float32)
    return [t.text for t in translator.translate(lines, beam=beam, alpha=0.0, split=False)]
