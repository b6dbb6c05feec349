"""What the hardware has to offer to training and translation alike: arithmetic and memory."""

import ctypes
from pathlib import Path

import torch

from nmt_cli.errors import UsageError


def inference_device() -> torch.device:
    """Return the first GPU, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def choose_dtype(precision: str, device: torch.device) -> torch.dtype:
    """Return the arithmetic for "auto", "fp32" or "bf16": auto is bf16 where the hardware has it.

    Raises:
        UsageError: bf16 is asked of hardware that has none.
    """
    if device.type == "cuda":
        has = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        capabilities = torch.backends.cpu.get_cpu_capability()
        has = "AVX512" in capabilities and _cpu_has("avx512_bf16", "amx_bf16")
    if precision == "bf16" and not has:
        raise UsageError("precision is bf16, which this hardware does not have. Set it to auto or fp32")
    return torch.bfloat16 if has and precision != "fp32" else torch.float32


def has_int8(device: torch.device) -> bool:
    """Return whether 8-bit layers are right and fast here: a CPU with VNNI, whose products of bytes are exact."""
    return device.type == "cpu" and _cpu_has("avx512_vnni", "avx_vnni")


def check_int8(device: torch.device) -> None:
    """Refuse 8-bit layers where they would be wrong: without VNNI the products of bytes overflow 16 bits.

    Raises:
        UsageError: this hardware has no exact products of bytes.
    """
    if device.type != "cpu":
        raise UsageError("--precision int8 is for CPUs. Leave it out, or hide the GPU: CUDA_VISIBLE_DEVICES=")
    if not has_int8(device):
        raise UsageError("--precision int8 needs a CPU with VNNI, which this one does not have. Leave it out")


def _cpu_has(*flags: str) -> bool:
    try:
        words = Path("/proc/cpuinfo").read_text().split()
    except OSError:
        return False
    return any(flag in words for flag in flags)


def reuse_memory() -> None:
    """Make glibc keep freed memory for the next tensor instead of giving it back to the kernel.

    Otherwise every large temporary is mapped, faulted in page by page and unmapped again, which costs a sixth of a
    training step on the CPU (tests/benchmarks/README.md). Does nothing where there is no glibc.
    """
    m_trim_threshold, m_mmap_max = -1, -4  # malloc.h
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(m_mmap_max, 0)
        mallopt(m_trim_threshold, 2**31 - 1)
