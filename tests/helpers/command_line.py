"""Names for tests of the command line."""

from collections.abc import Callable

COMMANDS = ["prepare", "train", "average-checkpoints", "translate", "serve", "reproduce", "score", "report", "doctor"]
COMMANDS += ["attend", "export", "import", "recipes", "env"]

Nmt = Callable[..., tuple[int, str, str]]  # runs `nmt WORDS` and returns its exit code, stdout and stderr
