"""translate under faults, as a process: signals, broken and closed pipes, full disks, damaged models, huge lines."""

import contextlib
import gc
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import texts
import torch
from tiny_model import make_model

from nmt_cli import Translator
from nmt_cli.errors import DataError, DivergedError, NmtError, StorageError
from nmt_cli.transformer.cache import DecoderCache
from nmt_cli.transformer.weights import load_model, save_model
from nmt_cli.translation import workers
from nmt_cli.translation.search import SearchSettings, search_with_oom_retry
from nmt_cli.translation.segments import Hypothesis, Segment
from nmt_cli.translation.translate import TranslateOptions, translate

COMMAND = [sys.executable, "-m", "nmt_cli", "translate", "--precision", "fp32"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("tiny"))


def environment(model: Path, **more: str) -> dict[str, str]:
    return {**os.environ, "NMT_MODEL": str(model), "PYTHONPATH": str(texts.ROOT), "OMP_NUM_THREADS": "1", **more}


def start(model: Path, *arguments: str, lines: bytes = b"", **more: Any) -> subprocess.Popen[bytes]:
    """Start the command and send it lines."""
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    process = subprocess.Popen([*COMMAND, *arguments], **{"env": environment(model), **pipes, "bufsize": 0, **more})
    process.stdin.write(lines)
    return process


def failed(process: subprocess.Popen[bytes], code: int, more: bytes = b"") -> str:
    """Return the one line in which the process says why it ended with this code."""
    errors = process.communicate(more, timeout=60)[1].decode()
    assert process.returncode == code
    assert errors.count("error:") == 1
    assert "Traceback" not in errors
    return errors


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def gone(pids: list[int]) -> bool:
    for _ in range(100):
        if not any(Path(f"/proc/{pid}").exists() for pid in pids):
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)]
)
def test_stopped_it_leaves_whole_lines_no_file_and_no_process(
    model: Path, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    """Output before the signal is a prefix of whole lines; with --output the final name does not appear."""
    process, part = start(model, "--output", str(tmp_path / "out"), lines=b"der Hund\n" * 50), tmp_path / "out.part"
    while not part.exists() or part.read_bytes().count(b"\n") < 50:
        assert process.poll() is None
        time.sleep(0.05)
    workers = children(process.pid)
    assert workers or os.cpu_count() == 1
    process.send_signal(number)
    assert process.wait(20) == code
    assert gone(workers)
    assert not (tmp_path / "out").exists()
    assert part.read_bytes().count(b"\n") == 50
    assert part.read_bytes().endswith(b"\n")
    errors = process.communicate()[1].decode()
    assert "Traceback" not in errors
    assert (f"{part} holds the first 50 lines" in errors) == (number != signal.SIGKILL)


def test_a_broken_pipe_is_silent(model: Path) -> None:
    """`nmt translate | head -1`: exit 141 soon after the reader has gone."""
    process = start(model, "--quiet", lines=b"der Hund\n" * 10)
    assert process.stdout.readline().endswith(b"\n")
    process.stdout.close()
    with contextlib.suppress(BrokenPipeError):
        for _ in range(1000):
            process.stdin.write(b"die Katze\n" * 10)
            time.sleep(0.02)
    assert process.wait(20) == 141
    assert process.stderr.read() == b""


@pytest.mark.parametrize(("closed", "code", "words"), [("<&-", 66, "stdin is closed"), (">&-", 74, "stdout is closed")])
def test_closed_descriptors_are_named(model: Path, closed: str, code: int, words: str) -> None:
    command = ["sh", "-c", " ".join([*COMMAND, closed])]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    assert words in failed(subprocess.Popen(command, env=environment(model), **pipes), code)


def test_a_full_disk_leaves_no_file_that_looks_finished(model: Path, tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b"der Hund und die Katze\n" * 500)

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))

    arguments = ["--input", str(tmp_path / "in"), "--output", str(tmp_path / "out"), "--beam", "1"]
    failed(start(model, *arguments, preexec_fn=limit), 74)
    assert not (tmp_path / "out").exists()
    with Path("/dev/full").open("wb") as full:
        failed(start(model, stdout=full), 74, b"der Hund\n")


# ---- damaged models


def flip(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:-100] + bytes([data[-100] ^ 1]) + data[-99:])  # not in the header of safetensors


def pickle(path: Path) -> None:
    shutil.rmtree(path.parent)
    path.parent.write_bytes(b"\x80\x04cos\nsystem\n(S'touch canary'\ntR.")


FILES = ("model.safetensors", "tokenizer.model", "recipe.yaml")
DAMAGES = [*((flip, file) for file in FILES), (pickle, "manifest.json")]


