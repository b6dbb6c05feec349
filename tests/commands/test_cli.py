"""The command line: help, one clear line for every mistake, and exit codes."""

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from unittest.mock import MagicMock, Mock

import pytest
from command_line import COMMANDS, Nmt

import nmt_cli
from nmt_cli import __main__, __version__
from nmt_cli.system import errors


@pytest.mark.parametrize("no_color", ["", "1"])
def test_help_on_a_terminal_is_bold_without_no_color(no_color: str) -> None:
    master, slave = pty.openpty()
    command = [sys.executable, "-m", "nmt_cli", "recipes", "--help"]
    subprocess.run(command, stdout=slave, env={**os.environ, "NO_COLOR": no_color, "TERM": "xterm"}, check=True)
    os.close(slave)
    assert (b"\x1b[1m" in os.read(master, 1 << 16)) == (not no_color)
    os.close(master)


def test_help_lists_every_command(nmt: Nmt) -> None:
    code, listed, _ = nmt("--help")
    assert code == 0
    assert "Start with: nmt reproduce recipes/toy.yaml" in listed
    assert "..." not in listed.split("Commands")[1]  # no description is cut
    for command in COMMANDS:
        assert re.search(rf" {command}  +\w", listed)


def test_recipes_are_listed_by_default(nmt: Nmt) -> None:
    code, listed, _ = nmt("recipes")
    assert (code, "\ntoy  " in listed) == (0, True)
    assert nmt("recipes", "list") == (0, listed, "")


def test_an_ascii_terminal_gets_ascii() -> None:
    """Help and lists contain other characters."""
    for words in ("--help", "recipes"):
        command = [sys.executable, "-m", "nmt_cli", words]
        variables = {**os.environ, "PYTHONIOENCODING": "ascii"}
        done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=100, check=False)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.isascii()


def test_the_package_offers_a_translator_and_little_else() -> None:
    assert sorted(nmt_cli.__all__) == ["Sampling", "Terms", "Translator", "__version__"]
    assert {getattr(nmt_cli, name).__name__ for name in nmt_cli.__all__[:-1]} == {"Sampling", "Terms", "Translator"}
    with pytest.raises(AttributeError, match="module 'nmt_cli' has no attribute 'translate'"):
        nmt_cli.translate  # noqa: B018


def test_quiet_hides_messages(nmt: Nmt) -> None:
    command = ("prepare", "toy-en-de", "--dry-run")
    assert nmt(*command, "--quiet") == (0, "", "")
    code, out, err = nmt(*command)
    assert (code, out) == (0, "")
    assert "toy-en-de would need\nfrom " in err  # without a row of empty headings


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ("translate", 66, "nmt reproduce recipes/toy.yaml"),
        ("translate --top-k 5", 2, "nmt translate: error: --top-k requires --sample"),
        ("translate --precision fp8", 2, "--precision must be auto, fp32, bf16 or int8, not 'fp8'. See: nmt translate"),
        ("translate --sample --beam 1", 2, "--sample replaces the search. Leave out --beam"),
        ("translate --sample --terms x", 2, "--sample replaces the search. Leave out --terms"),
        ("translate a.en --input a.de", 2, "the input file is given twice. Leave out --input"),
        ("translate --seed 0", 2, "nmt translate: error: --seed requires --sample"),
        ("translate --beam 0", 2, "--beam must be a whole number of 1 or more, not 0. See: nmt translate --help"),
        ("translate --alpha wide", 2, "--alpha must be a number from 0 to 10, not 'wide'. See: nmt translate --help"),
        ("recipes shwo", 2, "No such command 'shwo'. Did you mean 'show'? See: nmt recipes --help"),
        ("translate --bean 3", 2, "No such option: --bean. Did you mean --beam?"),
        ("translate --beam", 2, "Option '--beam' requires an argument. See: nmt translate --help"),
        ("export m --out x", 2, "Missing option --to: hf, ctranslate2 or argos. See: nmt export --help"),
        ("serve --port 99999", 2, "--port must be a whole number from 0 to 65535, not 99999"),
        ("serve nomodel", 66, "no model in nomodel. Use a model from the hub"),
        ("translte", 2, "No such command 'translte'"),
        ("train", 2, "Missing argument RECIPE"),
        ("train mine\x1b[2J.yaml", 66, "no recipe mine\\x1b[2J.yaml"),
        ("train recipes/mutli30k.yaml", 66, "Did you mean multi30k?"),
        ("score - --corpus .", 66, ". is not a prepared corpus. Pass a directory that nmt prepare wrote"),
        ("train recipes/base.yaml", 66, "nmt prepare recipes/base.yaml --out data/wmt14-en-de"),  # the package's recipe
        ("train r.yaml", 2, "unknown key 'model.num_layer'; did you mean 'model.num_layers'?; unknown"),
        ("prepare wmt15-en-de", 2, "wmt14-en-de"),
        ("prepare --src a.en", 2, "--tgt"),
        ("prepare toy-en-de --wait", 2, "nmt prepare: error: --wait requires --shard"),
        ("prepare --src a.en --tgt a.de", 65, "2"),
        ("prepare toy-en-de --out a.en/corpus", 73, "cannot create"),
        ("prepare toy-en-de --set corpus.limt=5", 2, "nmt prepare: error: the options: unknown key 'corpus.limt'"),
        ("average-checkpoints runs/base", 66, "no run in runs/base"),
    ],
)
def test_a_mistake_gives_one_line_and_a_code(nmt: Nmt, tmp_path: Path, words: str, code: int, message: str) -> None:
    (tmp_path / "r.yaml").write_text("training: {warmup: 3}\nmodel: {num_layer: 2}\n")
    (tmp_path / "a.en").write_text("one\ntwo\nthree\n")
    (tmp_path / "a.de").write_text("eins\nzwei\n")
    *result, err = nmt(*words.split())
    (line,) = [line for line in err.split("\n") if "error:" in line]
    assert (result, message in line) == ([code, ""], True), line
    assert not (tmp_path / "data" / "mine").exists()


