"""Search with torch: on one GPU in this process, on several GPUs with a process for each, or on a CPU."""

import contextlib
import functools
import os
from collections.abc import Iterator, Sequence
from functools import partial

import torch

from nmt_cli.engine import library
from nmt_cli.engine.model import SIGNATURES
from nmt_cli.engine.safetensors_file import Tensor
from nmt_cli.system.console import counted
from nmt_cli.system.errors import StorageError, UsageError, is_out_of_memory
from nmt_cli.transformer.cache import for_inference
from nmt_cli.transformer.directory import ModelDirectory
from nmt_cli.transformer.hardware import choose_device, choose_dtype
from nmt_cli.transformer.model import Transformer
from nmt_cli.transformer.weights import load_transformer
from nmt_cli.translation.engine_backend import on_engine
from nmt_cli.translation.queue import Backend, WorkerQueue
from nmt_cli.translation.search import score_targets, search
from nmt_cli.translation.workers import Workers


def has_gpu() -> bool:
    return choose_device().type != "cpu"


@contextlib.contextmanager
def _out_of_memory_named(device: torch.device) -> Iterator[None]:
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        advice = "nvidia-smi lists the processes that use it. CUDA_VISIBLE_DEVICES selects another GPU"
        raise StorageError(f"{device} has too little free memory. {advice}") from error


def on_gpus(models: Sequence[ModelDirectory], precision: str, workers: int | None) -> Backend:
    """Return a backend on all GPUs, or on the first `workers` of them.

    If there are several GPUs, a forked process searches on each GPU. But if a launcher has started this process, it
    searches by itself, on one GPU. It does the same if it used CUDA before the first search, because its forked
    processes could not use CUDA then. Raises UsageError if the precision is int8.
    """
    if precision == "int8":
        raise UsageError("--precision int8 is for CPUs. Use auto, or set CUDA_VISIBLE_DEVICES to -1 to use the CPU")
    devices = [torch.device("cuda", i) for i in range(torch.cuda.device_count())][:workers]
    own = choose_device() if "LOCAL_RANK" in os.environ else devices[0]
    weights = [load_transformer(each) for each in models]
    dtype = choose_dtype(precision, own)

    @functools.cache
    def prepared(device: torch.device) -> list[Transformer]:
        torch.cuda.set_device(device)  # CUDA graphs are captured on the current device of the thread
        with _out_of_memory_named(device):
            return [for_inference(model.to(device), dtype) for model in weights]

    processes = Workers(devices, lambda device: (prepared(device), dtype))

    def run(queue: WorkerQueue) -> None:
        may_fork = "LOCAL_RANK" not in os.environ and (processes.started or not torch.cuda.is_initialized())
        if len(devices) > 1 and may_fork:
            processes.search(queue)
        else:
            torch.cuda.set_device(own)
            search(prepared(own), dtype, queue)

    def score(pairs: Sequence[Sequence[Sequence[int]]]) -> list[list[float]]:
        with _out_of_memory_named(own):
            return score_targets(prepared(own), dtype, pairs)

    about = f"{str(dtype).removeprefix('torch.')}, {counted(len(devices), 'GPU')}"
    return Backend([run], about, score, processes.close)


def on_cpu(models: Sequence[ModelDirectory], threads: int) -> Backend:
    """Return a backend on a CPU in float32, and let torch use `threads` threads."""
    torch.set_num_threads(threads)
    return of_models([load_transformer(each) for each in models], torch.float32)


def of_models(weights: Sequence[Transformer], dtype: torch.dtype) -> Backend:
    """Return a backend for an ensemble of models in memory, on their own device."""
    models = [for_inference(model, dtype) for model in weights]
    device = models[0].embedding.weight.device

    def run(queue: WorkerQueue) -> None:
        torch.get_device_module(device).set_device(device)
        search(models, dtype, queue)

    about = f"{str(dtype).removeprefix('torch.')}, torch on {device.type}"
    return Backend([run], about, partial(score_targets, models, dtype))


def of_memory(model: Transformer, dtype: torch.dtype) -> Backend:
    """Return a backend for a model in memory. On a CPU, use the engine in float32 if it is installed, or else torch."""
    engine = library.load(SIGNATURES) if model.embedding.weight.device.type == "cpu" else None
    if not engine:
        return of_models([model], dtype)
    state = {name: tensor.detach().float().contiguous() for name, tensor in model.state_dict().items()}
    tensors = {name: Tensor(tensor.data_ptr(), tuple(tensor.shape)) for name, tensor in state.items()}
    return on_engine(engine, [(model.settings, tensors, state)], "fp32", 1)
