"""What tests call in processes of the server. It imports little: those processes have no `__main__`."""

import os
import signal
import time
from pathlib import Path
from typing import Any


def sleep_and_tell(seconds: float, file: str) -> None:
    Path(file).write_text(str(os.getpid()))
    time.sleep(seconds)


def settings_of_process() -> tuple[int, Any]:
    return os.nice(0), signal.getsignal(signal.SIGINT)