def test_each_way_to_end_has_its_exit_code() -> None:
    ends = {130: KeyboardInterrupt(), 141: BrokenPipeError(), 143: SystemExit(143)}
    ends |= {75: errors.BusyError("busy"), 74: OSError(28, "No space"), 1: SystemExit("said"), 0: SystemExit(None)}
    ends |= {7: SystemExit(7)}
    assert __main__._exit_code(Mock(side_effect=MemoryError)) == 74
    assert [__main__._exit_code(Mock(side_effect=end)) for end in ends.values()] == [*ends]
    assert [__main__._exit_code(Mock(return_value=code)) for code in (None, 0, 3)] == [0, 0, 3]
    with pytest.raises(LookupError):
        __main__._exit_code(Mock(side_effect=LookupError))  # a bug: the traceback is shown


@pytest.mark.parametrize(("own", "flush", "code"), [(1, None, 1), (0, OSError(28, "x"), 74), (1, OSError(28, "x"), 74)])
def test_output_that_cannot_be_flushed_is_an_error(
    nmt: Nmt, monkeypatch: pytest.MonkeyPatch, own: int, flush: OSError | None, code: int
) -> None:
    monkeypatch.setattr(__main__, "_command", lambda: own)
    monkeypatch.setattr(sys, "stdout", Mock(flush=Mock(return_value=None, side_effect=flush)))
    assert nmt("score")[0] == code


@pytest.mark.parametrize(("debug", "shown"), [("", False), ("1", True)])
def test_the_traceback_of_an_error_is_shown_on_demand(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], debug: str, shown: bool
) -> None:
    monkeypatch.setenv("NMT_DEBUG", debug)
    monkeypatch.setattr(sys, "argv", ["nmt", "--quiet", "score"])
    assert __main__._exit_code(Mock(side_effect=errors.DataError("wrong"))) == 65
    *trace, line, _ = capsys.readouterr().err.split("\n")
    assert (line, trace[:1] == ["Traceback (most recent call last):"]) == ("nmt score: error: wrong", shown)


@pytest.mark.parametrize(("length", "shown"), [(600, "x" * 600), (601, "x" * 599 + "…")])
def test_a_message_of_600_characters_is_not_cut(
    nmt: Nmt, monkeypatch: pytest.MonkeyPatch, length: int, shown: str
) -> None:
    monkeypatch.setattr(__main__, "_command", Mock(side_effect=errors.DataError("x" * length)))
    assert nmt("score") == (65, "", f"nmt score: error: {shown}\n")


