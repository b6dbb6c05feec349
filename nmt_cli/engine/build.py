"""Compile engine.c into libengine.so. Hatchling runs this file as a build hook; it can also be run by hand.

The compiler is zig, which pip installs only for the build (93 MB). It includes the headers and libraries of every
target, so the build needs no compiler or headers from the system. The library runs on Linux with glibc 2.17 or newer,
and on macOS 11 or newer. This file imports only the standard library, because hatchling loads it by its path.

By hand: `pip install ziglang && python nmt_cli/engine/build.py`.
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
SOURCES = *(HERE / name for name in ("engine.c", "neon.c", "team.c", "dispatch.c")), HERE / "build.py"
SWITCH = "NMT_ENGINE_BUILD"  # if 0, the package is built without the engine
TARGET = "NMT_ENGINE_TARGET"  # target of the wheel, such as aarch64 (Linux) or aarch64-macos (default: this system)
COMPILER = "ziglang>=0.15,<0.18"
GLIBC = "2.17"  # the oldest version that zig supports on aarch64
MACOS = "11.0"  # the oldest version that runs on Apple silicon

# For each CPU architecture: its levels (instruction sets), fastest first, with zig's name for their CPU features.
LEVELS: dict[str, dict[str, str]] = {
    "x86_64": {
        "amx": "x86_64_v4+avx512vnni+amx_tile+amx_int8",
        "avx512": "x86_64_v4+avx512vnni",
        "avxvnni": "x86_64_v3+avxvnni",
        "avx2": "x86_64_v3",
        "base": "x86_64",
    },
    "aarch64": {"i8mm": "generic+dotprod+i8mm", "dotprod": "generic+dotprod", "base": "generic"},
}
# The levels that are compiled for macOS. macOS enables AVX-512 only when a process first uses it, so dispatch.c cannot
# detect it. No Mac has AMX or AVX-VNNI.
MACOS_LEVELS = {"i8mm", "dotprod", "avx2", "base"}
FLAGS = ["-std=gnu11", "-O3", "-fPIC", "-fno-math-errno", "-fno-strict-aliasing", "-fvisibility=hidden"]
WARNINGS = ["-Wall", "-Wno-psabi"]


class CannotBuildError(Exception):
    """The engine cannot be compiled. The message is a single line."""


def own_target() -> str:
    """Return this system's zig target. Raise CannotBuildError if the engine does not support this system."""
    glibc = sys.platform == "linux" and platform.libc_ver()[0] == "glibc"
    machine = {"arm64": "aarch64"}.get(platform.machine(), platform.machine())
    if machine not in LEVELS or not (glibc or sys.platform == "darwin"):
        systems = f"macOS or Linux with glibc on {' or '.join(LEVELS)}"
        raise CannotBuildError(f"the engine needs {systems}, not {sys.platform} {machine}")
    return target_of(machine if glibc else f"{machine}-macos")


def target_of(name: str) -> str:
    """Return the zig target for a name such as "aarch64" (Linux with glibc) or "aarch64-macos"."""
    machine, _, system = name.partition("-")
    if machine not in LEVELS or system not in ("", "macos"):
        raise CannotBuildError(f"the engine supports {' and '.join(LEVELS)}, or either with -macos, not {name}")
    return f"{machine}-macos.{MACOS}" if system else f"{machine}-linux-gnu.{GLIBC}"


def levels_of(target: str) -> list[str]:
    """Return the levels that are compiled for a zig target, fastest first."""
    return [level for level in LEVELS[target.split("-")[0]] if "-macos" not in target or level in MACOS_LEVELS]


def wheel_tag(target: str) -> str:
    machine = target.split("-")[0]
    if "-macos" in target:
        return f"py3-none-macosx_{MACOS.replace('.', '_')}_{machine.replace('aarch64', 'arm64')}"
    return f"py3-none-manylinux_{GLIBC.replace('.', '_')}_{machine}"


def _stamp(target: str, levels: Sequence[str], flags: Sequence[str]) -> str:
    sources = [hashlib.sha256(path.read_bytes()).hexdigest() for path in SOURCES]
    return hashlib.sha256(repr([sources, target, list(levels), list(flags)]).encode()).hexdigest()


