"""Products of every level have the bits of plain C: on this CPU, and for ARM in an emulator.

The emulator and the C library for it are Debian's packages qemu-user-static and libc6-arm64-cross.
"""

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from nmt_cli.engine import build, library
from nmt_cli.system.errors import UsageError

ROOT = Path(__file__).parents[2]
QEMU = shutil.which("qemu-aarch64-static") or shutil.which("qemu-aarch64")
SYSROOT = os.environ.get("QEMU_LD_PREFIX", "/usr/aarch64-linux-gnu")
# CPUs of qemu that have a level's instructions and no newer ones, and the levels that dispatch.c finds on them.
EMULATED = {
    "base": ("cortex-a53", "base"),
    "dotprod": ("neoverse-n1", "dotprod base"),
    "i8mm": ("max", "i8mm dotprod base"),
}


def products(directory: Path, machine: str, level: str) -> str:
    """Compile engine_products.c for one level; return the program's path. An inaccessible page follows each buffer."""
    pytest.importorskip("ziglang")
    program, engine = directory / level, ROOT / "nmt_cli" / "engine"
    zig = [sys.executable, "-m", "ziglang", "cc", "-target", build.target_of(machine), "-g0"]
    level_flags = [f"-mcpu={build.LEVELS[machine][level]}", f"-DLEVEL={level}", "-DGUARD_PAGES"]
    constants = ['-DCOMPILED=""', '-DSTAMP=""', "-Wno-psabi", "-Wno-unused-function", f"-I{engine}"]
    sources = [str(ROOT / "tests/helpers/engine_products.c"), str(engine / "dispatch.c"), "-lm", "-o", str(program)]
    subprocess.run([*zig, *build.FLAGS, *level_flags, *constants, *sources], check=True)
    return str(program)


def run(*command: str) -> list[str]:
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.split("\n")[:-1]


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() != "x86_64", reason="levels of x86-64")
@pytest.mark.parametrize("level", build.LEVELS["x86_64"])
def test_products_have_the_bits_of_plain_c(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, level: str) -> None:
    monkeypatch.setenv("NMT_ENGINE", level)
    try:
        library.describe()
    except UsageError as error:
        pytest.skip(str(error))
    assert run(products(tmp_path, "x86_64", level), "2000")[-1] == "2000 products"


@pytest.mark.skipif(not QEMU, reason="qemu-user is not installed")
@pytest.mark.skipif(not Path(SYSROOT, "lib", "ld-linux-aarch64.so.1").exists(), reason="no C library for aarch64")
@pytest.mark.parametrize(
    "level", [*(pytest.param(each, marks=pytest.mark.slow) for each in ("base", "dotprod")), "i8mm"]
)
def test_products_on_arm_have_the_bits_of_plain_c(tmp_path: Path, level: str) -> None:
    """The emulated CPU has the level's instructions and no newer ones, and the engine finds exactly its levels."""
    cpu, levels = EMULATED[level]
    program = products(tmp_path, "aarch64", level)
    assert run(str(QEMU), "-L", SYSROOT, "-cpu", cpu, program, "100") == [levels, "100 products"]
