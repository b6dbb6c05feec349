"""CPU kernels: measurements behind the choices for attention and for dropout masks, as ratios of two ways.

Measured in CPU time of one thread, which other work on the machine hardly changes. From the repository root:

    PYTHONPATH=. python tests/benchmarks/cpu_kernels.py
"""

import statistics
import time
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from nmt_cli.transformer.attention import dot_product_attention
from nmt_cli.transformer.hardware import reuse_memory
from nmt_cli.transformer.model import dropout_mask


def compare(what: str, names: tuple[str, str], works: tuple[Callable[[], object], Callable[[], object]]) -> None:
    """Let two ways take turns and print the median CPU milliseconds of each and how much faster the second one is."""
    times: tuple[list[float], list[float]] = ([], [])
    for turn in range(23):
        for work, own in zip(works, times, strict=True):
            start = time.process_time()
            work()
            if turn >= 3:
                own.append(1000 * (time.process_time() - start))
    slow, fast = (statistics.median(own) for own in times)
    print(f"{what:44} {names[0]} {slow:7.2f} ms, {names[1]} {fast:7.2f} ms: {slow / fast:.1f} times faster", flush=True)


def attention(precision: torch.dtype, sentences: int, length: int) -> None:
    """torch's fused kernel against the written-out products, forward and backward, as packed batches need it."""
    shape = (sentences, 4, length, 64)
    q, k, v = (torch.randn(shape, dtype=precision, requires_grad=True) for _ in range(3))
    bias, grad = torch.zeros(sentences, 1, 1, length, dtype=precision), torch.randn(shape, dtype=precision)
    bias[:, :, :, -2:] = torch.finfo(precision).min / 2

    def fused() -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias)

    name = str(precision).removeprefix("torch.")
    compare(
        f"attention, {sentences} x 4 heads x {length} x 64, {name}",
        ("fused", "written out"),
        (lambda: fused().backward(grad), lambda: dot_product_attention(q, k, v, bias).backward(grad)),
    )


def dropout() -> None:
    seeds = torch.arange(4096, dtype=torch.int32)

    def bernoulli(dtype: torch.dtype) -> Tensor:
        return torch.empty(4096, 256, dtype=dtype).bernoulli_(0.9)

    for dtype in (torch.bfloat16, torch.float32):
        works = partial(bernoulli, dtype), partial(dropout_mask, seeds, 256, 0.1, dtype)
        compare(f"dropout mask, 4,096 x 256, {dtype}", ("bernoulli_", "hash"), works)


def main() -> None:
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads")
    reuse_memory()
    torch.set_num_threads(1)
    for precision in (torch.bfloat16, torch.float32):
        attention(precision, 256, 16)
        attention(precision, 128, 32)
    dropout()


if __name__ == "__main__":
    main()
