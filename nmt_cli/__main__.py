"""The entry point. It runs the command line, and reports errors and signals as one line and an exit code."""

import io
import os
import signal
import sys

from nmt_cli import TYPE_CHECKING
from nmt_cli.system import signals
from nmt_cli.system.errors import BROKEN_PIPE, INTERRUPTED, NmtError, StorageError, from_os_error, printable

if TYPE_CHECKING:
    from collections.abc import Callable


def _command() -> int:
    from nmt_cli.commands import app as cli

    return cli.run()


def _failure(error: NmtError | OSError | MemoryError) -> NmtError:
    if isinstance(error, MemoryError):
        return StorageError("there is too little memory. End other programs, or use a machine with more memory")
    return from_os_error(error) if isinstance(error, OSError) else error


def _exit_code(work: "Callable[[], int | None]") -> int:
    try:
        return work() or 0
    except BrokenPipeError:
        return BROKEN_PIPE
    except KeyboardInterrupt:
        return INTERRUPTED
    except SystemExit as stop:
        if isinstance(stop.__context__, BrokenPipeError):  # Typer turned the broken pipe into exit code 1
            return BROKEN_PIPE
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except Exception as error:
        if code := signals.received():  # a library has replaced the signal's exception with another error
            return code
        if not isinstance(error, NmtError | OSError | MemoryError):
            raise
        if os.environ.get("NMT_DEBUG"):
            import traceback

            traceback.print_exc()
        failure = _failure(error)
        command = next((word for word in sys.argv[1:] if not word.startswith("-")), "")
        if sys.stderr is not None:
            print(f"{printable(f'nmt {command}'.rstrip())}: error: {printable(failure, 600)}", file=sys.stderr)
        return failure.exit_code


def main() -> None:
    signals.install()  # before the slow imports
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # escape characters that the terminal cannot encode
            stream.reconfigure(errors="backslashreplace")
    code = _exit_code(_command)
    if code in signals.CODES.values() and sys.stderr is not None and os.environ.get("RANK", "0") == "0":
        print(printable(signals.message(code)), file=sys.stderr)
    if sys.stdout is not None:
        code = _exit_code(sys.stdout.flush) or code  # now, while a failure can still be reported
    for number in signals.CODES:  # the work is done, so a signal may end the process at once, with `code`
        signal.signal(number, lambda *_: os._exit(code))
    if code == BROKEN_PIPE:  # otherwise, the interpreter would flush stdout again and print an error
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    sys.exit(code)


if __name__ == "__main__":
    main()
