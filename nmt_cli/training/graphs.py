"""Training steps as CUDA graphs.

A step of the paper's base model has so many kernels that launching them takes the host as long as an H100 needs to run
them. Captured as a graph they are one launch. A graph has fixed sizes, so batches are padded to sizes that recur
(`BatchPlan.batch`). The first step of given sizes is launched kernel by kernel, the second is captured and replayed,
later ones are replayed.
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

MOST = 64  # graphs that are kept; steps of further sizes are launched kernel by kernel
Compute = Callable[[list[Batch], float | Tensor, float | Tensor], tuple[Tensor, Tensor]]


def takes_pads(settings: schema.Recipe, dtype: torch.dtype, accelerator: Any) -> bool:
    """Return whether batches are padded to sizes that recur: packed ones of one process."""
    model, device = settings.model, accelerator.device
    packed = has_kernel(torch.empty(0, dtype=dtype, device=device), model.d_k, model.d_v)
    alone = accelerator.num_processes == 1 and settings.training.cuda_graphs
    return packed and alone and model.max_length >= LONGEST_PADDING


def fits_twice(device: torch.device) -> bool:
    """Return whether the most memory that was held so far is free once more, for what graphs allocate."""
    free, _ = torch.cuda.mem_get_info(device)
    return 1.2 * torch.cuda.max_memory_reserved(device) < free


class StepGraphs:
    """The steps of one process. All graphs allocate from one memory pool: no two run at once."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.rate = torch.zeros((), device=device)
        self.scale = torch.zeros((), dtype=torch.float64, device=device)
        self.seen = set[tuple[int, ...]]()
        self.graphs: dict[tuple[int, ...], tuple[Batch, torch.cuda.CUDAGraph, tuple[Tensor, Tensor]]] = {}
        self.pool: Any = None
        self.most = MOST

    def __call__(self, compute: Compute, batch: Batch, rate: float, scale: float) -> tuple[Tensor, Tensor]:
        """Return the nll and the norm of a step: of `compute` with this learning rate and scale of the loss."""
        sizes = batch.sizes
        self.scale.fill_(scale)
        if sizes in self.seen and sizes not in self.graphs and len(self.graphs) < self.most:
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
        return nll.clone(), norm.clone()  # the next replay writes there

    def _capture(self, compute: Compute, batch: Batch) -> None:
        """Keep a graph for batches of these sizes; where memory does not suffice, for none from now on."""
        try:
            graph, output = captured(self.device, lambda: compute([batch], self.rate, self.scale), self.pool)
        except torch.OutOfMemoryError:
            self.most = len(self.graphs)
        else:
            self.pool = graph.pool()
            self.graphs[batch.sizes] = batch, graph, output
