"""Write the augmented text of each epoch to disk one epoch ahead, and remove it after use.

On each machine, one process writes the text into the run directory, and all processes of the machine map the files
into memory. A resumed run writes the same text again.
"""

import contextlib
import dataclasses
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

from nmt_cli.corpus.augmentation import BLOCK, MOST_JOINED, Augmentation, augment_block
from nmt_cli.corpus.stages import Pool
from nmt_cli.corpus.store import Corpus, SideWriter, open_side
from nmt_cli.recipe import schema
from nmt_cli.recipe.text_source import Augment
from nmt_cli.storage import artefact
from nmt_cli.system.console import say
from nmt_cli.system.errors import BusyError, DataError, OutputError, StorageError, UsageError
from nmt_cli.system.resources import usable_cores
from nmt_cli.training.batches import count_steps
from nmt_cli.training.collectives import on_all
from nmt_cli.training.mixing import Mixing

DIRECTORY = "augmented"  # in the run directory
KIND = "epoch"
MAX_WORKERS = 8
POLL_SECONDS = 0.05
EPOCHS_ON_DISK = 4  # one being written, the current one, and two that another process may still open
GROWTH = 1.5  # high estimate of the augmented tokens per token of the original text
LOCK_NAME = "the augmented text in"  # begins the error message if another process holds the lock


