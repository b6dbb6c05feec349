"""A process of the server that parses and writes texts with markup: one JSON line in and one out for each call.

The server kills it at a request's deadline. It ends with its standard input, or when the server is killed.
"""

import ctypes
import json
import os
import resource
import signal
import sys
from typing import Any

from nmt_cli.documents.placement import Aligned
from nmt_cli.documents.xml import Outline
from nmt_cli.serving.texts import Form, units_of, write
from nmt_cli.system.errors import DataError

NICE = 5  # searches and the event loop go before these processes
MOST_BYTES = 1 << 30
PR_SET_PDEATHSIG = 1


def main() -> None:
    os.nice(NICE)
    for number in (signal.SIGINT, signal.SIGTERM):  # of a whole group: the server finishes its requests first
        signal.signal(number, signal.SIG_IGN)
    if prctl := getattr(ctypes.CDLL(None), "prctl", None):
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    most = MOST_BYTES if hard == resource.RLIM_INFINITY else min(MOST_BYTES, hard)
    resource.setrlimit(resource.RLIMIT_AS, (most, hard))
    for line in sys.stdin.buffer:
        sys.stdout.write(json.dumps(_answer(json.loads(line))) + "\n")
        sys.stdout.flush()


def _answer(call: dict[str, Any]) -> dict[str, Any]:
    """Return {"result": ...}, or {"refusal": why}."""
    form = Form(**(call["form"] | {"outline": Outline(**call["form"]["outline"])}))
    try:
        if call["found"] is None:
            return {"result": units_of(form, call["texts"])}
        found = [[[Aligned(*unit) for unit in rank] for rank in ranks] for ranks in call["found"]]
        return {"result": write(form, call["texts"], found)}
    except DataError as error:
        return {"refusal": str(error)}
    except MemoryError:
        return {"refusal": "it takes too much memory. Divide the text"}


if __name__ == "__main__":
    main()
