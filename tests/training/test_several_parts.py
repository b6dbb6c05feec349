"""Mixes of parts (empty parts, temperature, random order), and augmented text of many epochs and blocks."""

import contextlib
import dataclasses
import threading
import time
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from steps import fake_accelerator
from test_mixing import corpus, mixing, training
from texts import own, pairs, run

from nmt_cli.corpus import augmentation
from nmt_cli.corpus.augmentation import Augmentation, augment_block
from nmt_cli.corpus.store import Corpus, SideWriter, open_corpus
from nmt_cli.recipe import schema
from nmt_cli.storage import artefact
from nmt_cli.system.errors import StorageError, UsageError
from nmt_cli.training import epoch_texts
from nmt_cli.training.epoch_texts import AugmentedCorpus, EpochTexts
from nmt_cli.training.mixing import Mixing


def test_a_part_without_text_has_no_share() -> None:
    """A part has no text if all pairs of its entry were dropped."""
    mixed = mixing([(100, 4), (0, 4), (100, 4)], weights=[1, 5, 1])
    assert mixed.stages[0].shares == (0.5, 0, 0.5)
    assert sorted(mixed.order(0)) == [*range(200)]
    assert mixing([(0, 4), (50, 4)], temperature=5).stages[0].shares == (0, 1)
    with pytest.raises(UsageError, match=r"training\.weights selects no text"):
        mixing([(0, 4), (50, 4)], weights=[1, 0])


def test_temperature_is_for_stages_without_weights() -> None:
    stages = [{"from_step": 5}, {"from_step": 9, "weights": [1, 3]}]
    mixed = mixing([(100, 4), (25, 4)], weights=[3, 1], temperature=2, stages=stages)
    assert np.allclose([stage.shares for stage in mixed.stages], [[0.75, 0.25], [2 / 3, 1 / 3], [0.25, 0.75]])


@pytest.mark.parametrize("weights", [[], [1, 1]])
def test_sentences_of_all_parts_are_in_random_order(weights: list[float]) -> None:
    mixed = mixing([(100, 4), (100, 4)], weights=weights)
    half = mixed.order(0)[:100]
    assert 30 < (half < 100).sum() < 70
    others = [mixed.order(1), Mixing(corpus([(100, 4)] * 2), 10, training(weights=weights, seed=2)).order(0)]
    assert all(other.tolist() != mixed.order(0).tolist() for other in others), "another epoch or seed has another order"


def test_weights_of_a_stage_are_checked_at_the_start() -> None:
    with pytest.raises(UsageError, match=r"^training\.stages\[0\]\.weights has 1 number, but the corpus has 2 parts"):
        mixing([(10, 4), (10, 4)], stages=[{"from_step": 5, "weights": [1]}])


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    directory = tmp_path_factory.mktemp("parts")
    return open_corpus(run(own(directory / "in", pairs(100)), directory / "data"))


def texts_of(prepared: Corpus, directory: Path, writes: bool = True, **shares: float) -> EpochTexts:
    how = Augmentation(
        prepared.directory, prepared.identity, schema.Augment(**(shares or {"joined": 0.5})), ("en", "de"), 1
    )
    return EpochTexts(prepared, how, directory, writes)