@dataclasses.dataclass(frozen=True)
class AugmentedCorpus(Corpus):
    """A corpus whose text changes in each epoch."""

    texts: "EpochTexts"

    def in_epoch(self, number: int) -> Corpus:
        return self.texts.open(number)

    @property
    def fewest_lines(self) -> int:
        runs = self.texts.augmentation.runs(0, len(self.src))
        return sum((end - start) // (MOST_JOINED if settings.joined else 1) for _, start, end, settings in runs)


def augmented(
    settings: schema.Recipe, corpus: Corpus, accelerator: Any, run: Path, step: int, stack: contextlib.ExitStack
) -> Corpus:
    """Return a corpus whose text is augmented in each epoch, or `corpus` itself if the recipe augments nothing.

    All processes of a run must call this function together. `step` is the number of steps that the run has already
    taken. Closing `stack` removes the augmented text. Raise UsageError if training.augment does not fit the corpus.
    """
    augment, training = settings.corpus.augment, settings.training
    if not settings.is_augmented:
        return corpus
    if training.augment and len(training.augment) != len(corpus.parts):
        known = f"the corpus has {len(corpus.parts)} parts. Set one entry per part, in the order of the manifest"
        raise UsageError(f"training.augment has {len(training.augment)} entries, but {known}")
    languages = settings.corpus.src, settings.corpus.tgt
    # Take the target languages from the recipe that is stored in the corpus, so that later changes to the recipe do not
    # change the augmented text.
    prepared = schema.Corpus.model_validate(corpus.manifest.get("recipe", {}), extra="ignore")
    targets = tuple(prepared.target_tokens)
    parts = tuple(zip(accumulate(corpus.parts), training.augment, strict=False))
    augmentation = Augmentation(corpus.directory, corpus.identity, augment, languages, training.seed, targets, parts)
    writer_index = accelerator.process_index - accelerator.local_process_index  # the first process of this machine
    directory = run / DIRECTORY / f"{artefact.HOST}-{writer_index}"
    texts = EpochTexts(corpus, augmentation, directory, accelerator.is_local_main_process)
    result = AugmentedCorpus(**vars(corpus), texts=texts)
    if step < training.steps:
        mixing = Mixing(result, count_steps(result, training.tokens_per_step), training)
        texts.first = mixing.locate(step)[0]
        texts.last = mixing.locate(training.steps - 1)[0]
    if accelerator.is_main_process:
        for part, each in zip(corpus.manifest.get("parts", []), training.augment, strict=False):
            say(f"augmenting {part['name']} in each epoch: {_shares(each)}")
        if not training.augment:
            say(f"augmenting the text in each epoch: {_shares(augment)}")
    on_all(accelerator, lambda: stack.enter_context(texts))
    return result


def _shares(augment: Augment) -> str:
    return ", ".join(f"{kind} {share:g}" for kind, share in augment.model_dump().items() if share) or "unchanged"


def remove_leftovers(run: Path) -> None:
    """Remove the augmented text that a killed run has left. The caller must hold the lock of the run."""
    for directory in (run / DIRECTORY).glob("*"):
        if directory.is_dir() and artefact.was_locked(directory):
            artefact.remove_tree(directory)


class EpochTexts(contextlib.AbstractContextManager["EpochTexts"]):
    """Opens the text of each epoch. If `is_writer` is true, a thread and worker processes also write the texts."""

    def __init__(self, plain: Corpus, augmentation: Augmentation, directory: Path, is_writer: bool) -> None:
        self.plain, self.augmentation, self.directory, self.is_writer = plain, augmentation, directory, is_writer
        self.first, self.last = 0, -1  # the first and the last epoch that this run still needs
        self._mutex = threading.Lock()  # two threads call `open`: one prepares batches, the other computes steps
        self._opened = dict[int, Corpus]()  # texts of the last two epochs
        self._written = dict[int, Future[None]]()
        self._closing = False
        self._thread = ThreadPoolExecutor(1)
        self._pool = Pool(min(MAX_WORKERS, max(2, usable_cores() // 2)))
        self._stack = contextlib.ExitStack()  # ends the worker processes, and releases the lock that `_wait` checks

    def __enter__(self) -> "EpochTexts":
        if self.is_writer:
            if self.directory.exists() and not artefact.was_locked(self.directory):
                raise OutputError(f"{self.directory} exists, but nmt did not create it. Move it elsewhere")
            artefact.remove_tree(self.directory)  # a killed run may have left it
            self._stack.enter_context(artefact.locked(self.directory, LOCK_NAME))
            self._stack.enter_context(self._pool)
            needed = EPOCHS_ON_DISK * self._megabytes()
            if (free := artefact.free_megabytes(self.directory)) < needed:
                self._remove()
                raise StorageError(
                    f"{self.directory} needs {needed} MB for augmented text and has {free} MB free. Free some space"
                )
            if self.first <= self.last:
                self._start_writing(self.first)
        return self

    def __exit__(self, *_: object) -> None:
        self._closing = True
        self._thread.shutdown(cancel_futures=True)
        if self.is_writer:
            self._remove()

    def _remove(self) -> None:
        self._stack.close()
        artefact.remove_tree(self.directory)
        # Remove the parents if they are empty: on all machines but the first, the run directory holds nothing else.
        for parent in (self.directory.parent, self.directory.parents[1]):
            with contextlib.suppress(OSError):
                parent.rmdir()

    def _megabytes(self) -> int:
        sides = self.plain.src, self.plain.tgt
        return 1 + int(sum(GROWTH * side.ids.nbytes + side.offsets.nbytes for side in sides) / 1e6)

    def _directory_of(self, number: int) -> Path:
        return self.directory / f"epoch-{number}"

    def open(self, number: int) -> Corpus:
        """Return the text of an epoch once it is written. Raise an NmtError if it cannot be written or is damaged."""
        if number > self.last:
            return self.plain  # for the batch that the training loop prepares after the last step, but never uses
        with self._mutex:
            if number not in self._opened:
                if self.is_writer:
                    self._start_writing(number).result()
                    if number < self.last:
                        self._start_writing(number + 1)
                else:
                    self._wait(number)
                previous = {key: text for key, text in self._opened.items() if key == number - 1}
                self._opened = {**previous, number: self._read(number)}
                self._remove_up_to(number - 2)  # other processes may still use the previous epoch
            return self._opened[number]

    def _start_writing(self, number: int) -> Future[None]:
        if number not in self._written:
            self._written[number] = self._thread.submit(self._write, number)
        return self._written[number]

    def _remove_up_to(self, last: int) -> None:
        """Remove the text of all epochs up to `last`."""
        for number in [each for each in self._written if each <= last]:
            del self._written[number]
            artefact.remove_tree(self._directory_of(number))

    def _write(self, number: int) -> None:
        manifest = self.plain.manifest
        sizes = {"src": int(manifest["source_vocabulary_size"]), "tgt": int(manifest["vocabulary_size"])}
        jobs = [(number, block) for block in range(-(-len(self.plain.src) // BLOCK))]
        target = self._directory_of(number)
        with (
            artefact.os_errors(self.directory),
            artefact.staged(target, KIND, {}, overwrite=True, own_name=True) as stage,
            contextlib.ExitStack() as stack,
        ):
            writers = [stack.enter_context(SideWriter(stage, name, size)) for name, size in sizes.items()]
            for sides in self._pool.map(partial(augment_block, self.augmentation), jobs):
                if self._closing:
                    raise StorageError("training ends")
                for writer, side in zip(writers, sides, strict=True):
                    writer.append(*side)

    def _wait(self, number: int) -> None:
        """Wait until the writer process has written an epoch. Raise StorageError if that process ends first."""
        while not (self._directory_of(number) / artefact.MANIFEST).is_file():
            with contextlib.suppress(BusyError), artefact.locked(self.directory, LOCK_NAME):
                raise StorageError("another process of this run does not respond. Run the same command again to resume")
            time.sleep(POLL_SECONDS)

    def _read(self, number: int) -> Corpus:
        directory = self._directory_of(number)
        try:
            artefact.verify(directory, KIND, content=self.is_writer)  # only one process per machine checks the hashes
            sizes = self.plain.manifest["source_vocabulary_size"], self.plain.manifest["vocabulary_size"]
            sides = [open_side(directory, name, int(size)) for name, size in zip(("src", "tgt"), sizes, strict=True)]
        except DataError as error:
            raise DataError(f"{error}. Run the same command again to resume and to write this text again") from None
        return dataclasses.replace(self.plain, src=sides[0], tgt=sides[1])
