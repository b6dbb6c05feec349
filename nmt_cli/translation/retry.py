"""Searches that begin again with fewer hypotheses at once where memory does not suffice."""

import math
from collections.abc import Callable, Iterator

from nmt_cli.system.console import warn
from nmt_cli.system.errors import StorageError, is_out_of_memory
from nmt_cli.translation.segments import Feed, Results, Segment

AGAIN = 1000  # segments that are searched with fewer hypotheses at once, before twice as many are tried
_END = Segment([])


def retried(search: Callable[[Feed, int], Results], segments: Feed, rows: int, least: int) -> Results:
    """Yield what `search(segments, rows)` yields; where memory does not suffice, begin the unfinished segments again
    with half the rows, down to `least`, then raise StorageError. After AGAIN segments the rows are doubled again."""
    unfinished: dict[Segment, None] = {}  # in order
    all_rows, ended = rows, False

    def feed(most: float) -> Iterator[Segment | None]:
        nonlocal ended
        yield from list(unfinished)
        while most > 0 and not ended:
            segment = next(segments, _END)
            if segment is _END:
                ended = True
                return
            if segment is not None:
                unfinished[segment] = None
                most -= 1
            yield segment

    while not ended or unfinished:
        try:
            for results in search(feed(math.inf if rows == all_rows else AGAIN), rows):
                for segment in results:
                    del unfinished[segment]
                yield results
            rows = min(all_rows, 2 * rows)
            continue
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
        rows //= 2
        if rows < least:
            advice = "Lower --beam, in a recipe decoding.beam"
            raise StorageError(f"there is too little memory to translate one sentence. {advice}")
        warn(f"out of memory: going on with {rows} hypotheses at once")
