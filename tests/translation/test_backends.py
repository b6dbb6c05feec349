"""The choice of a backend by precision, engine level and hardware, and the modules that a backend imports."""

import copy
import json
import platform
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
import texts
import torch
from in_process import run_nmt
from searching import options, search_all
from tiny_model import WORDS, make_model

from nmt_cli import Translator
from nmt_cli.corpus.tokenizer import EOS
from nmt_cli.engine import library
from nmt_cli.system.errors import StorageError, UsageError
from nmt_cli.transformer.directory import open_model
from nmt_cli.transformer.weights import load_model
from nmt_cli.translation import backends, engine_backend, torch_backend
from nmt_cli.translation.queue import WorkerQueue
from nmt_cli.translation.segments import Segment

NO_QUEUE: Any = None
LINES = [f"{a} {b}, {c} {a}" for a in WORDS[:6] for b in WORDS[3:9] for c in WORDS[9:12]]


@pytest.fixture(scope="module")
def levels() -> list[str]:
    """Return the engine's levels that run on this CPU."""
    with pytest.MonkeyPatch.context() as patch:
        runs = []
        for level in library.LEVELS:
            patch.setenv("NMT_ENGINE", level)
            try:
                runs.append(library.describe())
            except UsageError:
                continue
    assert runs
    return runs


def translations(model: Path, precision: str = "fp32") -> list[Any]:
    with Translator(model, precision=precision, workers=1) as translator:
        return list(translator.translate(LINES, n_best=2))


