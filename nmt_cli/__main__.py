"""The entry point: runs the command line and turns errors into one line and an exit code."""

import os
import signal
import sys
import traceback
from collections.abc import Callable

from nmt_cli.errors import BROKEN_PIPE, INTERRUPTED, TERMINATED, NmtError, from_os_error, printable


def _command() -> int:
    from nmt_cli import cli

    return cli.run()


def _exit_code(work: Callable[[], int | None]) -> int:
    try:
        return work() or 0
    except BrokenPipeError:
        return BROKEN_PIPE
    except KeyboardInterrupt:
        return INTERRUPTED
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except (NmtError, OSError) as error:
        if os.environ.get("NMT_DEBUG"):
            traceback.print_exc()
        failure = from_os_error(error) if isinstance(error, OSError) else error
        command = next((word for word in sys.argv[1:] if not word.startswith("-")), "")
        if sys.stderr is not None:
            print(f"nmt {command}".rstrip() + f": error: {printable(failure, 600)}", file=sys.stderr)
        return failure.exit_code


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))  # temporary files are removed on the way out
    code = _exit_code(_command)
    if sys.stdout is not None:
        code = _exit_code(sys.stdout.flush) or code  # while a failure can still be reported
    if code == BROKEN_PIPE:  # the interpreter would flush again and complain
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    sys.exit(code)


if __name__ == "__main__":
    main()
