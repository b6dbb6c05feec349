"""The Transformer of *Attention Is All You Need*: a command line, and a Python API, `nmt_cli.Translator`."""

import os

TYPE_CHECKING = False  # true for type checkers; importing typing would delay signal handling
if TYPE_CHECKING:
    from nmt_cli.corpus.terms import Terms
    from nmt_cli.translation.options import Sampling
    from nmt_cli.translation.translator import Translator

__version__ = "1.0.0"
__all__ = ["Sampling", "Terms", "Translator", "__version__"]

# oneDNN and PyTorch cache a kernel for each shape. With their default limit of 1,024 shapes, memory use on CPUs would
# keep growing.
for _capacity in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
    os.environ.setdefault(_capacity, "32")
# Turn off an optimization of TorchInductor that silently computes wrong gradients (PyTorch issue 193061).
os.environ.setdefault("TORCHINDUCTOR_MIX_ORDER_REDUCTION", "0")


def __getattr__(name: str) -> object:
    if name not in ("Sampling", "Terms", "Translator"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from nmt_cli.translation import translator

    return getattr(translator, name)
