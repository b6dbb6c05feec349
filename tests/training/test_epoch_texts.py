"""Training on augmented text: kills change no bit, every process reads the same text, and no text is left on disk."""

import errno
import os
import random
import shutil
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
from lab import Lab
from steps import before_each_step, losses, plan_of

from nmt_cli.corpus.augmentation import Augmentation, augment_block
from nmt_cli.corpus.prepare import PrepareOptions, prepare
from nmt_cli.corpus.store import SideWriter, open_corpus
from nmt_cli.storage import artefact
from nmt_cli.system.errors import DataError, OutputError, StorageError
from nmt_cli.training import checkpoints, epoch_texts
from nmt_cli.training.train import train

AUGMENT = [f"corpus.augment.{kind}=0.3" for kind in ("typos", "upper", "title", "joined", "noise", "bpe_dropout")]
STEPS_PER_EPOCH = 15
LAST = 31
STEPS = f"training.steps={LAST}"
SHORTER = "training.steps=20"  # in the second epoch; the undisturbed run has a checkpoint there


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, tiny_recipe: Any, numbers_corpus: Path) -> Path:
    """A run of two epochs and a step on augmented text. Do not change it, because the tests share it."""
    run = tmp_path_factory.mktemp("runs") / "augmented"
    assert train(tiny_recipe(*AUGMENT, STEPS), numbers_corpus, run) == 0
    return run


@pytest.fixture
def augmented_lab(lab: Lab, undisturbed: Path) -> Lab:
    lab.reference = undisturbed
    return lab


def train_augmented(lab: Lab, *changes: str) -> int:
    return lab.train(*AUGMENT, STEPS, *changes)


def test_each_epoch_has_its_own_text_in_the_same_number_of_steps(augmented_lab: Lab) -> None:
    corpus = open_corpus(augmented_lab.corpus)
    augment = augmented_lab.recipe(*AUGMENT).corpus.augment
    texts = epoch_texts.EpochTexts(
        corpus, Augmentation(corpus.directory, corpus.identity, augment, ("en", "de"), 1), augmented_lab.run, True
    )
    texts.last = 2
    with texts:
        plan = plan_of(epoch_texts.AugmentedCorpus(**vars(corpus), texts=texts), 400, 4, 1)
        assert plan.steps_per_epoch == STEPS_PER_EPOCH
        seen = []
        for epoch in range(3):
            text = texts.open(epoch)
            expected = augment_block(texts.augmentation, (epoch, 0))
            for side, (ids, lengths) in zip((text.src, text.tgt), expected, strict=True):
                assert side.ids.tolist() == ids.tolist()
                assert side.lengths().tolist() == lengths.tolist()
            lines = [i for i in range(len(corpus.src)) if text.src.lengths()[i]]
            assert len(lines) < len(corpus.src), "some lines are joined to others"
            steps = [plan.micro_batches_of(epoch * STEPS_PER_EPOCH + step) for step in range(STEPS_PER_EPOCH)]
            assert sorted(i for step in steps for m in step for i in m.tolist()) == lines, "every line once"
            tokens = [sum(sum(plan.tokens(m, epoch * STEPS_PER_EPOCH)) for m in step) for step in steps]
            assert max(tokens) < 1.5 * min(tokens), "steps are cut by the lengths of the epoch"
            seen.append(text.src.ids.tobytes())
        assert len({*seen, corpus.src.ids.tobytes()}) == 4
        assert texts.open(3) is corpus, "the training loop asks for one batch more than it has steps"
    assert not augmented_lab.run.exists()


def test_with_shares_of_zero_nothing_changes_and_nothing_is_written(lab: Lab) -> None:
    before_each_step(lab.patch, lambda *_: (lab.run / epoch_texts.DIRECTORY).exists() and pytest.fail("written"))
    assert lab.train("corpus.augment.typos=0", SHORTER) == 0
    assert lab.same(20)


def test_other_shares_need_a_new_run_but_no_new_corpus(augmented_lab: Lab, tmp_path: Path) -> None:
    augmented = augmented_lab.recipe(*AUGMENT).corpus
    prepare(augmented, augmented_lab.corpus, PrepareOptions(workers=1))
    other = prepare(augmented, tmp_path / "other", PrepareOptions(workers=1))
    assert (other / "manifest.json").read_bytes() == (augmented_lab.corpus / "manifest.json").read_bytes()
    shutil.copytree(augmented_lab.reference, augmented_lab.run)
    with pytest.raises(DataError, match=r"started with other settings: corpus\.augment\.typos: 0\.3 -> 0\.1"):
        train_augmented(augmented_lab, "corpus.augment.typos=0.1")


