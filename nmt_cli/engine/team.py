"""Helper threads that compute parts of large matrix products for the threads that search."""

import threading

from nmt_cli.engine.library import Library


class Team:
    """Helpers for searches in up to `threads` threads. Searches and helpers together use at most `threads` cores.

    While some of the threads do not search, helpers compute parts of the other threads' products. This does not change
    the results. The helpers end when the Team is garbage-collected.
    """

    def __init__(self, library: Library, threads: int) -> None:
        self.library = library
        self.handle = library.team_new(threads)
        if not self.handle:
            raise MemoryError
        for number in range(threads - 1):  # pass no reference to the Team, or it would never be garbage-collected
            arguments = self.handle, number
            threading.Thread(target=library.help, args=arguments, name=f"helper {number}", daemon=True).start()

    def expect_search(self) -> None:
        """Leave a core to a search that another thread is about to begin."""
        self.library.expect_search(self.handle)

    @property
    def helped(self) -> int:
        """The number of parts of products that helpers have computed."""
        return int(self.library.helped(self.handle))

    def __del__(self) -> None:
        if handle := getattr(self, "handle", None):
            self.library.team_close(handle)