def test_every_level_gives_the_same_translations(
    model: Path, levels: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In float32, these are also torch's. Without fused multiply-add, rounding changes one translation at most."""
    found = {}
    for level in [*levels, "off"]:
        monkeypatch.setenv("NMT_ENGINE", level)
        found[level] = translations(model)
    for level, ours in found.items():
        pairs = list(zip(ours, found[levels[0]], strict=True))
        same = [(a, b) for a, b in pairs if [h.ids for h in a.hypotheses] == [h.ids for h in b.hypotheses]]
        assert len(same) >= len(pairs) - (1 if level in ("base", "off") else 0), level
        for a, b in same:
            assert [h.score for h in a.hypotheses] == pytest.approx([h.score for h in b.hypotheses], abs=1e-4)


def test_auto_chooses_8_bits_where_they_are_fast(
    model: Path, levels: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`auto` chooses the faster precision of each level."""
    opened, real, made = [open_model(model)], engine_backend.Model, list[bool]()

    def recorded(*arguments: Any, int8: bool) -> Any:
        made.append(int8)
        return real(*arguments, int8=int8)

    monkeypatch.setattr(engine_backend, "Model", recorded)
    for level in levels:
        monkeypatch.setenv("NMT_ENGINE", level)
        for precision, chosen in (("auto", "int8"), ("int8", "int8"), ("fp32", "fp32")):
            backend = backends.choose(opened, precision, 3, 99)
            assert backend.about == f"{chosen}, {level}"
            assert made.pop() == (chosen == "int8")
            assert len(backend.searches) == 3
        assert len(translations(model, "int8")) == len(LINES)


def test_8_bits_are_chosen_by_the_level() -> None:
    """This includes levels that this CPU lacks. Without the engine, torch computes in float32."""
    chosen = {level: engine_backend.best_precision(level) for level in (*library.LEVELS, "none: NMT_ENGINE=off")}
    assert chosen.pop("none: NMT_ENGINE=off") == "fp32"
    base = chosen.pop("base")
    assert base == ("int8" if platform.machine() == "x86_64" else "fp32")
    assert set(chosen.values()) == {"int8"}


def test_a_model_in_memory_is_computed_in_float32_by_one_thread(
    model: Path, levels: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """This holds for weights of any dtype, even where 8 bits are faster."""
    monkeypatch.setattr(engine_backend, "FAST_INT8", levels)
    loaded = load_model(model).model
    segments = [Segment([5, 6, 7, EOS], options(n_best=2)) for _ in range(3)]
    for segment, weights in zip(segments, (loaded, copy.deepcopy(loaded).double(), loaded), strict=True):
        backend = torch_backend.of_memory(weights, torch.bfloat16)
        (run,) = backend.searches
        assert backend.about == f"fp32, {library.describe()}"
        assert search_all(run, [segment]) == [segment]
    assert segments[0].hypotheses == segments[1].hypotheses == segments[2].hypotheses
    monkeypatch.setenv("NMT_ENGINE", "off")
    assert torch_backend.of_memory(loaded, torch.float32).about == "float32, torch on cpu"
    threads = torch.get_num_threads()
    backend = torch_backend.on_cpu([open_model(model)], threads + 2)
    assert torch.get_num_threads() == threads + 2
    assert (backend.about, len(backend.searches)) == ("float32, torch on cpu", 1)


@pytest.mark.parametrize("changes", [["positions=learned"], ["source_vocabulary=340", "tied_output=no"]])
def test_a_model_translates_the_same_from_a_file_and_in_memory(tmp_path: Path, changes: list[str]) -> None:
    """The engine reads some tensors in place, and releases the memory of the others."""
    model = make_model(tmp_path, "model.d_model=128", *(f"model.{change}" for change in changes))
    loaded = load_model(model)
    with Translator.of(loaded.model, loaded.tokenizer, loaded.recipe, torch.float32) as in_memory:
        expected = [[h.ids for h in each.hypotheses] for each in in_memory.translate(LINES, n_best=2)]
    assert [[h.ids for h in each.hypotheses] for each in translations(model)] == expected


def test_a_thread_for_each_core_but_at_most_16(model: Path) -> None:
    counts = [(None, 2, 2), (None, 1, 1), (None, 64, 16), (5, 2, 5), (20, 64, 20)]
    for workers, cores, threads in counts:
        assert len(backends.choose([open_model(model)], "fp32", workers, cores).searches) == threads


@pytest.mark.parametrize(
    ("workers", "cores", "count"), [(None, 1, 0), (None, 3, 2), (1, 3, 0), (2, 3, 1), (9, 3, 2), (None, 64, 7)]
)
def test_a_helper_for_each_core_but_one(model: Path, workers: int | None, cores: int, count: int) -> None:
    """If fewer threads are given, they count instead of the cores. There are at most 7 helpers."""

    def helpers() -> set[threading.Thread]:
        return {thread for thread in threading.enumerate() if thread.name.startswith("helper ")}

    before = helpers()
    backend = backends.choose([open_model(model)], "int8", workers, cores)
    assert len(helpers() - before) == count
    assert backend.searches


def test_without_the_engine_torch_translates_with_one_warning(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = translations(model)
    assert "torch" not in capsys.readouterr().err
    monkeypatch.setenv("NMT_ENGINE", "off")
    found = translations(model)
    assert capsys.readouterr().err.count("so PyTorch translates, several times more slowly") == 1
    assert [each.text for each in found] == [each.text for each in expected]
    with Translator(model, precision="auto") as translator:
        assert translator.backend.about == "float32, torch on cpu"
        (scored,) = translator.score([("der Hund", "rot und")])
    other, threads = make_model(tmp_path, seed=2), torch.get_num_threads()
    assert backends.choose([open_model(model)], "fp32", threads + 3, 99).about == "float32, torch on cpu"
    assert torch.get_num_threads() == threads + 3
    torch.set_num_threads(threads)
    both = [line.hypotheses[0].score for line in Translator([model, other], precision="fp32").translate(LINES[:20])]
    monkeypatch.delenv("NMT_ENGINE")
    alike = [line.hypotheses[0].score for line in Translator([model, other], precision="fp32").translate(LINES[:20])]
    assert both == pytest.approx(alike, abs=1e-4)
    with Translator(model, precision="fp32") as translator:
        (exact,) = translator.score([("der Hund", "rot und")])
    assert scored.token_log_probabilities == pytest.approx(exact.token_log_probabilities, abs=1e-5)


def test_an_unavailable_precision_is_a_usage_error(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for engine, precision, words in (
        ("", "fp16", "precision must be auto, fp32, bf16 or int8"),
        ("", "bf16", "bf16 needs a GPU"),
        ("off", "bf16", "bf16 needs a GPU"),
        ("off", "int8", "int8 needs the engine"),
        ("sse9", "auto", "NMT_ENGINE must be amx, .* or off, not sse9"),
    ):
        monkeypatch.setenv("NMT_ENGINE", engine)
        with pytest.raises(UsageError, match=words):
            Translator(model, precision=precision)
        code, stdout, stderr = run_nmt("translate", "--model", model, "--precision", precision)
        assert (code, stdout, stderr.count("error:")) == (2, "", 1)


def test_a_gpu_is_looked_for_only_where_there_may_be_one(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the files of a driver, torch is not imported to look for a GPU."""
    asked = []
    monkeypatch.setattr(torch_backend, "has_gpu", lambda: asked.append(1) or True)
    monkeypatch.setattr(torch_backend, "on_gpus", lambda models, precision, workers: (precision, workers))
    for name in ("ACCELERATE_USE_CPU", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    opened = [open_model(model)]
    monkeypatch.setattr(backends, "GPU_FILES", (str(tmp_path / "driver"),))
    assert backends.choose(opened, "auto", 1, 1).searches
    (tmp_path / "driver").touch()
    assert backends.choose(opened, "bf16", 2, 1) == ("bf16", 2)
    on_cpu = [("ACCELERATE_USE_CPU", value) for value in ("1", "true", "True", "YES")]
    for name, value in (("CUDA_VISIBLE_DEVICES", ""), ("CUDA_VISIBLE_DEVICES", "-1"), *on_cpu):
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            assert not backends.may_have_gpu()
            assert backends.choose(opened, "auto", 1, 1).searches
    assert asked == [1]
    for name, value in (("CUDA_VISIBLE_DEVICES", "1"), ("ACCELERATE_USE_CPU", "0"), ("ACCELERATE_USE_CPU", "")):
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            assert backends.may_have_gpu()
    monkeypatch.undo()
    assert set(backends.GPU_FILES) >= {"/dev/nvidia0", "/dev/nvidiactl", "/dev/dxg", "/dev/kfd"}


@pytest.mark.parametrize(
    ("used", "launched", "forks"), [(False, False, True), (True, False, False), (False, True, False)]
)
def test_a_process_that_uses_cuda_is_not_forked(
    model: Path, monkeypatch: pytest.MonkeyPatch, used: bool, launched: bool, forks: bool
) -> None:
    """Otherwise each GPU gets a fork, except in a launched job, where each process has a GPU already."""
    searched, counts, asked = [], list[int](), list[Any]()

    class Processes:
        started = False

        def __init__(self, devices: list[torch.device], _prepare: object) -> None:
            assert devices == [torch.device("cuda", i) for i in range(len(devices))]
            counts.append(len(devices))

        def search(self, _: WorkerQueue) -> None:
            self.started = True
            searched.append("forks")

        def close(self) -> None:
            searched.append("closed")

    monkeypatch.setattr(torch_backend, "Workers", Processes)
    monkeypatch.setattr(torch_backend, "search", lambda *_: searched.append("here"))
    monkeypatch.setattr(torch_backend, "for_inference", lambda *_: None)
    monkeypatch.setattr(torch.nn.Module, "to", lambda *_: None)
    monkeypatch.setattr(torch_backend, "choose_device", lambda: torch.device("cuda", 1))
    monkeypatch.setattr(torch_backend, "choose_dtype", lambda *how: asked.append(how) or torch.float32)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: searched.append(str(device)))
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: used)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    if launched:
        monkeypatch.setenv("LOCAL_RANK", "1")
    backend = torch_backend.on_gpus([open_model(model)], "auto", None)
    (run,) = backend.searches
    run(NO_QUEUE)
    device = "cuda:1" if launched else "cuda:0"
    assert searched == (["forks"] if forks else [device, device, "here"])
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    run(NO_QUEUE)
    assert searched[-1] == ("forks" if forks else "here"), "processes that have started continue"
    backend.close()
    assert searched[-1] == "closed"
    with pytest.raises(UsageError, match="int8 is for CPUs"):
        torch_backend.on_gpus([open_model(model)], "int8", None)
    assert backend.about == "float32, 2 GPUs"
    assert torch_backend.on_gpus([open_model(model)], "auto", 1).about == "float32, 1 GPU"
    assert torch_backend.on_gpus([open_model(model)], "bf16", 3).about == "float32, 2 GPUs"
    assert asked == [(precision, torch.device(device)) for precision in ("auto", "auto", "bf16")]
    assert counts == [2, 1, 2]


def test_a_gpu_without_free_memory_is_named() -> None:
    for error, error_type in (
        (torch.OutOfMemoryError("CUDA out of memory"), StorageError),
        (MemoryError(), StorageError),
        (RuntimeError("a wrong shape"), RuntimeError),
    ):
        with pytest.raises((StorageError, RuntimeError)) as caught:
            with torch_backend._out_of_memory_named(torch.device("cuda", 1)):
                raise error
        assert type(caught.value) is error_type
        assert error_type is RuntimeError or "cuda:1 has too little free memory" in str(caught.value)


def test_a_translation_on_a_cpu_imports_neither_torch_nor_numpy(model: Path, tmp_path: Path) -> None:
    """Their imports take longer than a translation. Only sampling needs NumPy, for random numbers."""
    heavy = ("torch", "numpy", "datasets", "safetensors", "pyarrow", "accelerate", "sacrebleu", "transformers")
    (tmp_path / "in").write_text("der Hund\n\nrot und blau\n")
    (tmp_path / "tgt").write_text("der Hund\n\nrot und blau\n")
    commands = [
        "--alignments --n-best 2 --beam 3 --format jsonl",
        f"--score-pairs {tmp_path / 'tgt'}",
        f"--precision int8 --output {tmp_path / 'out'}",
        "--sample --top-k 5",
    ]
    code = f"""
import sys, nmt_cli
from nmt_cli.commands import app
heavy = lambda: [name for name in {heavy} if name in sys.modules]
with nmt_cli.Translator({str(model)!r}) as translator:
    list(translator.translate(["der Hund"]))
found = [heavy()]
for more in {commands}:
    sys.argv = ["nmt", "translate", {str(tmp_path / "in")!r}, "--model", {str(model)!r}, *more.split()]
    found.append((app.run(), heavy()))
sys.exit(str(found))
"""
    done = texts.python("-c", code, NMT_ENGINE="")
    expected = [[], (0, []), (0, []), (0, []), (0, ["numpy"])]
    assert done.stderr.endswith(f"{expected}\n"), done.stderr


def test_without_the_engine_no_compiler_of_torch_is_imported(model: Path) -> None:
    """Importing the compiler takes as long as importing torch."""
    heavy = ("torch._dynamo", "torch._inductor", "sympy", "accelerate", "pyarrow", "sacrebleu")
    code = (
        "import sys, nmt_cli\nlight = 'torch' not in sys.modules\n"
        f"with nmt_cli.Translator({str(model)!r}, workers=1) as t: assert len(list(t.translate(['der Hund']))) == 1\n"
        f"sys.exit(str([name for name in {heavy} if name in sys.modules]) + str(light))"
    )
    assert texts.python("-c", code, NMT_ENGINE="off").stderr.endswith("[]True\n")


def test_models_of_older_releases_translate(model: Path, tmp_path: Path) -> None:
    """Their manifests have ranges of activations, which translation in 8 bits no longer needs."""
    manifest = shutil.copytree(model, tmp_path / "old") / "manifest.json"
    entries = json.loads(manifest.read_text())
    for ranges in ({"output": 3.0, "encoder.0.feed_forward.inner": 1.5}, {}, None):
        manifest.write_text(json.dumps({**entries, "activation_ranges": ranges}))
        assert load_model(manifest.parent).manifest["activation_ranges"] == ranges
        for precision in ("fp32", "int8"):
            old, new = translations(manifest.parent, precision), translations(model, precision)
            assert [each.hypotheses for each in old] == [each.hypotheses for each in new]
