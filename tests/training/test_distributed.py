"""What the processes of a run say to each other and to the user, without any others."""

import errno
import os
import signal
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import accelerate
import pytest
import torch

from nmt_cli.recipe import schema
from nmt_cli.system.errors import BusyError, DataError, MissingError, NmtError, OutputError, StorageError, UsageError
from nmt_cli.training import distributed
from nmt_cli.training.distributed import Interrupted, Stop, gather_objects, hand_over, on_all, on_main, to_user_error
from nmt_cli.transformer.hardware import choose_device

LOST = RuntimeError("unknown")


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (
            MemoryError(),
            StorageError,
            "out of memory. Resume with --set training.memory_tokens=N, lower than 700, or wi",
        ),
        (
            RuntimeError("CUDA out of memory. Tried"),
            StorageError,
            "lower than 700, or with more training.micro_batches",
        ),
        (
            RuntimeError("CUDA error: operation not permitted when stream is capturing"),
            UsageError,
            "a step cannot be captured as a CUDA graph: CUDA error: operation not permitted when stream is capturing. "
            "Set training.cuda_graphs=no",
        ),
        (RuntimeError("what was captured"), RuntimeError, "what was captured"),
        (RuntimeError("The server socket: EADDRINUSE"), BusyError, "port 29501 is in use, perhaps by another"),
        (RuntimeError("gloo: Unable to find address for: lo"), StorageError, "the network interface lo is down: set"),
        (RuntimeError("[gloo/pair.cc:5] " + "x" * 200), StorageError, "lost another process of this run: [gloo/pair"),
        (torch.distributed.DistError("timeout"), StorageError, "lost another process of this run: timeout. The same c"),
        (LOST, RuntimeError, "unknown"),
    ],
)
def test_errors_of_torch_are_said_to_a_user(
    error: Exception, kind: type[Exception], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MASTER_PORT", "29501")
    settings = schema.Recipe(training=schema.Training(memory_tokens=700))
    said = to_user_error(error, settings)
    assert type(said) is kind
    assert message in str(said)
    assert len(str(said)) < 260
    assert (said is error) == (kind is RuntimeError)
    if kind is StorageError and "memory" in message:
        assert "lower than what fits this memory, or" in str(to_user_error(error, schema.Recipe()))


def fails(error: Exception) -> Callable[[], Any]:
    def work() -> Any:
        raise error

    return work


@pytest.mark.parametrize(
    ("work", "told", "raised"),
    [
        (lambda: {"a": 1}, [0, {"a": 1}], None),
        (lambda: None, [0, {}], None),
        (fails(DataError("x")), [65, {}], DataError),
        (fails(OSError(errno.ENOSPC, "full")), [74, {}], StorageError),
        (fails(OSError(errno.ENOENT, "no")), [66, {}], MissingError),
    ],
)
def test_the_others_learn_of_what_the_first_process_did_or_could_not(
    work: Callable[[], Any], told: list[Any], raised: type[Exception] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before it raises anything itself, and the others do nothing."""
    sent = list[Any]()
    monkeypatch.setattr(accelerate.utils, "broadcast_object_list", lambda values: sent.append([*values]) or values)
    main, other = (SimpleNamespace(is_main_process=is_main) for is_main in (True, False))
    if raised:
        with pytest.raises(raised):
            on_main(main, work)
    else:
        assert on_main(main, work) == told[1]
    assert sent == [told]
    monkeypatch.setattr(accelerate.utils, "broadcast_object_list", lambda values: told if values == [0, {}] else values)
    if told[0]:
        with pytest.raises(SystemExit) as leaving:
            on_main(other, lambda: pytest.fail("it works"))
        assert leaving.value.code == told[0]
    else:
        assert on_main(other, lambda: pytest.fail("it works")) == told[1]


@pytest.mark.parametrize(
    ("error", "codes", "rank", "raised"),
    [
        (None, [0, 0, 0], 1, None),
        (DataError("x"), [0, 65, 66], 1, DataError("x")),
        (OSError(errno.EACCES, "no"), [0, 73, 66], 1, OutputError("y")),
        (DataError("x"), [0, 65, 66], 2, SystemExit(65)),  # another says why
        (None, [0, 0, 66], 1, SystemExit(66)),
    ],
)
def test_of_several_that_fail_the_first_says_why(
    error: Exception | None, codes: list[int], rank: int, raised: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    accelerator, sent = SimpleNamespace(num_processes=3, process_index=rank), list[Any]()
    monkeypatch.setattr(distributed, "gather_objects", lambda value, world: sent.append((value, world)) or codes)
    work = fails(error) if error else lambda: "mine"
    if raised is None:
        assert on_all(accelerator, work) == "mine"
    else:
        with pytest.raises(type(raised)) as caught:
            on_all(accelerator, work)
        if isinstance(raised, SystemExit):
            assert caught.value.code == raised.code
    own = 0 if error is None else error.exit_code if isinstance(error, NmtError) else 73
    assert sent == [(own, 3)]


def test_one_process_asks_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "broadcast", lambda *_, **__: pytest.fail("it talks"))
    hand_over(SimpleNamespace(num_processes=1), [torch.ones(1)])
    assert gather_objects("mine", 1) == ["mine"]
    given = list[Any]()
    monkeypatch.setattr(torch.distributed, "broadcast", lambda tensor, src: given.append((tensor, src)))
    tensors = [torch.ones(1), torch.ones(2)]
    hand_over(SimpleNamespace(num_processes=2), iter(tensors))
    assert [each[0] is tensor for each, tensor in zip(given, tensors, strict=True)] == [True, True]
    assert {src for _, src in given} == {0}
    accelerator: Any = SimpleNamespace(num_processes=2, device="cpu", gather=lambda x: torch.cat([x, x + 2, x - 9]))
    assert distributed.max_over_processes(accelerator, 5) == 7


def test_a_signal_ends_only_what_can_be_done_again_at_once() -> None:
    """Before, within and after such a block; and the second one that comes at once is an echo."""
    handlers = [signal.getsignal(number) for number in distributed.SIGNALS]
    for number, code in ((signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGUSR1, 143)):
        with Stop() as stop:
            assert not stop.asked
            with stop.at_once():
                pass
            os.kill(os.getpid(), number)  # nothing is raised here
            assert (stop.asked, stop.exit_code) == (True, code)
            with pytest.raises(Interrupted), stop.at_once():
                pytest.fail("it began")
            os.kill(os.getpid(), signal.SIGTERM)
            assert stop.exit_code == code, "of the first one"
        with Stop() as stop:
            with pytest.raises(Interrupted), stop.at_once():  # noqa: PT012
                os.kill(os.getpid(), number)
                pytest.fail("it went on")
            assert (stop.asked, stop.exit_code) == (True, code)
            os.kill(os.getpid(), number)
        with Stop() as stop:
            with pytest.raises(KeyError), stop.at_once():
                raise KeyError
            os.kill(os.getpid(), number)
            assert stop.asked
        assert [signal.getsignal(each) for each in distributed.SIGNALS] == handlers


def test_accelerate_is_asked_for_what_the_recipe_says_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = list[Any]()

    def accelerator(**how: Any) -> Any:
        made.append(how)
        return SimpleNamespace(is_main_process=False, gradient_accumulation_steps=7)

    monkeypatch.setattr(accelerate, "Accelerator", accelerator)
    monkeypatch.delenv("NMT_PATIENCE_SECONDS", raising=False)
    monkeypatch.setenv("ACCELERATE_GRADIENT_CLIPPING", "1.0")  # of which the first process alone speaks
    for value in ("false", "0", ""):
        monkeypatch.setenv("ACCELERATE_USE_FSDP", value)
        assert distributed.make_accelerator(schema.Recipe(), tmp_path).gradient_accumulation_steps == 1
    how = made[-1]
    ddp, group = how.pop("kwargs_handlers")
    assert (ddp.broadcast_buffers, ddp.gradient_as_bucket_view) == (False, True)
    assert (group.timeout, group.init_method) == (timedelta(minutes=10), None)
    on_cpu = not torch.cuda.is_available()
    plain = {"mixed_precision": "no", "dynamo_backend": "no", "log_with": None, "project_dir": tmp_path}
    assert how == {"cpu": on_cpu, **plain}
    monkeypatch.setenv("NMT_PATIENCE_SECONDS", "1.5")
    monkeypatch.setenv(distributed.INIT_METHOD, "file:///x")
    distributed.make_accelerator(schema.Recipe(), tmp_path)
    group = made[-1]["kwargs_handlers"][1]
    assert (group.timeout, group.init_method) == (timedelta(seconds=1.5), "file:///x")
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("cores", "threads"), [(1, 1), (2, 2), (64, 3)])
def test_no_more_threads_than_cores(
    tiny_recipe: Callable[..., schema.Recipe], monkeypatch: pytest.MonkeyPatch, cores: int, threads: int
) -> None:
    torch.set_num_threads(3)
    monkeypatch.setattr(distributed, "usable_cores", lambda: cores)
    assert distributed.in_processes(tiny_recipe("training.processes=1"), torch.get_num_threads) == threads


@pytest.mark.skipif(choose_device().type != "cpu", reason="forks are for CPUs")
def test_what_a_fork_is_told(tiny_recipe: Callable[..., schema.Recipe], monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(5)
    monkeypatch.setattr(distributed, "usable_cores", lambda: 8)

    def work() -> int:
        told = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "OMP_NUM_THREADS")
        assert [os.environ[name] for name in told] == ["0", "0", "2", "2", "2"] or os.environ["RANK"] == "1"
        assert os.environ["GLOO_SOCKET_IFNAME"] == "lo"
        assert distributed.local_processes(tiny_recipe()) == 1, "a fork forks no more"
        return torch.get_num_threads()

    assert distributed.in_processes(tiny_recipe("training.processes=2"), work) == 2
