"""Run the command line within a test, without a new interpreter."""

import contextlib
import io
import signal
import sys

import pytest

from nmt_cli import __main__
from nmt_cli.system import signals


def run_nmt(*words: object) -> tuple[int, str, str]:
    """Run nmt in this process; return its exit code, stdout and stderr."""
    handlers = {number: signal.getsignal(number) for number in signals.CODES}
    stdout, stderr = io.StringIO(), io.StringIO()
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", ["nmt", *map(str, words)])
            with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
                with pytest.raises(SystemExit) as caught:
                    __main__.main()
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    assert "Traceback" not in stderr.getvalue()
    return int(str(caught.value.code)), stdout.getvalue(), stderr.getvalue()
