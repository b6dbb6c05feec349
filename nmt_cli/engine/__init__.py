"""Search on a CPU without torch: the model and its search in C, compiled when nmt is installed, called by ctypes.

Why not torch: a step of beam search is some 220 of its calls. Alone, a line of a small model takes 14 steps; the
arithmetic of them takes a millisecond, the calls forty. So a step has to be one call, and then importing torch, most of
the time to a first translation, is not needed either.

Why C, compiled at the install: `ziglang` is a C compiler that pip brings for the time of a build, so users need none
and nothing new at run time (`build.py`). The same source is compiled for several instruction sets; `dispatch.c` says
which of them this CPU can run, `library.py` opens one. ctypes releases the GIL: threads share a model's weights, and
each has a search of its own.

It computes what `transformer/model.py` computes, and searches as `translation/search.py` describes: tests compare the
two on every shape of a model and every option. `model.py` maps weights and checks their shapes, `engine.c` has the
rest, in this order: vectors, products, attention, encoder and decoder, search, models. `translation/engine_backend.py`
calls its search.
"""
