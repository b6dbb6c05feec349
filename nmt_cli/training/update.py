"""One update: this process' share of its micro-batches, one loss over all of them, one step of Adam.

Accelerate places the model and wraps it. Data order, loss normalisation and schedule are ours: what Accelerate offers
there repeats sentences, averages averages, and steps the schedule once per process.
"""

import contextlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from nmt_cli import recipe
from nmt_cli.corpus.store import Lengths
from nmt_cli.training.batches import Updates, dropout_masks
from nmt_cli.training.loss import smoothed_loss
from nmt_cli.training.optim import noam_rate
from nmt_cli.transformer.model import Batch, Masks, Transformer


class LossModel(nn.Module):
    """The Transformer with its loss on top, so that wrappers see one forward pass from ids to a number."""

    def __init__(self, transformer: Transformer, smoothing: float, dtype: torch.dtype) -> None:
        super().__init__()
        self.transformer, self.smoothing, self.dtype = transformer, smoothing, dtype

    def forward(self, batch: Batch, masks: Masks | None) -> tuple[Tensor, Tensor]:
        """Return the label-smoothed loss and the plain nll, summed over target tokens."""
        hidden_ND = self.transformer(batch, masks, self.dtype)
        return smoothed_loss(*self.transformer.output_terms(hidden_ND), batch.tgt_out_N, self.smoothing)


@dataclass(frozen=True)
class Part:
    """What one process computes at once: one or several logical micro-batches; weight 0 where it has no more."""

    batch: Batch
    masks: Masks | None
    weight: float


@dataclass
class Trainer:
    """What an update needs: the data, the model and where they are computed.

    Attributes:
        accelerator: Accelerate's, which knows the device and the other processes.
        transformer: the bare model; `model` is the same one with its loss, wrapped.
        dtype: arithmetic; weights and Adam's state are float32.
        memory_tokens: tokens of one side computed at once.
    """

    recipe: recipe.Recipe
    updates: Updates
    accelerator: Any
    transformer: Transformer
    model: Any
    optimizer: Any
    dtype: torch.dtype
    memory_tokens: int

    def parts(self, step: int) -> tuple[list[Part], int, int]:
        """Return this process' share of update `step` (from 0), and all its source and target tokens."""
        micro_batches = self.updates.micro_batches_of(step)
        tokens = [self._tokens(m) for m in micro_batches]
        world, rank = self.accelerator.num_processes, self.accelerator.process_index
        shares = [self._group(tokens, range(r, len(tokens), world)) for r in range(world)]
        mine = shares[rank]
        parts = [self._part(step, micro_batches, tokens, group, 1.0) for group in mine]
        # Sharded models compute together: every process makes as many passes as the busiest one.
        fullest = max(range(len(tokens)), key=lambda m: tokens[m][1])
        while len(parts) < max(map(len, shares)):
            parts.append(self._part(step, micro_batches, tokens, [fullest], 0.0))
        return parts, sum(t[0] for t in tokens), sum(t[1] for t in tokens)

    def _tokens(self, sentences: Lengths) -> tuple[int, int]:
        return int(self.updates.src_lengths[sentences].sum()), int(self.updates.tgt_lengths[sentences].sum())

    def _group(self, tokens: list[tuple[int, int]], mine: range) -> list[list[int]]:
        """Put micro-batches together as far as memory allows."""
        groups: list[list[int]] = []
        size = 0
        for index in mine:
            cost = max(tokens[index])
            if not cost:
                continue
            if groups and size + cost <= self.memory_tokens:
                groups[-1].append(index)
                size += cost
            else:
                groups.append([index])
                size = cost
        return groups

    def _part(
        self, step: int, micro_batches: list[Lengths], tokens: list[tuple[int, int]], group: list[int], weight: float
    ) -> Part:
        device, model = self.accelerator.device, self.recipe.model
        batch = self.updates.batch(np.concatenate([micro_batches[i] for i in group]), device)
        keys = [(self.recipe.training.seed, step, i) for i in group]
        places = self.transformer.dropout_places()
        counts = [tokens[i] for i in group]
        masks = dropout_masks(keys, counts, places, model.d_model, model.dropout, self.dtype, device)
        return Part(batch, masks, weight)

    def rehearse(self) -> None:
        """Compute the gradient of the longest sentences and forget it: too little memory shows now, not on day two."""
        longest = np.maximum(self.updates.src_lengths, self.updates.tgt_lengths)
        share = 1.1 * self.recipe.training.tokens_per_step
        most = max(self.memory_tokens, share / self.updates.micro_batches)
        size = max(1, int(min(most, share / self.accelerator.num_processes)))
        order = np.argpartition(-longest, min(size, len(longest)) - 1)[:size]
        chosen = order[np.argsort(-longest[order])]
        chosen = chosen[: max(1, np.searchsorted(longest[chosen].cumsum(), size, "right"))]
        part = self._part(0, [chosen], [self._tokens(chosen)], [0], 0.0)
        numbers = 0 if self.optimizer.state else sum(p.numel() for p in self.transformer.parameters())
        moments = torch.empty(2 * numbers, device=self.accelerator.device)  # Adam makes them in its first step
        with self.accelerator.no_sync(self.model):
            loss, _ = self.model(part.batch, part.masks)
            self.accelerator.backward(loss * part.weight)
        del moments
        self.optimizer.zero_grad(set_to_none=True)

    def update(self, step: int, parts: list[Part], tgt_tokens: int) -> tuple[Tensor, Tensor]:
        """Do update `step` (from 1); return this process' summed nll and the gradient's norm.

        The loss is summed and divided once by the target tokens of the whole update. The wrapper averages gradients
        over processes, so the sum is multiplied by their number first.
        """
        nll = torch.zeros((), dtype=torch.float64, device=self.accelerator.device)
        for i, part in enumerate(parts):
            last = i == len(parts) - 1
            with contextlib.nullcontext() if last else self.accelerator.no_sync(self.model):
                loss, part_nll = self.model(part.batch, part.masks)
                self.accelerator.backward(loss * (part.weight * self.accelerator.num_processes / tgt_tokens))
            nll += part_nll.detach() * part.weight
        norm: Tensor = self.accelerator.clip_grad_norm_(self.model.parameters(), float("inf"))
        if bool(torch.isfinite(norm)):
            for group in self.optimizer.param_groups:
                group["lr"] = noam_rate(step, self.recipe.model.d_model, self.recipe.training)
            self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return nll, norm