@pytest.mark.parametrize(("how", "file"), DAMAGES)
def test_no_damaged_model_says_a_word(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: Callable[[Path], None], file: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in").write_bytes(b"der Hund\n")
    how(shutil.copytree(model, tmp_path / "model") / file)
    with pytest.raises(NmtError) as caught:
        translate(TranslateOptions(tmp_path / "in", tmp_path / "out", (tmp_path / "model",)))
    assert caught.value.exit_code in (2, 65)
    assert {path.name for path in tmp_path.iterdir()} == {"in", "model"}


@pytest.mark.parametrize("count", [1, 2])
def test_numbers_that_are_not_finite_never_become_a_line(model: Path, tmp_path: Path, count: int) -> None:
    """Weights that pass every check and yet overflow, in this process and in workers."""
    loaded = load_model(model)
    tensors = loaded.model.state_dict()
    weight = tensors["decoder.0.feed_forward.outer.weight"]
    for value in (float("inf"), float("nan")):
        weight[0, 0] = value
        with pytest.raises(DataError, match=r"outer\.weight is not finite; such a model is not written"):
            save_model(tmp_path / "bad", tensors, loaded.recipe, loaded.tokenizer_file, {})
    weight.fill_(3e38)
    save_model(tmp_path / "bad", tensors, loaded.recipe, loaded.tokenizer_file, {})
    with pytest.raises(DivergedError, match="scores are not finite"):
        list(Translator(tmp_path / "bad", workers=1).score([("der Hund", "rot")]))
    with pytest.raises(DivergedError), Translator(tmp_path / "bad", workers=count) as translator:
        list(translator.translate(["", "der Hund"]))


# ---- memory and workers


def test_out_of_memory_halves_the_batch_and_loses_nothing(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    translator = Translator(model, precision="fp32", workers=1)
    lines = [f"der Hund {i}" for i in range(50)]
    segments = [Segment(i, [*ids, 2]) for i, ids in enumerate(translator.tokenizer.encode(lines))]

    def results() -> dict[int, list[int]]:
        how = SearchSettings(beam=2, extra_length=5, rows=64)
        steps = search_with_oom_retry(translator.models, torch.float32, iter(segments), how)
        found = [result for results in steps for result in results]
        assert len(found) == 50
        return {number: best.ids for number, (best, *_) in found}

    expected, real = results(), DecoderCache.step

    def step(self: DecoderCache, ids: torch.Tensor, *others: torch.Tensor) -> list[torch.Tensor]:
        if ids.numel() > 2:
            raise RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`")
        return real(self, ids, *others)

    monkeypatch.setattr(DecoderCache, "step", step)
    assert results() == expected
    assert "going on with 2 hypotheses" in capsys.readouterr().err
    monkeypatch.setattr(DecoderCache, "step", lambda *_: (_ for _ in ()).throw(MemoryError))
    with pytest.raises(StorageError, match="too little memory"):
        results()


def test_huge_segments_both_ways_block_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker answers with megabytes while the parent is still sending it megabytes: both go on."""

    def echo(_models: object, _dtype: object, segments: Iterator[Segment | None], _settings: object) -> Iterator[Any]:
        for segment in filter(None, segments):
            yield [(segment.id, [Hypothesis(segment.ids, -1.0, -1.0, [-0.5] * len(segment.ids))])]

    monkeypatch.setattr(workers, "search_with_oom_retry", echo)
    segments = [Segment(i, [*range(10_000, 30_000), i]) for i in range(64)]  # 2 MB a batch, 0.2 MB an answer
    pool = workers.Workers([torch.device("cpu")] * 2, lambda _: ([], torch.float32))
    steps = pool.search(iter(segments), SearchSettings())
    last = {number: best.ids[-1] for results in steps for number, (best,) in results}
    assert last == {i: i for i in range(64)}
    pool.close()


def test_workers_end_with_their_translator(model: Path) -> None:
    """Also where it is only forgotten, and where a translation is not taken to its end."""

    def begin() -> Translator:
        translator = Translator(model, precision="fp32", workers=2)
        next(translator.translate(f"der Hund {i}" for i in range(100)))
        return translator

    ours = set(children(os.getpid()))
    translator = begin()
    assert set(children(os.getpid())) == ours  # the generator is garbage, so the workers have gone
    results = translator.translate(["rot", "blau"])
    next(results)
    started = set(children(os.getpid())) - ours
    assert len(started) == 2
    assert next(results).text is not None
    del results, translator
    gc.collect()
    assert gone(list(started))


def test_a_dead_worker_is_an_error_not_a_wait(model: Path) -> None:
    process = start(model, "--workers", "2", lines=b"der Hund\nrot\n")
    assert process.stdout.readline()
    for pid in children(process.pid):
        os.kill(pid, signal.SIGKILL)
    failed(process, 74, b"die Katze\n" * 10)


def test_the_locale_and_the_home_do_not_matter(model: Path, tmp_path: Path) -> None:
    more = {"LANG": "C", "LC_ALL": "C", "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    surroundings = {k: v for k, v in environment(model, **more).items() if k != "HOME"}
    done = subprocess.run(COMMAND, env=surroundings, cwd=tmp_path, capture_output=True, input=b"f\xc3\xbcr\n\n")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(b"\n") == 2
