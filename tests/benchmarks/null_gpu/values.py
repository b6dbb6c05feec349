"""Check the values that generated kernels compute: the loss and gradients of a small model on the null GPU.

Triton's interpreter runs Triton's kernels, and torch runs all other operations on the CPU, in the same memory.

    eval "$(PYTHON device.py PYTHON)"; TRITON_INTERPRET=1 PYTHONPATH=. PYTHON tests/benchmarks/null_gpu/values.py

Prints the relative differences of the loss and of each gradient from the same model in float64 on the CPU.
"""

import copy
import ctypes
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
import triton.language as tl
from steps import ROOT
from torch import Tensor
from torch._inductor.constant_folding import ConstantFolder
from torch._inductor.output_code import CompiledFxGraph
from torch._inductor.runtime.triton_helpers import libdevice
from torch._inductor.runtime.triton_heuristics import CachingAutotuner
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_map_only
from triton.runtime import interpreter

sys.path.append(str(ROOT / "tests" / "helpers"))
from reference import batch_of, random_model, random_pairs, tiny
from varlen import varlen, varlen_backward

from nmt_cli.training import loss as loss_module
from nmt_cli.training.loss import LossModel
from nmt_cli.transformer import attention, hardware
from nmt_cli.transformer import model as model_module

V = 100
LENGTHS = [(1, 1), (9, 12), (30, 25), (30, 30), (5, 2)]
NATIVE = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "detach", "record_stream"}
EMPTY = ctypes.create_string_buffer(16)


def on_host(x: Tensor) -> Tensor:
    """Return a CPU tensor that shares the memory of `x`."""
    if not x.is_cuda:
        return x
    extent = 1 + sum((n - 1) * step for n, step in zip(x.shape, x.stride(), strict=True)) if x.numel() else 0
    memory = (ctypes.c_char * max(1, extent * x.element_size())).from_address(x.data_ptr() or ctypes.addressof(EMPTY))
    flat = torch.frombuffer(memory, dtype=torch.uint8)[: extent * x.element_size()].view(x.dtype)
    return flat.as_strided(x.shape, x.stride())


def on_device(x: Tensor) -> Tensor:
    moved = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="cuda")
    on_host(moved).copy_(x)
    return moved


ATTENTION = {"_varlen_attn": varlen, "_varlen_attn_backward": varlen_backward}


class OnHost(TorchDispatchMode):
    """Computes all operations on CUDA tensors on the CPU, in the memory of those tensors."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, kwargs = function.overloadpacket.__name__, dict(kwargs or {})
        device = kwargs.get("device")
        made_on_gpu = device is not None and torch.device(device).type == "cuda"
        to_host = device is not None and not made_on_gpu
        given = [x for x in torch.utils._pytree.tree_leaves((args, kwargs)) if isinstance(x, Tensor) and x.is_cuda]
        if name in NATIVE or function.is_view or to_host or not (given or made_on_gpu):
            return function(*args, **kwargs)
        if made_on_gpu:
            kwargs["device"] = torch.device("cpu")
        aliases: dict[int, Tensor] = {}

        def alias(x: Tensor) -> Tensor:
            host = on_host(x)
            aliases[id(host)] = x
            return host

        host_args, host_kwargs = tree_map_only(Tensor, alias, (args, kwargs))
        with _disable_current_modes():
            result = ATTENTION.get(name, function)(*host_args, **host_kwargs)
            return tree_map_only(Tensor, lambda y: aliases.get(id(y)) if id(y) in aliases else on_device(y), result)


def allow_new_numpy() -> None:
    """Let Triton's interpreter use arrays of one element as integers, which NumPy 2.4 no longer allows."""
    patch = interpreter._patch_lang_tensor

    def patched(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patched


def allow_products_in_bf16() -> None:
    """Let Triton's interpreter multiply bf16 matrices. It stores bf16 as integers, and would multiply these."""
    product = interpreter.InterpreterBuilder.create_dot

    def in_float32(self: Any, a: Any, b: Any, *rest: Any) -> Any:
        wide = (self.create_fp_ext(x, tl.float32) if x.dtype.scalar == tl.bfloat16 else x for x in (a, b))
        return product(self, *wide, *rest)

    interpreter.InterpreterBuilder.create_dot = in_float32


def triton_math(name: str, x: Any) -> Any:
    return getattr(tl.math, name)(x)


def interpret() -> None:
    """Let compiled code run its Triton kernels in the interpreter and its other operations on the host."""
    launch, graph, compiled = CachingAutotuner.run, CompiledFxGraph.__call__, model_module.compiled
    fold = ConstantFolder.run

    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        with _disable_current_modes():
            return launch(self, *(on_host(x) if isinstance(x, Tensor) else x for x in args), **kwargs)

    def call(self: Any, inputs: Any) -> Any:
        with OnHost():
            return graph(self, inputs)

    def without_modes(function: Any, device: torch.device, eager: Any) -> Callable[..., Any]:
        chosen = compiled(function, device, eager)

        def called(*args: Any) -> Any:
            with _disable_current_modes():
                return chosen(*args)

        return eager if chosen is eager else called

    def folded(
        self: Any, *args: Any, **kwargs: Any
    ) -> Any:  # the compiler reads the results of operations on constants
        with OnHost():
            return fold(self, *args, **kwargs)

    allow_new_numpy()
    allow_products_in_bf16()
    for name in ("rsqrt", "exp", "log", "erf"):  # the interpreter has Triton's functions, not NVIDIA's
        setattr(libdevice, name, partial(triton_math, name))
    CachingAutotuner.run, CompiledFxGraph.__call__, ConstantFolder.run = run, call, folded
    for module in (model_module, loss_module):
        module.compiled = without_modes


def computed(model: LossModel, device: str) -> list[Tensor]:
    pairs = random_pairs(2, V, LENGTHS)
    if device == "cuda":
        pairs += [([0] * 3, [0] * 5), ([0] * 4, [0])]  # padding pairs, which do not count
    batch = batch_of(pairs, device, (1,), np.arange(len(pairs)))
    loss, nll = model(batch)
    gradients = torch.autograd.grad(loss, [*model.parameters()])
    return [loss.detach().view(1), nll.detach().view(1), *gradients]


def main() -> None:
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[sys.argv[1] if len(sys.argv) > 1 else "fp32"]
    model = random_model(tiny(d_model=64, d_ff=96, d_k=16, d_v=16, dropout=0.2), V)
    exact = computed(LossModel(copy.deepcopy(model), 0.1, torch.float64), "cpu")
    for module in (attention, model_module):
        module.has_kernel = lambda *_: True  # so that float32 uses the same code
    ours = LossModel(copy.deepcopy(model).float(), 0.1, dtype).to("cuda")
    assert hardware.can_compile(torch.device("cuda", 0))
    interpret()
    with OnHost():
        found = computed(ours, "cuda")
    names = ["loss", "nll", *(name for name, _ in ours.named_parameters())]
    largest = 0.0
    for name, a, b in zip(names, found, exact, strict=True):
        difference = float((on_host(a).double() - b).norm() / b.norm())
        largest = max(largest, difference)
        print(f"{difference:.1e}  {name}")
    print(f"{largest:.1e}  largest of {len(names)}")


if __name__ == "__main__":
    main()
