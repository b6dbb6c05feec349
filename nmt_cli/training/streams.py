"""Copies between host and device that neither waits for: the same calls for CUDA and, at once, on the CPU."""

from typing import Any

import torch
from torch import Tensor


class ToHost:
    """Copies of tensors to the host, enqueued on the current stream; `get` waits for them, in any thread."""

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        # From CUDA and not blocking, so into pinned memory.
        self._copies = {name: x.detach().to("cpu", non_blocking=True, copy=True) for name, x in tensors.items()}
        self._copied = recorded(next(iter(tensors.values())).device)

    def get(self) -> dict[str, Tensor]:
        self._copied.synchronize()
        return self._copies


def recorded(device: torch.device) -> Any:
    """Return an event recorded on the current stream."""
    event = torch.get_device_module(device).Event()
    event.record()
    return event
