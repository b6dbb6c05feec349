"""Translators with fake searches, and the translate command run within a test."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny_model import content, memory_file

from nmt_cli import Translator
from nmt_cli.corpus.tokenizer import EOS
from nmt_cli.system.console import Progress
from nmt_cli.translation import backends
from nmt_cli.translation.options import SearchOptions
from nmt_cli.translation.queue import Backend, Search, WorkerQueue
from nmt_cli.translation.segments import Hypothesis, Segment
from nmt_cli.translation.translate import TranslateOptions, translate_lines


def translator_by(model: Path, search: Search) -> Translator:
    """Return a Translator that searches with `search`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backends, "choose", lambda *_: Backend([search], "a test's"))
        return Translator(model)


def one_by_one(find: Callable[[Segment], list[Hypothesis]]) -> Search:
    """Return a search that gives each segment the hypotheses `find(segment)`."""

    def search(queue: WorkerQueue) -> None:
        while taken := queue.take(0, 0, 1):
            taken[0].hypotheses = find(taken[0])
            queue.finish(taken)

    return search


def one_at_a_time(found: Callable[[Segment], list[int]]) -> Search:
    """Return a search that gives each segment one hypothesis with the ids `found(segment)`, at -1 for each token."""

    def find(segment: Segment) -> list[Hypothesis]:
        steps = [-1.0] * (len(ids := found(segment)) + 1)
        return [Hypothesis(ids, sum(steps), -1.0, steps)]

    return one_by_one(find)


def parts_of(translation: Any) -> list[tuple[list[int], list[int]]]:
    """Return the source and target ids of each segment of a translation. Both end with EOS."""
    return [(segment.ids, [*segment.hypotheses[0].ids, EOS]) for segment in translation.segments]


def run(translator: Translator, data: bytes, **options: Any) -> bytes:
    """Return the output of the command for these bytes."""
    source, target = memory_file(data), memory_file()
    translator.counts.clear()
    own = {name: options.pop(name) for name in ("prefix", "format", "strict") if name in options}
    with Progress("translating", None, "lines") as progress:
        translate_lines(translator, TranslateOptions(search=SearchOptions(**options), **own), source, target, progress)
    os.close(source)
    return content(target)


def records(data: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in data.decode().split("\n")[:-1]]
