"""The host's work for a GPU, tested without one on the null GPU of tests/benchmarks/null_gpu: its device memory is host
memory, its copies really copy, but its kernels and products are only counted and compute nothing.

NMT_NULL_GPU names a Python with the CUDA build of torch and this project's requirements. Without it, all tests are
skipped.
"""

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from lab import Lab
from tiny_model import WORDS, make_model

HERE = Path(__file__).parents[1] / "benchmarks" / "null_gpu"
PYTHON = os.environ.get("NMT_NULL_GPU", "")
pytestmark = [
    pytest.mark.skipif(not PYTHON, reason="NMT_NULL_GPU names no Python with the CUDA build of torch"),
    pytest.mark.timeout(600),
]
LINES = [f"{a} {b}, {c} {a}" * (1 + i % 5) for i, a in enumerate(WORDS[:6]) for b in WORDS[3:9] for c in WORDS[9:12]]

OUT_OF_MEMORY = (
    "out of memory. Resume with --set training.memory_tokens=",
    "there is too little memory to translate one sentence. Lower --beam",  # during validation
)


@dataclass
class NullGpu:
    directory: Path

    def environment(self, **variables: object) -> dict[str, str]:
        sys.path.append(str(HERE))
        from device import environment

        removed = {"ACCELERATE_USE_CPU", "TRITON_INTERPRET"}
        kept = {name: value for name, value in os.environ.items() if name not in removed}
        own = {"PYTHONPATH": str(HERE.parents[2]), "NULL_GPU_COUNTS": str(self.directory / "counts.json")}
        return kept | environment(PYTHON) | own | {name: str(value) for name, value in variables.items()}

    def run(self, script: str, *words: object, **variables: object) -> "subprocess.CompletedProcess[str]":
        command = [PYTHON, str(HERE / script), *map(str, words)]
        return subprocess.run(command, env=self.environment(**variables), capture_output=True, text=True)

    def nmt(self, *words: object, code: int = 0, **variables: object) -> "subprocess.CompletedProcess[str]":
        """Run a command, by default without compiled kernels, and check its exit code."""
        done = self.run("nmt.py", *words, **{"NULL_GPU_COMPILE": "no", **variables})
        assert done.returncode == code, done.stderr
        return done

    def counts(self) -> dict[str, float]:
        return dict(json.loads((self.directory / "counts.json").read_text()))

    def steps(self, *words: object, **variables: object) -> list[dict[str, Any]]:
        done = self.run("steps.py", *words, **{"NULL_GPU_COMPILE": "no", "NULL_GPU_STILL": 1, **variables})
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture
def gpu(tmp_path: Path) -> NullGpu:
    return NullGpu(tmp_path)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def train(gpu: NullGpu, lab: Lab) -> Any:
    """A function that trains the tiny recipe for five steps with changed settings and returns stderr."""

    def run(*changes: str, code: int = 0, **variables: object) -> str:
        quick = ["training.precision=auto", "training.steps=5", "training.validate_every=5", *changes]
        sets = [word for change in quick for word in ("--set", change)]
        words = ["train", lab.recipe_file, "--data", lab.corpus, "--run", lab.run, *sets]
        return gpu.nmt(*words, code=code, **variables).stderr

    return run


@pytest.mark.parametrize(
    ("card", "name", "dtype"), [(75, "T4", "float32"), (80, "A100", "bfloat16"), (90, "H100", "bfloat16")]
)
def test_env_shows_the_card_and_its_precision(gpu: NullGpu, card: int, name: str, dtype: str) -> None:
    rows = json.loads(gpu.nmt("env", "--json", NULL_GPU=card).stdout)
    assert rows["device"] == "cuda"
    assert rows["gpus"].startswith(f"null {name}, ")
    assert rows["training precision"] == rows["translation precision"] == dtype


@pytest.mark.parametrize("card", [90, 80, 75])
def test_training_runs_to_its_end_and_no_step_waits_for_the_device(train: Any, lab: Lab, card: int) -> None:
    err = train(NULL_GPU=card)
    assert f"1 x cuda, {'float32' if card == 75 else 'bfloat16'}" in err
    assert (lab.run / "model" / "manifest.json").exists()
    assert "warning" not in err


def test_bf16_is_refused_on_cards_without_it(train: Any) -> None:
    assert "this hardware does not support precision bf16" in train("training.precision=bf16", code=2, NULL_GPU=75)


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_a_step_copies_once_per_pass_and_never_waits(gpu: NullGpu, precision: str) -> None:
    """Several passes need less memory than one, and in bf16 as many operations."""
    small = [f"training.precision={precision}", "training.tokens_per_step=3000", "corpus.tokenizer.vocabulary_size=500"]
    words = ["base", "--steps", 5, "--pairs", 2000]
    for change in [*small, "model.num_layers=2", "training.cuda_graphs=false"]:  # without graphs, nothing is padded
        words += ["--set", change]
    (one,), (several,) = gpu.steps(*words), gpu.steps(*words, "--set", "training.memory_tokens=900")
    for found, passes in ((one, 1), (several, 4)):
        for step in found["steps"][2:]:
            assert step["passes"] == passes
            assert step["synchronisations"] == step["pageable"] == step["refused"] == 0
            assert step["to_device"] == passes
            assert step["to_host"] == 1
    assert several["peak_mb"] < one["peak_mb"]
    work = [found["steps"][-1]["flops"] for found in (one, several)]
    if precision == "bf16":  # fp32 pads sentences, and shorter passes need less padding
        assert work[0] == pytest.approx(work[1], rel=1e-6)


