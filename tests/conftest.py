"""Shared fixtures: a small prepared corpus of spelled-out numbers, and a recipe to train on it."""

import gc
import os
import random
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from lab import ENGLISH, GERMAN, Lab

from nmt_cli.recipe import loading
from nmt_cli.recipe.schema import Recipe
from nmt_cli.system import console

# One thread: computations in tests are too small for more, and waiting threads slow down a busy machine.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Temporary directories in memory, if there is enough: on a disk, fsync is slow and tests gain nothing from it, because
# what a process has written survives its SIGKILL anyway. Some tests run programs there, which noexec would forbid.
SHM = Path("/dev/shm")
if os.access(SHM, os.W_OK) and shutil.disk_usage(SHM).free > 4 << 30 and not os.statvfs(SHM).f_flag & os.ST_NOEXEC:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(SHM))

# A shell starts background jobs with SIGINT ignored, and the programs that tests start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


TINY = """
name: tiny
corpus: {{name: numbers, train_src: [{0}/train.en], train_tgt: [{0}/train.de], dev_src: {0}/dev.en, dev_tgt: {0}/dev.de,
  test_src: {0}/test.en, test_tgt: {0}/test.de, tokenizer: {{vocabulary_size: 320}}, cleaning: {{check_script: false}}}}
model: {{num_layers: 1, d_model: 32, d_ff: 64, num_heads: 2, d_k: 16, d_v: 16, dropout: 0.1, max_length: 64}}
training: {{steps: 30, tokens_per_step: 400, micro_batches: 4, warmup_steps: 60, log_every: 5, validate_every: 15,
  validate_bleu: 4, checkpoint_every: 10, keep_checkpoints: 3, precision: fp32}}
averaging: {{last: 3}}
decoding: {{beam: 1}}
"""


def pytest_configure() -> None:
    """Without a GPU, let Triton interpret kernels on the CPU. It reads the variable when it is imported."""
    import torch  # reads OMP_NUM_THREADS when it is imported

    if not torch.cuda.is_available():
        os.environ.setdefault("TRITON_INTERPRET", "1")


def freeze_modules() -> None:
    """Exempt all imported modules from garbage collection, which otherwise visits them hundreds of times."""
    if len(sys.modules) > frozen["modules"] + 50:
        gc.collect()
        gc.freeze()
        frozen["modules"] = len(sys.modules)


frozen = {"modules": 0}


def pytest_collection_finish() -> None:
    freeze_modules()


def pytest_runtest_setup() -> None:
    freeze_modules()


@pytest.fixture(autouse=True)
def own_settings() -> Iterator[None]:
    """Reset the process settings of commands: signal handlers, --quiet, and torch's threads, which affect rounding."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)
    console.set_quiet(False)
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))


@pytest.fixture
def few_samples() -> Iterator[None]:
    """Make confidence intervals and significance tests quick and rough, for tests that do not check their figures."""
    from few_samples import few_samples

    with few_samples():
        yield


@pytest.fixture(scope="session")
def corpora() -> Path:
    """The directory of real corpora, from NMT_CORPORA. Without it, tests that need it are skipped."""
    if not os.environ.get("NMT_CORPORA"):
        pytest.skip("NMT_CORPORA is not set")
    return Path(os.environ["NMT_CORPORA"]).resolve()


@pytest.fixture(scope="session")
def numbers_text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with train, dev and test text: distinct numbers, spelled digit by digit in English and German."""
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
    """The recipe file of a model that trains on the spelled-out numbers in seconds."""
    path = numbers_text / "tiny.yaml"
    path.write_text(TINY.format(numbers_text))
    return path


@pytest.fixture(scope="session")
def tiny_recipe(tiny_recipe_file: Path) -> Callable[..., Recipe]:
    """A function that returns the tiny recipe with changes: tiny_recipe("training.steps=5", "model.dropout=0")."""
    return lambda *changes: loading.load(tiny_recipe_file, changes)


@pytest.fixture(scope="session")
def numbers_corpus(tmp_path_factory: pytest.TempPathFactory, tiny_recipe: Callable[..., Recipe]) -> Path:
    """The prepared corpus of spelled-out numbers. Do not change it: it is shared."""
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


@pytest.fixture
def lab(
    tiny_recipe_file: Path, numbers_corpus: Path, reference_run: Path, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> Lab:
    return Lab(tiny_recipe_file, numbers_corpus, reference_run, tmp_path / "run", monkeypatch, capsys)
