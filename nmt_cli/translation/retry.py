"""Searches that begin again with fewer hypotheses at once where memory does not suffice."""

from collections.abc import Callable, Iterator

from nmt_cli.console import warn
from nmt_cli.errors import StorageError, is_out_of_memory
from nmt_cli.translation.segments import Feed, Results, Segment


def retried(search: Callable[[Feed, int], Results], segments: Feed, rows: int, least: int) -> Results:
    """Yield what `search(segments, rows)` yields; where memory does not suffice, begin the unfinished segments again
    with half the rows, down to `least`, then raise StorageError."""
    unfinished: dict[Segment, None] = {}  # in order

    def feed() -> Iterator[Segment | None]:
        yield from list(unfinished)
        for segment in segments:
            if segment is not None:
                unfinished[segment] = None
            yield segment

    while True:
        try:
            for results in search(feed(), rows):
                for segment in results:
                    del unfinished[segment]
                yield results
            return
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
        rows //= 2
        if rows < least:
            advice = "Lower --beam, in a recipe decoding.beam"
            raise StorageError(f"there is too little memory to translate one sentence. {advice}")
        warn(f"out of memory: going on with {rows} hypotheses at once")
