"""A signal requests a stop, and interrupts only work that can be repeated."""

import os
import signal
import time
import weakref
from types import ModuleType
from typing import Any

import pytest

from nmt_cli.training.stopping import SIGNALS, Interrupted, Stop


def test_a_signal_interrupts_only_interruptible_work() -> None:
    """Signals arrive before, within and after an interruptible block. A second one that follows at once is ignored."""
    handlers = [signal.getsignal(number) for number in SIGNALS]
    for number, code in ((signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGUSR1, 143)):
        with Stop() as stop:
            assert not stop.requested
            with stop.interruptible():
                pass
            os.kill(os.getpid(), number)  # raises nothing
            assert (stop.requested, stop.exit_code) == (True, code)
            with pytest.raises(Interrupted), stop.interruptible():
                pytest.fail("it began")
            os.kill(os.getpid(), signal.SIGTERM)
            assert stop.exit_code == code, "the code of the first signal"
        with Stop() as stop:
            with pytest.raises(Interrupted), stop.interruptible():  # noqa: PT012
                os.kill(os.getpid(), number)
                pytest.fail("the work continued")
            assert (stop.requested, stop.exit_code) == (True, code)
            os.kill(os.getpid(), number)
        with Stop() as stop:
            with pytest.raises(KeyError), stop.interruptible():
                raise KeyError
            os.kill(os.getpid(), number)
            assert stop.requested
        assert [signal.getsignal(each) for each in SIGNALS] == handlers


def test_a_signal_during_a_callback_of_an_import_is_not_lost() -> None:
    """Python prints and drops exceptions of weak references' callbacks, such as those of the locks of modules."""
    names = dict[str, Any](os=os, signal=signal)
    source = "def signal_itself(_):\n    os.kill(os.getpid(), signal.SIGTERM)\n    return None"
    exec(compile(source, "<frozen importlib._bootstrap>", "exec"), names)
    with Stop() as stop:
        with pytest.raises(Interrupted), stop.interruptible():  # noqa: PT012
            module = ModuleType("temporary")
            watched = weakref.ref(module, names["signal_itself"])
            del module
            assert watched() is None
            time.sleep(10)
        assert stop.exit_code == SIGNALS[signal.SIGTERM]
