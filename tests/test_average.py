"""Averaging: the mean of the right checkpoints, or a refusal that says which one is wrong."""

import itertools
import json
import re
import shutil
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from nmt_cli import artefact, recipe
from nmt_cli.errors import DataError, MissingError, OutputError
from nmt_cli.recipe import Recipe
from nmt_cli.training import average as module
from nmt_cli.training import checkpoints
from nmt_cli.training.average import average, mean_of
from nmt_cli.training.checkpoints import MODEL, State
from nmt_cli.transformer.model import Transformer
from nmt_cli.transformer.weights import load_model, load_tensors, save_tensors

VOCABULARY = 40


def weights(settings: Recipe, seed: int) -> dict[str, torch.Tensor]:
    torch.manual_seed(seed)
    return Transformer(settings.model, VOCABULARY).state_dict()


@pytest.fixture
def run(tmp_path: Path, tiny_recipe: Callable[..., Recipe], numbers_corpus: Path) -> Path:
    """A run with checkpoints at 10, 20, 30, 33 (an interruption) and 40."""
    settings, directory = tiny_recipe(), tmp_path / "run"
    for step in (10, 20, 30, 33, 40):
        checkpoints.save(directory, State(step=step), weights(settings, step), {}, {"corpus": "c"})
    (directory / "recipe.yaml").write_bytes(recipe.to_yaml(settings))
    (directory / "corpus.json").write_text('{"corpus": "c"}')
    shutil.copy(numbers_corpus / "tokenizer.model", directory)
    return directory


def test_the_mean_of_the_last_regular_checkpoints(run: Path, tiny_recipe: Callable[..., Recipe]) -> None:
    target, steps = average(run, None, None)
    assert (target, steps) == (run / "model", [20, 30, 40])
    result = load_model(target)
    rows = [weights(tiny_recipe(), step) for step in steps]
    for name, tensor in result.model.state_dict().items():
        exact = torch.stack([row[name].double() for row in rows]).mean(0)
        assert torch.equal(tensor, exact.float())
    assert result.manifest["steps"] == [20, 30, 40]
    assert result.manifest["corpus"] == "c"
    assert [len(h) for h in result.manifest["checkpoints"]] == [64] * 3


