"""Operations that all processes of a run perform together."""

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import accelerate
import torch
from torch import Tensor

from nmt_cli.system.errors import NmtError, from_os_error

Result = TypeVar("Result")
SYNC_STEPS = 10  # on several GPUs, check for a stop only every 10 steps, because the check waits for the devices


def is_sync_step(step: int, accelerator: Any) -> bool:
    """Return whether all processes check together after this step for a reason to stop."""
    return accelerator.num_processes == 1 or accelerator.device.type != "cuda" or step % SYNC_STEPS == 0


def max_over_processes(accelerator: Any, value: int) -> int:
    if accelerator.num_processes == 1:
        return value
    return int(accelerator.gather(torch.tensor([value], device=accelerator.device)).max())


def gather_objects(value: Any, world: int) -> list[Any]:
    """Return the values of all `world` processes, in order of rank."""
    return list(accelerate.utils.gather_object([value])) if world > 1 else [value]


def broadcast_tensors(accelerator: Any, tensors: Iterable[Tensor]) -> None:
    """Overwrite the tensors with the main process's values."""
    for tensor in tensors if accelerator.num_processes > 1 else ():
        torch.distributed.broadcast(tensor, src=0)


def on_main(accelerator: Any, work: Callable[..., dict[str, Any] | None], *arguments: Any) -> dict[str, Any]:
    """Call `work` on the main process only. Return its result, or {} for None, on all processes.

    If `work` raises an NmtError or OSError, the main process raises an NmtError. The others exit with its exit code.
    """
    result: dict[str, Any] = {}
    failure: NmtError | None = None
    if accelerator.is_main_process:
        try:
            result = work(*arguments) or {}
        except (NmtError, OSError) as error:
            failure = from_os_error(error) if isinstance(error, OSError) else error
    code, result = accelerate.utils.broadcast_object_list([failure.exit_code if failure else 0, result])
    if failure:
        raise failure
    if code:
        raise SystemExit(code)
    return result


def on_all(accelerator: Any, work: Callable[[], Result]) -> Result:
    """Call `work` on every process, and return this process's result.

    If `work` raises an NmtError or OSError on any process, the failed process with the lowest rank raises an NmtError.
    All other processes exit with the exit code of this error.
    """
    failure: NmtError | None = None
    try:
        result = work()
    except (NmtError, OSError) as error:
        failure = from_os_error(error) if isinstance(error, OSError) else error
    codes = gather_objects(failure.exit_code if failure else 0, accelerator.num_processes)
    failed = [rank for rank, code in enumerate(codes) if code]
    if failure and failed[0] == accelerator.process_index:
        raise failure
    if failed:
        raise SystemExit(codes[failed[0]])
    return result
