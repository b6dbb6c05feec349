"""The first commands of a new user: each error suggests the command that was probably meant."""

import contextlib
import os
import pty
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from command_line import COMMANDS, Nmt
from in_process import run_nmt
from texts import ROOT
from tiny_model import make_model

from nmt_cli import __version__, documents
from nmt_cli.interop import importing
from nmt_cli.recipe.named import NAMED_CORPORA
from nmt_cli.system.errors import UsageError, meant


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("first"))


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("NMT_MODEL", raising=False)
    return tmp_path


def error_of(nmt: Nmt, *words: str) -> tuple[int, str]:
    code, out, err = nmt(*words)
    assert out == ""
    (line,) = err.removesuffix("\n").split("\n")
    return code, line


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["translate", "Why was she tired?"], 66, "echo 'Why was she tired?' | nmt translate"),
        (["translate", "it's 5 o'clock"], 66, """echo 'it'"'"'s 5 o'"'"'clock' | nmt translate"""),
        (["translate", "nothere.en"], 66, "no file 'nothere.en'. Check the path"),
        (["translate", "Why", "was", "she"], 2, "To translate text from the command line: echo TEXT | nmt translate"),
        (["prepare", "a.en", "a.de"], 2, "nmt prepare --src a.en --tgt a.de. See"),
        (["prepare", "my file.en", "a.de"], 2, "nmt prepare --src 'my file.en' --tgt a.de. See"),
        (["prepare", "a.en"], 2, "To prepare your own text, run nmt prepare --src a.en --tgt FILE"),
        (["prepare", "a.en", "a.de", "b.de"], 2, "nmt prepare --src a.en --tgt FILE. See"),
        (["score", "a.en", "a.de", "b.de"], 2, "nmt score a.en --reference FILE. See"),
        (["train", "mine.yaml"], 66, "no prepared corpus in data/own. Run: nmt prepare --src FILE --tgt FILE --out"),
        (["train", "several.yaml"], 66, "no prepared corpus in data/own. Run: nmt prepare several.yaml"),
        (["prepare", "toy-en-d"], 2, "Did you mean toy-en-de?"),
        (["prepare", "wmt14"], 2, "Did you mean wmt14-en-de?"),
        (["prepare", "--src"], 2, "See: nmt prepare --help"),
        (["score", "a.en", "a.de"], 2, "nmt score a.en --reference a.de. See: nmt score --help"),
        (["export", "m", "--to", "ct2", "--out", "x"], 2, "Did you mean ctranslate2? See: nmt export --help"),
        (["translate", "--precision", "b16"], 2, "Did you mean bf16?"),
        (["score", "a.en", "--format", "jsn"], 2, "Did you mean json?"),
        (["score", "a.en", "-r", "a.en", "--metric", "chr"], 2, "Did you mean chrf?"),
        (
            ["train", "toy", "--set", "model.norm=pree"],
            2,
            "model.norm must be 'post' or 'pre', not 'pree'. Did you mean pre?",
        ),
        (["train", "toi"], 66, "no recipe toi. Did you mean toy?"),
        (["help", "trian"], 2, "Did you mean 'train'"),
        (["help", "env", "x"], 2, "nmt env has no command 'x'. See: nmt env --help"),
    ],
)
def test_an_error_suggests_the_command_that_was_meant(
    nmt: Nmt, here: Path, words: list[str], code: int, message: str
) -> None:
    for name in ("a.en", "a.de", "my file.en"):
        (here / name).write_text("one: two: three\n")
    (here / "mine.yaml").write_text("corpus: {name: own}\n")
    (here / "several.yaml").write_text("corpus: {name: own, sources: [{files: [a.en, a.de]}]}\n")
    found, line = error_of(nmt, *words)
    assert (found, message in line) == (code, True), line


def test_the_nearest_known_name_is_suggested() -> None:
    known = ["ctranslate2", "hf", "table3/base", "toy"]
    for typed, name in (("ct2", "ctranslate2"), ("CT2", "ctranslate2"), ("HF", "hf"), ("tabel3/base", "table3/base")):
        assert meant(typed, known) == f"Did you mean {name}?"
    assert meant("ab", ["aa" + "x" * 8 + "b", "az" + "x" * 6 + "b"]) == "Did you mean azxxxxxxb?", "the shortest"
    for typed in ("", "x", "c", "2tc", "zzz"):
        assert meant(typed, known) == ""


