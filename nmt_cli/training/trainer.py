"""The training steps of one process, with its model and optimizer."""

import contextlib
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nmt_cli.corpus.store import Corpus
from nmt_cli.corpus.tokenizer import files_of
from nmt_cli.recipe import schema
from nmt_cli.storage import artefact
from nmt_cli.system.errors import DataError
from nmt_cli.training import batches, checkpoints, graphs
from nmt_cli.training.collectives import broadcast_tensors, on_main
from nmt_cli.training.loss import LossModel
from nmt_cli.training.metrics_log import MetricsLog
from nmt_cli.training.optim import adam, noam_rate
from nmt_cli.training.validation import DevSet
from nmt_cli.transformer.hardware import choose_dtype, recorded, reuse_memory
from nmt_cli.transformer.model import Batch, Transformer
from nmt_cli.transformer.weights import load_into, load_model


class Trainer:
    """Takes the training steps of a run. To make a trainer, call `start_trainer`."""

    def __init__(
        self,
        settings: schema.Recipe,
        corpus: Corpus,
        accelerator: Any,
        directory: Path,
        transformer: Transformer,
        state: checkpoints.State,
        moments: dict[str, Tensor],
    ) -> None:
        """`moments` is Adam's state. Raise DataError if the corpus has a sentence that is too long for the model."""
        training, device = settings.training, accelerator.device
        self.settings, self.corpus, self.accelerator, self.directory = settings, corpus, accelerator, directory
        self.transformer, self.state = transformer, state
        self.warned = False  # whether the warning about low scores has been printed; one is enough
        self.dev = DevSet(corpus, settings) if corpus.lines("dev")[0] else None
        parts = max(training.micro_batches, accelerator.num_processes)
        self.plan = batches.BatchPlan(corpus, training, parts, settings.model.source_eos)
        longest = self.plan.longest
        if longest > settings.model.max_length:
            advice = "Raise model.max_length, or lower corpus.cleaning.max_tokens and prepare again"
            raise DataError(f"{corpus.directory} has a sentence of {longest} tokens, too long for the model. {advice}")
        self.transformer.to(device)
        self.dtype = choose_dtype(training.precision, device)  # of computations; weights and moments are float32
        self.optimizer: Any = adam(self.transformer, training)
        checkpoints.restore_optimizer(self.transformer, self.optimizer, moments)
        model = LossModel(self.transformer, training.label_smoothing, self.dtype)
        with warnings.catch_warnings(action="ignore", category=FutureWarning):  # about DDP's broadcast_buffers
            self.model = accelerator.prepare(model)
        self.memory_tokens = training.memory_tokens or batches.default_memory_tokens(settings.model, device)
        self.device_module = torch.get_device_module(device)
        self.copy_stream = self.device_module.Stream()  # on which batches are copied to the device
        # Fields of the manifests of the checkpoints and of the model.
        self.manifest = {"corpus": corpus.identity, "seen_tokens": corpus.seen_tokens}
        log = directory / "metrics.jsonl"
        self.metrics: Any = MetricsLog(log, state.metrics_bytes) if accelerator.is_main_process else None
        self.writer = checkpoints.Writer(directory, training, self.metrics, self.manifest)
        self.pads = graphs.uses_padding(settings, self.dtype, accelerator)
        self.graphs: graphs.StepGraphs | None = None

    def batch_thread(self) -> ThreadPoolExecutor:
        """Return an executor whose only thread calls `step_batch`. The thread uses the device of this process."""
        device = self.device_module.current_device()
        return ThreadPoolExecutor(1, initializer=self.device_module.set_device, initargs=(device,))

    def step_batch(self, index: int) -> batches.StepBatch:
        """Return this process's share of step `index` (from 0). Its copy to the device may still be in progress."""
        micro_batches = self.plan.micro_batches_of(index)
        tokens = [self.plan.tokens(sentences, index) for sentences in micro_batches]
        costs = [max(sides) for sides in tokens]
        rank, world = self.accelerator.process_index, self.accelerator.num_processes
        groups, weight = batches.group_micro_batches(costs, rank, world, self.memory_tokens), 1.0
        if not groups and any(costs):  # DDP requires a pass on every process, so compute one with weight 0
            groups, weight = [[int(np.argmax(costs))]], 0.0
        sentences = [np.concatenate([micro_batches[i] for i in group]) for group in groups]
        with self.device_module.stream(self.copy_stream):  # the previous step runs on another stream meanwhile
            padded = self.pads and len(sentences) == 1
            passes = [self.plan.batch(each, index, self.accelerator.device, padded=padded) for each in sentences]
            copied = recorded(self.accelerator.device)
        return batches.StepBatch(passes, sum(tgt for _, tgt in tokens), weight, copied)

    def take_step(self, step: int, batch: batches.StepBatch) -> tuple[Tensor, Tensor]:
        """Take step number `step` (from 1). If the gradient is not finite, do not change the weights.

        Return the summed negative log-likelihood of this process's share, and the norm of the gradient.
        """
        batch.wait(self.device_module.current_stream())
        rate = noam_rate(step, self.settings.model.d_model, self.settings.training)
        scale = batch.weight * self.accelerator.num_processes / batch.tgt_tokens
        if self.graphs and len(batch.passes) == 1:
            return self.graphs(self.compute, batch.passes[0], rate, scale)
        nll, norm = self.compute(batch.passes, rate, scale)
        return nll * batch.weight, norm

    def compute(self, passes: list[Batch], rate: float | Tensor, scale: float | Tensor) -> tuple[Tensor, Tensor]:
        """Update the weights with the gradient of `scale` times the loss of all passes. Return the nll and the norm."""
        total = torch.zeros((), dtype=torch.float64, device=self.accelerator.device)
        try:
            for i, pairs in enumerate(passes, 1):
                with contextlib.nullcontext() if i == len(passes) else self.accelerator.no_sync(self.model):
                    loss, nll = self.model(pairs)  # sums over tokens; `scale` undoes DDP's mean over processes
                    self.accelerator.backward(loss * scale)
                total += nll.detach()
            norm = torch.nn.utils.get_total_norm([p.grad for p in self.model.parameters() if p.grad is not None])
            self.optimizer.param_groups[0].update(lr=rate, capturable=isinstance(rate, Tensor))
            self.optimizer.found_inf = norm.isfinite().logical_not().float()  # if it is 1, Adam changes nothing
            self.optimizer.step()
        finally:
            self.optimizer.zero_grad(set_to_none=True)
        return total, norm

    def check_memory(self) -> None:
        """Compute the gradient of the longest sentences and discard it, to find out early whether memory suffices."""
        growth = 2 if self.settings.is_augmented else 1.1  # assumed size of the largest step, relative to the average
        step_tokens = growth * self.settings.training.tokens_per_step
        most = max(self.memory_tokens, step_tokens / self.plan.micro_batches)
        tokens = max(1, int(min(most, step_tokens / self.accelerator.num_processes)))
        pairs = self.plan.longest_pairs(tokens, self.accelerator.device)
        numbers = 0 if self.optimizer.state else sum(p.numel() for p in self.transformer.parameters())
        _moments = torch.empty(2 * numbers, device=self.accelerator.device)  # Adam will allocate this memory in step 1
        self.accelerator.backward(0 * self.model(pairs)[0])  # this call also lets DDP fix the order of its buckets
        self.optimizer.zero_grad(set_to_none=True)


