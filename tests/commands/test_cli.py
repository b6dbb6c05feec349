"""The command line as a newcomer meets it: help, one clear line for every mistake, and the right exit code."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from unittest.mock import MagicMock, Mock

import pytest

import nmt_cli
from nmt_cli import __main__, __version__
from nmt_cli.system import errors

COMMANDS = ["prepare", "train", "average-checkpoints", "translate", "reproduce", "score"]
COMMANDS += ["export", "import", "report", "doctor", "attend", "recipes", "env"]

Nmt = Callable[..., tuple[int, str, str]]


@pytest.fixture
def nmt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Nmt:
    """Run nmt in an empty directory, in this process: the exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.delenv("NMT_MODEL", raising=False)
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def run(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["nmt", *words])
        with pytest.raises(SystemExit) as caught:
            __main__.main()
        for number, handler in before.items():
            signal.signal(number, handler)
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err
        return int(str(caught.value.code)), captured.out, captured.err

    return run


def test_help_names_every_command_and_each_has_its_own(nmt: Nmt) -> None:
    code, listed, _ = nmt("--help")
    assert code == 0
    assert "..." not in listed.split("Commands")[1]  # no command's first sentence is cut
    for command in COMMANDS:
        assert re.search(rf" {command}  +\w", listed)
        code, text, err = nmt(command, "--help")
        assert (code, err) == (0, "")
        assert f"Usage: nmt {command}" in text
        assert max(map(len, text.split("\n"))) <= 100


def test_a_terminal_of_ascii_gets_what_it_can_show() -> None:
    """Help, lists and maps of attention hold other characters."""
    for words in ("--help", "recipes"):
        command = [sys.executable, "-m", "nmt_cli", words]
        variables = {**os.environ, "PYTHONIOENCODING": "ascii"}
        done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=100, check=False)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.isascii()


def test_quiet_is_quiet(nmt: Nmt) -> None:
    command = ("prepare", "toy-en-de", "--dry-run")
    assert nmt(*command, "--quiet") == (0, "", "")
    code, out, err = nmt(*command)
    assert (code, out) == (0, "")
    assert "toy-en-de would need\nfrom " in err  # no row of empty headings between


def test_nothing_typed_is_a_question_for_help(nmt: Nmt) -> None:
    assert nmt("--version") == (0, f"nmt {__version__}\n", "")
    code, out, err = nmt()
    assert code == 2
    assert "reproduce recipes/toy.yaml" in out + err


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ("translate", 66, "nmt reproduce recipes/toy.yaml"),
        ("translate --top-k 5", 2, "nmt translate: error: --top-k requires --sample"),
        ("translate --precision fp8", 2, "'--precision': 'fp8' is not one of 'auto', 'fp32', 'bf16', 'int8'. See: nmt"),
        ("translate --sample --beam 1", 2, "--sample draws and does not search: leave out --beam"),
        ("translate --sample --terms x", 2, "--sample draws and does not search: leave out --terms"),
        ("translate a.en --input a.de", 2, "the lines to translate are named twice. Leave out --input"),
        ("translate --seed 0", 2, "nmt translate: error: --seed requires --sample"),
        ("translate --beam 0", 2, "'--beam': 0 is not in the range x>=1. See: nmt translate"),
        ("translate --alpha wide", 2, "'--alpha': 'wide' is not a valid float range. See: nmt"),
        ("recipes shwo", 2, "No such command 'shwo'. Did you mean 'show'? See: nmt recipes --help"),
        ("translate --bean 3", 2, "No such option: --bean"),
        ("translte", 2, "No such command 'translte'"),
        ("train", 2, "Missing argument 'RECIPE'"),
        ("train mine\x1b[2J.yaml", 66, "no recipe mine\\x1b[2J.yaml"),
        ("train recipes/mutli30k.yaml", 66, "Did you mean multi30k?"),
        ("score - --corpus .", 66, ". is no prepared corpus. Name a directory that nmt prepare wrote"),
        ("train recipes/base.yaml", 66, "nmt prepare recipes/base.yaml --out data/wmt14-en-de"),  # the package's
        ("train r.yaml", 2, "unknown key 'model.num_layer'; did you mean 'model.num_layers'?; unknown"),
        ("prepare wmt15-en-de", 2, "wmt14-en-de"),
        ("prepare --src a.en", 2, "--tgt"),
        ("prepare --src a.en --tgt a.de", 65, "2"),
        ("prepare toy-en-de --out a.en/corpus", 73, "cannot create"),
        ("prepare toy-en-de --set corpus.limt=5", 2, "nmt prepare: error: the options: unknown key 'corpus.limt'"),
        ("average-checkpoints runs/base", 66, "no run in runs/base"),
    ],
)
def test_a_mistake_is_one_line_and_a_code(nmt: Nmt, tmp_path: Path, words: str, code: int, message: str) -> None:
    (tmp_path / "r.yaml").write_text("training: {warmup: 3}\nmodel: {num_layer: 2}\n")
    (tmp_path / "a.en").write_text("one\ntwo\nthree\n")
    (tmp_path / "a.de").write_text("eins\nzwei\n")
    *result, err = nmt(*words.split())
    (line,) = [line for line in err.split("\n") if "error:" in line]
    assert (result, message in line) == ([code, ""], True), line
    assert not (tmp_path / "data" / "mine").exists()


