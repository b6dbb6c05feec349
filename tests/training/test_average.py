"""Averaging: the mean of the right checkpoints, or an error that names the wrong one."""

import itertools
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from nmt_cli.corpus.store import open_corpus
from nmt_cli.recipe import loading
from nmt_cli.recipe.schema import Recipe
from nmt_cli.storage import artefact
from nmt_cli.system.errors import DataError, OutputError
from nmt_cli.training import average as module
from nmt_cli.training import checkpoints
from nmt_cli.training.average import average, mean_of, mixture
from nmt_cli.training.checkpoints import MODEL, State
from nmt_cli.transformer.model import Transformer
from nmt_cli.transformer.weights import load_model, save_tensors

VOCABULARY = 320  # of the corpus's tokenizer


def weights(settings: Recipe, seed: int) -> dict[str, torch.Tensor]:
    torch.manual_seed(seed)
    return Transformer(settings.model, VOCABULARY).state_dict()


@pytest.fixture
def run(tmp_path: Path, tiny_recipe: Callable[..., Recipe], numbers_corpus: Path) -> Path:
    """A run with checkpoints at 10, 20, 30, 33 (an interruption) and 40."""
    settings, directory = tiny_recipe(), tmp_path / "run"
    for step in (10, 20, 30, 33, 40):
        checkpoints.save(directory, State(step=step), weights(settings, step), {}, {"corpus": "c", "seen_tokens": 9})
    (directory / "recipe.yaml").write_bytes(loading.to_yaml(settings))
    (directory / "corpus.json").write_text('{"corpus": "c"}')
    shutil.copy(numbers_corpus / "tokenizer.model", directory)
    return directory


def test_the_mean_of_the_last_regular_checkpoints(
    run: Path, tiny_recipe: Callable[..., Recipe], capsys: pytest.CaptureFixture[str]
) -> None:
    target, steps = average(run, None, None)
    assert capsys.readouterr().err.endswith(f"\n{run}/model is the mean of 3 checkpoints (step 20, 30, 40)\n")
    assert (target, steps) == (run / "model", [20, 30, 40])
    result = load_model(target)
    rows = [weights(tiny_recipe(), step) for step in steps]
    for name, tensor in result.model.state_dict().items():
        exact = torch.stack([row[name].double() for row in rows]).mean(0)
        assert torch.equal(tensor, exact.float())
    assert result.manifest["steps"] == [20, 30, 40]
    assert (result.manifest["corpus"], result.manifest["seen_tokens"]) == ("c", 9)
    files = [checkpoints.directory_of(run, step) / MODEL for step in steps]
    assert result.manifest["checkpoints"] == [artefact.sha256(file) for file in files]


def test_another_corpus_is_refused_and_no_corpus_is_needed(
    run: Path, numbers_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(DataError, match="trained on another corpus"):
        average(run, None, None, numbers_corpus)
    target, _ = average(run, None, None)
    assert load_model(target).manifest["steps"] == [20, 30, 40]
    assert "no prepared corpus" in capsys.readouterr().err
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "numbers").symlink_to(numbers_corpus)
    assert average(run, None, None)[1] == [20, 30, 40]
    assert "warning: " in (warnings := capsys.readouterr().err)
    assert "was trained on another corpus than data/numbers" in warnings


def test_the_mean_does_not_depend_on_the_order_of_files(tmp_path: Path) -> None:
    draw = torch.Generator().manual_seed(1)
    for i in range(3):
        save_tensors(tmp_path / f"{i}", {"w": torch.randn(1000, generator=draw) * 10.0 ** (6 * i)})
    means = [mean_of([tmp_path / f"{i}" for i in order])["w"] for order in itertools.permutations(range(3))]
    assert all(torch.equal(mean, means[0]) for mean in means)


