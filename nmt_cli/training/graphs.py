"""Training steps as CUDA graphs.

A step of the base model of "Attention Is All You Need" has so many kernels that, on an H100, launching them takes as
long as running them. A CUDA graph runs the whole step with one launch. Each graph works only for batches of certain
sizes, so batches are padded to sizes that recur (`BatchPlan.batch`). The first step with new sizes launches each
kernel. The second step with these sizes captures a graph and replays it. Later steps only replay the graph.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from nmt_cli.recipe import schema
from nmt_cli.training.batches import LONGEST_PADDING
from nmt_cli.transformer.attention import has_kernel
from nmt_cli.transformer.hardware import captured
from nmt_cli.transformer.model import Batch

MAX_GRAPHS = 64  # batches of further sizes run without a graph
# Trainer.compute: takes the passes of a step, the learning rate and the loss scale; returns the nll and gradient norm.
Compute = Callable[[list[Batch], float | Tensor, float | Tensor], tuple[Tensor, Tensor]]


def uses_padding(settings: schema.Recipe, dtype: torch.dtype, accelerator: Any) -> bool:
    """Return whether to pad batches to sizes that recur, for CUDA graphs.

    CUDA graphs need training.cuda_graphs, a single process, a GPU with a kernel for attention over packed tokens, and a
    model whose maximum length allows the PAD sentences.
    """
    model, device = settings.model, accelerator.device
    packed = has_kernel(torch.empty(0, dtype=dtype, device=device), model.d_k, model.d_v)
    alone = accelerator.num_processes == 1 and settings.training.cuda_graphs
    return packed and alone and model.max_length >= LONGEST_PADDING


def has_spare_memory(device: torch.device) -> bool:
    """Return whether enough memory is free for graphs, which need a little more than the peak memory use so far."""
    free, _ = torch.cuda.mem_get_info(device)
    return 1.2 * torch.cuda.max_memory_reserved(device) < free


class StepGraphs:
    """Replays the steps of one process. All graphs share a memory pool, so only one may run at a time."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.rate = torch.zeros((), device=device)
        self.scale = torch.zeros((), dtype=torch.float64, device=device)
        self.seen = set[tuple[int, ...]]()  # sizes of earlier batches
        self.graphs: dict[tuple[int, ...], tuple[Batch, torch.cuda.CUDAGraph, tuple[Tensor, Tensor]]] = {}
        self.pool: Any = None
        self.max_graphs = MAX_GRAPHS

    def __call__(self, compute: Compute, batch: Batch, rate: float, scale: float) -> tuple[Tensor, Tensor]:
        """Compute or replay a step with this learning rate and loss scale. Return the nll and the gradient norm."""
        sizes = batch.sizes
        self.scale.fill_(scale)
        if sizes in self.seen and sizes not in self.graphs and len(self.graphs) < self.max_graphs:
            self._capture(compute, batch)
        self.seen.add(sizes)
        if sizes not in self.graphs:
            return compute([batch], rate, self.scale)
        inputs, graph, output = self.graphs[sizes]
        if inputs is not batch:
            inputs.buffer.copy_(batch.buffer)
        self.rate.fill_(rate)
        graph.replay()
        nll, norm = output
        return nll.clone(), norm.clone()  # the next replay overwrites them

    def _capture(self, compute: Compute, batch: Batch) -> None:
        """Capture a graph for batches of the same sizes. If memory runs out, stop capturing graphs for good."""
        try:
            graph, output = captured(self.device, lambda: compute([batch], self.rate, self.scale), self.pool)
        except torch.OutOfMemoryError:
            self.max_graphs = len(self.graphs)
        else:
            self.pool = graph.pool()
            self.graphs[batch.sizes] = batch, graph, output
