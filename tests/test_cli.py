"""The command line as a newcomer meets it: help, one clear line for every mistake, and the right exit code."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from nmt_cli import __version__

COMMANDS = [
    "prepare",
    "train",
    "average-checkpoints",
    "translate",
    "reproduce",
    "score",
    "export",
    "import",
    "report",
    "doctor",
    "attend",
]


def nmt(*words: str, cwd: Path, stdin: bytes = b"", **environment: str) -> subprocess.CompletedProcess[bytes]:
    """Run nmt in a directory of its own."""
    env = {**os.environ, "COLUMNS": "100", "NO_COLOR": "1", "OMP_NUM_THREADS": "1", **environment}
    env["PYTHONPATH"] = str(Path(__file__).parent.parent)
    env.pop("NMT_MODEL", None)
    return subprocess.run([sys.executable, "-m", "nmt_cli", *words], cwd=cwd, input=stdin, capture_output=True, env=env)


def complaint(result: subprocess.CompletedProcess[bytes], code: int) -> str:
    """Return the one line of complaint, after checking that there is nothing else."""
    assert result.returncode == code, result.stderr.decode()
    assert result.stdout == b""
    errors = [line for line in result.stderr.decode().splitlines() if "error:" in line]
    assert len(errors) == 1
    assert "Traceback" not in result.stderr.decode()
    return errors[0]


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with nothing in it."""
    return tmp_path_factory.mktemp("empty")


def test_help_names_every_command(empty: Path) -> None:
    result = nmt("--help", cwd=empty)
    assert result.returncode == 0
    listed = result.stdout.decode().split("Commands:")[1]
    assert all(f"  {command} " in listed for command in COMMANDS)
    assert "..." not in listed  # no command's first sentence is cut


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(empty: Path, command: str) -> None:
    result = nmt(command, "--help", cwd=empty)
    assert result.returncode == 0
    assert f"Usage: nmt {command}" in result.stdout.decode()
    assert result.stderr == b""


def test_version(empty: Path) -> None:
    assert nmt("--version", cwd=empty).stdout.decode() == f"nmt {__version__}\n"


def test_no_model_yet(empty: Path) -> None:
    assert "nmt reproduce recipes/toy.yaml" in complaint(nmt("translate", cwd=empty, stdin=b"Hello\n"), 66)


def test_how_to_draw_is_refused_where_nothing_is_drawn(empty: Path) -> None:
    assert "--top-k is of --sample" in complaint(nmt("translate", "--top-k", "5", cwd=empty, stdin=b"Hello\n"), 2)


def test_missing_recipe(empty: Path) -> None:
    assert "no recipe mine.yaml" in complaint(nmt("train", "mine.yaml", cwd=empty), 66)


def test_unknown_corpus_names_the_known_ones(empty: Path) -> None:
    assert "wmt14-en-de" in complaint(nmt("prepare", "wmt15-en-de", cwd=empty), 2)


def test_unknown_recipe_key_names_the_nearest(tmp_path: Path) -> None:
    (tmp_path / "r.yaml").write_text("training: {warmup: 3}\nmodel: {num_layer: 2}\n")
    line = complaint(nmt("train", "r.yaml", cwd=tmp_path), 2)
    assert "'training.warmup'" in line
    assert "did you mean 'num_layers'?" in line


def test_corpus_not_prepared(empty: Path) -> None:
    assert "nmt prepare wmt14-en-de" in complaint(nmt("train", "recipes/base.yaml", cwd=empty), 66)


def test_unequal_line_counts_name_both(tmp_path: Path) -> None:
    (tmp_path / "a.en").write_text("one\ntwo\nthree\n")
    (tmp_path / "a.de").write_text("eins\nzwei\n")
    line = complaint(nmt("prepare", "--src", "a.en", "--tgt", "a.de", cwd=tmp_path), 65)
    assert "3" in line
    assert "2" in line
    assert not (tmp_path / "data" / "mine").exists()


def test_an_output_that_cannot_be_made_is_no_missing_input(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for out in ("file/corpus", "/proc/absent/corpus"):
        assert "cannot create" in complaint(nmt("prepare", "toy-en-de", "--out", out, cwd=tmp_path), 73)


def test_the_command_is_named_once(tmp_path: Path) -> None:
    line = complaint(nmt("prepare", "toy-en-de", "--set", "corpus.limt=5", cwd=tmp_path), 2)
    assert line.startswith("nmt prepare: error: the options: unknown key 'corpus.limt'")


def test_empty_file(tmp_path: Path) -> None:
    (tmp_path / "a.en").write_text("")
    (tmp_path / "a.de").write_text("")
    assert "empty" in complaint(nmt("prepare", "--src", "a.en", "--tgt", "a.de", cwd=tmp_path), 65)


def test_no_run_to_average(empty: Path) -> None:
    assert "no run in runs/base" in complaint(nmt("average-checkpoints", "runs/base", cwd=empty), 66)


def test_one_side_only(empty: Path) -> None:
    assert "--tgt" in complaint(nmt("prepare", "--src", "a.en", cwd=empty), 2)


def test_score_of_unequal_files(tmp_path: Path) -> None:
    (tmp_path / "hyp").write_text("a\nb\n")
    (tmp_path / "ref").write_text("a\n")
    line = complaint(nmt("score", "hyp", "--reference", "ref", cwd=tmp_path), 65)
    assert "2" in line
    assert "1" in line


def test_score_gate(tmp_path: Path) -> None:
    (tmp_path / "hyp").write_text("the cat sat on the mat\n")
    passed = nmt("score", "hyp", "--reference", "hyp", "--fail-under", "99", cwd=tmp_path)
    assert passed.returncode == 0
    (tmp_path / "ref").write_text("a dog lay under a tree\n")
    failed = nmt("score", "hyp", "--reference", "ref", "--fail-under", "99", cwd=tmp_path)
    assert failed.returncode == 1
    assert "gate failed" in failed.stderr.decode()


def test_recipes_come_with_the_package(empty: Path) -> None:
    line = complaint(nmt("train", "recipes/toy.yaml", cwd=empty), 66)
    assert "nmt prepare toy-en-de" in line