def test_what_ends_a_command_becomes_its_exit_code() -> None:
    ends = {130: KeyboardInterrupt(), 141: BrokenPipeError(), 143: SystemExit(143)}
    ends |= {75: errors.BusyError("busy"), 74: OSError(28, "No space"), 1: SystemExit("said"), 0: SystemExit(None)}
    ends |= {7: SystemExit(7)}
    assert [__main__._exit_code(Mock(side_effect=end)) for end in ends.values()] == [*ends]
    assert [__main__._exit_code(Mock(return_value=code)) for code in (None, 0, 3)] == [0, 0, 3]
    with pytest.raises(LookupError):
        __main__._exit_code(Mock(side_effect=LookupError))  # a mistake of ours: all of it is shown


@pytest.mark.parametrize(("own", "flush", "code"), [(1, None, 1), (0, OSError(28, "x"), 74), (1, OSError(28, "x"), 74)])
def test_output_that_cannot_be_written_is_an_error_whatever_the_command_said(
    nmt: Nmt, monkeypatch: pytest.MonkeyPatch, own: int, flush: OSError | None, code: int
) -> None:
    monkeypatch.setattr(__main__, "_command", lambda: own)
    monkeypatch.setattr(sys, "stdout", Mock(flush=Mock(return_value=None, side_effect=flush)))
    assert nmt("score")[0] == code


@pytest.mark.parametrize(("rank", "said"), [(None, 1), ("0", 1), ("1", 0)])
def test_of_several_processes_the_first_says_that_all_were_stopped(
    nmt: Nmt, monkeypatch: pytest.MonkeyPatch, rank: str | None, said: int
) -> None:
    monkeypatch.setattr(__main__, "_command", Mock(side_effect=KeyboardInterrupt))
    monkeypatch.setenv("RANK", rank) if rank else monkeypatch.delenv("RANK", raising=False)
    assert nmt("--quiet", "train") == (130, "", "nmt train: stopped by SIGINT\n" * said)


