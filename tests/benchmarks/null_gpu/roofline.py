"""Estimate a training step's minimum time on a GPU from the launches, bytes and operations that the null GPU counts.

    eval "$(PYTHON device.py PYTHON)"; PYTHONPATH=. PYTHON tests/benchmarks/null_gpu/roofline.py base --gpu h100

The bytes of a generated kernel are those of its tensor arguments; in-place arguments count twice. The bytes of torch's
own operations are those of their arguments and results, and the bytes of matrix products those of cuBLAS's arguments.
The operations of attention are those of whole tiles of 128 x 128, because flash attention computes whole tiles. The
last line has attention's operations on the tokens alone.
"""

import argparse
import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import triton
from device import Counters
from nmt import choose_compiler
from steps import ROOT, kernels_of, random_corpus
from torch._inductor.runtime.triton_heuristics import CachingAutotuner
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from nmt_cli.recipe import loading, schema
from nmt_cli.training import loss
from nmt_cli.training.accelerator import make_accelerator
from nmt_cli.training.trainer import start_trainer
from nmt_cli.transformer import model
from nmt_cli.transformer.model import Batch

# bf16 operations and bytes per second of large products and copies: measured on the H100 (SXM, 80 GB) and the H200,
# 85 % of the data sheet for the A100 (SXM, 40 GB).
GPUS = {"h100": (798e12, 3.0e12), "h200": (790e12, 4.3e12), "a100": (265e12, 1.32e12)}
LAUNCH = 2e-6  # seconds on the device for the shortest kernel
TILE = 128
PRODUCTS = {"mm", "addmm", "bmm", "baddbmm"}  # counted by cuBLAS
FREE = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "detach", "record_stream"}


class Ledger:
    """Counts of bytes and launches for each part of the step, and the bytes of each kernel launch."""

    def __init__(self) -> None:
        self.bytes: Counter[str] = Counter()
        self.launches: Counter[str] = Counter()
        self.kernels: dict[str, list[int]] = {}

    def add(self, part: str, size: int) -> None:
        self.bytes[part] += size
        self.launches[part] += 1


def size_of(value: Any) -> int:
    if isinstance(value, torch.Tensor):
        return value.numel() * value.element_size() if value.is_cuda else 0
    return sum(map(size_of, value)) if isinstance(value, list | tuple) else 0


class Operations(TorchDispatchMode):
    """Counts the bytes of torch's own operations outside compiled layers."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__()
        self.ledger = ledger

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        name = function.overloadpacket.__name__
        if name in PRODUCTS | FREE or "attn" in name or "attention" in name or function.is_view:
            return result
        size = size_of(result)
        if name in ("embedding", "index_select", "gather"):
            size *= 2  # reads as many bytes of the table as it writes
        elif name.endswith("_") and size_of(result) == 0:  # updates lists of tensors in place
            size = size_of(args) * 7 // 4 if "adam" in name else 2 * size_of(args)  # Adam writes all but the gradient
        else:
            size += size_of(args)
        if "adam" in name or "foreach" in name or name in ("linalg_vector_norm", "stack"):
            part = "optimizer and norm"
        elif name == "sum" and size < 1 << 26:
            part = "norms, dropout, residuals"
        else:
            part = "embeddings, loss: torch's"
        if size:
            self.ledger.add(part, size)
            self.ledger.kernels.setdefault(f"aten.{name}", []).append(size)
        return result


def part_of(kernel: str, arguments: list[str]) -> str:
    if "logsumexp" in kernel or "exp_sub" in kernel:
        return "loss: generated"
    if "layer_norm" in kernel or "shift" in kernel:
        return "norms, dropout, residuals"
    joined = re.fullmatch(r"triton_poi_fused_\d+", kernel)  # several kernels in one; its name has no operations
    if "relu" in kernel or "threshold" in kernel or (joined and "in_out_ptr0" in arguments):
        return "activation"  # the kernel writes its gradient in place and casts a weight's gradient
    if "cat" in kernel:
        return "joined gradients of heads"
    if "red_fused" in kernel:
        return "gradients of biases"
    return "weights to bf16, gradients to fp32"


@contextmanager
def counted(ledger: Ledger) -> Iterator[None]:
    """Count generated kernels by their arguments while the block runs; a dispatch mode counts other operations."""
    launch, compiled, modules = CachingAutotuner.run, loss.compiled, (loss, model)

    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        name = self.inductor_meta.get("kernel_name") or self.fn.__name__
        size = sum(
            size_of(x) * (2 if argument.startswith("in_out_ptr") else 1)
            for argument, x in zip(self.fn.arg_names, args, strict=False)
        )
        with _disable_current_modes():
            result = launch(self, *args, **kwargs)
        ledger.add(part_of(name, self.fn.arg_names), size)
        ledger.kernels.setdefault(name, []).append(size)
        return result

    def without_modes(function: Any, device: torch.device, eager: Any) -> Callable[..., Any]:
        chosen = compiled(function, device, eager)

        def call(*args: Any) -> Any:
            with _disable_current_modes():
                return chosen(*args)

        return eager if chosen is eager else call

    CachingAutotuner.run = run
    for module in modules:
        module.compiled = without_modes
    try:
        yield
    finally:
        CachingAutotuner.run = launch
        for module in modules:
            module.compiled = compiled


def attention_work(settings: schema.Model, batch: Batch) -> dict[str, float]:
    """Return the bytes and operations of attention, forward (2 products) and backward (5).

    "exact" counts operations on tokens, "tiles" those on whole tiles.
    """
    (_, src, *_), (_, tgt, *_) = batch.src.integers, batch.tgt.integers
    encoder_layers, decoder_layers = settings.depths
    exact = tiles = size = 0.0
    for layers, queries, keys, share in (
        (encoder_layers, src, src, 1.0),
        (decoder_layers, tgt, tgt, 0.5),  # causal: half the positions are visible
        (decoder_layers, tgt, src, 1.0),
    ):
        scores = (queries.astype(float) * keys).sum()
        rows, columns = (-(-lengths.astype(float) // TILE) * TILE for lengths in (queries, keys))
        blocks = (rows * columns).sum()
        if share < 1:
            blocks = (rows * (rows + TILE) / 2).sum()
        heads = layers * settings.num_heads
        exact += 14 * heads * settings.d_k * scores * share
        tiles += 14 * heads * settings.d_k * blocks
        # Forward reads q, k and v, and writes the output. Backward reads these and the output's gradient, and writes
        # three gradients. The queries' gradient is accumulated in float32: set to zero, added to, converted.
        width = 2 * heads * settings.d_k
        size += width * (queries.sum() * (2 + 3 + 1 + 2 * 3) + keys.sum() * (2 + 2 + 2))
    return {"exact": exact, "tiles": tiles, "bytes": size}


def registers(directory: Path) -> dict[str, tuple[int, int, int]]:
    """Return each generated kernel's registers, spilled bytes and shared memory (maxima over its versions)."""
    tool, found = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump", {}
    for cubin in directory.glob("*.cubin"):
        done = subprocess.run([tool, "--dump-resource-usage", cubin], capture_output=True, text=True, check=True)
        for name, registers, stack, shared in re.findall(
            r"Function (\w+):\s+REG:(\d+) STACK:(\d+) SHARED:(\d+)", done.stdout
        ):
            now = int(registers), int(stack), int(shared)
            found[name] = tuple(map(max, zip(now, found.get(name, now), strict=True)))
    return found


