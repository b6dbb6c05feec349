"""The words of the numbers corpus, and helpers that train a run and compare it with an undisturbed run."""

import contextlib
import functools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from nmt_cli.recipe import loading
from nmt_cli.recipe.schema import Recipe
from nmt_cli.storage import artefact

ENGLISH = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
GERMAN = ["null", "eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun"]


@contextlib.contextmanager
def held(directory: Path) -> Iterator[int]:
    """Lock a directory in another process during the block; yield that process' id."""
    receiver, sender = os.pipe()
    child = os.fork()
    if not child:
        with artefact.locked(directory, "the run"):
            os.write(sender, b"x")
            signal.pause()
    os.read(receiver, 1)
    try:
        yield child
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


@functools.cache
def job_server() -> Any:
    """Start faults/job.py, which imports torch once for all jobs. It ends with this process, which holds its stdin."""
    job = Path(__file__).parents[1] / "faults" / "job.py"
    variables = {**os.environ, "PYTHONPATH": str(job.parents[2])}
    return subprocess.Popen(
        [sys.executable, job], env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


@dataclass
class Lab:
    """The tiny recipe, its corpus, a directory to train in, and an undisturbed run to compare with."""

    recipe_file: Path
    corpus: Path
    reference: Path
    run: Path
    patch: pytest.MonkeyPatch
    captured: pytest.CaptureFixture[str]

    def stderr(self) -> str:
        return self.captured.readouterr().err

    def recipe(self, *changes: str) -> Recipe:
        return loading.load(self.recipe_file, changes)

    def train(self, *changes: str, tracker: str | None = None, data: Path | None = None) -> int:
        from nmt_cli.training.train import train

        return train(self.recipe(*changes), data or self.corpus, self.run, tracker)

    def same(self, step: int = 30) -> bool:
        """Return whether a checkpoint verifies and has the weights and moments of the undisturbed run."""
        from nmt_cli.training import checkpoints

        files = [checkpoints.check(run, step)["files"] for run in (self.run, self.reference)]
        return all(files[0][name] == files[1][name] for name in (checkpoints.MODEL, checkpoints.OPTIMIZER))

    def jobs(self, *specs: dict[str, Any], **environment: str) -> list[dict[str, Any]]:
        """Run training jobs one after the other. A spec holds "name", "set", and the options of faults/job.py."""
        for spec in specs:
            where = ["--data", str(self.corpus), "--run", str(self.run.with_name(spec.get("name", "run")))]
            sets = [word for change in spec.get("set", ()) for word in ("--set", change)]
            spec["args"] = ["train", str(self.recipe_file), *where, *sets]
        file, variables = self.run.with_name("stderr"), {**os.environ, "NMT_PATIENCE_SECONDS": "60", **environment}
        file.write_bytes(b"")
        server = job_server()
        print(json.dumps({"jobs": specs, "environment": variables, "stderr": str(file)}), file=server.stdin, flush=True)
        answer, stderr = server.stdout.readline(), file.read_text()
        assert answer, stderr
        return [{**result, "stderr": stderr} for result in json.loads(answer)]