def test_the_error_about_a_missing_model_lists_the_models_here(nmt: Nmt, here: Path, model: Path) -> None:
    none = "Use a model from the hub, such as Helsinki-NLP/opus-mt-en-de, or train one: nmt reproduce"
    for name in ("runs/nope", "models/nope"):  # neither is a name on the hub
        assert none in error_of(nmt, "translate", "--model", name)[1]
    for path in ("runs/a/model", "models/b"):
        shutil.copytree(model, path)
    Path("runs/torn").mkdir()
    for command in (["translate"], ["attend", "x"]):
        code, line = error_of(nmt, *command, "--model", "runs/nope")
        assert code == 66
        assert "no model in runs/nope. Models here: runs/a, models/b. You can also use a model " in line
    for number in range(9):
        Path(f"models/c{number}").symlink_to(model)
    assert "models/c5, and 3 more. You can also use" in error_of(nmt, "translate", "--model", "runs/nope")[1]


@pytest.mark.parametrize("name", ["a.pdf", "a.tmx", "a.doc", "a.TMX", "train.en.csv", "tmp.pdf", "a.tsv"])
def test_an_unknown_file_format_is_refused(nmt: Nmt, here: Path, model: Path, name: str) -> None:
    (here / name).write_text("der Hund\n5\n")
    code, line = error_of(nmt, "translate", name, "--model", str(model))
    assert code == 2
    assert f"nmt cannot read the format of {name}. It reads .html, .htm, .md, " in line
    assert "--format text" in line
    code, out, _ = nmt("translate", name, "--model", str(model), "--format", "text", "--output", "out")
    assert (code, out, Path("out").read_text().split("\n")[1]) == (0, "", "5")


def test_file_names_decide_between_lines_and_documents(here: Path) -> None:
    names = ["a", "a.txt", "a.TXT", "train.en", "test.de", "a.pt-BR", "a.zh_CN", "a.deu_Latn", "a.eng", "a.hyp",
             "x.src", "a.en.gz", "a.tok", "lines.01", "tmp.aB3dEf6hIj", ".hidden"]  # fmt: skip
    for name in names:
        (here / name).touch()
        assert documents.choose(None, here / name, None, None, [], {}) is None, name
    for name, kind in (("a.html", "html"), ("a.PO", "po"), ("a.md", "md"), ("a.srt", "srt"), ("a.docx", "docx")):
        run: Any = documents.choose(None, here / name, None, None, [], {})
        assert run.keywords["kind"] == kind
    (here / "a.pdf").touch()
    assert documents.choose("jsonl", here / "a.pdf", None, None, [], {}) is None
    assert documents.choose(None, here / "a.pdf", "html", None, [], {}) is not None
    with pytest.raises(UsageError):
        documents.choose(None, here / "a.pdf", None, True, [], {})


def in_terminal(*words: str, typed: bytes) -> tuple[int, str, str]:
    """Run a command with a terminal as stdin, and return its exit code, stdout and stderr."""
    ours, theirs = pty.openpty()
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "cwd": ROOT}
    command = subprocess.Popen([sys.executable, "-m", "nmt_cli", *words], stdin=theirs, **pipes)
    os.write(ours, typed + b"\x04")
    out, err = command.communicate(timeout=100)
    for end in (ours, theirs):
        os.close(end)
    return command.returncode, out, err


def test_a_terminal_is_asked_for_input(model: Path, tmp_path: Path) -> None:
    code, out, err = in_terminal("translate", "--model", str(model), typed=b"3.14\n")
    assert (code, out) == (0, "3.14\n")
    assert err.startswith("type lines to translate. Each line is translated separately. Press Ctrl-D to end\n")
    command = [sys.executable, "-m", "nmt_cli", "translate", "--model", str(model)]
    done = subprocess.run(command, input="3.14\n", capture_output=True, text=True, cwd=ROOT, check=True)
    assert "Ctrl-D" not in done.stderr
    (tmp_path / "ref").write_text("der Hund geht und ist rot\n")
    code, out, err = in_terminal(
        "score", "-r", str(tmp_path / "ref"), "--no-intervals", typed=b"der Hund geht und ist rot\n"
    )
    assert code == 0
    assert "BLEU   100.00" in out
    assert err.startswith("reading hypotheses from the terminal, one per line. Press Ctrl-D to end\n")


def test_help_and_version_have_several_forms(nmt: Nmt) -> None:
    for form in ("--version", "-v", "-V"):
        assert nmt(form) == (0, f"nmt {__version__}\n", "")
    whole = nmt("--help")
    assert nmt("-h") == nmt("help") == whole
    for words in (["train"], ["recipes", "show"], ["recipes"], ["help"]):
        expected = nmt(*words, "--help")
        assert expected[0] == 0
        assert nmt("help", *words) == expected
        assert f"Usage: nmt {' '.join(words)} " in expected[1]
    code, out, err = nmt()
    assert (code, out, err.rstrip()) == (2, "", whole[1].rstrip())


