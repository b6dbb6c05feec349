"""A worker process for files and long texts with markup. It reads calls and writes results, each as one line of JSON.

The server kills this process at a request's deadline. The process also ends when its standard input closes or the
server dies.
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
    for number in (signal.SIGINT, signal.SIGTERM):  # after such a signal, the server still needs this process
        signal.signal(number, signal.SIG_IGN)
    end_with_parent(os.getppid())
    limit_memory(MAX_MEMORY)
    for line in sys.stdin.buffer:
        sys.stdout.write(json.dumps(_answer(json.loads(line))) + "\n")
        sys.stdout.flush()


def _answer(call: dict[str, Any]) -> dict[str, Any]:
    """Return {"result": ...}, or {"refusal": reason} if the input is not in its format or takes too much memory."""
    fields = call["format"]
    text_format = TextFormat(**(fields | {"outline": Outline(**fields["outline"])}))
    try:
        if "file" in call:
            return {"result": _of_file(text_format, b64decode(call["file"]), call["results"])}
        if call["results"] is None:
            return {"result": units_of(text_format, call["texts"])}
        results = [[[Aligned(*unit) for unit in rank] for rank in ranks] for ranks in call["results"]]
        return {"result": assemble(text_format, call["texts"], results)}
    except DataError as error:
        return {"refusal": str(error)}
    except MemoryError:
        return {"refusal": "the text takes too much memory. Divide it"}


def _of_file(text_format: TextFormat, data: bytes, results: Any) -> Any:
    if results is None:
        return file_units(text_format, data)
    return b64encode(assemble_file(text_format, data, [Aligned(*unit) for unit in results])).decode()


if __name__ == "__main__":
    main()
