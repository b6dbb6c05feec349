"""The Transformer of *Attention Is All You Need*: a command line, and `from nmt_cli import Translator`."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nmt_cli.translation.translator import Translator

__version__ = "0.1.0"
__all__ = ["Translator", "__version__"]


def __getattr__(name: str) -> Any:
    if name != "Translator":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from nmt_cli.translation import translator  # and torch with it

    return translator.Translator