def test_a_run_killed_seven_times_ends_with_the_same_bits(augmented_lab: Lab, tmp_path: Path) -> None:
    draw, killed = random.Random(os.environ.get("NMT_KILL_SEED", "1")), tmp_path / "killed"
    killed.mkdir()
    steps = sorted({1, 15, 16, 31, *draw.sample(range(2, 15), 2), draw.randint(17, 30)})
    kills = [[step, 0] for step in steps]
    (result,) = augmented_lab.jobs({"set": [*AUGMENT, STEPS], "kills": kills, "loop": str(killed)})
    assert len(list(killed.iterdir())) == len(steps) == 7
    assert result["codes"] == [0], result["stderr"]
    assert augmented_lab.same(LAST)
    assert not (augmented_lab.run / epoch_texts.DIRECTORY).exists()


def test_a_signal_leaves_no_text_on_disk_and_the_run_resumes_exactly(augmented_lab: Lab) -> None:
    for stop in (7, 15, 16):
        with pytest.MonkeyPatch.context() as patch:
            before_each_step(patch, lambda _, now, stop=stop: now == stop and os.kill(os.getpid(), signal.SIGTERM))
            assert train_augmented(augmented_lab) == 143
        assert checkpoints.steps_in(augmented_lab.run)[-1] == stop
        assert not (augmented_lab.run / epoch_texts.DIRECTORY).exists()
    assert train_augmented(augmented_lab) == 0
    assert augmented_lab.same(LAST)


def test_one_and_three_processes_and_two_machines_train_on_the_same_text(augmented_lab: Lab, tmp_path: Path) -> None:
    """Each machine has a copy of the corpus. The learning rate is low for the reason given in test_elastic.py."""
    changes = [*AUGMENT, "training.log_every=1", "training.rate_factor=0.1", "training.validate_every=100"]
    changes += ["training.steps=18", "training.micro_batches=6"]
    other = shutil.copytree(augmented_lab.corpus, tmp_path / "other")
    results = augmented_lab.jobs(
        {"name": "one", "set": changes},
        {"name": "three", "set": changes, "world": 3},
        {"name": "machines", "set": changes, "world": 2, "elsewhere": ["--data", str(other)]},
    )
    assert [result["codes"] for result in results] == [[0], [0, 0, 0], [0, 0]], results[0]["stderr"]
    expected = losses(tmp_path / "one")
    assert len(expected) == 18
    for name in ("three", "machines"):
        assert losses(tmp_path / name) == pytest.approx(expected, rel=1e-5), name
        assert not (tmp_path / name / epoch_texts.DIRECTORY).exists()


def test_two_machines_must_augment_alike(augmented_lab: Lab) -> None:
    (result,) = augmented_lab.jobs(
        {"set": [*AUGMENT, "training.steps=2"], "world": 2, "elsewhere": ["--set", "corpus.augment.typos=0.2"]}
    )
    assert result["codes"] == [65, 65]
    assert "corpus.augment.typos: 0.3 -> 0.2" in result["stderr"]


def test_a_full_disk_ends_the_run_and_the_same_command_resumes(augmented_lab: Lab) -> None:
    """The second epoch is written while the first one trains."""
    real = SideWriter.append

    def full(self: SideWriter, *sentences: Any) -> None:
        if "epoch-1" in self._ids.name:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self._ids.name)
        real(self, *sentences)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SideWriter, "append", full)
        with pytest.raises(StorageError, match=r"cannot read or write .*epoch-1.*No space left on device"):
            train_augmented(augmented_lab)
    assert 10 in checkpoints.steps_in(augmented_lab.run)
    assert not (augmented_lab.run / epoch_texts.DIRECTORY).exists()
    assert train_augmented(augmented_lab, SHORTER) == 0
    assert augmented_lab.same(20)


def test_too_small_a_disk_is_noticed_at_the_start(augmented_lab: Lab) -> None:
    augmented_lab.patch.setattr(epoch_texts.EpochTexts, "_megabytes", lambda self: 10**9)
    with pytest.raises(StorageError, match=r"needs 4000000000 MB for augmented text and has \d+ MB free"):
        train_augmented(augmented_lab)


