"""Commands start fast: each imports only the packages it needs."""

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
    """Return the top-level packages and modules that `nmt WORDS` imports."""
    command = [sys.executable, "-X", "importtime", "-m", "nmt_cli", *words]
    done = subprocess.run(command, cwd=ROOT, input=text, capture_output=True, text=True, timeout=100, check=True)
    lines = [line for line in done.stderr.split("\n") if line.startswith("import time:")]
    return {line.rsplit("|", 1)[1].strip().split(".")[0] for line in lines}


@pytest.mark.parametrize("words", [["--version"], ["translate", "--help"]])
def test_version_and_help_load_nothing_heavy(words: list[str]) -> None:
    loaded = loaded_by(*words)
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
