"""The CPU engine: a Transformer and its beam search in C, compiled during installation and called through ctypes.

It computes the same Transformer as `transformer/model.py`, and follows the search rules of `translation/search.py`.
Tests compare the engine with both for every model architecture and every option.

Why not PyTorch: one step of beam search takes about 220 calls. With a small model, the 14 steps of a short line take
one millisecond of arithmetic and forty milliseconds of calls. The engine needs one call per step. Importing PyTorch
would also take most of the time before the first translation.

Why C: pip installs the compiler, the package `ziglang`, for the build only. Users need no compiler of their own, and no
further packages at run time. `build.py` compiles the same source for several instruction sets, `dispatch.c` reports
which of them this CPU supports, and `library.py` opens the best one. ctypes releases the GIL, so threads share the
weights of a model while each runs its own search.

`model.py` passes weights to the engine and checks their shapes (`layout.py`). `translation/engine_backend.py` calls the
search. `engine.c` contains, in this order: vectors, products, attention, encoder and decoder, search, models.
"""
