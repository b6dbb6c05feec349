"""Set up Accelerate, which manages the devices and the processes of a run."""

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import accelerate
import torch
from accelerate import tracking

from nmt_cli.recipe import schema
from nmt_cli.system.console import warn
from nmt_cli.system.errors import UsageError
from nmt_cli.training.torch_errors import to_user_error

# Environment variable with the URL of the file through which child processes find each other. A TCP port would not do,
# because another program might already use it.
INIT_METHOD = "NMT_INIT_METHOD"
# Accelerate's ways to shard a model, as they appear in its environment variables ACCELERATE_USE_*.
SHARDED = ("FSDP", "DEEPSPEED", "MEGATRON_LM", "PARALLELISM_CONFIG")
# Settings of Accelerate that nmt ignores: the value that means "off", and advice for any other value.
IGNORED_SETTINGS = {
    "DYNAMO_BACKEND": ("no", "nmt itself chooses what to compile with torch.compile"),
    "MIXED_PRECISION": ("no", "set training.precision in the recipe (fp16 and fp8 are not supported)"),
    "GRADIENT_ACCUMULATION_STEPS": ("1", "set training.tokens_per_step; to save memory, lower training.memory_tokens"),
    "GRADIENT_CLIPPING": ("none", "if training diverges, lower training.rate_factor or raise training.warmup_steps"),
}


def make_accelerator(settings: schema.Recipe, run: Path, tracker: str | None = None) -> Any:
    """Return the Accelerator of a run. On the main process, warn of ignored settings of Accelerate.

    Raise UsageError if the tracker is not installed, or if Accelerate's configuration would shard the model.
    """
    if tracker and tracker not in (installed := [str(each.value) for each in tracking.get_available_trackers()]):
        advice = f"Run pip install {tracker}, or remove --tracker"
        raise UsageError(f"tracker {tracker!r} is not installed (available: {installed}). {advice}")
    if kinds := [kind for kind in SHARDED if os.environ.get(f"ACCELERATE_USE_{kind}", "").lower() == "true"]:
        advice = "To train with a whole model on each GPU, run accelerate launch --multi_gpu -m nmt_cli train RECIPE"
        raise UsageError(f"the accelerate configuration asks for {kinds[0]}, which is not supported. {advice}")
    # A process waits at most this long for another process, which may be validating or saving.
    timeout = timedelta(seconds=float(os.environ.get("NMT_PATIENCE_SECONDS", 600)))
    ddp = accelerate.DistributedDataParallelKwargs(broadcast_buffers=False, gradient_as_bucket_view=True)
    handlers = [ddp, accelerate.InitProcessGroupKwargs(timeout=timeout, init_method=os.environ.get(INIT_METHOD))]
    on_cpu = not torch.cuda.is_available()  # do not use Apple's GPUs: they lack float64, in which losses are summed
    options = {"mixed_precision": "no", "dynamo_backend": "no", "log_with": tracker, "project_dir": run}
    try:
        accelerator = accelerate.Accelerator(cpu=on_cpu, kwargs_handlers=handlers, **options)
    except RuntimeError as error:
        raise to_user_error(error, settings) from error
    accelerator.gradient_accumulation_steps = 1  # the launcher may have set it, and backward() divides by it
    if accelerator.is_main_process:
        _warn_of_ignored_settings(settings.training)
    return accelerator


def _warn_of_ignored_settings(training: schema.Training) -> None:
    for name, (off, advice) in IGNORED_SETTINGS.items():
        value = os.environ.get(f"ACCELERATE_{name}", off).lower()
        if value != off and (value != "bf16" or training.precision == "fp32"):
            warn(f"{name.lower()}={value} in the accelerate configuration is ignored: {advice}")