def is_current(output: Path, stamp: str | None = None) -> bool:
    """Return whether a library contains `stamp`, by default the hash of the current sources for this system."""
    stamp = stamp or _stamp(own_target(), levels_of(own_target()), [])
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
    """Compile the library unless `output` is current. Return whether it was compiled.

    `target` is a zig target such as aarch64-linux-gnu.2.17, by default this system's. `levels` are names from
    LEVELS, by default all of the target. `flags` are passed to the compiler and the linker. Raises CannotBuildError if
    ziglang is not installed, the engine does not support this system, or the compiler fails.
    """
    target = target or own_target()
    cpus = LEVELS[target.split("-")[0]]
    levels = levels or levels_of(target)
    stamp = _stamp(target, levels, flags)
    if is_current(output, stamp):
        return False
    if not find_spec("ziglang"):
        raise CannotBuildError(f"the package {COMPILER.partition('>')[0]} is not installed")
    width = ["-mprefer-vector-width=512"] if target.startswith("x86_64") else []
    link = ["-shared", "-s", "-lm", "-lpthread"]
    if "-macos" in target:
        link.append("-Wl,-install_name,@rpath/libengine.so")  # by default, the name would be the path `new`
    zig = [sys.executable, "-m", "ziglang", "cc", "-target", target, *FLAGS, *WARNINGS, *width, *flags]
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor() as pool:
        environment = {"ZIG_GLOBAL_CACHE_DIR": folder, "ZIG_LOCAL_CACHE_DIR": folder, **os.environ}
        constants = [f'-DCOMPILED="{" ".join(levels)}"', f'-DSTAMP="{stamp}"']
        commands = [[*zig, *constants, "-c", str(HERE / "dispatch.c"), "-o", f"{folder}/dispatch.o"]]
        for level in levels:
            level_flags = [f"-mcpu={cpus[level]}", f"-DLEVEL={level}", "-c", str(HERE / "engine.c")]
            commands.append([*zig, *level_flags, "-o", f"{folder}/{level}.o"])
        list(pool.map(_run, commands, [environment] * len(commands)))
        new = output.with_name(f".{output.name}-{os.getpid()}")  # not `output`: a process may have it open
        try:
            _run([*zig, *(command[-1] for command in commands), *link, "-o", str(new)], environment)
            new.replace(output)
        finally:
            new.unlink(missing_ok=True)
    return True


def get_build_hook() -> type[Any]:
    """Hatchling finds this function by its name."""
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface

    class EngineHook(BuildHookInterface):  # type: ignore[misc]  # hatchling may not be installed
        def dependencies(self) -> list[str]:
            return [COMPILER] if self._obstacle() is None else []

        def initialize(self, version: str, build_data: dict[str, Any]) -> None:
            """Compile the library in the source tree, and add it to the wheel unless the install is editable.

            LIBRARY is not removed afterwards, because tests and editable installs load it from the source tree. If it
            cannot be compiled, warn and build the wheel without it. If NMT_ENGINE_TARGET is set, raise CannotBuildError
            instead.
            """
            wanted = os.environ.get(TARGET, "")
            obstacle = self._obstacle()
            cross, library = False, LIBRARY
            try:
                if obstacle is None:
                    target = target_of(wanted) if wanted else own_target()
                    cross = target != own_target()
                    library = HERE / f".libengine-{wanted}.so" if cross else LIBRARY
                    build(library, target)
            except (CannotBuildError, OSError) as error:
                obstacle = str(error)
            if obstacle is not None:
                if wanted:
                    raise CannotBuildError(f"{TARGET}={wanted}: {obstacle}")
                LIBRARY.unlink(missing_ok=True)
                self.app.display_warning(f"nmt is built without its engine, so CPU translation is slower: {obstacle}")
            elif version != "editable":
                build_data["force_include"][str(library)] = "nmt_cli/engine/libengine.so"
                build_data["tag"] = wheel_tag(target)
                build_data["pure_python"] = False

        def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
            for library in HERE.glob(".libengine-*.so"):
                library.unlink()

        def _obstacle(self) -> str | None:
            if os.environ.get(SWITCH) == "0":
                return f"{SWITCH}=0"
            try:
                own_target()
            except CannotBuildError as error:
                return str(error)
            return None

    return EngineHook


def main() -> None:
    parser = argparse.ArgumentParser(description="Compile the engine. Unknown options go to compiler and linker.")
    parser.add_argument("--output", type=Path, default=LIBRARY, help="library file (default: where nmt loads it from)")
    parser.add_argument("--target", help="zig target, such as aarch64-linux-gnu.2.17 (default: this system)")
    parser.add_argument("--levels", default="", help="levels, separated by commas (default: all levels of the target)")
    arguments, flags = parser.parse_known_args()
    try:
        build(arguments.output, arguments.target, list(filter(None, arguments.levels.split(","))), flags)
    except CannotBuildError as error:
        sys.exit(f"build.py: {error}")


if __name__ == "__main__":
    main()
