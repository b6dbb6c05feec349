"""The CPU engine: a Transformer and its beam search in C, compiled during installation and called through ctypes.

It computes the same Transformer as `transformer/model.py`, and follows the search rules of `translation/search.py`.
Tests compare the engine with both for every model architecture and every option.

Why not PyTorch: one step of beam search takes about 220 PyTorch calls. For a small model and a short line of 14 steps,
the arithmetic takes one millisecond and the calls take forty. The engine needs at most one call per step. Importing
PyTorch would also take most of the time before the first translation.

Users need neither their own compiler nor further packages at run time: pip installs a C compiler, the package
`ziglang`, for the build only. `build.py` compiles the same source for several instruction sets, `dispatch.c` reports
which of them this CPU supports, and `library.py` chooses the fastest. ctypes releases the GIL, so threads can search in
parallel; they share the weights of a model.

`model.py` checks the shapes of weights against `layout.py` and passes them to the engine.
`translation/engine_backend.py` calls the search.
"""
