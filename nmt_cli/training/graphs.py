"""Training steps as CUDA graphs.

The kernels of a step of the paper's base model are so many that the host takes as long to launch them as an H100 to
compute them. Captured as a graph they are one launch. A graph has fixed sizes, so batches are padded to sizes that come
again (`BatchPlan.batch`): the first step of some sizes is computed as usual, the second is captured, later ones replay.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from nmt_cli.transformer.hardware import captured
from nmt_cli.transformer.model import Batch

MOST = 64  # graphs: batches of other sizes are computed as usual
Compute = Callable[[list[Batch], float | Tensor, float | Tensor], tuple[Tensor, Tensor]]


class StepGraphs:
    """Steps of one process. What a graph allocates lies in one pool for all, as they are never replayed at once."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.rate = torch.zeros((), device=device)
        self.scale = torch.zeros((), dtype=torch.float64, device=device)
        self.seen = set[tuple[int, ...]]()
        self.graphs: dict[tuple[int, ...], tuple[Batch, torch.cuda.CUDAGraph, tuple[Tensor, Tensor]]] = {}
        self.pool: Any = None

    def __call__(self, compute: Compute, batch: Batch, rate: float, scale: float) -> tuple[Tensor, Tensor]:
        """Return the nll and the norm of a step: of `compute` with this learning rate and scale of the loss."""
        sizes = batch.sizes
        if sizes not in self.seen or (sizes not in self.graphs and len(self.graphs) == MOST):
            self.seen.add(sizes)
            return compute([batch], rate, scale)
        if sizes not in self.graphs:
            graph, output = captured(self.device, lambda: compute([batch], self.rate, self.scale), self.pool)
            self.pool = graph.pool()
            self.graphs[sizes] = batch, graph, output
        inputs, graph, output = self.graphs[sizes]
        if inputs is not batch:
            inputs.buffer.copy_(batch.buffer)
        self.rate.fill_(rate)
        self.scale.fill_(scale)
        graph.replay()
        nll, norm = output
        return nll.clone(), norm.clone()  # the next replay writes there
