"""`nmt translate` with --shard, --check and --join."""

import gzip
from pathlib import Path

import pytest
from command_line import Nmt
from tiny_model import make_model

LINES = "".join(f"der Hund {number}\n" for number in range(25))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(make_model(tmp_path_factory.mktemp("tiny")))


def test_two_workers_translate_a_directory(nmt: Nmt, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("in/more").mkdir(parents=True)
    Path("in/a.de").write_text(LINES)
    Path("in/more/b.de.gz").write_bytes(gzip.compress(LINES.encode()))
    options = ["--model", model, "--format", "jsonl", "--workers", "1"]
    assert nmt("translate", "in/a.de", "-o", "plain", *options)[0] == 0
    plain = Path("plain").read_text()
    worker = ["translate", "in", "-o", "out", *options]
    assert nmt(*worker, "--shard", "1/2", "--unit-lines", "10")[0] == 0
    first = next(Path("out/units/000").glob("0000005-*"))
    first.unlink()
    code, found, errors = nmt("translate", "in", "--check", "out")
    assert (code, found) == (1, f"more/b.de.gz\t21\t25\t{first.name} is missing\n")
    assert "1 of 6 units missing or damaged (total: 50 lines of 2 files)" in errors
    code, found, errors = nmt("translate", "in", "--join", "out")
    assert (code, found) == (65, "")
    assert "more/b.de.gz, lines 21 to 25" in errors
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "2")
    monkeypatch.setenv("SLURM_ARRAY_TASK_MIN", "1")
    monkeypatch.setenv("SLURM_ARRAY_TASK_COUNT", "2")
    code, _, errors = nmt(*worker, "--shard", "auto")
    assert code == 0
    assert "worker 2/2 translated 5 lines of 50" in errors
    code, found, errors = nmt("translate", "in", "--check", "out")
    assert (code, found) == (0, "")
    assert "complete: 6 units, 50 lines of 2 files" in errors
    assert nmt("translate", "in", "--join", "out")[0] == 0
    assert Path("out/a.de").read_text() == plain
    assert gzip.decompress(Path("out/more/b.de.gz").read_bytes()).decode() == plain


def test_workers_with_other_markup_options_are_refused(nmt: Nmt, model: str) -> None:
    """Each of these options changes the translation of a line."""
    Path("a").write_text("der Hund\n")
    Path("kept").write_text("Hund\n")
    worker = ["translate", "a", "-o", "out", "--model", model, "--shard", "1/1"]
    first = ["--markup", "html", "--protect", "--keep", "kept"]
    assert nmt(*worker, *first)[0] == 0
    assert nmt(*worker, *first)[0] == 0
    for other in (first[2:], [*first[:2], "--no-protect", *first[3:]], first[:3], [*first, "--protect-pattern", "x+"]):
        code, _, errors = nmt(*worker, *other)
        assert (code, "marks" in errors) == (73, True), errors


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["a", "--shard", "1/2"], 2, "--shard needs a directory: --output DIR"),
        (["--shard", "1/2", "-o", "out"], 2, "--shard needs the files to translate"),
        (["a", "--shard", "3/2", "-o", "out"], 2, "must be from 1 to 2"),
        (["a", "--unit-lines", "5"], 2, "--unit-lines requires --shard"),
        (["a", "--check", "out", "--join", "out"], 2, "pass only one of --shard, --check and --join"),
        (["a", "--check", "out", "--output", "x"], 2, "pass only one of --shard, --check and --join"),
        (["a", "--join", "out", "--shard", "1/2"], 2, "pass only one of --shard, --check and --join"),
        (["--check", "out"], 2, "--check and --join need the files"),
        (["a", "--check", "out"], 66, "out has no units"),
        (["none", "--shard", "1/2", "-o", "out"], 66, "none matches no file"),
        (["a", "--shard", "1/2", "-o", "a"], 73, "a is a file, but units need a directory"),
        (["a", "--shard", "1/2", "-o", "."], 73, "is in the output directory"),
        (["a", "page.html", "--shard", "1/2", "-o", "out"], 2, "page.html is a document (html)"),
        (["a", "--shard", "1/2", "-o", "out", "--format", "po"], 2, "a is a document (po)"),
        (["a.xyz", "--shard", "1/2", "-o", "out"], 2, "a.xyz is of an unknown format"),
        (["a", "--shard", "1/2", "-o", "out", "--sample", "--protect"], 2, "--sample with markup or --protect"),
        (["a", "b"], 2, "echo TEXT | nmt translate"),
    ],
)
def test_contradictions_give_a_one_line_error(nmt: Nmt, model: str, words: list[str], code: int, message: str) -> None:
    for name in ("a", "page.html", "a.xyz"):
        Path(name).write_text("der Hund\n")
    found, _, errors = nmt("translate", *words, "--model", model)
    assert found == code, errors
    assert message in errors
    assert errors.count("error:") == 1
    assert not Path("out").exists()
