"""Helper threads that share large products with the threads that search."""

import threading

from nmt_cli.engine.library import Library


class Team:
    """Helpers for searches by `threads` threads, which together use at most `threads` cores.

    A product of a search is shared while fewer threads search. Results do not depend on it. The helpers end when the
    Team is garbage-collected.
    """

    def __init__(self, library: Library, threads: int) -> None:
        self.library = library
        self.handle = library.team_new(threads)
        if not self.handle:
            raise MemoryError
        for number in range(threads - 1):  # they may not refer to the Team
            arguments = self.handle, number
            threading.Thread(target=library.help, args=arguments, name=f"helper {number}", daemon=True).start()

    @property
    def helped(self) -> int:
        """Return the number of parts of products that helpers have computed."""
        return int(self.library.helped(self.handle))

    def __del__(self) -> None:
        if handle := getattr(self, "handle", None):
            self.library.team_close(handle)
