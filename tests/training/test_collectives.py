"""Operations across processes, tested in one process."""

import errno
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import accelerate
import pytest
import torch

from nmt_cli.system.errors import DataError, MissingError, NmtError, OutputError, StorageError
from nmt_cli.training import collectives
from nmt_cli.training.collectives import (
    broadcast_tensors,
    gather_objects,
    is_sync_step,
    max_over_processes,
    on_all,
    on_main,
)


def fails(error: Exception) -> Callable[[], Any]:
    def work() -> Any:
        raise error

    return work


@pytest.mark.parametrize(
    ("work", "shared", "raised"),
    [
        (lambda: {"a": 1}, [0, {"a": 1}], None),
        (lambda: None, [0, {}], None),
        (fails(DataError("x")), [65, {}], DataError),
        (fails(OSError(errno.ENOSPC, "full")), [74, {}], StorageError),
        (fails(OSError(errno.ENOENT, "no")), [66, {}], MissingError),
    ],
)
def test_on_main_shares_the_result_or_the_failure_of_the_main_process(
    work: Callable[[], Any], shared: list[Any], raised: type[Exception] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The main process shares a failure before raising it. The other processes do not call the function."""
    sent = list[Any]()
    monkeypatch.setattr(accelerate.utils, "broadcast_object_list", lambda values: sent.append([*values]) or values)
    main, other = (SimpleNamespace(is_main_process=is_main) for is_main in (True, False))
    if raised:
        with pytest.raises(raised):
            on_main(main, work)
    else:
        assert on_main(main, work) == shared[1]
    assert sent == [shared]
    monkeypatch.setattr(accelerate.utils, "broadcast_object_list", lambda sent: shared if sent == [0, {}] else sent)
    if shared[0]:
        with pytest.raises(SystemExit) as leaving:
            on_main(other, lambda: pytest.fail("another process called it"))
        assert leaving.value.code == shared[0]
    else:
        assert on_main(other, lambda: pytest.fail("another process called it")) == shared[1]


@pytest.mark.parametrize(
    ("error", "codes", "rank", "raised"),
    [
        (None, [0, 0, 0], 1, None),
        (DataError("x"), [0, 65, 66], 1, DataError("x")),
        (OSError(errno.EACCES, "no"), [0, 73, 66], 1, OutputError("y")),
        (DataError("x"), [0, 65, 66], 2, SystemExit(65)),  # another process raises its error
        (None, [0, 0, 66], 1, SystemExit(66)),
    ],
)
def test_on_all_raises_the_error_of_the_first_process_that_failed(
    error: Exception | None, codes: list[int], rank: int, raised: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    accelerator, sent = SimpleNamespace(num_processes=3, process_index=rank), list[Any]()
    monkeypatch.setattr(collectives, "gather_objects", lambda value, world: sent.append((value, world)) or codes)
    work = fails(error) if error else lambda: "own"
    if raised is None:
        assert on_all(accelerator, work) == "own"
    else:
        with pytest.raises(type(raised)) as caught:
            on_all(accelerator, work)
        if isinstance(raised, SystemExit):
            assert caught.value.code == raised.code
    own = 0 if error is None else error.exit_code if isinstance(error, NmtError) else 73
    assert sent == [(own, 3)]


def test_one_process_sends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "broadcast", lambda *_, **__: pytest.fail("it communicates"))
    broadcast_tensors(SimpleNamespace(num_processes=1), [torch.ones(1)])
    assert gather_objects("own", 1) == ["own"]
    given = list[Any]()
    monkeypatch.setattr(torch.distributed, "broadcast", lambda tensor, src: given.append((tensor, src)))
    tensors = [torch.ones(1), torch.ones(2)]
    broadcast_tensors(SimpleNamespace(num_processes=2), iter(tensors))
    assert [each[0] is tensor for each, tensor in zip(given, tensors, strict=True)] == [True, True]
    assert {src for _, src in given} == {0}
    accelerator: Any = SimpleNamespace(num_processes=2, device="cpu", gather=lambda x: torch.cat([x, x + 2, x - 9]))
    assert max_over_processes(accelerator, 5) == 7


@pytest.mark.parametrize(("device", "world", "every"), [("cpu", 2, 1), ("cuda", 2, 10), ("cuda", 1, 1)])
def test_on_cuda_processes_agree_on_stopping_every_tenth_step(device: str, world: int, every: int) -> None:
    accelerator = SimpleNamespace(num_processes=world, device=torch.device(device))
    assert [step for step in range(41) if is_sync_step(step, accelerator)] == [*range(0, 41, every)]
    if world == 1:
        assert max_over_processes(accelerator, 2) == 2  # without communication
