"""Outputs keep their permissions and never replace files that a command reads. Directories are refused by name."""

import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest
from translators import one_at_a_time, translator_by
from typer.testing import CliRunner

from nmt_cli import Translator
from nmt_cli.commands.app import app
from nmt_cli.sharding import inputs
from nmt_cli.system.errors import OutputError, UsageError
from nmt_cli.system.shard import Shard
from nmt_cli.translation import sharded
from nmt_cli.translation.sharded import ShardedTranslation
from nmt_cli.translation.translate import TranslateOptions, translate


@pytest.fixture
def options(model: Path, tmp_path: Path) -> TranslateOptions:
    (tmp_path / "in").write_bytes(b"der Hund\ndas Haus\n")
    (tmp_path / "pairs").write_bytes(b"rot\nrot\n")
    return TranslateOptions(tmp_path / "in", tmp_path / "out", (model,), precision="fp32", workers=1)


def test_outputs_do_not_replace_inputs(
    options: TranslateOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs = tmp_path / "pairs"
    for changes in ({"prefix": pairs}, {"score_pairs": pairs}, {"also_read": (tmp_path / "in", pairs)}):
        with pytest.raises(OutputError, match="pairs is also the input"):
            translate(replace(options, output=pairs, **changes))
    with (tmp_path / "in").open("rb") as file:
        kept = os.dup(0)
        try:
            os.dup2(file.fileno(), 0)
            with pytest.raises(OutputError, match="in is also the input"):
                translate(replace(options, input=None, output=tmp_path / "in"))
        finally:
            os.dup2(kept, 0)
    assert (tmp_path / "in").read_bytes() == b"der Hund\ndas Haus\n"
    assert pairs.read_bytes() == b"rot\nrot\n"


@pytest.mark.parametrize("option", ["--terms", "--keep"])
def test_outputs_do_not_replace_a_glossary_or_kept_words(model: Path, tmp_path: Path, option: str) -> None:
    (words := tmp_path / "words").write_text("Hund\tdog\n")
    typed = ["translate", "--model", str(model), option, str(words), "-o", str(words)]
    result = CliRunner().invoke(app, typed, input="der Hund\n")
    assert isinstance(result.exception, OutputError)
    assert words.read_text() == "Hund\tdog\n"


def test_a_directory_in_place_of_an_input_file_is_named(options: TranslateOptions, tmp_path: Path) -> None:
    for changes in ({"input": tmp_path}, {"prefix": tmp_path}, {"score_pairs": tmp_path}):
        with pytest.raises(UsageError, match=f"^{tmp_path} is a directory\\. Name a file in it"):
            translate(replace(options, **changes))


def test_a_private_output_stays_private(options: TranslateOptions, tmp_path: Path) -> None:
    (tmp_path / "out").touch()
    (tmp_path / "out").chmod(0o600)
    assert translate(options) == 0
    assert stat.S_IMODE((tmp_path / "out").stat().st_mode) == 0o600
    assert (tmp_path / "out").stat().st_size


@pytest.mark.parametrize(("rank", "works"), [("", True), ("0", True), ("x", True), ("1", False)])
def test_only_the_first_process_of_a_launcher_translates(
    options: TranslateOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rank: str, works: bool
) -> None:
    monkeypatch.setenv("RANK", rank)
    assert translate(options) == 0
    assert (tmp_path / "out").exists() == works


def finished(options: TranslateOptions, tmp_path: Path) -> int:
    with ShardedTranslation(inputs.find([str(tmp_path / "in")]), str(tmp_path / "job"), options, unit_lines=1) as job:
        return job.run(Shard(1, 1))


def test_joined_outputs_replace_no_input_and_no_pipe(options: TranslateOptions, tmp_path: Path) -> None:
    assert finished(options, tmp_path) == 0
    job, text = str(tmp_path / "job"), str(tmp_path / "in")
    with pytest.raises(OutputError, match="in is also the input"):
        sharded.join([text], job, text)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OutputError, match="pipe is not a file"):
        sharded.join([text], job, str(tmp_path / "pipe"))
    (tmp_path / "link").symlink_to("target")
    sharded.join([text], job, str(tmp_path / "link"))
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").read_bytes().count(b"\n") == 2
    assert (tmp_path / "in").read_bytes() == b"der Hund\ndas Haus\n"


def test_lines_that_changed_are_translated_again(options: TranslateOptions, tmp_path: Path) -> None:
    assert finished(options, tmp_path) == 0
    (tmp_path / "in").write_bytes(b"der Baum\ndas Haus\n")  # of the same size
    assert sharded.check([str(tmp_path / "in")], str(tmp_path / "job")) == 1
    assert finished(options, tmp_path) == 0
    assert sharded.check([str(tmp_path / "in")], str(tmp_path / "job")) == 0


def test_a_name_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    Path(os.fsdecode(bytes(tmp_path / "a") + b"\xff")).write_text("x\n")
    with pytest.raises(UsageError, match=r"the file name a.* is not UTF-8\. Rename the file"):
        inputs.find([str(tmp_path)])


def test_a_translator_is_refused_in_a_forked_process(model: Path) -> None:
    """Its threads run only in the process that made it."""
    with translator_by(model, one_at_a_time(lambda segment: segment.ids[:-1])) as translator:
        assert [each.text for each in translator.translate(["der Hund"])] == ["der Hund"]
        child = os.fork()
        if not child:
            os._exit(_refusal(translator))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def _refusal(translator: Translator) -> int:
    try:
        list(translator.translate(["der Hund"]))
    except UsageError as error:
        return 7 if "belongs to another process" in str(error) else 8
    return 9


@pytest.mark.parametrize("workers", [0, -1])
def test_a_translator_has_at_least_one_worker(model: Path, workers: int) -> None:
    with pytest.raises(UsageError, match=f"^workers must be at least 1, not {workers}$"):
        Translator(model, workers=workers)


@pytest.mark.parametrize("output", ["", "missing/", "s3://bucket/x"])
def test_an_output_that_is_no_file_is_refused(model: Path, output: str) -> None:
    result = CliRunner().invoke(app, ["translate", "--model", str(model), "-o", output], input="der Hund\n")
    assert isinstance(result.exception, UsageError)
    assert "--output must be a file, not" in str(result.exception)
