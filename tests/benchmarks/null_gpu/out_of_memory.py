"""Train repeatedly on the null GPU while each run's memory runs out at a different allocation.

Memory is not cached, so each tensor is a separate allocation. With --every N, only every N-th allocation is tried.
The script prints JSON with the error, the exit code and the newest step with a complete checkpoint for each run.

    ... python out_of_memory.py RECIPE DATA DIRECTORY --every 10
"""

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"

from accelerate.state import AcceleratorState
from device import Counters
from nmt import choose_compiler, let_searches_end

from nmt_cli.recipe import loading, schema
from nmt_cli.system.errors import NmtError
from nmt_cli.training import checkpoints
from nmt_cli.training.train import train


def outcome(settings: schema.Recipe, data: Path, run: Path) -> dict[str, Any]:
    """Train to the end or to the first error; return the exit code, the error and the newest complete checkpoint."""
    AcceleratorState._reset_state(reset_partial_state=True)
    try:
        found: dict[str, Any] = {"code": train(settings, data, run)}
    except NmtError as error:
        found = {"code": error.exit_code, "error": str(error)}
    except Exception as error:
        found = {"code": 1, "error": f"{type(error).__name__}: {error}"}
    complete = [step for step in checkpoints.steps_in(run) if checkpoints.check(run, step)]
    return {**found, "step": max(complete, default=0)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("recipe", "data", "directory"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--every", type=int, default=10)
    parser.add_argument("--set", action="append", default=[])
    options = parser.parse_args()
    choose_compiler()
    let_searches_end()
    settings, counters, results = loading.load(options.recipe, options.set), Counters(), []
    outcome(settings, options.data, options.directory / "first")  # warm-up: one-time allocations
    with counters.during() as counts:
        results.append({"allocation": 0, **outcome(settings, options.data, options.directory / "whole")})
    for number in range(1, int(counts["allocations"]) + 1, options.every):
        run = options.directory / f"at-{number}"
        os.environ["NULL_GPU_FAIL"] = str(int(counters.now()["allocations"]) + number)
        found = outcome(settings, options.data, run)
        del os.environ["NULL_GPU_FAIL"]
        again = outcome(settings, options.data, run)
        results.append({"allocation": number, **found, "again": again})
    json.dump(results, sys.stdout)


if __name__ == "__main__":
    main()
