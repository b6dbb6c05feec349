"""The Transformer of *Attention Is All You Need*: a command line, and `from nmt_cli import Translator`."""

import os

TYPE_CHECKING = False  # type checkers know the name; the import of typing would delay the handling of signals
if TYPE_CHECKING:
    from nmt_cli.corpus.terms import Terms
    from nmt_cli.translation.options import Sampling
    from nmt_cli.translation.translator import Translator

__version__ = "1.0.0"
__all__ = ["Sampling", "Terms", "Translator", "__version__"]

# oneDNN and torch's layer above it each keep kernels for 1,024 shapes by default, so memory on CPUs would creep up.
for _capacity in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
    os.environ.setdefault(_capacity, "32")
os.environ.setdefault(
    "TORCHINDUCTOR_MIX_ORDER_REDUCTION", "0"
)  # it computes wrong gradients silently (pytorch issue 193061)


def __getattr__(name: str) -> object:
    if name not in ("Sampling", "Terms", "Translator"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from nmt_cli.translation import translator

    return getattr(translator, name)
