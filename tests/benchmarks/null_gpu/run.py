"""Make an environment with the CUDA build of torch (5 GB), build the null GPU there, and run all of its checks.

    python tests/benchmarks/null_gpu/run.py DIRECTORY                 # about half an hour on two cores
    python tests/benchmarks/null_gpu/run.py DIRECTORY counts          # one part: tests, counts, roofline or values

Compiled kernels stay in DIRECTORY/kernels for the next run.
"""

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

from device import HERE, environment

ROOT = HERE.parents[2]
TORCH = "2.11.0"  # the oldest supported version
PARTS = {
    "tests": [["-m", "pytest", "-n", "0", "tests/gpu/test_null_gpu.py"]],
    "counts": [
        ["steps.py", "base", "big", "--steps", "60"],
        ["searches.py", "base"],
        ["searches.py", "base", "--models", "2"],
    ],
    "roofline": [
        ["roofline.py", name, "--gpu", "h100", "--gpu", "h200", "--gpu", "a100", "--kernels", "KEPT"]
        for name in ("base", "big")
    ],
    "values": [["values.py", "fp32"], ["values.py", "bf16"]],
}


def install(directory: Path, version: str) -> str:
    """Make the environment if it does not exist, and return its Python."""
    python = directory / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", directory], check=True)
        packages = [f"torch=={version}", "-e", f"{ROOT}[test]"]
        subprocess.run([python, "-m", "pip", "install", *packages], check=True)
    return str(python)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path, help="environment, created if it does not exist")
    parser.add_argument("parts", nargs="*", choices=[[], *PARTS], help="default: all")
    parser.add_argument("--torch", default=TORCH, help="torch version to install")
    options = parser.parse_args()
    python = install(options.directory.absolute(), options.torch)
    kernels, failed = options.directory.absolute() / "kernels", 0
    for part in options.parts or PARTS:
        for words in PARTS[part]:
            cache = {"TORCHINDUCTOR_CACHE_DIR": kernels / part, "TRITON_CACHE_DIR": kernels / f"{part}-triton"}
            more: dict[str, object] = {"NMT_NULL_GPU": python} if part == "tests" else dict(environment(python))
            if part == "values":
                more |= {"TRITON_INTERPRET": 1, "TORCHINDUCTOR_COMPILE_THREADS": 1}
            elif part != "tests":
                more |= {"NULL_GPU_STILL": 1}
            if part == "roofline":
                kept = kernels / f"roofline-{words[1]}"
                kept.mkdir(parents=True, exist_ok=True)
                more |= {"NULL_GPU_KERNELS": kept}
                words = [str(kept) if word == "KEPT" else word for word in words]
            command = [python, *(words if part == "tests" else [str(HERE / words[0]), *words[1:]])]
            print("\n>", *command, flush=True)
            variables = {name: str(value) for name, value in {**cache, "PYTHONPATH": ROOT, **more}.items()}
            began = time.monotonic()
            failed |= subprocess.run(command, env={**os.environ, **variables}, cwd=ROOT).returncode
            print(f"({time.monotonic() - began:.0f} s)", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
