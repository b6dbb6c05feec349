"""What several test files share: a small prepared corpus of spelt-out numbers and a recipe to train on it."""

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from nmt_cli.recipe import loading
from nmt_cli.recipe.schema import Recipe
from nmt_cli.storage import artefact
from nmt_cli.system import console

# One thread: what tests compute is too small for more, and waiting threads make a busy machine crawl.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Temporary directories in memory, where there is enough: real fsyncs would take as long as some test files compute, and
# tell them nothing, for SIGKILL does not empty the page cache. Some tests run programs that they write there.
SHM = Path("/dev/shm")
if os.access(SHM, os.W_OK) and shutil.disk_usage(SHM).free > 4 << 30 and not os.statvfs(SHM).f_flag & os.ST_NOEXEC:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(SHM))

# Shells start background jobs with interrupts ignored, and programs started by the tests would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

ENGLISH = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
GERMAN = ["null", "eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun"]

TINY = """
name: tiny
corpus: {{name: numbers, train_src: [{0}/train.en], train_tgt: [{0}/train.de], dev_src: {0}/dev.en, dev_tgt: {0}/dev.de,
  test_src: {0}/test.en, test_tgt: {0}/test.de, tokenizer: {{vocabulary_size: 320}}, cleaning: {{check_script: false}}}}
model: {{num_layers: 2, d_model: 32, d_ff: 64, num_heads: 2, d_k: 16, d_v: 16, dropout: 0.1, max_length: 64}}
training: {{steps: 30, tokens_per_step: 400, micro_batches: 4, warmup_steps: 60, log_every: 5, validate_every: 15,
  validate_bleu: 4, checkpoint_every: 10, keep_checkpoints: 3, precision: fp32}}
averaging: {{last: 3}}
decoding: {{beam: 1}}
"""


@pytest.fixture(autouse=True)
def own_settings() -> Iterator[None]:
    """What commands set for their process is set back: --quiet, and torch's threads, which decide the last bits."""
    yield
    console.set_quiet(False)
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))


@pytest.fixture(scope="session")
def corpora() -> Path:
    """The directory of real corpora that NMT_CORPORA names; tests that need it skip without it."""
    if not os.environ.get("NMT_CORPORA"):
        pytest.skip("NMT_CORPORA is not set")
    return Path(os.environ["NMT_CORPORA"]).resolve()


@pytest.fixture(scope="session")
def numbers_text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with train, dev and test text: different numbers, spelt digit by digit in English and German."""
    directory, draw, pairs = tmp_path_factory.mktemp("text"), random.Random(7), {}
    while len(pairs) < 540:
        digits = [draw.randrange(10) for _ in range(draw.randint(2, 8))]
        pairs[" ".join(ENGLISH[d] for d in digits)] = " ".join(GERMAN[d] for d in digits)
    for language, lines in (("en", [*pairs]), ("de", [*pairs.values()])):
        for split, part in (("train", lines[:500]), ("dev", lines[500:520]), ("test", lines[520:])):
            (directory / f"{split}.{language}").write_text("".join(f"{line}\n" for line in part))
    return directory


@pytest.fixture(scope="session")
def tiny_recipe_file(numbers_text: Path) -> Path:
    """The recipe file of a model that trains on the number words in seconds."""
    path = numbers_text / "tiny.yaml"
    path.write_text(TINY.format(numbers_text))
    return path


@pytest.fixture(scope="session")
def tiny_recipe(tiny_recipe_file: Path) -> Callable[..., Recipe]:
    """Return the tiny recipe with changes: tiny_recipe("training.steps=5", "model.dropout=0")."""
    return lambda *changes: loading.load(tiny_recipe_file, changes)


@pytest.fixture(scope="session")
def numbers_corpus(tmp_path_factory: pytest.TempPathFactory, tiny_recipe: Callable[..., Recipe]) -> Path:
    """The prepared corpus of number words. Do not change it: it is shared."""
    from nmt_cli.corpus.prepare import PrepareOptions, prepare

    return prepare(tiny_recipe().corpus, tmp_path_factory.mktemp("data") / "numbers", PrepareOptions(workers=1))


@pytest.fixture(scope="session")
def reference_run(
    tmp_path_factory: pytest.TempPathFactory, tiny_recipe: Callable[..., Recipe], numbers_corpus: Path
) -> Path:
    """An undisturbed run of the tiny recipe, 30 steps. Do not change it: it is shared."""
    from nmt_cli.training.train import train

    run = tmp_path_factory.mktemp("runs") / "reference"
    assert train(tiny_recipe(), numbers_corpus, run) == 0
    return run


@contextlib.contextmanager
def held(directory: Path) -> Iterator[int]:
    """Lock a directory in another process for as long as the block lasts, and yield that process' id."""
    ready, told = os.pipe()
    child = os.fork()
    if not child:
        with artefact.locked(directory, "the run"):
            os.write(told, b"x")
            signal.pause()
    os.read(ready, 1)
    try:
        yield child
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


@dataclass
class Lab:
    """A run to be trained in `run`, the tiny recipe and its corpus, and an undisturbed run of it to compare with."""

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
        """Return whether a checkpoint is whole and has the weights and moments of the undisturbed run's."""
        from nmt_cli.training import checkpoints

        files = [checkpoints.check(run, step)["files"] for run in (self.run, self.reference)]
        return all(files[0][name] == files[1][name] for name in (checkpoints.MODEL, checkpoints.OPTIMIZER))

    def jobs(self, *specs: dict[str, Any], **environment: str) -> list[dict[str, Any]]:
        """Train in processes of their own, one after the other; a spec: "name", "set", and what faults/job.py says."""
        for spec in specs:
            where = ["--data", str(self.corpus), "--run", str(self.run.with_name(spec.get("name", "run")))]
            sets = [word for change in spec.get("set", ()) for word in ("--set", change)]
            spec["args"] = ["train", str(self.recipe_file), *where, *sets]
        job, file = Path(__file__).parent / "faults" / "job.py", self.run.with_name("specs")
        file.write_text(json.dumps(specs))
        variables = os.environ | {"PYTHONPATH": str(job.parents[2]), "NMT_PATIENCE_SECONDS": "60", **environment}
        done = subprocess.run([sys.executable, job, file], env=variables, capture_output=True, text=True, check=True)
        return [{**result, "stderr": done.stderr} for result in json.loads(done.stdout)]


@pytest.fixture
def lab(
    tiny_recipe_file: Path, numbers_corpus: Path, reference_run: Path, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> Lab:
    return Lab(tiny_recipe_file, numbers_corpus, reference_run, tmp_path / "run", monkeypatch, capsys)
