"""Run the `sacrebleu` command within a test, without a new interpreter."""

import json
import os
import signal
import sys
import tempfile
from types import SimpleNamespace
from typing import Any

import pytest
from sacrebleu.sacrebleu import main
from sacrebleu.utils import Color

signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # as Python does; the import above makes a broken pipe kill the process


def sacrebleu(*words: object) -> Any:
    """Return the JSON that `sacrebleu WORDS` prints. The command opens the file descriptors of its standard streams."""
    with tempfile.TemporaryFile() as output, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["sacrebleu", "--quiet", *map(str, words)])
        for name in ("stdin", "stdout"):
            patch.setattr(sys, name, SimpleNamespace(fileno=lambda: os.dup(output.fileno())))
        patch.setattr(Color, "ENABLE_COLORS", False)
        patch.setenv("NO_COLOR", "1")
        main()
        sys.stdin.close()
        sys.stdout.close()
        output.seek(0)
        return json.load(output)