def test_averaging_replaces_only_the_runs_own_model(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    average(run, 2, None)
    assert capsys.readouterr().err.endswith(f"\n{run}/model is the mean of 2 checkpoints (step 30, 40)\n")
    assert average(run, 3, None)[1] == [20, 30, 40]
    assert load_model(run / "model").manifest["steps"] == [20, 30, 40]
    average(run, 2, tmp_path / "new")
    newest = checkpoints.directory_of(run, 40)
    before = artefact.sha256(newest / MODEL)
    for taken in (tmp_path / "new", newest, run):
        with pytest.raises(OutputError, match="exists already"):
            average(run, 2, taken)
    assert artefact.sha256(newest / MODEL) == before


def test_out_may_name_the_runs_own_model(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for out in (run / "model", tmp_path / "link" / "model", Path("run/../run/model")):
        monkeypatch.chdir(tmp_path)
        if not (tmp_path / "link").exists():
            (tmp_path / "link").symlink_to(run)
        (run / "model" / "manifest.json").unlink(missing_ok=True)
        artefact.remove_tree(run / "model")
        average(run, 2, None)
        assert average(run, 3, out) == (out, [20, 30, 40])
        assert load_model(run / "model").manifest["steps"] == [20, 30, 40]


def test_the_facts_about_the_corpus_are_those_of_the_newest_checkpoint(
    run: Path, tiny_recipe: Callable[..., Recipe]
) -> None:
    checkpoints.save(run, State(step=50), weights(tiny_recipe(), 50), {}, {"corpus": "c", "seen_tokens": 11, "x": 1})
    about = load_model(average(run, 2, None)[0]).manifest
    assert (about["steps"], about["corpus"], about["seen_tokens"], "x" in about) == ([40, 50], "c", 11, False)


def test_without_a_dev_set_the_start_is_not_mixed_in(
    tiny_recipe: Callable[..., Recipe], numbers_corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings, start = tiny_recipe(), weights(tiny_recipe(), 1)
    settings.averaging.with_start = [0.3]
    corpus = open_corpus(numbers_corpus)
    general = SimpleNamespace(lines=lambda split: corpus.lines("dev") if split == "general" else ([], []))
    for each in (None, general):
        assert module.best_share(start, start, settings, each) == 0.0  # type: ignore[arg-type]
        assert "without a dev set, no share of averaging.with_start can be chosen" in capsys.readouterr().err


def test_a_mixture_is_made_again_if_any_of_its_parts_changes(
    reference_run: Path, numbers_corpus: Path, tmp_path: Path, tiny_recipe: Callable[..., Recipe],
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    directory, start = shutil.copytree(reference_run, tmp_path / "run"), tmp_path / "start"
    shutil.copytree(reference_run / "model", start)
    tried = list[list[float]]()
    monkeypatch.setattr(module, "best_share", lambda end, start, settings, corpus: tried[-1][-1])

    def mix(*shares: float, last: int | None = None) -> bool:
        """Average, and return whether the model was made again."""
        tried.append([*shares])
        settings = tiny_recipe(f"averaging.with_start=[{','.join(map(str, shares))}]", f"training.init_from={start}")
        (directory / "recipe.yaml").write_bytes(loading.to_yaml(settings))
        average(directory, last, None, numbers_corpus)
        model = load_model(directory)
        assert (model.manifest["tried"], model.manifest["with_start"]) == ([*shares], shares[-1])
        end = mean_of([checkpoints.directory_of(directory, step) / MODEL for step in model.manifest["steps"]])
        mixed = mixture(end, load_model(start).model.state_dict(), shares[-1])
        assert all(torch.equal(mixed[name], tensor) for name, tensor in model.model.state_dict().items())
        return "already made from these checkpoints" not in capsys.readouterr().err

    assert [mix(0, 0.5), mix(0, 0.5), mix(0.5), mix(0, 0.25)] == [True, False, True, True]
    assert [mix(0, 0.25, last=2), mix(0, 0.25, last=2)] == [True, False]
    assert average(directory, 2, tmp_path / "out", numbers_corpus)[0] == tmp_path / "out", (
        "another directory gets its own model"
    )
    assert artefact.verify(tmp_path / "out", "model")["files"] == artefact.verify(directory / "model", "model")["files"]
    average(directory, 2, None)  # no corpus, so no share is tried
    assert load_model(directory).manifest["tried"] == []
    assert "no prepared corpus" in capsys.readouterr().err
    assert [mix(0, 0.25, last=2), mix(0, 0.25, last=2)] == [True, False]
    shutil.rmtree(start)
    average(reference_run, 3, start)  # other weights under the same name
    assert [mix(0, 0.25, last=2), mix(0, 0.25, last=2)] == [True, False]


def test_each_share_of_the_start_is_measured_and_shown(
    reference_run: Path, numbers_corpus: Path, tiny_recipe: Callable[..., Recipe], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """Each set has at most LINES lines, even if validations translate none. The start is only a reference."""
    settings = tiny_recipe(
        "averaging.with_start=[0,0.5]", "training.validate_bleu=0", f"training.init_from={reference_run}/model"
    )
    start = load_model(reference_run).model.state_dict()
    end, bleu = {name: torch.zeros_like(tensor) for name, tensor in start.items()}, {0.0: 20.0, 0.5: 19.6, 1.0: 30.0}

    def validate(model: Transformer, _: torch.dtype, dev: Any, settings: Recipe) -> dict[str, float]:
        assert (len(dev.lines), settings.training.validate_bleu, model.training) == (20, module.LINES, False)
        return {"dev_bleu": bleu[float((model.embedding.weight.detach() / start["embedding.weight"])[5, 5])]}

    monkeypatch.setattr(module, "validate", validate)
    assert module.best_share(end, start, settings, open_corpus(numbers_corpus)) == 0.5
    output = capsys.readouterr().err
    assert "translating 20 lines of dev with 3 mixtures" in output
    assert "chosen: 0.5" in output
    assert re.findall(r"^ *([\d.]+) +([\d.]+) *$", output, re.MULTILINE) == [
        ("0", "20.00"),
        ("0.5", "19.60"),
        ("1", "30.00"),
    ]
    corpus = shutil.copytree(numbers_corpus, tmp_path / "corpus")
    for side in ("src", "tgt"):
        shutil.copy(corpus / f"dev.{side}", corpus / f"general.{side}")
    monkeypatch.setattr(module, "LINES", 15)
    assert module.best_share(end, start, settings, open_corpus(corpus)) == 0.0
    assert "translating 30 lines of dev and general with 3 mixtures" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("best", "start", "steps", "warning"),
    [
        (20, None, [20], ""),
        (15, None, [40], "the best checkpoint, step 15, is missing; using the last one"),
        (0, None, [40], "without validations there is no best checkpoint; using the last one"),
        (0, "elsewhere", [40], "no checkpoint is better on dev than the initial model; using the last one"),
    ],
)
def test_the_best_checkpoint_is_used_or_the_last_with_a_warning(
    run: Path, best: int, start: str | None, steps: list[int], warning: str, capsys: pytest.CaptureFixture[str]
) -> None:
    state = artefact.read_json(checkpoints.directory_of(run, 40) / checkpoints.STATE)
    (checkpoints.directory_of(run, 40) / checkpoints.STATE).write_bytes(
        artefact.json_bytes({**state, "best_step": best})
    )
    settings = loading.load_stored(run / "recipe.yaml")
    settings.averaging.best, settings.training.init_from = True, start
    assert module.steps_to_average(run, settings, None) == steps
    output = capsys.readouterr().err
    assert (warning in output) if warning else not output
    assert module.steps_to_average(run, settings, 2) == [30, 40], "--last asks for the last ones"


def test_too_few_checkpoints_are_listed(run: Path) -> None:
    with pytest.raises(DataError, match=r"has 4 checkpoints \(10, 20, 30, 40\), not 5"):
        average(run, 5, None)
    shutil.rmtree(run / "checkpoints")
    with pytest.raises(DataError, match=r"has 0 checkpoints \(none\), not 3"):
        average(run, None, None)


@pytest.mark.parametrize(("last", "warns"), [(3, False), (4, False), (5, True)])
def test_a_short_run_averages_all_its_checkpoints(
    run: Path, tiny_recipe: Callable[..., Recipe], capsys: pytest.CaptureFixture[str], last: int, warns: bool
) -> None:
    settings = tiny_recipe(f"averaging.last={last}", "training.keep_checkpoints=9")
    assert module.steps_to_average(run, settings, None) == [10, 20, 30, 40][-last:]
    warning = (
        "nmt: warning: averaging.last is 5, but the run has only 4 checkpoints to average. Raise training.steps or "
    )
    assert capsys.readouterr().err == f"{warning}lower training.checkpoint_every for more\n" * warns


def test_a_damaged_checkpoint_is_named_and_nothing_is_written(run: Path) -> None:
    path = checkpoints.directory_of(run, 30) / MODEL
    path.write_bytes(path.read_bytes()[:-1] + b"\x01")
    with pytest.raises(DataError, match="step-0000030"):
        average(run, 3, None)
    assert not (run / "model").exists()


@pytest.mark.parametrize("function", ["check", "directory_of"])
def test_training_may_remove_checkpoints_while_they_are_averaged(
    run: Path, tiny_recipe: Callable[..., Recipe], function: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = getattr(checkpoints, function)

    def pruned(run: Path, step: int) -> object:  # as if training removed it just before the first check
        monkeypatch.undo()
        checkpoints.save(run, State(step=50), weights(tiny_recipe(), 50), {}, {"corpus": "c"})
        artefact.remove_tree(checkpoints.directory_of(run, 20))
        return real(run, step)

    monkeypatch.setattr(checkpoints, function, pruned)
    assert average(run, 3, None)[1] == [30, 40, 50]
