"""Errors of torch, as they are shown to users."""

import pytest
import torch

from nmt_cli.recipe import schema
from nmt_cli.system.errors import BusyError, StorageError, UsageError
from nmt_cli.training.torch_errors import to_user_error

LOST = RuntimeError("unknown")


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (MemoryError(), StorageError, "memory_tokens=N, where N is below 700, or with more training.micro"),
        (RuntimeError("CUDA out of memory. Tried"), StorageError, "out of memory. Resume with --set training.memory"),
        (RuntimeError("CUDA error: when stream is capturing"), UsageError, "capturing. Set training.cuda_graphs=no"),
        (RuntimeError("what was captured"), RuntimeError, "what was captured"),
        (RuntimeError("CUDA error: device-side assert"), RuntimeError, "CUDA error: device-side assert"),
        (RuntimeError("The server socket: EADDRINUSE"), BusyError, "port 29501 is in use, perhaps by another"),
        (RuntimeError("gloo: Unable to find address for: lo"), StorageError, "the network interface lo is down. Bring"),
        (
            RuntimeError("[gloo/pair.cc:5] " + "x" * 200),
            StorageError,
            "another process of this run does not respond: [gloo/pair",
        ),
        (
            torch.distributed.DistError("timeout"),
            StorageError,
            "another process of this run does not respond: timeout. Run the same c",
        ),
        (LOST, RuntimeError, "unknown"),
    ],
)
def test_errors_of_torch_become_errors_with_advice(
    error: Exception, kind: type[Exception], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MASTER_PORT", "29501")
    settings = schema.Recipe(training=schema.Training(memory_tokens=700))
    converted = to_user_error(error, settings)
    assert type(converted) is kind
    assert message in str(converted)
    assert len(str(converted)) < 260
    assert (converted is error) == (kind is RuntimeError)
    if kind is StorageError and "memory" in message:
        assert "where N is below the automatic value, or" in str(to_user_error(error, schema.Recipe()))