def test_a_run_and_a_model_of_an_older_version_are_usable(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stored = (run / "recipe.yaml").read_text()
    assert "averaging:\n" in stored
    (run / "recipe.yaml").write_text(stored.replace("averaging:\n", "averaging:\n  ema: 0.999\n"))
    target, _ = average(run, None, None)
    assert "averaging.ema" in capsys.readouterr().err
    with pytest.MonkeyPatch.context() as patch:  # the model as the older version would have written it
        patch.setattr(recipe, "to_yaml", lambda _: (run / "recipe.yaml").read_bytes())
        target, _ = average(run, None, None)
    capsys.readouterr()
    before = load_model(target)
    (line,) = capsys.readouterr().err.splitlines()
    assert re.fullmatch(rf"nmt: warning: {target}/recipe\.yaml has knobs .* averaging\.ema", line)
    assert before.recipe.averaging.last == 3


def test_a_model_of_a_newer_version_is_refused(run: Path) -> None:
    newer = (run / "recipe.yaml").read_text().replace("model:\n", "model:\n  experts: 4\n", 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recipe, "to_yaml", lambda _: newer.encode())
        target, _ = average(run, None, None)
    with pytest.raises(DataError, match=r"recipe\.yaml.*model\.experts.*newer nmt.*update nmt") as caught:
        load_model(target)
    assert caught.value.exit_code == 65


def test_one_is_the_checkpoint_itself(run: Path) -> None:
    target, steps = average(run, 1, None)
    newest = load_tensors(checkpoints.directory_of(run, 40) / MODEL)
    assert steps == [40]
    assert all(torch.equal(tensor, newest[name]) for name, tensor in load_model(target).model.state_dict().items())


def test_the_order_does_not_matter(tmp_path: Path) -> None:
    draw = torch.Generator().manual_seed(1)
    for i in range(3):
        save_tensors(tmp_path / f"{i}", {"w": torch.randn(1000, generator=draw) * 10.0 ** (6 * i)})
    means = [mean_of([tmp_path / f"{i}" for i in order])["w"] for order in itertools.permutations(range(3))]
    assert all(torch.equal(mean, means[0]) for mean in means)


def test_it_replaces_the_run_s_own_model_only(run: Path, tmp_path: Path) -> None:
    average(run, 2, None)
    assert average(run, 3, None)[1] == [20, 30, 40]
    assert load_model(run / "model").manifest["steps"] == [20, 30, 40]
    average(run, 2, tmp_path / "new")
    newest = checkpoints.directory_of(run, 40)
    before = artefact.sha256(newest / MODEL)
    for taken in (tmp_path / "new", newest, run):
        with pytest.raises(OutputError, match="exists already"):
            average(run, 2, taken)
    assert artefact.sha256(newest / MODEL) == before


def test_fewer_than_asked_names_those_there_are(run: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"has 4 checkpoints \(10, 20, 30, 40\), not 5"):
        average(run, 5, None)
    shutil.rmtree(run / "checkpoints")
    with pytest.raises(DataError, match=r"has 0 checkpoints \(none\), not 3"):
        average(run, None, None)
    with pytest.raises(MissingError, match="no run"):
        average(tmp_path / "nowhere", None, None)


def test_a_damaged_one_is_named_and_nothing_is_written(run: Path) -> None:
    path = checkpoints.directory_of(run, 30) / MODEL
    path.write_bytes(path.read_bytes()[:-1] + b"\x01")
    with pytest.raises(DataError, match="step-0000030"):
        average(run, 3, None)
    assert not (run / "model").exists()


def test_the_same_step_twice_is_refused(run: Path) -> None:
    shutil.rmtree(checkpoints.directory_of(run, 30))
    shutil.copytree(checkpoints.directory_of(run, 20), checkpoints.directory_of(run, 30))
    with pytest.raises(DataError, match="not that of step 30"):
        average(run, 3, None)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t["w"].__setitem__(2, float("nan")), "tensor w is not finite"),
        (lambda t: t.update(w=torch.zeros(4)), "tensor w is not like"),
        (lambda t: t.update(w=t["w"].double()), "tensor w is not like"),
        (lambda t: t.update(x=torch.zeros(1)), "tensor x is not like"),
        (lambda t: t.pop("b"), "tensor b is missing"),
        (lambda t: t.update(v=t.pop("w")), "tensor v is not like"),
    ],
)
def test_what_does_not_fit_together_is_refused(
    tmp_path: Path, change: Callable[[dict[str, torch.Tensor]], object], message: str
) -> None:
    for name in "12":
        tensors = {"b": torch.ones(2), "w": torch.arange(3.0)}
        if name == "2":
            change(tensors)
        save_tensors(tmp_path / name, tensors)
    with pytest.raises(DataError, match=message):
        mean_of([tmp_path / "1", tmp_path / "2"])


def test_a_checkpoint_with_weights_that_are_not_finite_is_named(run: Path) -> None:
    """Such a file can only come from elsewhere: it is written with a right manifest here."""
    directory = checkpoints.directory_of(run, 40)
    tensors = load_tensors(directory / MODEL)
    tensors["embedding.weight"][5, 5] = float("inf")
    (directory / MODEL).unlink()
    save_tensors(directory / MODEL, tensors)
    manifest = json.loads((directory / artefact.MANIFEST).read_text())
    manifest["files"][MODEL]["sha256"] = artefact.sha256(directory / MODEL)
    (directory / artefact.MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(DataError, match=r"step-0000040.*embedding\.weight is not finite"):
        average(run, 2, None)


def test_memory_does_not_grow_with_the_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    most, alive = 0, weakref.WeakSet()
    real = module.read_tensors

    def counted(path: Path) -> Iterator[tuple[str, torch.Tensor]]:
        nonlocal most
        for name, tensor in real(path):
            alive.add(tensor)
            most = max(most, len(alive))
            yield name, tensor

    for i in range(8):
        save_tensors(tmp_path / f"{i}", {f"{n:02}": torch.full((100,), float(i)) for n in range(20)})
    monkeypatch.setattr(module, "read_tensors", counted)
    assert torch.equal(mean_of([tmp_path / f"{i}" for i in range(8)])["07"], torch.full((100,), 3.5))
    assert most <= 3, "of each file one tensor is needed at a time"
