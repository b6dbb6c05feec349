"""Compile engine.c into libengine.so: hatchling calls this when nmt is built or installed, a person to try other flags.

The compiler is zig, which pip installs for the time of the build (93 MB, nothing is left of it). It brings the headers
and the libraries of every target, so no compiler and no headers of the system are used, and the result runs with any
glibc from 2.17 on. Nothing but the standard library is imported: hatchling loads this file by its path.

By hand: `pip install ziglang && python nmt_cli/engine/build.py`, `--help` for the rest.
"""

import argparse
import hashlib
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
LIBRARY = HERE / "libengine.so"
SOURCES = HERE / "engine.c", HERE / "dispatch.c", HERE / "build.py"
SWITCH = "NMT_ENGINE_BUILD"  # 0: install without the engine
COMPILER = "ziglang>=0.15,<0.18"
GLIBC = "2.17"  # the oldest that zig knows on aarch64

# By processor: the levels and the CPUs that zig compiles them for, the fastest first.
LEVELS: dict[str, dict[str, str]] = {
    "x86_64": {
        "amx": "x86_64_v4+avx512vnni+amx_tile+amx_int8",
        "avx512": "x86_64_v4+avx512vnni",
        "avxvnni": "x86_64_v3+avxvnni",
        "avx2": "x86_64_v3",
        "base": "x86_64",
    },
    "aarch64": {"base": "baseline"},
}
FLAGS = ["-std=gnu11", "-O3", "-fPIC", "-fno-math-errno", "-fno-strict-aliasing", "-fvisibility=hidden"]
WARNINGS = ["-Wall", "-Wno-psabi"]


class CannotBuildError(Exception):  # one line that says why
    pass


def own_target() -> str:
    """Return zig's name of the system that this runs on, which is one that zig can compile for."""
    machine = platform.machine()
    if sys.platform != "linux" or machine not in LEVELS or platform.libc_ver()[0] != "glibc":
        raise CannotBuildError(f"it is for Linux with glibc on {' or '.join(LEVELS)}, not {sys.platform} {machine}")
    return f"{machine}-linux-gnu.{GLIBC}"


def _stamp(target: str, levels: Sequence[str], flags: Sequence[str]) -> str:
    sources = [hashlib.sha256(path.read_bytes()).hexdigest() for path in SOURCES]
    return hashlib.sha256(repr([sources, target, list(levels), list(flags)]).encode()).hexdigest()


def is_current(output: Path, stamp: str | None = None) -> bool:
    """Return whether a library was made of the sources as they are, by default for this system and all its levels."""
    stamp = stamp or _stamp(own_target(), list(LEVELS[platform.machine()]), [])
    return output.exists() and stamp.encode() in output.read_bytes()


def _run(command: Sequence[str], environment: Mapping[str, str]) -> None:
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)  # noqa: S603
    if done.stderr:
        print(done.stderr, file=sys.stderr)
    if done.returncode:
        first = next((line for line in done.stderr.split("\n") if "error" in line), f"exit code {done.returncode}")
        raise CannotBuildError(f"the compiler failed: {first[:200]}")


def build(
    output: Path = LIBRARY, target: str | None = None, levels: Sequence[str] = (), flags: Sequence[str] = ()
) -> bool:
    """Compile the library, unless `output` was made from the same sources in the same way; return whether it was work.

    target: zig's, such as aarch64-linux-gnu.2.17; None is this system. levels: of LEVELS; empty is all of the target's.
    flags: more ones for the compiler and the linker. CannotBuildError says what went wrong.
    """
    target = target or own_target()
    cpus = LEVELS[target.split("-")[0]]
    levels = levels or list(cpus)
    stamp = _stamp(target, levels, flags)
    if is_current(output, stamp):
        return False
    if not find_spec("ziglang"):
        raise CannotBuildError(f"the package {COMPILER.partition('>')[0]} is not installed")
    width = ["-mprefer-vector-width=512"] if target.startswith("x86_64") else []
    zig = [sys.executable, "-m", "ziglang", "cc", "-target", target, *FLAGS, *WARNINGS, *width, *flags]
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor() as pool:
        environment = {"ZIG_GLOBAL_CACHE_DIR": folder, "ZIG_LOCAL_CACHE_DIR": folder, **os.environ}
        about = [f'-DCOMPILED="{" ".join(levels)}"', f'-DSTAMP="{stamp}"']
        commands = [[*zig, *about, "-c", str(HERE / "dispatch.c"), "-o", f"{folder}/dispatch.o"]]
        for level in levels:
            of_level = [f"-mcpu={cpus[level]}", f"-DLEVEL={level}", "-c", str(HERE / "engine.c")]
            commands.append([*zig, *of_level, "-o", f"{folder}/{level}.o"])
        list(pool.map(_run, commands, [environment] * len(commands)))
        new = output.with_name(f".{output.name}-{os.getpid()}")  # the old one may be in use
        try:
            _run([*zig, "-shared", "-s", *(command[-1] for command in commands), "-lm", "-o", str(new)], environment)
            new.replace(output)
        finally:
            new.unlink(missing_ok=True)
    return True


def get_build_hook() -> type[Any]:
    """Return the class of hatchling's hook; hatchling asks for it by this name, and is there in a build only."""
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface

    class EngineHook(BuildHookInterface):  # type: ignore[misc]  # hatchling may not be installed
        def dependencies(self) -> list[str]:
            return [COMPILER] if self._why_not() is None else []

        def initialize(self, version: str, build_data: dict[str, Any]) -> None:
            """Put the library into the source tree, where tests and editable installs load it, and into a wheel."""
            why_not = self._why_not()
            try:
                if why_not is None:
                    build()
            except (CannotBuildError, OSError) as error:
                why_not = str(error)
            if why_not is not None:
                LIBRARY.unlink(missing_ok=True)
                self.app.display_warning(f"nmt is built without its engine, translation on a CPU is slower: {why_not}")
            elif version != "editable":
                build_data["force_include"][str(LIBRARY)] = "nmt_cli/engine/libengine.so"
                build_data["tag"] = f"py3-none-manylinux_{GLIBC.replace('.', '_')}_{platform.machine()}"
                build_data["pure_python"] = False

        def _why_not(self) -> str | None:
            if os.environ.get(SWITCH) == "0":
                return f"{SWITCH}=0"
            try:
                own_target()
            except CannotBuildError as error:
                return str(error)
            return None

    return EngineHook


def main() -> None:
    parser = argparse.ArgumentParser(description="Compile the engine; other options are the compiler's.")
    parser.add_argument("--output", type=Path, default=LIBRARY, help="the library (default: where nmt loads it from)")
    parser.add_argument("--target", help="zig's name of a system, such as aarch64-linux-gnu.2.17 (default: this one)")
    parser.add_argument("--levels", default="", help="separated by commas (default: all of the target's)")
    arguments, flags = parser.parse_known_args()
    try:
        build(arguments.output, arguments.target, list(filter(None, arguments.levels.split(","))), flags)
    except CannotBuildError as error:
        sys.exit(f"build.py: {error}")


if __name__ == "__main__":
    main()
