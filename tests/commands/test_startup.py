"""Starting takes less than a translation: a command imports what it needs and no more."""

import subprocess
import sys
from pathlib import Path

import pytest
from texts import ROOT
from tiny_model import make_model

from nmt_cli.engine import library
from nmt_cli.translation.backends import may_have_gpu

HEAVY = {"torch", "numpy", "datasets", "pandas", "pyarrow", "transformers", "accelerate", "safetensors", "sacrebleu"}


def loaded_by(*words: str, text: str = "") -> set[str]:
    """The packages and modules of the first level that `nmt WORDS` imports."""
    command = [sys.executable, "-X", "importtime", "-m", "nmt_cli", *words]
    done = subprocess.run(command, cwd=ROOT, input=text, capture_output=True, text=True, timeout=100, check=True)
    lines = [line for line in done.stderr.split("\n") if line.startswith("import time:")]
    return {line.rsplit("|", 1)[1].strip().split(".")[0] for line in lines}


def test_the_command_line_alone_draws_nothing_and_reads_no_recipe() -> None:
    loaded = loaded_by("--version")
    assert "typer" in loaded
    assert not loaded & (HEAVY | {"rich", "pydantic", "yaml", "sentencepiece"})


def test_the_help_of_translate_loads_nothing_heavy() -> None:
    loaded = loaded_by("translate", "--help")
    assert "typer" in loaded
    assert not loaded & (HEAVY | {"rich", "pydantic", "yaml", "sentencepiece"})


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"))


def test_a_translation_by_the_engine_loads_nothing_heavy(model: Path) -> None:
    if library.describe().startswith("none") or may_have_gpu():
        pytest.skip("torch translates here")
    loaded = loaded_by("translate", "--model", str(model), "--beam", "4", text="der Hund\n")
    assert "sentencepiece" in loaded
    assert not loaded & (HEAVY | {"rich", "pydantic", "yaml"})
