"""Build the null GPU (see null_gpu.c) for a Python with the CUDA build of torch, and print the variables that use it.

    eval "$(python tests/benchmarks/null_gpu/device.py PYTHON)"      # in a shell

In a process that runs on the null GPU, `Counters` reads the counts of its calls.
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
HEADERS = (  # finds the headers of the CUDA runtime among torch's dependencies
    "import site; from pathlib import Path; "
    "print(next(p.parent for d in site.getsitepackages() for p in Path(d).glob('nvidia/**/driver_types.h')))"
)
# NVIDIA's packages lack crt/host_defines.h, which their headers include to define these keywords of nvcc.
WORDS = "device_builtin device_builtin_texture_type device_builtin_surface_type cudart_builtin host device"
HOST_DEFINES = (
    "".join(f"#define __{word}__\n" for word in WORDS.split())
    + "#define CUDARTAPI\n#define CUDARTAPI_CDECL\n"
    + "".join(f"#define __{word}__(n) __attribute__((aligned(n)))\n" for word in ("align", "builtin_align"))
)


def compiler() -> list[str]:
    """Return the command of a C compiler: gcc, cc, clang, or the one in the package ziglang."""
    for name in ("gcc", "cc", "clang"):
        if found := shutil.which(name):
            return [found]
    return [sys.executable, "-m", "ziglang", "cc"]


def build(python: str, directory: Path) -> Path:
    """Compile the library for this Python's torch into a directory, unless it is up to date; return its path."""
    library = directory / "libcuda.so.1"
    if library.exists() and library.stat().st_mtime > max(source.stat().st_mtime for source in SOURCES):
        return library
    (directory / "include" / "crt").mkdir(parents=True, exist_ok=True)
    (directory / "include" / "crt" / "host_defines.h").write_text(HOST_DEFINES)
    headers = subprocess.run([python, "-c", HEADERS], check=True, capture_output=True, text=True).stdout.strip()
    flags = ["-shared", "-O1", "-fPIC", "-w", "-pthread", f"-I{directory / 'include'}", f"-I{headers}"]
    subprocess.run([*compiler(), *flags, "-Wl,-soname,libcuda.so.1", "-o", library, *SOURCES], check=True)
    (directory / "libcuda.so").unlink(missing_ok=True)
    (directory / "libcuda.so").symlink_to(library.name)  # Triton links its launchers with this file
    return library


def environment(python: str, directory: Path | None = None) -> dict[str, str]:
    """Build the library, and return the environment variables that make this Python use it."""
    library = build(python, directory or Path(python).absolute().parent.parent / "null_gpu")
    cc = {"CC": compiler()[0]} if len(compiler()) == 1 else {}
    return {"LD_PRELOAD": str(library), "TRITON_LIBCUDA_PATH": str(library.parent), **cc}


class Counters:
    """Reads the counts of this process's calls to the null GPU."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL(os.environ["LD_PRELOAD"])
        size = 512
        self.names = ctypes.create_string_buffer(size)
        ctypes.memmove(self.names, self.library.null_gpu_names, size)
        self.names = self.names.value.decode().split()

    def now(self) -> dict[str, float]:
        """Return all counts, including operations and bytes of matrix products and nodes of replayed graphs."""
        counts = (ctypes.c_long * len(self.names)).in_dll(self.library, "null_gpu_counts")
        values: dict[str, float] = dict(zip(self.names, counts, strict=True))
        values["replayed"] = ctypes.c_long.in_dll(self.library, "null_gpu_replayed").value
        for name in ("flops", "product_bytes"):
            values[name] = ctypes.c_double.in_dll(self.library, f"null_gpu_{name}").value
        return values

    @contextmanager
    def during(self) -> Iterator[dict[str, float]]:
        """Yield a dict that receives the counts of the block when the block ends."""
        before: dict[str, float] = self.now()
        counted: dict[str, float] = {}
        yield counted
        counted.update({name: value - before[name] for name, value in self.now().items()})

    def kernels(self) -> dict[str, int]:
        """Return how often each kernel was launched so far, by its mangled name."""
        function = self.library.null_gpu_kernel
        function.restype, launches = ctypes.c_char_p, ctypes.c_long()
        found: dict[str, int] = {}
        for slot in range(1 << 17):
            name = function(ctypes.c_long(slot), ctypes.byref(launches))
            if launches.value:
                found[name.decode()] = found.get(name.decode(), 0) + launches.value
        return found


if __name__ == "__main__":
    for variable, value in environment(sys.argv[1]).items():
        print(f"export {variable}={shlex.quote(value)}")
