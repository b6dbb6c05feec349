"""The env command: versions, hardware, and what nmt would choose here, for reports of bugs."""

import json
import os
import platform
from importlib import metadata
from pathlib import Path

import torch

from nmt_cli import __version__
from nmt_cli.transformer.hardware import choose_device, choose_dtype, has_int8
from nmt_cli.translation.translator import MAX_WORKERS

PACKAGES = (
    "torch numpy sentencepiece accelerate safetensors datasets huggingface-hub sacrebleu typer pydantic transformers "
    "ctranslate2"
)
FLAGS = "avx2 avx512f avx512_vnni avx_vnni avx512_bf16 amx_bf16 amx_int8"  # of CPUs, those that change what is chosen


def env(as_json: bool) -> str:
    """Return the table, or one JSON object."""
    device, cores = choose_device(), len(os.sched_getaffinity(0))
    cuda = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
    gpus = [f"{gpu.name}, {gpu.total_memory // 2**20} MiB, sm_{gpu.major}{gpu.minor}" for gpu in cuda]
    dtype = str(choose_dtype("auto", device)).removeprefix("torch.")
    words = Path("/proc/cpuinfo").read_text().replace("\t", " ") if Path("/proc/cpuinfo").is_file() else ""
    model = next((line.split(": ")[1] for line in words.split("\n") if line.startswith("model name")), "")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20
    rows = {"nmt": __version__, "python": platform.python_version(), "system": platform.platform()}
    rows |= {name: _version(name) for name in PACKAGES.split()}
    rows |= {"cpu": f"{model or platform.machine()}, {cores} cores to use, {memory} MiB"}
    rows |= {"cpu features": " ".join(flag for flag in FLAGS.split() if f" {flag} " in words) or "none known"}
    rows |= {"cuda": str(torch.version.cuda), "gpus": "; ".join(gpus) or "none"}
    rows |= {"device": device.type, "training precision": dtype}
    rows |= {"translation precision": "int8" if has_int8(device) else dtype}
    rows |= {"translation workers": str(len(gpus) if device.type == "cuda" else min(cores, MAX_WORKERS))}
    width = max(map(len, rows))
    return json.dumps(rows, indent=1) if as_json else "\n".join(f"{key:{width}}  {row}" for key, row in rows.items())


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"
