"""Ten thousand fuzzed inputs, and a million lines, through translate (bars B8 and B9).

    python tests/benchmarks/fuzz_translate.py inputs [--count 10000] [--seed 1]
    python tests/benchmarks/fuzz_translate.py million [--count 1000000]

Both use an untrained model of a few thousand weights: what is tested is everything around it.
"""

import argparse
import os
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2])]

from tiny_model import WORDS, content, make_model, memory_file  # noqa: E402

FORBIDDEN = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")
ODD = [*"\r\x00\x0b\x85\u2028\u2029\ufeff\u202e\u2581\u2047", "\u0301" * 50, "</s>", "<0x0A>"]


def fuzzed(draw: random.Random) -> bytes:
    """Return the bytes of one input of up to a few lines."""
    parts = []
    for _ in range(draw.randrange(12)):
        kind = draw.randrange(6)
        if kind == 0:
            parts.append(draw.randbytes(draw.randrange(40)))
        elif kind == 1:
            parts.append(draw.choice(ODD).encode())
        elif kind == 2:
            parts.append("".join(chr(draw.randrange(0xD800)) for _ in range(draw.randrange(10))).encode())
        else:
            parts.append(" ".join(draw.choices(WORDS, k=draw.randrange(1, 6))).encode())
        if draw.random() < 0.3:
            parts.append(b"\n")
    return b"".join(parts)


def inputs(count: int, seed: int) -> int:
    """Translate fuzzed inputs, each by itself; return how many came out with another number of lines or a break."""
    from nmt_cli.console import Progress
    from nmt_cli.translation import translate as module

    draw, failures, lines = random.Random(seed), 0, 0
    with tempfile.TemporaryDirectory() as place:
        model = make_model(Path(place), "decoding.extra_length=1")
        options = module.TranslateOptions(models=(model,), precision="fp32", workers=1, beam=1)
        engine = module.prepare_engine(options)
        for i in range(count):
            data = fuzzed(draw)
            source, target = memory_file(data), memory_file()
            with Progress("", None, "lines") as progress:
                module._run(engine, options, source, target, progress)
            os.close(source)
            out = content(target).decode()
            expected = data.count(b"\n") + (bool(data) and not data.endswith(b"\n"))
            lines += expected
            if out.count("\n") != expected or FORBIDDEN.search(out.replace("\n", "")):
                failures += 1
                print(f"input {i}: {data!r} -> {out!r}")
    print(f"{count:,} inputs, {lines:,} lines, {failures} failures")
    return failures


def million(count: int) -> int:
    """Send lines through a process; print its memory after a tenth and after all, and return whether it grew."""
    with tempfile.TemporaryDirectory() as place:
        model = make_model(Path(place), "decoding.extra_length=1")
        command = [sys.executable, "-m", "nmt_cli", "translate", "--model", str(model), "--beam", "1", "-q"]
        root = str(Path(__file__).parents[2])
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": root}
        )
        assert process.stdin
        assert process.stdout

        def feed() -> None:
            assert process.stdin
            for i in range(count):
                process.stdin.write(b"der Hund %d\n" % i if i % 2 else b"\n")
            process.stdin.close()

        threading.Thread(target=feed, daemon=True).start()
        start, sizes = time.monotonic(), []
        for i, _ in enumerate(process.stdout, 1):
            if i in (count // 10, count):
                sizes.append(memory_mb(process.pid))
        print(f"{i:,} lines out of {count:,} in {time.monotonic() - start:.0f} s; MB {sizes[0]:.0f} -> {sizes[-1]:.0f}")
        return int(i != count or sizes[-1] - sizes[0] > 50)


def memory_mb(pid: int) -> float:
    """Return what a process and its children have resident."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    pages = sum(int(Path(f"/proc/{p}/statm").read_text().split()[1]) for p in [pid, *children])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", choices=("inputs", "million"))
    parser.add_argument("--count", type=int)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    if arguments.what == "inputs":
        from nmt_cli import console

        console.set_quiet(True)
        console.warn = lambda text: None
        import nmt_cli.translation.translate as _translate

        _translate.warn = lambda text: None
        sys.exit(inputs(arguments.count or 10_000, arguments.seed) > 0)
    sys.exit(million(arguments.count or 1_000_000))