def step_counts(settings: schema.Recipe, directory: Path, steps: int) -> tuple[Ledger, dict[str, Any]]:
    """Take `steps` steps, then one more, and return the counts of the last one."""
    ledger, counters = Ledger(), Counters()
    corpus = random_corpus(directory, settings.corpus.tokenizer.vocabulary_size, 20_000)
    run = start_trainer(settings, corpus, make_accelerator(settings, directory), directory, 0)
    run.graphs = None  # launch the kernels of graphs one by one
    for step in range(1, steps + 1):
        run.take_step(step, run.step_batch(step - 1))
    batch, before = run.step_batch(steps), counters.kernels()
    with counters.during() as counts, counted(ledger), Operations(ledger):
        run.take_step(steps + 1, batch)
    attention = [attention_work(settings.model, each) for each in batch.passes]
    found = {name: sum(each[name] for each in attention) for name in ("exact", "tiles", "bytes")}
    return ledger, {"counts": counts, "attention": found, "kernels": kernels_of(before, counters.kernels())}


def table(ledger: Ledger, found: dict[str, Any], gpu: str) -> str:
    rate, bandwidth = GPUS[gpu]
    counts, attention = found["counts"], found["attention"]
    flash = sum(count for name, count in found["kernels"].items() if "flash" in name)
    rows = [
        ("products", counts["products"], counts["product_bytes"], counts["flops"]),
        ("attention, whole tiles", flash, attention["bytes"], attention["tiles"]),
        *((part, ledger.launches[part], size, 0.0) for part, size in ledger.bytes.most_common()),
    ]
    lines = [f"| {gpu} | launches | GB | TFLOP | bytes, ms | operations, ms | minimum, ms | bound by |"]
    lines += ["|--|--:|--:|--:|--:|--:|--:|--|"]
    total = 0.0
    for name, launches, size, work in rows:
        times = {"bytes": size / bandwidth, "operations": work / rate, "launches": launches * LAUNCH}
        minimum, bound = max(times.values()), max(times, key=times.__getitem__)
        total += minimum
        cells = f"{size / 1e9:.2f} | {work / 1e12:.2f} | {times['bytes'] * 1e3:.2f} | {times['operations'] * 1e3:.2f}"
        lines.append(f"| {name} | {launches:.0f} | {cells} | {minimum * 1e3:.2f} | {bound} |")
    useful = counts["flops"] + attention["exact"]
    lines.append(f"| **sum** | | | {useful / 1e12:.2f} | | | {total * 1e3:.1f} | MFU {useful / rate / total:.0%} |")
    exact = f"(attention of the tokens alone: {attention['exact'] / 1e12:.2f} TFLOP)"
    return "\n".join([*lines, exact])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", help="name of a recipe, without .yaml")
    parser.add_argument("--gpu", choices=GPUS, action="append")
    parser.add_argument("--kernels", type=Path, help="directory of NULL_GPU_KERNELS, to list its kernels")
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--set", action="append", default=[])
    options = parser.parse_args()
    choose_compiler()
    settings = loading.load(ROOT / "recipes" / f"{options.recipe}.yaml", options.set)
    with tempfile.TemporaryDirectory() as directory:
        ledger, found = step_counts(settings, Path(directory), options.steps)
    for gpu in options.gpu or ["h100"]:
        print(table(ledger, found, gpu), end="\n\n")
    if options.kernels:
        used = registers(options.kernels)
        print("| generated kernel | launches | MB each | GB | registers | spilled, bytes | shared, bytes |")
        print("|--|--:|--:|--:|--:|--:|--:|")
        for name, sizes in sorted(ledger.kernels.items(), key=lambda x: -sum(x[1])):
            cells = " | ".join(map(str, used.get(name, ("?",) * 3)))
            total = sum(sizes)
            print(f"| {name[:60]} | {len(sizes)} | {total / len(sizes) / 1e6:.1f} | {total / 1e9:.2f} | {cells} |")


if __name__ == "__main__":
    main()