def test_damaged_text_is_noticed_before_it_is_used(augmented_lab: Lab) -> None:
    """A run that was stopped three times ends like an undisturbed one."""
    for damage in ("flip", "cut", "remove"):
        # Remove the checkpoint that was saved at the stop, so that step 12 is repeated.
        shutil.rmtree(checkpoints.directory_of(augmented_lab.run, 15), ignore_errors=True)
        with pytest.MonkeyPatch.context() as patch:
            ruin_the_second_epoch(patch, augmented_lab.run, damage)
            with pytest.raises(
                DataError, match=r"epoch-1/train\.tgt\.ids is damaged.*Run the same command again to resume"
            ):
                train_augmented(augmented_lab)
        assert checkpoints.steps_in(augmented_lab.run) == [10, 15], damage
    assert train_augmented(augmented_lab, SHORTER) == 0
    assert augmented_lab.same(20)


def ruin_the_second_epoch(patch: pytest.MonkeyPatch, run: Path, damage: str) -> None:
    """Before step 12, wait until the text of the second epoch is complete, and damage it. Step 15 opens it."""
    written, real = threading.Event(), artefact._commit

    def commit(stage: Path, target: Path, overwrite: bool) -> None:
        real(stage, target, overwrite)
        if target.name == "epoch-1":
            written.set()

    def ruin(_: Any, step: int) -> None:
        if step == 12:
            directory = next((run / epoch_texts.DIRECTORY).glob("*/"))
            written.wait(60)
            file = directory / "epoch-1" / "train.tgt.ids"
            data = bytearray(file.read_bytes())
            data[100] ^= 1
            file.unlink()
            if damage != "remove":
                file.write_bytes(data if damage == "flip" else data[:-2])

    patch.setattr(artefact, "_commit", commit)
    before_each_step(patch, ruin)


def test_leftovers_of_a_killed_run_are_removed_and_never_used(augmented_lab: Lab) -> None:
    ours, other_machine, not_ours = (
        augmented_lab.run / epoch_texts.DIRECTORY / name for name in (f"{artefact.HOST}-0", "other-8", "mine")
    )
    for directory in (ours, other_machine, not_ours):
        for name in ("epoch-0", "epoch-1"):
            shutil.copytree(augmented_lab.corpus, directory / name)
    with pytest.raises(OutputError, match="exists, but nmt did not create it"):
        train_augmented(augmented_lab)
    for directory in (ours, other_machine):
        (directory / artefact.LOCK).touch()
    assert train_augmented(augmented_lab, SHORTER) == 0
    assert augmented_lab.same(20)
    assert [path.name for path in not_ours.parent.iterdir()] == ["mine"]


def test_two_runs_share_a_corpus_and_write_nothing_into_it(augmented_lab: Lab, tmp_path: Path) -> None:
    before = {path: path.read_bytes() for path in augmented_lab.corpus.iterdir() if path.is_file()}
    thread = threading.Thread(target=augmented_lab.jobs, args=({"name": "second", "set": [*AUGMENT, SHORTER]},))
    thread.start()
    assert train_augmented(augmented_lab, SHORTER) == 0
    thread.join()
    assert augmented_lab.same(20)
    augmented_lab.run = tmp_path / "second"
    assert augmented_lab.same(20)
    assert before == {path: path.read_bytes() for path in augmented_lab.corpus.iterdir() if path.is_file()}


def test_a_finished_run_writes_no_text(augmented_lab: Lab) -> None:
    shutil.copytree(augmented_lab.reference, augmented_lab.run)
    augmented_lab.patch.setattr(epoch_texts.EpochTexts, "_write", lambda *_: pytest.fail("written"))
    assert train_augmented(augmented_lab) == 0
    output = augmented_lab.stderr()
    assert f"finished with step {LAST} of {LAST}" in output
    kinds = "typos 0.3, upper 0.3, title 0.3, noise 0.3, joined 0.3, bpe_dropout 0.3"
    assert f"augmenting the text in each epoch: {kinds}\n" in output


def test_a_lost_writer_process_ends_the_others(tmp_path: Path, augmented_lab: Lab) -> None:
    corpus = open_corpus(augmented_lab.corpus)
    augment = augmented_lab.recipe(*AUGMENT).corpus.augment
    augmentation = Augmentation(corpus.directory, corpus.identity, augment, ("en", "de"), 1)
    texts = epoch_texts.EpochTexts(corpus, augmentation, tmp_path / "nobody", False)
    texts.last = 0
    with pytest.raises(StorageError, match="another process of this run does not respond"):
        texts.open(0)
