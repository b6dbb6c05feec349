"""A worker process that parses and assembles files, and long texts with markup, placeholders or words to keep.

It reads calls of `Workers` from stdin and writes results to stdout. Each call and each result is one line of JSON. The
server kills this process when it cancels a call, for example at a request's deadline. The process also ends when its
stdin closes or the server dies.
"""

import json
import os
import signal
import sys
from base64 import b64decode, b64encode
from typing import Any

from nmt_cli.documents.document import Outline
from nmt_cli.documents.placement import Aligned
from nmt_cli.serving.texts import TextFormat, assemble, assemble_file, file_units, units_of
from nmt_cli.system.child_processes import end_with_parent
from nmt_cli.system.errors import DataError
from nmt_cli.system.operating_system import limit_memory

NICE = 5  # lower priority than search and the event loop
MAX_MEMORY = 1 << 30  # bytes


def main() -> None:
    os.nice(NICE)
    # After these signals, the server finishes pending requests, and this process must still serve them.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    end_with_parent(os.getppid())
    limit_memory(MAX_MEMORY)
    for line in sys.stdin.buffer:
        sys.stdout.write(json.dumps(_answer(json.loads(line))) + "\n")
        sys.stdout.flush()


def _answer(call: dict[str, Any]) -> dict[str, Any]:
    """Return {"result": ...}, or {"refusal": reason} if the input is not in its format or needs too much memory."""
    fields = call["format"]
    text_format = TextFormat(**(fields | {"outline": Outline(**fields["outline"])}))
    try:
        if "file" in call:
            return {"result": _of_file(text_format, b64decode(call["file"]), call["results"])}
        if call["results"] is None:
            return {"result": units_of(text_format, call["texts"])}
        results = [
            [[Aligned(*unit) for unit in candidate] for candidate in candidates] for candidates in call["results"]
        ]
        return {"result": assemble(text_format, call["texts"], results)}
    except DataError as error:
        return {"refusal": str(error)}
    except MemoryError:
        return {"refusal": "the input needs too much memory. Split it into smaller parts"}


def _of_file(text_format: TextFormat, data: bytes, results: Any) -> Any:
    if results is None:
        return file_units(text_format, data)
    return b64encode(assemble_file(text_format, data, [Aligned(*unit) for unit in results])).decode()


if __name__ == "__main__":
    main()
