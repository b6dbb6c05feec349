"""Messages, tables and progress go to stderr, and a message is one short line."""

import sys

import pytest

from nmt_cli.system import console
from nmt_cli.system.console import Progress, duration

Captured = pytest.CaptureFixture[str]


def print_everything() -> None:
    console.say("a line")
    console.table("Scores", ["metric", "value"], [["BLEU", 27.3]])
    with Progress("encoding", 10, "sentences", every=0) as progress:
        progress.advance(5)
        console.say("in between")
    console.warn("careful")


def test_everything_goes_to_stderr_and_quiet_keeps_only_warnings(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    print_everything()
    captured = capsys.readouterr()
    assert captured.out == ""
    for text in ("a line\n", "nmt: warning: careful\n", "Scores", "BLEU", "27.3", "encoding: 5 of 10", "in between\n"):
        assert text in captured.err
    console.set_quiet(True)
    print_everything()
    assert capsys.readouterr().err == "nmt: warning: careful\n"
    monkeypatch.setattr(sys, "stderr", None)  # as under pythonw or with 2>&-
    print_everything()


def test_a_warning_is_one_short_line_and_tables_show_markup_as_text(capsys: Captured) -> None:
    console.warn("a\nb" + "x" * 1000)
    console.table("T", ["x"], [["[red]not markup[/red]"]])
    warning, _, table = capsys.readouterr().err.partition("\n")
    assert warning == "nmt: warning: a\\nb" + "x" * 395 + "…"
    assert "[red]not markup[/red]" in table


def test_tables_in_files_are_not_wrapped(capsys: Captured) -> None:
    long = "disk while preparing, in " + "a-long-name/" * 8
    console.table("[b]: " + "words " * 20, ["", "here"], [[long, "1,000 MB"], ["x", 2]])
    console.table("N", ["", ""], [["no", "heading"]])
    lines = [line.strip() for line in capsys.readouterr().err[:-1].split("\n") if "─" not in line]
    assert lines[0] == "[b]: " + "words " * 19 + "words"
    assert lines[2] == f"{long}   1,000 MB"
    console.table("T", ["left", "right", "right too"], [["a", "b", "c"], ["a" * 9, "b" * 9, "c" * 9]])
    assert capsys.readouterr().err.split("\n")[3] == "a" + " " * 8 + "   " + " " * 8 + "b" + "   " + " " * 8 + "c"
    assert [line.split() for line in lines[1:2] + lines[3:]] == [["here"], ["x", "2"], ["N"], ["no", "heading"]]


def test_a_long_log_line_is_cut_at_4000_characters(capsys: Captured) -> None:
    console.say("x" * 4000, "y" * 4001)
    assert capsys.readouterr().err == "x" * 4000 + "\n" + "y" * 3999 + "…\n"


def test_a_count_is_followed_by_its_noun_in_singular_or_plural() -> None:
    counts = {0: "0 pairs", 1: "1 pair", 2: "2 pairs", 1200: "1,200 pairs"}
    assert {count: console.counted(count, "pair") for count in counts} == counts


def test_durations() -> None:
    short = {-3: "0 s", 0.4: "0 s", 59.4: "59 s", 59.6: "1 min 00 s", 185: "3 min 05 s", 3599.6: "1 h 00 min"}
    long = {7800: "2 h 10 min", 86_399: "23 h 59 min", 86_400: "1 d 0 h", 273_600: "3 d 4 h"}
    assert {seconds: duration(seconds) for seconds in short | long} == short | long


@pytest.mark.parametrize(
    ("total", "every", "done", "line"),
    [
        (100_000, 10, 0, "reading: 1,000 of 100,000 lines, 100/s, 16 min 30 s left, 3 dropped\n"),
        (None, 10, 0, "reading: 1,000 lines, 100/s, 3 dropped\n"),
        (3000, 10, 1000, "reading: 2,000 of 3,000 lines, 100/s, 10 s left, 3 dropped\n"),  # resumed
        (20, 30, 0, ""),
    ],
)
def test_plain_progress_prints_a_line_per_interval(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch, total: int | None, every: float, done: int, line: str
) -> None:
    now = 0.0
    monkeypatch.setattr(console.time, "monotonic", lambda: now)
    with Progress("reading", total, "lines", every=every, done=done) as progress:
        for _ in range(15):
            now += 1
            progress.advance(100, "3 dropped")
        assert progress.plain
    assert capsys.readouterr().err == line
    with Progress("training", 400, "steps", every=10) as slow:
        for count in (5, 95, 200, 1):
            now += 20 if count > 1 else 9
            slow.advance(count)
    assert capsys.readouterr().err.split("\n") == [
        "training: 5 of 400 steps, 0.2/s, 26 min 20 s left",
        "training: 100 of 400 steps, 2.5/s, 2 min 00 s left",
        "training: 300 of 400 steps, 5.0/s, 20 s left",
        "",
    ]
    with Progress("training", 9, "steps", every=10) as waiting:
        now += 20
        waiting.advance(0)
    assert capsys.readouterr().err == "training: 0 of 9 steps, 0.0/s\n"
    with Progress("training", None, "steps", every=10) as fast:
        for count in (199, 201):
            now += 20
            fast.advance(count)
    assert capsys.readouterr().err.split("\n")[:2] == ["training: 199 steps, 9.9/s", "training: 400 steps, 10/s"]


def test_a_live_line_on_a_terminal_leaves_stdout_alone(monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    with Progress("encoding", 10, "sentences") as progress:
        assert not progress.plain
        progress.advance(5, "[bold]x[/bold]")
        print("a result")
        console.say("a [log] line")
    captured = capsys.readouterr()
    assert captured.out == "a result\n"
    assert "a [log] line" in captured.err
    assert progress.done == 5
    assert console.is_live()
    console.set_quiet(True)
    assert not console.is_live()
    assert Progress("encoding", 10, "sentences").plain
    console.set_quiet(False)
    monkeypatch.setattr(sys, "stderr", None)
    assert not console.is_live()