def test_a_reproduced_run_is_reported_with_its_corpus(nmt: Nmt, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless it failed or was not played at all, and by the first process only; trees become text beside the corpus."""
    played, reported = Mock(return_value=0), Mock(return_value="page")
    monkeypatch.setattr("nmt_cli.commands.reproduce.reproduce", played)
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
    played.return_value = 1
    assert nmt(*words) == (1, "", "")
    assert reported.call_count == 1
    written = Mock(side_effect=LookupError)
    monkeypatch.setattr("nmt_cli.parsing.trees.linearise", written)
    parsing, present = ["reproduce", "recipes/parsing.yaml", "--data", "d"], Mock(return_value=True)
    nmt(*parsing, "--dry-run")  # there are no files to estimate from
    for more in ([], ["--dry-run"]):
        monkeypatch.setattr(nmt_cli.storage.artefact, "present", present)
        with pytest.raises(LookupError):
            nmt(*parsing, *more)
    for words in (["prepare", "recipes/parsing.yaml"], ["prepare", "recipes/parsing.yaml", "--out", "o"]):
        with pytest.raises(LookupError):
            nmt(*words)
    places = [call.args[1] for call in written.call_args_list]
    assert places == [Path(name) for name in ("d-text", "d-text", "data/wsj-text", "o-text")]


def test_a_model_of_the_hub_is_imported_unless_its_owner_is_a_directory(
    nmt: Nmt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--model OWNER/NAME` with or without a revision; a misspelt path of something here is not asked of the hub."""
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
def test_whoever_takes_a_model_takes_one_of_the_hub(
    nmt: Nmt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: bool
) -> None:
    """By --model, and where a command does without it by $NMT_MODEL, which is said; --model wins."""
    place = tmp_path / "imported"
    asked = {"translate": Mock(return_value=0), "attend": Mock(return_value=0)}
    monkeypatch.setattr("nmt_cli.interop.importing.import_cached", Mock(side_effect={"owner/name": place}.get))
    monkeypatch.setattr("nmt_cli.translation.translate.translate", asked["translate"])
    monkeypatch.setattr("nmt_cli.reporting.attend.attend", asked["attend"])
    monkeypatch.setenv("NMT_MODEL", "elsewhere" if named else "owner/name")
    option = ["--model", "owner/name"] if named else []
    for words in (["translate"], ["attend", "A dog."]):
        code, _, err = nmt(*words, *option)
        assert (code, "model: owner/name" in err, "elsewhere" in err) == (0, not named, False)
    assert asked["translate"].call_args.args[0].models == (place,)
    assert asked["attend"].call_args.args[1] == place


def test_score_translates_with_a_model_of_the_hub(nmt: Nmt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_numbers_that_options_take() -> None:
    import typer

    from nmt_cli.commands import app as cli

    found = {
        f"{command} {option.opts[0]}": (option.type.min, option.type.max)
        for command, each in typer.main.get_command(cli.app).commands.items()
        for option in each.params
        if hasattr(option.type, "min") and (option.type.min, option.type.max) != (None, None)
    }
    from_one = "prepare --limit, prepare --workers, average-checkpoints --last, translate --workers, translate --beam, "
    from_one += "translate --extra-length, translate --n-best, reproduce --workers, attend --layer, attend --head"
    expected: dict[str, tuple[float | None, float | None]] = dict.fromkeys(from_one.split(", "), (1, None))
    expected |= {"translate --alpha": (0, 10), "translate --temperature": (0.01, None), "translate --top-k": (0, None)}
    expected |= {"translate --top-p": (0, 1), "translate --seed": (0, 2**64 - 1)}
    assert {name: limits for name, limits in found.items() if not name.startswith("serve")} == expected


def test_env_says_what_would_be_chosen_here(nmt: Nmt, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from nmt_cli.reporting import env

    flags = "fpu avx2 avx512f amx_int8 sse"
    cpu = Mock(return_value=Mock(read_text=lambda: f"processor\t: 0\nmodel name\t: Some CPU\nflags\t\t: {flags}\n"))
    for name, value in {"Path": cpu, "usable_cores": lambda: 5, "MAX_THREADS": 3}.items():
        monkeypatch.setattr(env, name, value)
    monkeypatch.setattr(
        env, "choose_dtype", lambda _, device: {"cuda": torch.bfloat16, "cpu": torch.float32}[device.type]
    )
    monkeypatch.setattr(env, "best_precision", lambda level: f"best of {level}")
    monkeypatch.setattr(env.library, "describe", lambda: "base")
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
        expected = {"cpu": "Some CPU, 5 cores to use", "cpu features": "avx2 avx512f amx_int8", "engine": "base"}
        expected |= {**chosen, "translation workers": workers, "nmt": __version__, "torch": torch.__version__}
        told = json.loads(out)
        assert (code, {name: told[name] for name in expected}) == (0, expected)
        lines = nmt("env")[1].split("\n")[:-1]
        assert {line[:23].rstrip(): line[23:] for line in lines} == told
