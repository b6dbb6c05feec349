"""Kill training runs at random moments until they end, and compare them with an undisturbed one.

    python tests/faults/kill_many.py RECIPE CORPUS PLACE [--kills 200] [--per-run 8] [--world 1] [--seed 1]

Every other kill is aimed: it waits until a commit is under way. Prints one JSON line; exits with 1 where a run ended
with other weights, moments, checkpoints or metrics than the undisturbed one.
"""

import argparse
import json
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

from job import free_port, start

from nmt_cli import artefact
from nmt_cli.training import checkpoints, metrics

CHANGES = ["training.steps=200", "training.log_every=10", "training.validate_every=50"]


def launch(spec: dict[str, Any]) -> list[int]:
    port = free_port()
    return [start(spec, rank, port) for rank in range(spec["world"])]


def wait(pids: list[int], seconds: float) -> list[int]:
    """Wait at most so long for processes to end; return their exit codes, [] where one still runs."""
    end = time.monotonic() + seconds
    codes: list[int] = []
    while len(codes) < len(pids) and time.monotonic() < end:
        pid, status = os.waitpid(pids[len(codes)], os.WNOHANG)
        if pid:
            codes.append(os.waitstatus_to_exitcode(status))
        else:
            time.sleep(0.002)
    return codes if len(codes) == len(pids) else []


def kill(pids: list[int], seconds: float, aimed: Path | None, draw: random.Random) -> list[int]:
    """Kill processes after so long, or at the next commit after it; return their codes if they ended before."""
    codes = wait(pids, seconds)
    while not codes and aimed and not list(aimed.glob(".tmp-*")):
        codes = wait(pids, 0.001)
    if aimed and not codes:
        codes = wait(pids, draw.uniform(0, 0.03))
    if not codes:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        codes = wait(pids, 60)
        return [] if any(code == -signal.SIGKILL for code in codes) else codes
    return codes


def outcome(run: Path) -> dict[str, Any]:
    """Return everything of a run that must not depend on kills: all but times."""
    steps = checkpoints.steps_in(run)
    files = {step: checkpoints.check(run, step)["files"] for step in steps}
    records = metrics.read(run / "metrics.jsonl")
    return {
        "checkpoints": {
            s: [f[n]["sha256"] for n in (checkpoints.MODEL, checkpoints.OPTIMIZER)] for s, f in files.items()
        },
        "model": artefact.verify(run / "model", "model")["files"]["model.safetensors"]["sha256"],
        "metrics": [(record["step"], record.get("nll"), record.get("dev_nll")) for record in records],
        "left over": [str(path) for path in run.rglob(".tmp-*")],
    }


def main() -> int:
    parser = argparse.ArgumentParser()
    for name in ("recipe", "corpus", "place"):
        parser.add_argument(name, type=Path)
    for name, default in (("kills", 200), ("per-run", 8), ("world", 1), ("seed", 1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    draw = random.Random(options.seed)
    sets = [word for change in CHANGES for word in ("--set", change)]

    def spec(run: Path) -> dict[str, Any]:
        arguments = ["train", str(options.recipe), "--data", str(options.corpus), "--run", str(run), "--quiet", *sets]
        return {"world": options.world, "args": arguments}

    begin = time.monotonic()
    assert set(wait(launch(spec(options.place / "undisturbed")), 3600)) == {0}
    duration, expected = time.monotonic() - begin, outcome(options.place / "undisturbed")
    kills, starts, different, runs = 0, 0, [], 0
    while kills < options.kills:
        runs += 1
        run = options.place / f"killed-{runs}"
        codes: list[int] = []
        here = 0
        while not codes:
            pids = launch(spec(run))
            starts += 1
            if here < options.per_run and kills < options.kills:
                aimed = run / "checkpoints" if draw.random() < 0.5 else None
                codes = kill(pids, draw.uniform(0.1, 0.1 + duration / 2), aimed, draw)
                kills, here = kills + (not codes), here + (not codes)
            else:
                codes = wait(pids, 3600)
        if set(codes) != {0} or outcome(run) != expected:
            different.append(str(run))
    seconds = round(time.monotonic() - begin)
    result = {"kills": kills, "runs": runs, "starts": starts, "different": different, "seconds": seconds}
    print(json.dumps(result))
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
