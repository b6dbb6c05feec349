"""When memory runs out, restart a search with fewer hypotheses at once."""

import math
from collections.abc import Callable

from nmt_cli.system.console import warn
from nmt_cli.system.errors import StorageError, is_out_of_memory
from nmt_cli.translation.queue import WorkerQueue

REDUCED_SEGMENTS = 1000  # segments to search with a reduced maximum before it is doubled


def search_within_memory(search: Callable[[WorkerQueue, int], None], queue: WorkerQueue, rows: int) -> None:
    """Run `search(queue, rows)`. If memory runs out, search the unfinished segments again with half the rows.

    `rows` is the maximum number of hypotheses at once. After REDUCED_SEGMENTS segments, a reduced maximum is doubled,
    up to `rows`. Raises StorageError if there is too little memory for one segment.
    """
    allowed = rows
    while True:
        queue.allowance = math.inf if allowed == rows else REDUCED_SEGMENTS
        try:
            search(queue, allowed)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
        else:
            if allowed == rows:
                return
            allowed = min(rows, 2 * allowed)
            continue
        allowed //= 2
        if allowed < queue.narrowest_beam:
            advice = "Lower --beam, or decoding.beam in a recipe"
            raise StorageError(f"there is too little memory to translate one sentence. {advice}")
        warn(f"out of memory: continuing with {allowed} hypotheses at once")
        queue.restart()
