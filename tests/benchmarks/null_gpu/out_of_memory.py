"""Trains or translates again and again on the null GPU, each time with memory that ends at another allocation.

Nothing is cached, so that each tensor is an allocation of its own. JSON of what ended each try, for every N-th of them:
its error, exit code, and the newest step whose checkpoint is whole.

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
    """Train to the end or to the first error; say how it ended and what is kept."""
    AcceleratorState._reset_state(reset_partial_state=True)
    try:
        found: dict[str, Any] = {"code": train(settings, data, run)}
    except NmtError as error:
        found = {"code": error.exit_code, "error": str(error)}
    except Exception as error:
        found = {"code": 1, "error": f"{type(error).__name__}: {error}"}
    whole = [step for step in checkpoints.steps_in(run) if checkpoints.check(run, step)]
    return {**found, "step": max(whole, default=0)}


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
    outcome(settings, options.data, options.directory / "first")  # makes what a process needs but once
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
