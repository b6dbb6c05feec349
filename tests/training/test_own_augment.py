"""Training on sources with an augmentation each: kills change no bit, and settings are compared on resume."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import texts
from lab import Lab
from steps import before_each_step, losses

from nmt_cli.corpus.prepare import PrepareOptions, prepare
from nmt_cli.corpus.store import Corpus, open_corpus, open_side
from nmt_cli.recipe import loading, schema, yaml_file
from nmt_cli.system.errors import DataError, UsageError
from nmt_cli.training import epoch_texts
from nmt_cli.training.train import decisive, train

STEPS = 24
FIRST = {"typos": 0.3, "joined": 0.3, "bpe_dropout": 0.1}


def recipe_file(path: Path, tiny: Path, entries: list[dict[str, Any]], **corpus: Any) -> Path:
    section = {"train_src": [], "train_tgt": [], "sources": entries, **corpus}
    path.write_bytes(yaml_file.dump({"base": str(tiny), "corpus": section, "training": {"steps": STEPS}}))
    return path


@pytest.fixture(scope="module")
def entries(tmp_path_factory: pytest.TempPathFactory, numbers_text: Path) -> list[dict[str, Any]]:
    """Two sources of 200 and 300 pairs; only the first one is augmented."""
    directory = tmp_path_factory.mktemp("sources")
    sides = [(numbers_text / f"train.{side}").read_text().splitlines() for side in ("en", "de")]
    lines = ["\t".join(pair) for pair in zip(*sides, strict=True)]
    files = [texts.write(directory / "a.tsv", lines[:200]), texts.write(directory / "b.tsv", lines[200:])]
    return [{"files": [str(files[0])], "augment": FIRST}, {"files": [str(files[1])], "augment": {}}]


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory, tiny_recipe_file: Path, entries: list[dict[str, Any]]) -> Lab:
    """A recipe with both sources, its corpus and an undisturbed run. Tests share them and must not change them."""
    directory = tmp_path_factory.mktemp("own")
    file = recipe_file(directory / "tiny.yaml", tiny_recipe_file, entries)
    corpus = prepare(loading.load(file).corpus, directory / "data", PrepareOptions(workers=1))
    assert train(loading.load(file), corpus, directory / "reference") == 0
    nothing: Any = None
    return Lab(file, corpus, directory / "reference", nothing, nothing, nothing)


@pytest.fixture
def own_lab(own: Lab, lab: Lab) -> Lab:
    lab.recipe_file, lab.corpus, lab.reference = own.recipe_file, own.corpus, own.reference
    return lab


def text_of(corpus: Corpus, sides: list[Any], first: int, end: int) -> list[list[int]]:
    return [side.ids[side.offsets[first] : side.offsets[end]].tolist() for side in sides]


def test_only_the_source_with_augmentation_changes(own_lab: Lab) -> None:
    corpus, seen = open_corpus(own_lab.corpus), list[bytes]()
    sizes = [int(corpus.manifest[name]) for name in ("source_vocabulary_size", "vocabulary_size")]

    def look(_: Any, step: int) -> None:
        if step in (7, 20):
            epoch = next((own_lab.run / epoch_texts.DIRECTORY).glob(f"*/epoch-{step // 15}"))
            sides = [open_side(epoch, name, size) for name, size in zip(("src", "tgt"), sizes, strict=True)]
            plain = [corpus.src, corpus.tgt]
            assert text_of(corpus, sides, 200, 500) == text_of(corpus, plain, 200, 500)
            assert text_of(corpus, sides, 0, 200) != text_of(corpus, plain, 0, 200)
            seen.append(sides[0].ids.tobytes())

    before_each_step(own_lab.patch, look)
    assert own_lab.train() == 0
    assert len({*seen}) == 2
    assert own_lab.same(STEPS)
    stderr = own_lab.stderr()
    assert "a.tsv in each epoch: typos 0.3, joined 0.3, bpe_dropout 0.1" in stderr
    assert "b.tsv in each epoch: unchanged" in stderr


def test_a_killed_run_ends_with_the_same_bits(own_lab: Lab, tmp_path: Path) -> None:
    (killed := tmp_path / "killed").mkdir()
    (result,) = own_lab.jobs({"kills": [[step, 0] for step in (1, 9, 16)], "loop": str(killed)})
    assert result["codes"] == [0], result["stderr"]
    assert len(list(killed.iterdir())) == 3
    assert own_lab.same(STEPS)


def test_one_and_two_processes_train_on_the_same_text(own_lab: Lab, tmp_path: Path) -> None:
    changes = ["training.log_every=1", "training.rate_factor=0.1", "training.validate_every=100", "training.steps=18"]
    results = own_lab.jobs({"name": "one", "set": changes}, {"name": "two", "set": changes, "world": 2})
    assert [result["codes"] for result in results] == [[0], [0, 0]], results[0]["stderr"]
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), rel=1e-5)


def test_other_augmentation_needs_a_new_run_but_no_new_corpus(
    own_lab: Lab, tiny_recipe_file: Path, entries: list[dict[str, Any]], tmp_path: Path
) -> None:
    shutil.copytree(own_lab.reference, own_lab.run)
    changed = [{**entries[0], "augment": {**FIRST, "typos": 0.1}}, entries[1]]
    other = loading.load(recipe_file(tmp_path / "tiny.yaml", tiny_recipe_file, changed))
    prepare(other.corpus, own_lab.corpus, PrepareOptions(workers=1))
    assert "is already prepared and complete" in own_lab.stderr()
    with pytest.raises(DataError, match=r"with other settings: training\.augment\.0\.typos: 0\.3 -> 0\.1\."):
        train(other, own_lab.corpus, own_lab.run)
    assert loading.differences(decisive(own_lab.recipe()), decisive(other)), "machines may not differ, either"
    moved = [{**entry, "files": [f"elsewhere/{i}.tsv"]} for i, entry in enumerate(entries)]
    same = loading.load(recipe_file(tmp_path / "moved.yaml", tiny_recipe_file, moved))
    assert not loading.differences(decisive(own_lab.recipe()), decisive(same)), "but files may be elsewhere"


def test_each_part_of_the_corpus_needs_its_own_settings(own_lab: Lab, numbers_corpus: Path) -> None:
    with pytest.raises(UsageError, match=r"training\.augment has 2 entries, but the corpus has 1 parts"):
        own_lab.train(data=numbers_corpus)


def test_parts_without_settings_have_those_of_the_corpus() -> None:
    sources = [
        {"files": ["a.tsv"], "augment": {"upper": 0.1}},
        {"files": ["d.tsv"], "split": "dev"},
        {"files": ["b.tsv"]},
    ]
    synthetic = [{"files": ["c"], "model": "m"}]
    section = {"name": "own", "train_src": ["e"], "train_tgt": ["f"], "sources": sources, "synthetic": synthetic}

    def recipe(**more: Any) -> schema.Recipe:
        return loading.from_plain({"corpus": {**section, **more}}, "a test")

    found = recipe(augment={"typos": 0.2})
    assert [each.model_dump(exclude_defaults=True) for each in found.training.augment] == [
        {"typos": 0.2}, {"upper": 0.1}, {"typos": 0.2}, {"typos": 0.2},
    ]  # fmt: skip
    assert (found.is_augmented, recipe().is_augmented) == (True, True)
    without = recipe(sources=sources[1:], augment={"typos": 0.2})
    assert (without.training.augment, without.is_augmented) == ([], True)
    synthetic_alone = recipe(real_pairs=False)
    assert (synthetic_alone.training.augment, synthetic_alone.is_augmented) == ([], False)
    off = recipe(sources=[{"files": ["a.tsv"], "augment": {}}], synthetic=[], train_src=[], train_tgt=[])
    assert (len(off.training.augment), off.is_augmented) == (1, False)