def test_steps_of_known_sizes_are_replayed(gpu: NullGpu) -> None:
    """A replay copies once each way and never waits. No capture uses an operation that captures forbid."""
    changes = ["training.tokens_per_step=3000", "corpus.tokenizer.vocabulary_size=500", "model.num_layers=2"]
    sets = [word for change in changes for word in ("--set", change)]
    (found,) = gpu.steps("base", "--steps", 40, "--pairs", 2000, *sets)
    steps = found["steps"][1:]
    assert all(step["refused"] == step["pageable"] == 0 for step in steps)
    assert all(step["to_device"] == step["to_host"] == 1 for step in steps)
    replays = [step for step in steps if step["replays"] and not step["captures"]]
    captures = [step for step in steps if step["captures"]]
    assert len(replays) > len(captures) > 1
    for step in replays:
        assert step["replayed"] > 500
        assert step["launches"] == 2  # copies of the learning rate and the scale of the loss
        assert step["products"] == step["synchronisations"] == 0
    assert sum(step["allocations"] for step in replays) <= 1


def test_a_killed_run_resumes_from_its_last_checkpoint(train: Any) -> None:
    train("training.checkpoint_every=2", code=-signal.SIGKILL, NULL_GPU_KILL_AT=5)
    err = train("training.checkpoint_every=2")
    assert "resuming after step 2 of 5" in err or "resuming after step 4 of 5" in err
    assert "error" not in err


def test_out_of_memory_at_any_allocation_ends_training_with_one_line(gpu: NullGpu, lab: Lab) -> None:
    """The exit code is 74, and the same command resumes without losing anything."""
    sets = ["training.precision=auto", "training.steps=4", "training.checkpoint_every=2", "training.validate_every=2"]
    words = [lab.recipe_file, lab.corpus, gpu.directory, "--every", 150, *(w for each in sets for w in ("--set", each))]
    done = gpu.run("out_of_memory.py", *words, NULL_GPU_COMPILE="no")
    assert done.returncode == 0, done.stderr
    whole, *tries = json.loads(done.stdout)
    assert whole["code"] == 0
    assert len(tries) > 10
    for found in tries:
        assert found["code"] == 74, found
        assert found["error"].startswith(OUT_OF_MEMORY), found
        assert found["again"]["code"] == 0, found
        assert found["again"]["step"] == 4


@pytest.mark.parametrize("card", [90, 75])
@pytest.mark.parametrize(
    ("options", "captured"),
    [
        (["--beam", 1], True),
        (["--beam", 4], True),
        (["--beam", 4, "--n-best", 3], True),
        (["--beam", 3, "--alignments"], True),
        (["--beam", 3, "--prefix", "PREFIX"], True),
        (["--beam", 4, "--model", "MODEL"], True),
        (["--sample", "--top-k", 5], True),
        (["--score-pairs", "PREFIX"], False),
    ],
)
def test_translations_replay_steps(gpu: NullGpu, model: Path, card: int, options: list[object], captured: bool) -> None:
    """Every line is translated, most steps are replays, and no capture uses an operation that captures forbid."""
    (gpu.directory / "in").write_text("".join(f"{line}\n" for line in LINES))
    (gpu.directory / "prefix").write_text("".join(f"{line}\n"[i % 2 :] for i, line in enumerate(LINES)))
    names = {"PREFIX": gpu.directory / "prefix", "MODEL": model}
    words = ["translate", gpu.directory / "in", "--model", model, "--format", "jsonl"]
    done = gpu.nmt(*words, *(names.get(str(word), word) for word in options), NULL_GPU=card)
    assert len(done.stdout.splitlines()) == len(LINES)
    counts = gpu.counts()
    assert counts["refused"] == 0
    if captured:
        assert counts["replays"] > 2 * counts["captures"] > 0


def test_translation_continues_with_fewer_rows_when_memory_runs_out(gpu: NullGpu, model: Path) -> None:
    (gpu.directory / "in").write_text("".join(f"{line}\n" for line in LINES))
    words = ["translate", gpu.directory / "in", "--model", model, "--beam", 4]
    needed = gpu.nmt(*words) and gpu.counts()["allocations"]
    failed = 0
    for number in range(1, int(needed) + 1):
        done = gpu.run("nmt.py", *words, NULL_GPU_FAIL=f"{number}:2")  # the allocator frees its cache and tries again
        if done.returncode:
            assert done.returncode == 74, done.stderr
            assert "error: cuda:0 has too little free memory" in done.stderr or "too little memory to" in done.stderr
            failed += 1
        else:
            assert len(done.stdout.splitlines()) == len(LINES)
    assert failed < needed


@pytest.mark.parametrize("card", [75, 90])
def test_every_row_of_table_3_fits_the_memory(gpu: NullGpu, card: int) -> None:
    """The batch size is that of "Attention Is All You Need". The T4 computes in float32, in several passes."""
    rows = sorted((HERE.parents[2] / "recipes" / "table3").glob("*.yaml"))
    names = [f"table3/{path.stem}" for path in rows]
    for found in gpu.steps(*names, "--steps", 2, "--pairs", 4000, NULL_GPU=card):
        assert found["steps"][-1]["synchronisations"] == 0
        assert found["peak_mb"] < 0.8 * {75: 15360, 90: 81559}[card]  # memory reserved beyond that is cache


@pytest.mark.parametrize(("dtype", "tolerance"), [("fp32", 1e-5), ("bf16", 0.1)])
def test_generated_kernels_compute_the_loss_and_its_gradients(gpu: NullGpu, dtype: str, tolerance: float) -> None:
    """Triton's interpreter runs them; float64 on the CPU is the reference."""
    done = gpu.run("values.py", dtype, TRITON_INTERPRET=1, TORCHINDUCTOR_COMPILE_THREADS=1)
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines()]
    assert len(rows) == 54
    assert max(float(difference) for difference, *_ in rows) < tolerance
