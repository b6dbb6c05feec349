"""Choose the sentences of each epoch, and their order.

By default, an epoch contains each sentence of the corpus exactly once. With weights or a temperature, it is a mix of
the parts of the corpus. The mix depends only on the corpus, the recipe and the seed. Within a stage of the recipe,
no sentence of a part is repeated before all sentences of that part have been used, even if that takes several epochs.
A small part may be used several times in one epoch. Arrays of "sentences" contain the indices of sentence pairs.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from nmt_cli.corpus.store import BLOCK, Corpus, Lengths
from nmt_cli.recipe import schema
from nmt_cli.system.console import counted
from nmt_cli.system.errors import UsageError

Numbers = npt.NDArray[Any]  # sentence numbers, in uint32 or int64
LARGE = 1 << 28  # longer arrays are shuffled in buckets, because each swap of a plain shuffle would miss the cache
BUCKETS = 1024


@dataclass(frozen=True)
class Stage:
    """A range of steps in which each part of the corpus keeps its share of the tokens."""

    first_step: int  # from 0
    first_epoch: int  # from 0; a stage continues the numbering of the previous stage
    shares: tuple[float, ...]  # each part's share of the tokens; () if an epoch contains every sentence once


class Mixing:
    """Assigns steps to epochs, and chooses the sentences of each epoch."""

    def __init__(self, corpus: Corpus, steps_per_epoch: int, training: schema.Training) -> None:
        self.seed = training.seed
        self.steps_per_epoch = steps_per_epoch
        self.pairs = corpus.parts
        bounds = np.cumsum([0, *self.pairs])
        self.starts = bounds[:-1]
        tokens = corpus.src.offsets[bounds] + corpus.tgt.offsets[bounds]
        self.tokens = np.diff(tokens).astype(float)
        plan = [(0, training.weights), *((stage.from_step, stage.weights) for stage in training.stages)]
        self.stages = list[Stage]()
        epochs = 0
        for number, (first_step, weights) in enumerate(plan):
            setting = f"training.stages[{number - 1}].weights" if number else "training.weights"
            self.stages.append(Stage(first_step, epochs, self._shares(weights, training.temperature, setting)))
            if number + 1 < len(plan):
                epochs += -(-(plan[number + 1][0] - first_step) // steps_per_epoch)

    def _shares(self, weights: Sequence[float], temperature: float, setting: str) -> tuple[float, ...]:
        if not weights and temperature == 1:
            return ()
        if weights and len(weights) != len(self.pairs):
            known = f"the corpus has {counted(len(self.pairs), 'part')}. Set one per part, in the order of the manifest"
            raise UsageError(f"{setting} has {counted(len(weights), 'number')}, but {known}")
        amounts = np.array(weights) if weights else self.tokens ** (1 / temperature)
        amounts = np.where(self.tokens > 0, amounts, 0)
        if not amounts.sum():
            raise UsageError(f"{setting} selects no text. Set a weight above 0 for a part of the corpus")
        return tuple(float(amount) for amount in amounts / amounts.sum())

    def locate(self, step: int) -> tuple[int, int]:
        """Return the epoch of a step, and the number of the step in this epoch. All numbers are counted from 0."""
        stage = self._stage_of_step(step)
        epoch, rest = divmod(step - stage.first_step, self.steps_per_epoch)
        return stage.first_epoch + epoch, rest

    def is_weighted(self, epoch: int) -> bool:
        """Return whether an epoch is a weighted mix. If not, it contains every sentence once."""
        return bool(self.stages[self._stage_number(epoch)].shares)

    def order(self, epoch: int) -> Numbers:
        """Return the sentences of an epoch in random order."""
        number = self._stage_number(epoch)
        stage = self.stages[number]
        if not stage.shares:
            return shuffled(self._random(epoch), sum(self.pairs))
        within = epoch - stage.first_epoch
        drawn = [self._part(part, share, number, within) for part, share in enumerate(stage.shares) if share]
        return self._random(epoch).permutation(np.concatenate(drawn))

    def _part(self, part: int, share: float, stage: int, epoch: int) -> Lengths:
        """Return the sentences that an epoch of a stage takes from a part. Begin where the previous epoch stopped.

        `epoch` is counted from the start of the stage. Each pass over the part takes its sentences in a new order.
        """
        count = self.pairs[part]
        per_epoch = share * self.tokens.sum() / self.tokens[part] * count
        first, end = int(epoch * per_epoch), int((epoch + 1) * per_epoch)
        passes = range(first // count, -(-end // count))
        orders = [self._random(stage, part, number, 1).permutation(count) for number in passes]
        drawn = np.concatenate(orders or [np.empty(0, np.int64)])[first - first // count * count :][: end - first]
        sentences: Lengths = drawn + self.starts[part]
        return sentences

    def _stage_number(self, epoch: int) -> int:
        return max(i for i, stage in enumerate(self.stages) if stage.first_epoch <= epoch)

    def _stage_of_step(self, step: int) -> Stage:
        return max((stage for stage in self.stages if stage.first_step <= step), key=lambda stage: stage.first_step)

    def _random(self, *key: int) -> np.random.Generator:
        return np.random.Generator(np.random.Philox([self.seed, *key]))


def shuffled(random: np.random.Generator, count: int) -> Numbers:
    """Return the numbers below `count` in random order, as uint32 if possible."""
    kind = np.uint32 if count <= 1 << 32 else np.int64
    numbers: Numbers
    if count <= LARGE:
        numbers = np.arange(count, dtype=kind)
        random.shuffle(numbers)
        return numbers
    # Put each number into a random bucket. Then shuffle each bucket: a bucket fits into the processor's cache.
    numbers = np.empty(count, kind)
    buckets = random.integers(0, BUCKETS, count, np.uint16)
    blocks = [slice(first, first + BLOCK) for first in range(0, count, BLOCK)]
    sizes = np.array([np.bincount(buckets[block], minlength=BUCKETS) for block in blocks])
    ends = np.cumsum(sizes.sum(0))
    positions = ends - sizes.sum(0)  # where the next number of each bucket goes
    for block, of_block in zip(blocks, sizes, strict=True):
        by_bucket = np.split(np.argsort(buckets[block], kind="stable"), np.cumsum(of_block)[:-1])
        for bucket, found in enumerate(by_bucket):
            numbers[positions[bucket] : positions[bucket] + len(found)] = found + block.start
        positions += of_block
    for start, end in itertools.pairwise([0, *ends.tolist()]):
        random.shuffle(numbers[start:end])
    return numbers
