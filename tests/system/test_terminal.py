"""Security of outputs: no control character reaches a terminal, and no output follows a planted link."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from tiny_model import make_model

from nmt_cli.interop import hub
from nmt_cli.recipe import loading
from nmt_cli.recipe.explain import explain, schema
from nmt_cli.storage import artefact
from nmt_cli.system import console
from nmt_cli.system.errors import NmtError
from nmt_cli.translation.translate import TranslateOptions, translate

ESCAPE = "\x1b]0;title\x07\x1b[2J\x9b31m\u202e"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("tiny"))


def test_output_holds_no_terminal_control_characters(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    console.say(f"model: {ESCAPE}", f"a\nb{ESCAPE}")
    console.warn(ESCAPE)
    console.table(ESCAPE, [""], [[ESCAPE]])
    (tmp_path / "README.md").write_text(f'---\nlicense: "{json.dumps(ESCAPE)[1:-1]}"\n---\n')
    console.say(hub.license_of(tmp_path))
    with console.Progress(ESCAPE, 10, "lines", every=0) as progress:
        progress.advance(1, ESCAPE)
    monkeypatch.setattr(console, "is_live", lambda: True)
    with console.Progress(f"[bold]{ESCAPE}", 10, "lines") as progress:
        progress.advance(1, ESCAPE)
        rows = [progress._live.tasks[0].description, progress._live.tasks[0].fields["text"]]
    shown = capsys.readouterr()
    lines = shown.err.split("\n")
    assert lines[1].startswith("a\\nb"), "a line feed in a message is escaped"
    for text in [*(line for line in lines if "\x1b[1m" not in line and "?25" not in line), *rows]:
        assert ESCAPE not in text
        assert not {"\x07", "\x9b", "\u202e"} & {*text}, text


@pytest.mark.parametrize("format", ["yaml", "json"])
def test_a_shown_recipe_holds_no_control_characters(format: str) -> None:
    settings = loading.from_plain(
        {"name": f"a{ESCAPE}ß", "corpus": {"train_src": [ESCAPE], "train_tgt": ["b"]}}, "a test"
    )
    text = schema(settings) if format == "json" else "\n".join(explain(settings))
    assert text.replace("\n", "").isprintable()
    assert "ß" in text
    if format == "json":
        assert json.loads(text)["examples"][0]["corpus"]["train_src"] == [ESCAPE]
    else:
        assert yaml.safe_load(text)["corpus"]["train_src"] == [ESCAPE]


def test_an_output_never_follows_a_link_at_its_temporary_name(model: Path, tmp_path: Path) -> None:
    (tmp_path / "in").write_text("der Hund\n")
    (tmp_path / "victim").write_text("precious")
    (tmp_path / "out.part").symlink_to(tmp_path / "victim")
    options = TranslateOptions(tmp_path / "in", tmp_path / "out", (model,), precision="fp32", workers=1)
    assert translate(options) == 0
    assert (tmp_path / "victim").read_text() == "precious"
    assert not (tmp_path / "out").is_symlink()
    assert (tmp_path / "out").read_bytes().count(b"\n") == 1

    def replaced(*_: Any) -> None:
        (tmp_path / "out.part").unlink()
        (tmp_path / "out.part").write_text("another's")

    with pytest.raises(NmtError, match=r"another process has replaced .*out\.part"):
        translate(options, replaced)
    assert (tmp_path / "out").read_bytes() != b"another's"


def test_a_lock_never_follows_a_link(tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("precious")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".lock").symlink_to(tmp_path / "victim")
    with pytest.raises(OSError, match="symbolic links"), artefact.locked(tmp_path / "run", "the run"):
        pass
    assert (tmp_path / "victim").read_text() == "precious"


@pytest.mark.parametrize("arguments", ["recipes", "translate --help", "--version", "score a -r a"])
def test_a_closed_pipe_ends_a_command_with_141(tmp_path: Path, arguments: str) -> None:
    (tmp_path / "a").write_text("Ein Hund geht.\n" * 9)
    out, into = os.pipe()
    os.close(out)
    done = subprocess.run(
        [sys.executable, "-m", "nmt_cli", *arguments.split()],
        stdout=into,
        stderr=subprocess.PIPE,
        cwd=tmp_path,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )
    os.close(into)
    assert (done.returncode, done.stderr) == (141, b"")
