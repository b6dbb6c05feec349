"""What a run takes: operations counted by hand and from the weights, a dry run with and without a corpus."""

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from nmt_cli import recipe
from nmt_cli.errors import DataError
from nmt_cli.recipe import Recipe
from nmt_cli.training import estimate
from nmt_cli.transformer.model import Transformer

BIG = recipe.Model(d_model=1024, d_ff=4096, num_heads=16)


def lengths(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


@pytest.mark.parametrize(("model", "millions"), [(recipe.Model(), 377.9), (BIG, 1284.3)])
def test_flops_are_the_paper_models(model: recipe.Model, millions: float) -> None:
    """PAPER: 6 x (22.02 M + 22.02 M + V d) for base; attention's own products are what length adds."""
    one = estimate.flops(model, 37_000, lengths(1), lengths(1)) / 1e6
    scores = 6 * model.num_layers * 2 * model.d_model * 3 / 1e6
    assert one - scores == pytest.approx(millions, abs=0.05)
    thirty = estimate.flops(model, 37_000, lengths(30), lengths(30)) / 30e6
    assert thirty - millions == pytest.approx(3.3 * model.d_model / 512, abs=0.06)


def test_flops_are_those_of_the_weights() -> None:
    """Whatever d_k and d_v are: 6 for each weight and the tokens it meets."""
    model = recipe.Model(num_layers=2, d_model=16, d_ff=48, num_heads=3, d_k=5, d_v=7)
    transformer = Transformer(model, 50)
    on_src = sum(p.numel() for n, p in transformer.named_parameters() if p.dim() == 2 and n.startswith("encoder"))
    on_src += sum(p.numel() for n, p in transformer.named_parameters() if "key_value" in n and "cross" in n)
    matrices = sum(p.numel() for p in transformer.parameters() if p.dim() == 2)
    src, tgt = lengths(3, 9), lengths(4, 2)
    pairs = sum(s * s + t * t + s * t for s, t in ((3, 4), (9, 2)))
    expected = 6 * (12 * on_src + 6 * (matrices - on_src) + 2 * 3 * (5 + 7) * pairs)
    assert estimate.flops(model, 50, src, tgt) == expected


def shown(text: str, name: str) -> str:
    """Return what the table says in the column "here"."""
    found = re.search(rf"^ *{re.escape(name)}  +(.+?)(  |$)", text, re.MULTILINE)
    assert found, text
    return found[1]


def test_without_a_corpus_it_measures_random_sentences(
    tiny_recipe: Callable[..., Recipe],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(estimate, "MEASURED_SECONDS", 0.2)
    settings = tiny_recipe()
    assert estimate.dry_run(settings, tmp_path / "numbers") == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert "numbers is not prepared" in err
    assert shown(err, "parameters") == f"{sum(p.numel() for p in Transformer(settings.model, 320).parameters()):,}"
    assert float(shown(err, "target tokens/s").replace(",", "")) > 0
    assert shown(err, "FLOPs in all") != "-"
    assert re.search(r"FLOPs as the paper counts +- +3\.3e18 +2\.3e19", err)
    assert list(tmp_path.iterdir()) == []
    assert "8 x P100" in err
    assert "3.5 d" in err


def test_a_dry_run_measures_and_leaves_nothing(
    tiny_recipe: Callable[..., Recipe],
    numbers_corpus: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(estimate, "MEASURED_SECONDS", 0.2)
    before = {p: p.stat().st_mtime_ns for p in numbers_corpus.iterdir()}
    assert estimate.dry_run(tiny_recipe("training.max_epochs=0.5"), numbers_corpus) == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert list(tmp_path.iterdir()) == []
    assert before == {p: p.stat().st_mtime_ns for p in numbers_corpus.iterdir()}
    number = {name: float(shown(err, name).split()[0].replace(",", "")) for name in (
        "updates per epoch", "target tokens per update", "target tokens/s", "micro-batches")}  # fmt: skip
    assert number["target tokens/s"] > 0
    assert number["micro-batches"] == 4
    trained = np.fromfile(numbers_corpus / "train.tgt.ids", "<u2").size
    assert number["updates per epoch"] * number["target tokens per update"] == pytest.approx(trained, rel=0.01)
    assert shown(err, "time to the end").endswith(" s")  # half an epoch of a small corpus


def test_a_large_update_is_measured_by_a_small_one(
    tiny_recipe: Callable[..., Recipe],
    numbers_corpus: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On the CPU: sizes are the recipe's, the time is that of its tokens at the speed of the small update's."""
    monkeypatch.setattr(estimate, "MEASURED_SECONDS", 0.2)
    monkeypatch.setattr(estimate, "MEASURED_TOKENS", 200)
    assert estimate.dry_run(tiny_recipe("training.tokens_per_step=1600"), numbers_corpus) == 0
    err = capsys.readouterr().err
    number = {name: float(shown(err, name).split()[0].replace(",", "")) for name in (
        "updates per epoch", "target tokens per update", "target tokens/s", "seconds per update")}  # fmt: skip
    trained = np.fromfile(numbers_corpus / "train.tgt.ids", "<u2").size
    assert number["updates per epoch"] * number["target tokens per update"] == pytest.approx(trained, rel=0.01)
    seconds = number["target tokens per update"] / number["target tokens/s"]
    assert number["seconds per update"] == pytest.approx(seconds, rel=0.02)
    assert "measured peak" not in err  # it would be the small update's


def test_random_sentences_are_whole_and_fit() -> None:
    settings = Recipe()
    settings.model.max_length = 40
    corpus = estimate._random_corpus(settings, 500)
    for side in (corpus.src, corpus.tgt):
        assert 2 <= side.lengths().min() <= side.lengths().max() == 40
        assert (side.ids[side.offsets[1:] - 1] == estimate.EOS).all()
        assert (side.ids == estimate.EOS).sum() == len(side)
        assert side.ids.max() < 500
    unclipped = estimate._random_corpus(Recipe(), 500)
    assert unclipped.tgt.lengths().mean() == pytest.approx(estimate.TYPICAL_LENGTH, rel=0.05)


def test_measured_updates_are_the_runs_own(
    tiny_recipe: Callable[..., Recipe], numbers_corpus: Path, tmp_path: Path
) -> None:
    from nmt_cli.training.start import open_run

    from nmt_cli.training.train import TrainOptions, accelerator_for

    settings = tiny_recipe()
    accelerator = accelerator_for(settings, TrainOptions(numbers_corpus, tmp_path))
    trainer = open_run(settings, numbers_corpus, tmp_path, 0, accelerator).trainer
    weights = trainer.transformer.embedding.weight.clone()
    window, seconds = estimate.measure(trainer, 3, 0.0)
    _, src, tgt = trainer.parts(3)
    assert (window.updates, window.src_tokens, window.tgt_tokens) == (1, src, tgt)
    assert seconds > 0
    assert not torch.equal(weights, trainer.transformer.embedding.weight)


def test_a_recipe_that_does_not_fit_the_corpus_is_refused(
    tiny_recipe: Callable[..., Recipe], numbers_corpus: Path
) -> None:
    with pytest.raises(DataError, match=r"model\.max_length"):
        estimate.dry_run(tiny_recipe("model.max_length=8"), numbers_corpus)