@pytest.mark.parametrize(("rank", "times"), [(None, 1), ("0", 1), ("1", 0)])
def test_the_first_of_several_processes_reports_the_signal(
    nmt: Nmt, monkeypatch: pytest.MonkeyPatch, rank: str | None, times: int
) -> None:
    monkeypatch.setattr(__main__, "_command", Mock(side_effect=KeyboardInterrupt))
    monkeypatch.setenv("RANK", rank) if rank else monkeypatch.delenv("RANK", raising=False)
    assert nmt("--quiet", "train") == (130, "", "nmt train: stopped by SIGINT\n" * times)


def test_the_first_process_reports_a_reproduced_run(nmt: Nmt, monkeypatch: pytest.MonkeyPatch) -> None:
    """It reports nothing after a dry run or a failure. Parse trees are first written as text, next to the corpus."""
    reproduced, reported = Mock(return_value=0), Mock(return_value="page")
    monkeypatch.setattr("nmt_cli.reproduction.reproduce.reproduce", reproduced)
    monkeypatch.setattr("nmt_cli.reporting.report.report", reported)
    words = ["reproduce", "recipes/toy.yaml", "--data", "d", "--run", "r"]
    code, _, err = nmt(*words)
    assert (code, err) == (0, "report: page\n")
    ((run, compare, out, data, _),) = [call.args for call in reported.call_args_list]
    assert (run, compare, out, data) == (Path("r"), (), None, [Path("d")])
    assert nmt(*words, "--dry-run") == (0, "", "")
    monkeypatch.setenv("RANK", "1")
    assert nmt(*words) == (0, "", "")
    monkeypatch.delenv("RANK")
    reproduced.return_value = 1
    assert nmt(*words) == (1, "", "")
    assert reported.call_count == 1
    written = Mock(side_effect=LookupError)
    monkeypatch.setattr("nmt_cli.parsing.trees.linearize", written)
    parsing, present = ["reproduce", "recipes/parsing.yaml", "--data", "d"], Mock(return_value=True)
    nmt(*parsing, "--dry-run")  # without text files there is no estimate
    for more in ([], ["--dry-run"]):
        monkeypatch.setattr(nmt_cli.storage.artefact, "present", present)
        with pytest.raises(LookupError):
            nmt(*parsing, *more)
    for more in ([], ["--out", "o"], ["--shard", "1/2"]):
        with pytest.raises(LookupError):
            nmt("prepare", "recipes/parsing.yaml", *more)
    paths = [call.args[1] for call in written.call_args_list]
    assert paths == [Path(name) for name in ("d-text", "d-text", "data/wsj-text", "o-text", "data/wsj-text")]