def start_trainer(settings: schema.Recipe, corpus: Corpus, accelerator: Any, directory: Path, step: int) -> Trainer:
    """Return a trainer that starts from the checkpoint of `step` or, for step 0, from `init_from` or new weights.

    All processes must call this function together. The main process reads the weights and sends them to the others.
    At the end, each process checks that it has enough memory for the longest sentences.
    """
    reuse_memory()
    torch.manual_seed(settings.training.seed)
    transformer = Transformer(settings.model, int(corpus.manifest["vocabulary_size"]))
    state, moments = checkpoints.State(), dict[str, Tensor]()
    restores = bool(step or settings.training.init_from)
    if restores:

        def read() -> dict[str, Any]:
            if step:
                start, stored = _read_checkpoint(directory, step, transformer)
                moments.update(stored)
                return {"state": start, "has_moments": bool(stored)}
            _read_model(Path(str(settings.training.init_from)), corpus, transformer)
            return {"state": state, "has_moments": False}

        shared = on_main(accelerator, read)
        state = shared["state"]
        if shared["has_moments"] and not moments:
            moments = checkpoints.blank_moments(transformer)
    trainer = Trainer(settings, corpus, accelerator, directory, transformer, state, moments)
    if restores:
        moments = checkpoints.optimizer_tensors(transformer, trainer.optimizer)
        broadcast_tensors(accelerator, [*transformer.state_dict().values(), *moments.values()])
    trainer.check_memory()
    if trainer.pads and graphs.has_spare_memory(accelerator.device):
        trainer.graphs = graphs.StepGraphs(accelerator.device)
    return trainer


def _read_checkpoint(
    directory: Path, step: int, transformer: Transformer
) -> tuple[checkpoints.State, dict[str, Tensor]]:
    """Load the weights of a checkpoint into `transformer`. Return the checkpoint's state and Adam's moments."""
    state = checkpoints.read_state(directory, step)
    weights, moments = checkpoints.load(directory, step)
    load_into(transformer, weights, checkpoints.directory_of(directory, step))
    checkpoints.check_moments(transformer, moments)
    return state, moments


def _read_model(directory: Path, corpus: Corpus, transformer: Transformer) -> None:
    """Load the weights of a model into `transformer`. Raise DataError if its tokenizer is not that of the corpus."""
    start = load_model(directory)
    theirs, ours = (map(artefact.sha256, files_of(each.tokenizer_file)) for each in (start, corpus))
    if [*theirs] != [*ours]:
        advice = f"Prepare the corpus with --tokenizer {start.tokenizer_file}"
        raise DataError(f"{start.directory} has a different tokenizer from {corpus.directory}. {advice}")
    load_into(transformer, start.model.state_dict(), start.directory)
