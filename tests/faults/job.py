"""A server that runs training jobs of one or several processes for tests. It imports torch once and forks each process.

Each line of stdin is an order: {"jobs": [...], "environment": {...}, "stderr": FILE}. The answer is a line of stdout.
The jobs run one after the other, each {"world": 2, "args": ["train", ...]} with these options:
"ids": a directory for logs of the sentences that each rank computed in each step;
"nan": [step, rank]: the loss of that step is NaN on that rank;
"kill": [SIGNAL, step, rank]: that rank sends itself the signal in that step; with rank -1, rank 0 sends it to the
process that forked it;
"stuck": SIGNAL: a translation of the first process sends it to the command, and then takes a minute;
"slow_save": SECONDS: a delay before each checkpoint is written;
"raise": [step, rank]: that rank runs out of memory in that step;
"kill_after": SHARE: all ranks are killed after this share of the first job's time;
"started": the number of processes that are started; "port": their port;
"elsewhere": arguments added on all ranks but the first, which act as other machines;
"kills": [[step, rank], ...] and "loop": a directory: each rank is started again until it succeeds, as by a shell loop
with a pause; it is killed when it first reaches its step, which the directory records.

An answer is a list of {"codes": [...], "seconds": ...}; a negative code is the signal that ended a rank. If one fails,
the others are killed after 30 seconds, as launchers do.
"""

import contextlib
import gc
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import accelerate  # noqa: F401
import torch._dynamo  # noqa: F401  # here, because an optimizer would import it, which takes seconds

import nmt_cli.commands.app  # loaded here once, not in each process
import nmt_cli.training.epoch_texts
import nmt_cli.training.train  # noqa: F401
from nmt_cli.training import checkpoints
from nmt_cli.training.batches import BatchPlan
from nmt_cli.training.loss import LossModel
from nmt_cli.training.trainer import Trainer
from nmt_cli.translation.translator import Translator


def inject(spec: dict[str, Any]) -> None:
    """Patch training in this process and its forks as the spec says."""
    now = {"step": 0}
    step_batch, batch, take_step, forward = Trainer.step_batch, BatchPlan.batch, Trainer.take_step, LossModel.forward
    seen: list[int] = []

    def here(step_and_rank: list[int] | None) -> bool:
        return step_and_rank == [now["step"], int(os.environ.get("RANK", 0))]

    def logged_batch(self: BatchPlan, sentences: Any, *rest: Any, **options: Any) -> Any:
        seen.extend(sentences.tolist())
        return batch(self, sentences, *rest, **options)

    def logged_step_batch(self: Trainer, index: int) -> Any:
        seen.clear()
        result = step_batch(self, index)
        with (Path(spec["ids"]) / f"ids-{os.getpid()}.jsonl").open("a") as log:
            log.write(json.dumps({"step": index, "ids": seen}) + "\n")
        return result

    def injected_step(self: Trainer, step: int, *rest: Any) -> Any:
        now["step"] = step
        if here(spec.get("raise")):
            raise MemoryError
        if [step, int(os.environ.get("RANK", 0))] in spec.get("kills", []):
            with contextlib.suppress(FileExistsError):
                (Path(spec["loop"]) / f"killed-{step}").touch(exist_ok=False)
                os.kill(os.getpid(), signal.SIGKILL)
        name, at, rank = spec.get("kill", ["SIGKILL", 0, 0])
        if here([at, max(0, rank)]):
            os.kill(os.getppid() if rank < 0 else os.getpid(), getattr(signal, name))
        return take_step(self, step, *rest)

    def injected_forward(self: LossModel, *inputs: Any) -> Any:
        loss, nll = forward(self, *inputs)
        return (loss * float("nan") if here(spec.get("nan")) else loss), nll

    def stuck(*_: Any, **__: Any) -> Iterator[Any]:
        if not int(os.environ.get("RANK", 0)):
            os.kill(os.getppid() if "LOCAL_WORLD_SIZE" in os.environ else os.getpid(), getattr(signal, spec["stuck"]))
        for _ in range(6000):
            time.sleep(0.01)
        yield from ()

    def slow_save(*arguments: Any) -> None:
        time.sleep(spec.get("slow_save", 0))
        save(*arguments)

    save, checkpoints.save = checkpoints.save, slow_save
    if spec.get("stuck"):
        Translator.translate = stuck  # type: ignore[method-assign]
    Trainer.take_step, LossModel.forward = injected_step, injected_forward  # type: ignore[method-assign]
    if spec.get("ids"):
        BatchPlan.batch, Trainer.step_batch = logged_batch, logged_step_batch  # type: ignore[method-assign]


def start(spec: dict[str, Any], rank: int, port: int) -> int:
    """Fork one process of the job and return its id."""
    if child := os.fork():
        return child
    world = spec.get("world", 1)
    os.environ.pop("MASTER_ADDR", None)
    if world > 1:
        here = (0, 1) if "elsewhere" in spec else (rank, world)  # two machines, each with one process
        job = {"RANK": rank, "WORLD_SIZE": world, "LOCAL_RANK": here[0], "LOCAL_WORLD_SIZE": here[1]}
        job["MASTER_PORT"] = port
        os.environ.update({key: str(value) for key, value in job.items()}, MASTER_ADDR="127.0.0.1")
    os.environ["ACCELERATE_USE_CPU"] = "true"
    sys.argv = ["nmt", *spec["args"], *(spec.get("elsewhere", []) if rank else [])]
    code = 1
    try:
        inject(spec)
        from nmt_cli.__main__ import main

        main()
    except SystemExit as leaving:
        code = int(leaving.code or 0)
    finally:
        sys.stderr.flush()
        os._exit(code)


def run(spec: dict[str, Any], first_seconds: float) -> dict[str, Any]:
    """Run a job to its end; return the exit codes and the seconds. `first_seconds` is the time of the first job."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    begin = time.monotonic()
    started = spec.get("started", spec.get("world", 1))
    port = spec.get("port", port)
    running = {start(spec, rank, port): rank for rank in range(started)}
    codes, failed = [0] * len(running), 0.0
    deadline = begin + spec["kill_after"] * first_seconds if "kill_after" in spec else float("inf")
    again = list[int]()  # ranks to start again
    while running:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid:
            rank = running.pop(pid)
            codes[rank] = os.waitstatus_to_exitcode(status)
            if codes[rank] and "loop" in spec:
                again.append(rank)
                if not running:  # a shell loop pauses long enough for all ranks to end
                    running, again = {start(spec, rank, port): rank for rank in again}, []
            elif codes[rank] and not failed:
                failed = time.monotonic()
                deadline = failed + (0 if spec.get("kill", [""])[0] == "SIGSTOP" else 30)
        elif time.monotonic() > deadline:
            for left in running:
                os.kill(left, signal.SIGKILL)
        time.sleep(0.005)
    return {"codes": codes, "seconds": time.monotonic() - begin}


def work(order: dict[str, Any]) -> None:
    """Run the jobs of an order in this process, and print the answer."""
    os.dup2(os.open(order["stderr"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), 2)
    os.environ.clear()
    os.environ.update(order["environment"])
    results: list[dict[str, Any]] = []
    for spec in order["jobs"]:
        results.append(run(spec, results[0]["seconds"] if results else 0.0))
    print(json.dumps(results), flush=True)


if __name__ == "__main__":
    gc.freeze()  # at the end of a training, accelerate collects garbage
    for line in sys.stdin:
        if not os.fork():
            try:
                work(json.loads(line))
            finally:
                os._exit(0)
        os.wait()