def test_a_hub_model_is_imported_unless_its_owner_is_a_directory(
    nmt: Nmt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--model OWNER/NAME`, with or without a revision. A misspelled local path is not looked up on the hub."""
    imported, asked = Mock(side_effect=lambda name: tmp_path / "imported"), Mock(return_value=0)
    monkeypatch.setattr("nmt_cli.interop.importing.import_cached", imported)
    monkeypatch.setattr("nmt_cli.translation.translate.translate", asked)
    (tmp_path / "runs" / "toy").mkdir(parents=True)
    words = ["runs/toy", "runs/tyo", "a/b/c", "absent", "Helsinki-NLP/opus-mt-en-de", "owner/name@v1"]
    assert nmt("translate", *(f"--model={word}" for word in words))[0] == 0
    assert [call.args for call in imported.call_args_list] == [("Helsinki-NLP/opus-mt-en-de",), ("owner/name@v1",)]
    options, _ = asked.call_args.args
    assert options.models == (*map(Path, words[:4]), *[tmp_path / "imported"] * 2)


@pytest.mark.parametrize("named", [True, False])
def test_commands_with_a_model_accept_a_hub_model(
    nmt: Nmt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: bool
) -> None:
    """The model is named by --model or by $NMT_MODEL, which is reported. --model wins."""
    imported = tmp_path / "imported"
    asked = {"translate": Mock(return_value=0), "attend": Mock(return_value=0)}
    monkeypatch.setattr("nmt_cli.interop.importing.import_cached", Mock(side_effect={"owner/name": imported}.get))
    monkeypatch.setattr("nmt_cli.translation.translate.translate", asked["translate"])
    monkeypatch.setattr("nmt_cli.reporting.attend.attend", asked["attend"])
    monkeypatch.setenv("NMT_MODEL", "elsewhere" if named else "owner/name")
    option = ["--model", "owner/name"] if named else []
    for words in (["translate"], ["attend", "A dog."]):
        code, _, err = nmt(*words, *option)
        assert (code, "model: owner/name" in err, "elsewhere" in err) == (0, not named, False)
    assert asked["translate"].call_args.args[0].models == (imported,)
    assert asked["attend"].call_args.args[1] == imported


def test_score_translates_with_a_hub_model(nmt: Nmt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ref").write_text("ein Hund\n")
    (tmp_path / "src").write_text("a dog\n")
    translator = MagicMock()
    translator.return_value.__enter__.return_value.translate.return_value = [Mock(text="ein Hund")]
    monkeypatch.setattr(nmt_cli, "Translator", translator, raising=False)
    monkeypatch.setattr("nmt_cli.interop.importing.import_cached", Mock(return_value=tmp_path / "imported"))
    words = ["score", "--model", "owner/name", "--source", "src", "--reference", "ref", "--metric", "chrf"]
    code, out, _ = nmt(*words)
    assert (code, "100.0" in out) == (0, True)
    assert translator.call_args.args == ((tmp_path / "imported",),)


def test_env_prints_the_defaults_chosen_for_the_hardware(nmt: Nmt, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from nmt_cli.reporting import env
    from nmt_cli.system import operating_system

    flags = "fpu avx2 avx512f amx_int8 sse"
    cpu = f"processor\t: 0\nmodel name\t: Some CPU\nflags\t\t: {flags}\n"
    monkeypatch.setattr(operating_system, "_cpuinfo", lambda: cpu)
    for name, value in {"usable_cores": lambda: 5, "MAX_THREADS": 3}.items():
        monkeypatch.setattr(env, name, value)
    monkeypatch.setattr(
        env, "choose_dtype", lambda _, device: {"cuda": torch.bfloat16, "cpu": torch.float32}[device.type]
    )
    monkeypatch.setattr(env, "best_precision", lambda level: f"best of {level}")
    monkeypatch.setattr(env.library, "describe", lambda: "base")
    monkeypatch.setattr(torch.version, "cuda", "13.9")  # the build of PyTorch has it without a GPU, too
    packages = [Mock(version="1.2"), Mock(version="3.4")]
    for package, name in zip(packages, ("huggingface_hub", "torch"), strict=True):
        package.name = name
    monkeypatch.setattr(env.metadata, "distributions", lambda: packages)
    versions = {"huggingface-hub": "1.2", "torch": "3.4", "sacrebleu": "not installed"}
    gpus = [Mock(total_memory=80 << 30), Mock(total_memory=24 << 30)]
    for name, gpu in zip(("A", "B"), gpus, strict=True):
        gpu.name = name
    monkeypatch.setattr(torch.cuda, "get_device_properties", gpus.__getitem__)
    cpu_only = {"device": "cpu", "gpus": "", "training precision": "float32", "translation precision": "best of base"}
    with_gpus = {"device": "cuda", "gpus": "A, 81920 MiB; B, 24576 MiB"}
    with_gpus |= dict.fromkeys(("training precision", "translation precision"), "bfloat16")
    for count, workers, chosen in ((0, "3", cpu_only), (2, "2", with_gpus)):
        monkeypatch.setattr(torch.cuda, "device_count", lambda count=count: count)
        monkeypatch.setattr(env, "choose_device", lambda chosen=chosen: torch.device(chosen["device"]))
        code, out, _ = nmt("env", "--json")
        expected = {"cpu": "Some CPU, 5 usable cores", "cpu features": "avx2 avx512f amx_int8", "engine": "base"}
        expected |= {**chosen, "cuda": "13.9", "translation workers": workers, "nmt": __version__, **versions}
        values = json.loads(out)
        assert (code, {name: values[name] for name in expected}) == (0, expected)
        lines = nmt("env")[1].split("\n")[:-1]
        assert {line[:23].rstrip(): line[23:] for line in lines} == values
