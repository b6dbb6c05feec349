"""The dry run of training: operations, bytes, speed and memory, with and without a corpus."""

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from reference import batch_of, random_model, random_pairs, tiny
from torch.utils.flop_counter import FlopCounterMode

from nmt_cli.corpus.store import open_corpus
from nmt_cli.recipe import schema
from nmt_cli.recipe.schema import Recipe
from nmt_cli.system.errors import StorageError
from nmt_cli.training import estimate
from nmt_cli.training.loss import LossModel
from nmt_cli.transformer.directory import parameter_count
from nmt_cli.transformer.hardware import choose_device

Make = Callable[..., Recipe]
BIG = schema.Model(d_model=1024, d_ff=4096, num_heads=16)


@pytest.fixture(autouse=True)
def shorter_measurements(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(estimate, "MEASURED_SECONDS", 0.2)
    monkeypatch.chdir(tmp_path)


def lengths(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def flops(model: schema.Model, vocabulary: int, src: np.ndarray, tgt: np.ndarray) -> float:
    return sum(operations for operations, _ in estimate.step_parts(model, vocabulary, src, tgt).values())


@pytest.mark.parametrize(("model", "millions"), [(schema.Model(), 377.9), (BIG, 1284.3)])
def test_flops_match_the_papers_models(model: schema.Model, millions: float) -> None:
    """Base model of "Attention Is All You Need": 6 x (22.02 M + 22.02 M + V d), and attention's own products,
    which depend on the length.
    """
    one = flops(model, 37_000, lengths(1), lengths(1)) / 1e6
    scores = 6 * model.num_layers * 2 * model.d_model * 3 / 1e6
    assert one - scores == pytest.approx(millions, abs=0.05)


@pytest.mark.parametrize("cell", ["attention", "ssru"])
def test_flops_match_torchs_count(cell: str) -> None:
    """Forward and backward, with unequal d_k and d_v. Batches of one long sentence have no padding."""
    settings = tiny(encoder_layers=3, decoder_layers=1, d_k=5, d_v=7, decoder_cell=cell)
    model, pairs = LossModel(random_model(settings, 50), 0.1, torch.float64), random_pairs(1, 50, [(16, 18), (25, 17)])
    with FlopCounterMode(display=False) as counter:
        for pair in pairs:
            model(batch_of([pair]))[0].backward()
    src, tgt = (lengths(*map(len, side)) for side in zip(*pairs, strict=True))
    assert counter.get_total_flops() == flops(settings, 50, src, tgt)


def test_bytes_match_a_count_by_hand() -> None:
    """The batch has 4 source and 6 target tokens."""
    model = schema.Model(num_layers=1, d_model=8, d_ff=24, num_heads=2, d_k=5, d_v=3)
    parts = estimate.step_parts(model, 50, lengths(4), lengths(6), 2)
    queries_keys_values_outputs = 4 * (10 + 10 + 6 + 6) + 6 * (10 + 10 + 6 + 6) + (6 * 10 + 4 * 10 + 4 * 6 + 6 * 6)
    assert parts["attention"][1] == 2 * 3 * queries_keys_values_outputs  # used forward, used backward, gradient
    assert parts["element-wise"][1] == 2 * (7 * (2 * 4 * 8 + 3 * 6 * 8) + 5 * (4 + 6) * 24)
    assert parts["loss"][1] == 2 * 3 * 6 * 50  # logits: written, read, gradient written
    assert parts["optimizer"] == (0, 4 * (4 + 3 + 1) * parameter_count(model, 50))  # read, written, read for the norm


@pytest.mark.parametrize(("graphs", "first"), [(None, 1), (object(), 3)])
def test_speed_excludes_the_first_steps(graphs: object, first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fake clock advances a second per step. Each of four measured steps has 10 tokens more than the previous one."""
    monkeypatch.setattr(estimate, "FIRST_STEPS", 3)
    now, taken = [0.0], list[Any]()

    def take_step(step: int, batch: Any) -> None:
        taken.append((step, batch.tgt_tokens))
        now[0] += 1

    run: Any = SimpleNamespace(
        step_batch=lambda index: SimpleNamespace(tgt_tokens=10 * index), take_step=take_step,
        batch_thread=lambda: ThreadPoolExecutor(1), accelerator=SimpleNamespace(num_processes=1), graphs=graphs,
    )  # fmt: skip
    monkeypatch.setattr(estimate, "MEASURED_SECONDS", 4.0)
    monkeypatch.setattr(estimate, "timer", lambda: now[0])
    monkeypatch.setattr(estimate, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    assert estimate.measure(run) == (10 * first + 15.0, 1.0)
    assert taken == [(step, 10 * (step - 1)) for step in range(1, first + 5)]


@pytest.mark.parametrize(
    ("device", "prepared", "tokens", "start"),
    [("cpu", True, 600, "m"), ("cpu", False, 600, None), ("cuda", True, 1600, "m"), ("cuda", False, 1600, None)],
)
def test_the_measured_settings_differ_from_the_recipe_only_where_necessary(
    tiny_recipe: Make, numbers_corpus: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
    device: str, prepared: bool, tokens: int, start: str | None,
) -> None:  # fmt: skip
    """On the CPU, each of three processes gets at most 200 tokens. Without a corpus, no initial model is read."""
    settings = tiny_recipe("training.tokens_per_step=1600")
    settings.training.init_from = "m"
    accelerator = SimpleNamespace(num_processes=3, device=torch.device(device), is_main_process=False)
    monkeypatch.setattr(estimate, "make_accelerator", lambda *_: accelerator)
    monkeypatch.setattr(estimate, "MEASURED_TOKENS", 200)

    def run(measured: Recipe, corpus: Any, *rest: Any) -> None:
        changed = {"tokens_per_step": tokens, "init_from": start}
        assert measured.training == settings.training.model_copy(update=changed)
        assert measured.model_copy(update={"training": settings.training}) == settings
        assert (len(corpus.src) == 500) == prepared
        assert rest == (accelerator, tmp_path, 0)
        raise LookupError

    monkeypatch.setattr(estimate, "start_trainer", run)
    with pytest.raises(LookupError):
        estimate.print_estimate(settings, numbers_corpus if prepared else tmp_path / "absent", tmp_path)


def test_a_dry_run_that_runs_out_of_memory_fails_with_advice(
    tiny_recipe: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(estimate, "start_trainer", Mock(side_effect=torch.OutOfMemoryError("x")))
    with pytest.raises(StorageError, match=r"out of memory\. .*training\.memory_tokens=N"):
        estimate.dry_run(tiny_recipe(), Path("numbers"))


def test_bounds_of_a_step_follow_from_measured_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rates are made up. Two processes share four sentences."""
    settings, model = schema.Recipe(training=schema.Training(tokens_per_step=64)), random_model(tiny(), 50)
    src, tgt, measured = lengths(4, 9, 7, 9), lengths(5, 9, 8, 9), list[Any]()
    plan = SimpleNamespace(
        src_lengths=src, tgt_lengths=tgt, micro_batches_of=lambda i: [lengths(0, 1), lengths(2, 3)][: 2 * i]
    )
    accelerator = SimpleNamespace(num_processes=2, device="cpu")
    run: Any = SimpleNamespace(
        transformer=model, plan=plan, memory_tokens=100, settings=settings, dtype=torch.float32, accelerator=accelerator
    )
    monkeypatch.setattr(torch, "randn", lambda *shape, dtype, device: torch.empty(shape, dtype=dtype, device="meta"))

    def seconds(statement: str, tensors: dict[str, torch.Tensor]) -> float:
        measured.append((statement, {name: tuple(tensor.shape) for name, tensor in tensors.items()}))
        return 0.5 if "copy" in statement else 0.001

    monkeypatch.setattr(estimate, "seconds_of", seconds)
    rows = {name.strip(): text for name, text in estimate.roofline_rows(run, 0.05)}
    matrices = [tuple(p.shape) for p in model.parameters() if p.dim() == 2]
    products = {(shapes["w"], shapes["x"], shapes["y"]) for statement, shapes in measured if "@" in statement}
    assert products == {((out, into), (64, into), (64, out)) for out, into in matrices}
    rate = 6 * 64 * sum(out * into for out, into in matrices) / (0.001 * len(matrices))
    bandwidth = 2 * 4 * 2**26 / 0.5  # read and written
    parts = estimate.step_parts(model.settings, 50, src[[0, 2]], tgt[[0, 2]], 4)
    shares = {name: max(work / rate, size / bandwidth) / 0.05 for name, (work, size) in parts.items()}
    assert max(shares, key=shares.__getitem__) == "products of weights"
    assert 0.1 < sum(shares.values()) < 0.9
    rest = 1 - sum(shares.values())
    bound = max({**shares, "launches, waits, slow kernels": rest}.items(), key=lambda item: item[1])[0]
    mfu = sum(work for work, _ in parts.values()) / rate / 0.05
    assert rows == {
        "bound by": f"{bound}; MFU {mfu:.0%}",
        "explained by roofline": f"{sum(shares.values()):.0%}, at {rate / 1e9:,.0f} GFLOP/s "
        f"and {bandwidth / 1e9:,.0f} GB/s",
        **{name: f"{share:.0%}" for name, share in shares.items()},
        "launches, waits, slow kernels": f"{rest:.0%}",
    }


@pytest.mark.parametrize(
    ("changes", "length", "pairs", "below"),
    [
        ([], 27, 64, 320),
        (["training.tokens_per_step=4000"], 27, 592, 320),
        (["model.max_length=8"], 8, 200, 320),
        (["model.source_vocabulary=90"], 27, 64, 90),
        (["model.source_vocabulary=900"], 27, 64, 320),
        (["corpus.tokenizer.vocabulary_size=700"], 27, 64, 700),
        (["corpus.tokenizer.vocabulary_size=700", "corpus.tokenizer.file={}/tokenizer.model"], 27, 64, 320),
    ],
)
def test_random_sentences_fit_the_model_and_the_vocabulary(
    tiny_recipe: Make, numbers_corpus: Path, changes: list[str], length: int, pairs: int, below: int
) -> None:
    settings = tiny_recipe(*(change.format(numbers_corpus) for change in changes))
    corpus = estimate.random_corpus(settings, Path("x"))
    assert corpus.directory == Path("x")
    assert corpus.manifest["vocabulary_size"] == max(below, 320)
    for side in (corpus.src, corpus.tgt):
        rows = np.asarray(side.ids).reshape(pairs, length)
        assert side.lengths().tolist() == [length] * pairs
        assert (rows[:, -1] == 2).all()
        assert 3 <= rows[:, :-1].min() < 10
        assert 0.9 * below < rows[:, :-1].max() < below


def shown(text: str, name: str) -> float:
    """Return the number in the column "here" of the table."""
    row = re.search(rf"^ *{re.escape(name)}  +(?:about )?([\d,.e+]+)", text, re.MULTILINE)
    assert row, text
    return float(row[1].replace(",", ""))


def test_without_a_corpus_a_dry_run_measures_random_sentences(
    tiny_recipe: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = tiny_recipe("corpus.augment.typos=0.1")
    settings.training.init_from = "elsewhere"
    assert estimate.dry_run(settings, Path("numbers")) == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert "numbers is not prepared" in err
    assert f" 1 x {choose_device().type}, " in err
    assert re.search(r"time excludes +validation, checkpoints, corpus\.augment  ", err)
    assert shown(err, "parameters") == parameter_count(settings.model, 320)
    assert shown(err, "target tokens/s") > 0
    assert all(figure in err for figure in ("8 x P100", "3.3e18", "2.3e19", "3.5 d"))
    assert list(tmp_path.iterdir()) == []
    assert err.startswith("measuring")
    shares = dict(re.findall(r"^  ([a-z].*?)  +(\d+)% ", err, re.MULTILINE))
    (bound,) = re.findall(r"bound by  +(.+); MFU \d+%", err)
    assert int(shares[bound]) == max(map(int, shares.values())) > 0


@pytest.mark.parametrize(
    ("measured_tokens", "hours", "end"), [(estimate.MEASURED_TOKENS, "0.5", "30 min 00 s"), (200, "0", "0 s")]
)
def test_a_dry_run_measures_the_corpus_and_writes_no_file(
    tiny_recipe: Make,
    numbers_corpus: Path,
    tmp_path: Path,
    measured_tokens: int,
    hours: str,
    end: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On the CPU a small step is measured instead of a large one. The estimate is scaled to the recipe's tokens."""
    monkeypatch.setattr(estimate, "MEASURED_TOKENS", measured_tokens)
    done = list[str]()
    monkeypatch.setattr(estimate, "roofline_rows", lambda *_: done.append("bounds") or [("bound by", "nothing")])
    monkeypatch.setattr(estimate, "peak_memory_mb", lambda: done.append("memory") or 1234)
    before = {p: p.stat().st_mtime_ns for p in numbers_corpus.iterdir()}
    changes = ("training.tokens_per_step=1600", f"training.max_hours={hours}", "training.steps=100000000")
    assert estimate.dry_run(tiny_recipe(*changes), numbers_corpus) == 0
    err = capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
    assert before == {p: p.stat().st_mtime_ns for p in numbers_corpus.iterdir()}
    tokens = shown(err, "target tokens per step")
    sides = [len(side.ids) for side in (open_corpus(numbers_corpus).src, open_corpus(numbers_corpus).tgt)]
    assert tokens == round(1600 * 2 * sides[1] / sum(sides)) != round(1600 * 2 * sides[0] / sum(sides))
    assert re.search(f"training time +{end} ", err)
    corpus, model = open_corpus(numbers_corpus), tiny_recipe().model
    operations = flops(model, 320, corpus.src.lengths(), corpus.tgt.lengths()) / sides[1]
    assert shown(err, "steps") == 1e8
    assert shown(err, "total FLOPs") == pytest.approx(operations * tokens * 1e8, rel=0.05)
    assert re.search("peak memory per process +1,234 MB", err)
    assert re.search("time excludes +validation, checkpoints  ", err)
    assert done == ["memory", "bounds"], (
        "memory is read before the rates are measured, so it is that of the steps alone"
    )
    parameters = shown(err, "parameters")
    assert shown(err, "disk for checkpoints") == round((3 + 3.4) * 12 * parameters / 1e6)
    assert shown(err, "seconds per step") == pytest.approx(tokens / shown(err, "target tokens/s"), rel=0.02)
    for name, base, big in (
        ("parameters", "65 M", "213 M"), ("steps", "100,000", "300,000"), ("total FLOPs", "3.3e18", "2.3e19"),
        ("seconds per step", "0.4", "1.0"), ("target tokens/s", "62,500", "25,000"),
        ("training time", "12 h", "3.5 d"),
    ):  # fmt: skip
        assert re.search(rf"^{name} .* {re.escape(base)} +{re.escape(big)} *$", err, re.MULTILINE), name
