"""Convert torch errors that a user can act on."""

import os

import torch

from nmt_cli.recipe import schema
from nmt_cli.system.errors import BusyError, StorageError, UsageError, is_out_of_memory


def to_user_error(error: RuntimeError | MemoryError, settings: schema.Recipe) -> BaseException:
    """Return an NmtError with advice for a known error of torch. Return any other error unchanged."""
    text = str(error)
    if is_out_of_memory(error):
        advice = "Resume with --set training.memory_tokens=N, where N is below"
        limit = settings.training.memory_tokens or "the automatic value"
        return StorageError(f"out of memory. {advice} {limit}, or with more training.micro_batches")
    if "CUDA" in text and "captur" in text:
        return UsageError(f"a step cannot be captured as a CUDA graph: {text[:150]}. Set training.cuda_graphs=no")
    if "EADDRINUSE" in text:
        advice = "Choose another with torchrun --master_port N or accelerate launch --main_process_port N"
        return BusyError(f"port {os.environ.get('MASTER_PORT')} is in use, perhaps by another training job. {advice}")
    if "Unable to find address for: lo" in text:
        return StorageError("the network interface lo is down. Bring it up, or pass --set training.processes=1")
    if isinstance(error, torch.distributed.DistError) or "gloo" in text:
        problem = f"another process of this run does not respond: {text[:150]}"
        return StorageError(f"{problem}. Run the same command again to resume")
    return error
