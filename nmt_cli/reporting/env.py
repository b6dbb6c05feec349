"""Implementation of `nmt env`: describe versions, hardware and hardware-dependent defaults, for bug reports."""

import json
import platform
from importlib import metadata

import torch

from nmt_cli import __version__
from nmt_cli.engine import library
from nmt_cli.system.operating_system import cpu_features, cpu_model
from nmt_cli.system.resources import usable_cores
from nmt_cli.transformer.hardware import choose_device, choose_dtype
from nmt_cli.translation.backends import MAX_THREADS
from nmt_cli.translation.engine_backend import best_precision

PACKAGES = "torch numpy sentencepiece accelerate datasets huggingface-hub sacrebleu transformers ctranslate2"
# CPU features that affect a default.
FLAGS = "avx2 avx512f avx512_vnni avx_vnni avx512_bf16 amx_bf16 amx_int8 asimddp i8mm"


def env(as_json: bool) -> str:
    device = choose_device()
    cores = usable_cores()
    gpus = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
    dtype = str(choose_dtype("auto", device)).removeprefix("torch.")
    features = cpu_features()
    installed = {package.name.replace("_", "-"): package.version for package in metadata.distributions()}
    rows = {
        **{"nmt": __version__, "python": platform.python_version(), "system": platform.platform()},
        **{name: installed.get(name, "not installed") for name in PACKAGES.split()},
        "cpu": f"{cpu_model()}, {cores} usable cores",
        "cpu features": " ".join(flag for flag in FLAGS.split() if flag in features),
        "engine": library.describe(),
        "cuda": str(torch.version.cuda),
        "gpus": "; ".join(f"{gpu.name}, {gpu.total_memory >> 20} MiB" for gpu in gpus),
        "device": device.type,
        "training precision": dtype,
        "translation precision": dtype if device.type == "cuda" else best_precision(library.describe()),
        "translation workers": str(len(gpus) if device.type == "cuda" else min(cores, MAX_THREADS)),
    }
    return json.dumps(rows, indent=1) if as_json else "\n".join(f"{key:23}{row}" for key, row in rows.items())
