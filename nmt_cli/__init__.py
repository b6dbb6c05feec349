"""nmt: the Transformer of *Attention Is All You Need* as a command-line translation suite.

from nmt_cli import Translator

with Translator("runs/toy/model") as translator:
    for translation in translator.translate(["A dog runs."]):
        print(translation.text)
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nmt_cli.translation.translator import Translator

__version__ = "0.1.0"
__all__ = ["Translator", "__version__"]


def __getattr__(name: str) -> Any:
    """Import Translator, and torch with it, when it is first asked for."""
    if name != "Translator":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from nmt_cli.translation.translator import Translator

    return Translator