@pytest.mark.parametrize("command", [*COMMANDS, "help", "recipes show", "recipes copy", ""])
def test_help_is_readable_in_80_columns(nmt: Nmt, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    """Descriptions begin before column 30, most take at most two lines, and names are never broken."""
    monkeypatch.setenv("COLUMNS", "80")
    code, text, err = nmt(*command.split(), "--help")
    assert (code, err) == (0, "")
    lines = text.split("\n")
    assert max(map(len, lines)) <= 80
    assert not re.search(r"[│╭╰\u2011]|\w-$", text, re.MULTILINE)
    described = [match for line in lines if (match := re.match(r"  (?:-\w|  ).*?\s{2,}(?=\S)", line))]
    assert described
    assert max(len(match[0]) for match in described) < 30
    further = [line for line in lines if re.match(r" {20,}\S", line)]
    assert len(further) <= 1.2 * len(described) + 2


def test_recipes_are_wrapped_on_a_terminal_only() -> None:
    command = [sys.executable, "-m", "nmt_cli", "recipes"]
    lines = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True).stdout.split("\n")[:-1]
    (column,) = {re.match(r"\S+ +", line).end() for line in lines}  # type: ignore[union-attr]
    ours, theirs = pty.openpty()
    shown = subprocess.Popen(command, stdout=theirs, cwd=ROOT, env=os.environ | {"COLUMNS": "80", "LINES": "24"})
    os.close(theirs)
    text = b""
    with contextlib.suppress(OSError):  # raised by a read at the end of the terminal
        while block := os.read(ours, 1 << 16):
            text += block
    assert shown.wait() == 0
    rows = text.decode().replace("\r", "").split("\n")[:-1]
    assert max(map(len, rows)) <= 80
    assert all(re.match(rf"\S+ +|(?: {{{column}}})\S", row) for row in rows)
    assert " ".join(" ".join(rows).split()) == " ".join(" ".join(lines).split())


def completed(line: str, here: Path) -> list[str]:
    words = line.split()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(here)
        patch.setenv("_NMT_COMPLETE", "complete_bash")
        patch.setenv("COMP_WORDS", line)
        patch.setenv("COMP_CWORD", str(len(words) - (not line.endswith(" "))))
        code, out, err = run_nmt()
    assert (code, err) == (0, "")
    return out.split()


def test_the_shell_completes_recipes_and_corpora(tmp_path: Path) -> None:
    for name in ("mine.yaml", "mine.yml", "mine.txt"):
        (tmp_path / name).touch()
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "other.yaml").touch()
    assert completed("nmt train m", tmp_path) == [
        "multi30k-tiny-en-fr",
        "multi30k-tiny",
        "multi30k",
        "mine.yaml",
        "mine.yml",
        "more/",
    ]
    assert completed("nmt reproduce table3/c-n", tmp_path) == ["table3/c-n2", "table3/c-n4", "table3/c-n8"]
    assert completed("nmt train more/o", tmp_path) == ["more/other.yaml"]
    assert completed("nmt recipes show to", tmp_path) == ["toy"]
    corpora = completed("nmt prepare ", tmp_path)
    assert {*NAMED_CORPORA, "toy", "mine.yaml"} <= {*corpora}
    assert completed("nmt train nowhere/", tmp_path) == []
    assert completed("nmt export m --to ", tmp_path) == ["hf", "ctranslate2", "argos"]


@pytest.mark.parametrize(
    ("source", "out"),
    [
        ("Helsinki-NLP/opus-mt-en-de", "opus-mt-en-de"),
        ("A/b@v1/x", "b"),
        ("theirs/opus", "opus"),
        (".", "here"),
        ("theirs/en_de.argosmodel", "en_de"),
        ("theirs/opus-1.5", "opus-1.5"),
    ],
)
def test_import_writes_to_models_by_default(
    nmt: Nmt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, out: str
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    given = list[Any]()
    monkeypatch.setattr(importing, "import_model", lambda *arguments: given.append(arguments))
    assert nmt("import", source)[0] == 0
    assert nmt("import", source, "--out", "x")[0] == 0
    assert given == [(source, Path("models") / out, None, None), (source, Path("x"), None, None)]


def test_metrics_and_tokenizers_of_sacrebleu_are_accepted(nmt: Nmt, here: Path) -> None:
    (here / "a").write_text("der Hund geht und ist rot\n")
    code, out, _ = nmt("score", "a", "-r", "a", "--metric", "chrf++", "--tokenize", "flores200", "--no-intervals")
    assert code == 0
    assert "chrF2++  100.00" in out
