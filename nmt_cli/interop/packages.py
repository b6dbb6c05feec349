"""Import the optional packages of the extra `export`."""

import importlib
import warnings
from typing import Any

from nmt_cli.system.errors import UsageError


def import_package(name: str) -> Any:
    """Import a module, or raise UsageError with the command that installs it.

    When transformers is imported, silence its log and its progress bars.
    """
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise UsageError(f'the package {error.name} is missing. Install it: pip install "nmt-cli[export]"') from None
    if name == "transformers":
        module.logging.set_verbosity_error()
        module.logging.disable_progress_bar()
        warnings.filterwarnings("ignore", message="Recommended: pip install sacremoses")
    return module
