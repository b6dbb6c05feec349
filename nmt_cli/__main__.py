"""The entry point: runs the command line and turns errors into one line and an exit code."""

import os
import signal
import sys
from types import FrameType

from nmt_cli.errors import BROKEN_PIPE, INTERRUPTED, TERMINATED, NmtError, from_os_error, printable


class _Terminated(BaseException):
    """SIGTERM, raised so that temporary files are removed on the way out."""


def _terminate(_number: int, _frame: FrameType | None) -> None:
    raise _Terminated


def _fail(error: Exception, code: int) -> int:
    if os.environ.get("NMT_DEBUG"):
        import traceback

        traceback.print_exc()
    command = next((word for word in sys.argv[1:] if not word.startswith("-")), "")
    if sys.stderr is not None:
        print(f"nmt {command}".rstrip() + f": error: {printable(error, 600)}", file=sys.stderr)
    return code


def main() -> None:
    """Run `nmt` and exit with its code."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    signal.signal(signal.SIGTERM, _terminate)
    code = 0
    try:
        from nmt_cli.cli import app

        app(prog_name="nmt")
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else 0
    except NmtError as error:
        code = _fail(error, error.exit_code)
    except BrokenPipeError:
        code = BROKEN_PIPE
    except OSError as error:
        known = from_os_error(error)
        code = _fail(known, known.exit_code)
    except KeyboardInterrupt:
        code = INTERRUPTED
    except _Terminated:
        code = TERMINATED
    code = _flush(code)
    if code == BROKEN_PIPE:  # the interpreter would flush again and complain
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    sys.exit(code)


def _flush(code: int) -> int:
    """Flush stdout while a failure can still be reported; afterwards the interpreter has nothing left to write."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        code = BROKEN_PIPE
    except OSError as error:
        known = from_os_error(error)
        code = _fail(known, known.exit_code)
    return code


if __name__ == "__main__":
    main()
