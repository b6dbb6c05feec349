"""Compare attention kernels for packed sentences on a GPU: flash attention, as in training, and FlexAttention.

Prints the milliseconds of one forward and backward pass, replayed as a CUDA graph. A training step has 18 such passes.
FlexAttention is compiled for the batch's sizes. Run from the repository root:

    PYTHONPATH=. python tests/benchmarks/gpu_attention.py
"""

import argparse
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from gpu_train_speed import wmt14_lengths
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from nmt_cli.transformer.attention import Layout, packed_attention

TOKENS, SIZE, BLOCK, REPLAYS = 25_000, 64, 128, 50
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


def sentence_mask(lengths: npt.NDArray[np.int64], *, causal: bool) -> BlockMask:
    """Return a mask for attention within sentences. The lengths alone determine which blocks are computed."""
    tokens = int(lengths.sum())
    sentences = np.pad(np.repeat(np.arange(len(lengths)), lengths), (0, -tokens % BLOCK), constant_values=len(lengths))
    first = np.searchsorted(sentences, sentences[::BLOCK], "left") // BLOCK
    last = (np.searchsorted(sentences, sentences[BLOCK - 1 :: BLOCK], "right") - 1) // BLOCK
    if causal:
        last = np.minimum(last, np.arange(len(first)))
    counts = (last - first + 1).astype(np.int32)
    indices = np.zeros((len(first), len(first)), np.int32)
    for row, count in enumerate(counts):
        indices[row, :count] = np.arange(first[row], last[row] + 1)
    sentence_N = torch.tensor(sentences, dtype=torch.int32, device="cuda")

    def allowed(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        same = sentence_N[query] == sentence_N[key]
        return same & (query >= key) if causal else same

    blocks = (torch.tensor(array[None, None], device="cuda") for array in (counts, indices))
    return BlockMask.from_kv_blocks(*blocks, BLOCK_SIZE=BLOCK, mask_mod=allowed, seq_lengths=(tokens, tokens))


def milliseconds(attend: Attend, heads: int, tokens: int) -> float:
    """Return the time of one forward and backward pass in milliseconds."""
    random = [torch.randn(tokens, heads, SIZE, device="cuda", dtype=torch.bfloat16) for _ in range(4)]
    inputs, gradient = [x.requires_grad_() for x in random[:3]], random[3]

    def run() -> tuple[Tensor, ...]:
        return torch.autograd.grad(attend(*inputs), inputs, gradient)

    side, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.cuda.stream(side):
        for _ in range(3):
            run()
    side.synchronize()
    with torch.cuda.graph(graph):
        run()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    graph.replay()
    start.record()
    for _ in range(REPLAYS):
        graph.replay()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / REPLAYS


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    drawn = wmt14_lengths(8000, np.random.default_rng(1))[0]
    lengths = np.sort(drawn[: np.searchsorted(drawn.cumsum(), TOKENS)])
    layout, tokens = Layout(lengths, "cuda"), int(lengths.sum())
    compiled = torch.compile(flex_attention, dynamic=False)
    print(torch.cuda.get_device_name(), f"{len(lengths)} sentences, {tokens} tokens")
    for heads in (8, 16):
        for causal in (False, True):
            mask = sentence_mask(lengths, causal=causal)

            def flash(q: Tensor, k: Tensor, v: Tensor, causal: bool = causal) -> Tensor:
                return packed_attention(q, k, v, layout, layout, causal=causal)

            def flex(q: Tensor, k: Tensor, v: Tensor, mask: BlockMask = mask) -> Tensor:
                batched = (x.transpose(0, 1)[None] for x in (q, k, v))
                return compiled(*batched, block_mask=mask)[0].transpose(0, 1)  # type: ignore[no-any-return]

            times = ", ".join(f"{way.__name__} {milliseconds(way, heads, tokens):.3f} ms" for way in (flash, flex))
            print(f"{heads} heads, {'causal' if causal else 'full'}: {times}", flush=True)


if __name__ == "__main__":
    main()
