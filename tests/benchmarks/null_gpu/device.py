"""Builds the null GPU for a Python that has the CUDA build of torch, and says what environment to run that Python in.

    eval "$(python tests/benchmarks/null_gpu/device.py PYTHON)"      # in a shell

In a process that runs on it, `Counters` reads what has been counted.
"""

import ctypes
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).resolve().parent
SOURCES = [HERE / name for name in ("null_gpu.c", "null_driver.c", "null_blas.c")]
HEADERS = (  # of the CUDA runtime, to be found from torch's own packages
    "import site; from pathlib import Path; "
    "print(next(p.parent for d in site.getsitepackages() for p in Path(d).glob('nvidia/**/driver_types.h')))"
)
# NVIDIA's packages leave out crt/host_defines.h, which its headers include for these words of its own compiler.
WORDS = "device_builtin device_builtin_texture_type device_builtin_surface_type cudart_builtin host device"
HOST_DEFINES = (
    "".join(f"#define __{word}__\n" for word in WORDS.split())
    + "#define CUDARTAPI\n#define CUDARTAPI_CDECL\n"
    + "".join(f"#define __{word}__(n) __attribute__((aligned(n)))\n" for word in ("align", "builtin_align"))
)


def compiler() -> list[str]:
    """Return the command of a C compiler: gcc, or that of the package ziglang."""
    for name in ("gcc", "cc", "clang"):
        if found := shutil.which(name):
            return [found]
    return [sys.executable, "-m", "ziglang", "cc"]


def build(python: str, directory: Path) -> Path:
    """Compile the library for this Python's torch into a directory, if it is not there; return its path."""
    library = directory / "libcuda.so.1"
    if library.exists() and library.stat().st_mtime > max(source.stat().st_mtime for source in SOURCES):
        return library
    (directory / "include" / "crt").mkdir(parents=True, exist_ok=True)
    (directory / "include" / "crt" / "host_defines.h").write_text(HOST_DEFINES)
    headers = subprocess.run([python, "-c", HEADERS], check=True, capture_output=True, text=True).stdout.strip()
    flags = ["-shared", "-O1", "-fPIC", "-w", "-pthread", f"-I{directory / 'include'}", f"-I{headers}"]
    subprocess.run([*compiler(), *flags, "-Wl,-soname,libcuda.so.1", "-o", library, *SOURCES], check=True)
    (directory / "libcuda.so").unlink(missing_ok=True)
    (directory / "libcuda.so").symlink_to(library.name)  # what Triton links its launchers with
    return library


def environment(python: str, directory: Path | None = None) -> dict[str, str]:
    """Return the variables with which a process of this Python sees the null GPU; the library is built beside it."""
    library = build(python, directory or Path(python).absolute().parent.parent / "null_gpu")
    cc = {"CC": compiler()[0]} if len(compiler()) == 1 else {}
    return {"LD_PRELOAD": str(library), "TRITON_LIBCUDA_PATH": str(library.parent), **cc}


class Counters:
    """What this process has asked of the null GPU."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL(os.environ["LD_PRELOAD"])
        size = 512
        self.names = ctypes.create_string_buffer(size)
        ctypes.memmove(self.names, self.library.null_gpu_names, size)
        self.names = self.names.value.decode().split()

    def now(self) -> dict[str, float]:
        """Return all counts, with the operations and bytes of products and the nodes of replayed graphs."""
        counts = (ctypes.c_long * len(self.names)).in_dll(self.library, "null_gpu_counts")
        values: dict[str, float] = dict(zip(self.names, counts, strict=True))
        values["replayed"] = ctypes.c_long.in_dll(self.library, "null_gpu_replayed").value
        for name in ("flops", "product_bytes"):
            values[name] = ctypes.c_double.in_dll(self.library, f"null_gpu_{name}").value
        return values

    @contextmanager
    def during(self) -> Iterator[dict[str, float]]:
        """Yield a dict that holds, after the block, what it counted."""
        before: dict[str, float] = self.now()
        counted: dict[str, float] = {}
        yield counted
        counted.update({name: value - before[name] for name, value in self.now().items()})

    def kernels(self) -> dict[str, int]:
        """Return how often each kernel was launched so far, by its mangled name."""
        function = self.library.null_gpu_kernel
        function.restype, launches = ctypes.c_char_p, ctypes.c_long()
        found: dict[str, int] = {}
        for place in range(1 << 17):
            name = function(ctypes.c_long(place), ctypes.byref(launches))
            if launches.value:
                found[name.decode()] = found.get(name.decode(), 0) + launches.value
        return found


if __name__ == "__main__":
    for variable, value in environment(sys.argv[1]).items():
        print(f"export {variable}={shlex.quote(value)}")
