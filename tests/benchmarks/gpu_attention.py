"""Compare attention kernels for packed sentences on a GPU: flash attention, and the Triton kernels for short sentences.

Prints the milliseconds of one forward and backward pass, replayed as a CUDA graph, for 25,000 tokens with the sentence
lengths of WMT14 and for sentences of equal length. A training step has 18 such passes. Run from the repository root:

    PYTHONPATH=. python tests/benchmarks/gpu_attention.py
"""

import argparse
from collections.abc import Callable
from functools import partial

import numpy as np
import numpy.typing as npt
import torch
from gpu_train_speed import wmt14_lengths
from torch import Tensor

from nmt_cli.transformer import attention
from nmt_cli.transformer.hardware import captured

TOKENS, SIZE, REPLAYS = 25_000, 64, 50
LENGTHS = 64, 128, 256, 512, 1024


def milliseconds(attend: Callable[..., Tensor], inputs: list[Tensor], gradient: Tensor) -> float:
    """Return the time of one forward and backward pass in milliseconds."""

    def run() -> tuple[Tensor, ...]:
        leaves = [x.detach().requires_grad_() for x in inputs]
        return torch.autograd.grad(attend(*leaves), leaves, gradient)

    run()
    graph, _ = captured(gradient.device, run)
    graph.replay()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(REPLAYS):
        graph.replay()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end)) / REPLAYS


def batches() -> dict[str, npt.NDArray[np.int64]]:
    """Return sentence lengths in tokens, sorted as in training."""
    drawn = wmt14_lengths(8000, np.random.default_rng(1))[0]
    equal = {f"{length} tokens each": np.full(TOKENS // length, length) for length in LENGTHS}
    return {"WMT14": np.sort(drawn[: np.searchsorted(drawn.cumsum(), TOKENS)]), **equal}


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    print(torch.cuda.get_device_name())
    attention.SHORT_MAX = max(LENGTHS)
    for name, lengths in batches().items():
        layout = attention.Layout(lengths, "cuda")
        for heads in (8, 16) if name == "WMT14" else (8,):
            shape = int(lengths.sum()), heads, SIZE
            *inputs, gradient = [torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(4)]
            for causal in (False, True):
                attend = partial(attention.packed_attention, queries=layout, keys=layout, causal=causal)
                attention.SHORT_MEAN = 0
                flash = milliseconds(attend, inputs, gradient)
                attention.SHORT_MEAN = max(LENGTHS)
                ours = milliseconds(attend, inputs, gradient)
                kind = "causal" if causal else "full"
                print(f"{name}, {heads} heads, {kind}: flash {flash:.3f} ms, ours {ours:.3f} ms", flush=True)


if __name__ == "__main__":
    main()