def test_at_most_three_epochs_are_on_disk(prepared: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """These are the open epoch, the previous one, which may still be in use, and the next one, if any."""
    for module in (augmentation, epoch_texts):
        monkeypatch.setattr(module, "BLOCK", 50)
    directory, written, real = tmp_path / "run" / "augmented" / "x", list[int](), EpochTexts._write
    monkeypatch.setattr(EpochTexts, "_write", lambda self, number: written.append(number) or real(self, number))
    texts = texts_of(prepared, directory)
    texts.first, texts.last = 2, 6
    with texts:
        before: Any = None
        for epoch in range(2, 7):
            text, again = texts.open(epoch), texts.open(epoch)
            assert again is text
            assert epoch == 2 or texts.open(epoch - 1) is before, "the previous epoch stays open"
            before = text
            blocks = [augment_block(texts.augmentation, (epoch, block)) for block in range(2)]
            for number, side in enumerate((text.src, text.tgt)):
                assert side.ids.tolist() == [i for block in blocks for i in block[number][0].tolist()]
            texts._thread.submit(int).result()  # wait until the next epoch is written
            kept = {path.name for path in directory.iterdir() if path.is_dir()}
            assert kept == {f"epoch-{i}" for i in range(max(2, epoch - 1), min(epoch + 2, 7))}
        assert texts.open(7) is prepared
    assert not (tmp_path / "run").exists(), "empty directories above it are removed"
    assert written == [2, 3, 4, 5, 6]


def test_a_disk_that_is_too_small_is_left_as_it_was(
    prepared: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "run" / "augmented" / "x"
    monkeypatch.setattr(artefact, "free_megabytes", lambda _: 7)
    monkeypatch.setattr(EpochTexts, "_megabytes", lambda _: 2)
    with pytest.raises(StorageError, match=r"x needs 8 MB for augmented text and has 7 MB free"):
        texts_of(prepared, directory).__enter__()
    assert not (tmp_path / "run").exists()
    monkeypatch.setattr(artefact, "free_megabytes", lambda _: 8)
    with texts_of(prepared, directory):
        pass


def test_the_space_for_the_text_counts_both_sides(
    prepared: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(epoch_texts, "GROWTH", 1e6)
    monkeypatch.setattr(artefact, "free_megabytes", lambda _: 0)
    megabytes = int(sum(1e6 * side.ids.nbytes + side.offsets.nbytes for side in (prepared.src, prepared.tgt)) / 1e6)
    assert prepared.src.ids.nbytes != prepared.tgt.ids.nbytes
    with pytest.raises(StorageError, match=f"needs {4 * (1 + megabytes)} MB for augmented text"):
        texts_of(prepared, tmp_path / "x").__enter__()


@pytest.mark.parametrize(("source", "target"), [(70_000, 400), (400, 70_000)])
def test_each_side_is_stored_in_the_bytes_of_its_vocabulary(
    prepared: Corpus, tmp_path: Path, source: int, target: int
) -> None:
    manifest = {**prepared.manifest, "source_vocabulary_size": source, "vocabulary_size": target}
    with texts_of(dataclasses.replace(prepared, manifest=manifest), tmp_path / "x", upper=0.5) as texts:
        texts.last = 0
        text, expected = texts.open(0), augment_block(texts.augmentation, (0, 0))
        for side, size, (ids, _) in zip((text.src, text.tgt), (source, target), expected, strict=True):
            assert side.ids.dtype.itemsize == (4 if size > 1 << 16 else 2)
            assert side.ids.tolist() == ids.tolist()


@pytest.mark.parametrize(("step", "epochs"), [(0, (0, 2)), (9, (0, 2)), (10, (1, 2)), (29, (2, 2)), (30, (0, -1))])
def test_a_run_needs_the_text_from_its_step_to_its_last(
    prepared: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int, epochs: tuple[int, int]
) -> None:
    """The target languages are those of the corpus, even if the recipe lists other sources."""
    monkeypatch.setattr(epoch_texts, "count_steps", lambda *_: 10)
    sources = [{"files": ["a.tsv"]}, {"files": ["b.tsv"], "tgt": "fr"}]
    manifest = {**prepared.manifest, "recipe": {"sources": sources, "tgt": "fi", "later": 1}}
    settings = schema.Recipe(training=schema.Training(steps=30, seed=7), corpus=schema.Corpus(src="en", tgt="de"))
    settings.corpus.augment.typos = 0.1
    accelerator = fake_accelerator(1, 5)  # the second process of its machine
    accelerator.is_local_main_process, accelerator.local_process_index = False, 1
    with contextlib.ExitStack() as stack:
        made: Any = epoch_texts.augmented(
            settings, dataclasses.replace(prepared, manifest=manifest), accelerator, tmp_path, step, stack
        )
    assert (made.texts.first, made.texts.last) == epochs
    how = made.texts.augmentation
    assert (how.targets, how.languages, how.seed) == (("fi", "fr"), ("en", "de"), 7)
    assert made.texts.directory == tmp_path / "augmented" / f"{artefact.HOST}-4", (
        "where the first process of the machine writes"
    )


def test_an_error_without_a_file_name_names_the_directory_of_the_text(
    prepared: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SideWriter, "append", Mock(side_effect=OSError(28, "No space left on device")))
    with texts_of(prepared, tmp_path / "x") as texts:
        texts.last = 0
        with pytest.raises(StorageError, match=rf"cannot read or write \({tmp_path}/x\): No space left on device"):
            texts.open(0)


def test_the_end_of_training_does_not_wait_for_a_whole_epoch(
    prepared: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (augmentation, epoch_texts):
        monkeypatch.setattr(module, "BLOCK", 5)
    begun, real = threading.Event(), SideWriter.append
    appended = list[int]()

    def slowly(self: SideWriter, *sentences: Any) -> None:
        begun.set()
        time.sleep(0.05)
        appended.append(1)
        real(self, *sentences)

    monkeypatch.setattr(SideWriter, "append", slowly)
    texts = texts_of(prepared, tmp_path / "x")
    texts.last = 1
    with texts:
        assert begun.wait(60)
    assert len(appended) < 2 * 20, "each side has 20 blocks"
    assert not (tmp_path / "x").exists()


def test_the_fewest_lines_of_an_epoch_depend_on_joining(prepared: Corpus, tmp_path: Path) -> None:
    for shares, fewest in (({"joined": 0.5}, 33), ({"upper": 0.5}, 100)):
        values: Any = vars(prepared)
        assert AugmentedCorpus(**values, texts=texts_of(prepared, tmp_path, **shares)).fewest_lines == fewest
