"""pip compiles the engine for all CPUs of an architecture. Opening the library chooses the level."""

import ctypes
import os
import platform
import re
import struct
import subprocess
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import texts
from in_process import run_nmt

from nmt_cli.engine import build, library
from nmt_cli.system.errors import UsageError

ROOT = Path(__file__).parents[2]
[FUNCTION] = re.findall(r"EXPORT\((\w+)\)\(", (ROOT / "nmt_cli/engine/engine.c").read_text())[-1:]
SIGNATURES = {FUNCTION: (ctypes.c_int64, [ctypes.c_void_p])}


@pytest.fixture(scope="session")
def zig_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache for Zig's own libraries, so that they are compiled once for all builds."""
    return tmp_path_factory.mktemp("zig")


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch, zig_cache: Path) -> None:
    monkeypatch.delenv("NMT_ENGINE", raising=False)
    monkeypatch.setenv("ZIG_GLOBAL_CACHE_DIR", str(zig_cache))
    monkeypatch.setenv("ZIG_LOCAL_CACHE_DIR", str(zig_cache))


@pytest.fixture(scope="session")
def own_library() -> Path:
    """The library that an installation compiled in the source tree. It must be up to date."""
    if os.environ.get(build.SWITCH) == "0":
        pytest.skip(f"{build.SWITCH}=0")
    assert build.is_current(build.LIBRARY), "the engine is not compiled from these sources: install nmt again"
    return build.LIBRARY


def levels_of(cpu: str) -> list[str]:
    """Return the levels that these CPU flags of Linux allow, fastest first."""
    flags = set(cpu.split())
    vnni = "avx2 avx512f avx512dq avx512cd avx512bw avx512vl avx512_vnni"
    needs = {
        "amx": f"{vnni} amx_tile amx_int8",
        "avx512": vnni,
        "avxvnni": "avx2 avx_vnni",
        "avx2": "avx2 bmi1 bmi2 fma f16c movbe abm",
        "base": "",
    }
    return [level for level, needed in needs.items() if set(needed.split()) <= flags]


def test_the_fastest_level_of_the_cpu_is_chosen(own_library: Path) -> None:
    """Our reading of cpuid agrees with that of the kernel."""
    opened = library.load(SIGNATURES)
    assert opened is not None
    assert opened.level == library.describe() == levels_of(Path("/proc/cpuinfo").read_text())[0]
    assert getattr(opened, FUNCTION).argtypes == SIGNATURES[FUNCTION][1]
    with pytest.raises(AttributeError):
        opened.absent  # noqa: B018


def test_a_level_can_be_forced(own_library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NMT_ENGINE loads levels that the CPU supports. The error for others lists the supported ones."""
    supported = levels_of(Path("/proc/cpuinfo").read_text())
    for level in library.LEVELS:
        monkeypatch.setenv("NMT_ENGINE", level)
        if level in supported:
            opened = library.load(SIGNATURES)
            assert opened is not None
            assert opened.level == library.describe() == level
        else:
            with pytest.raises(
                UsageError, match=f"{level} is not available here. Available levels: {', '.join(supported)}$"
            ):
                library.load(SIGNATURES)


def test_the_engine_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NMT_ENGINE", "off")
    assert library.load(SIGNATURES) is None
    assert library.describe() == "none: NMT_ENGINE=off"


def test_an_unknown_level_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NMT_ENGINE", "sse\n9")
    with pytest.raises(UsageError, match=r"^NMT_ENGINE must be amx, avx512, .* or off, not sse\\n9$"):
        library.load(SIGNATURES)


def test_without_a_library_there_is_no_engine_and_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert library.load(SIGNATURES, tmp_path / "absent.so") is None
    assert library.describe(tmp_path / "absent.so") == "none: nmt was installed without it"
    (tmp_path / "damaged.so").write_bytes(b"not ELF")
    assert library.load(SIGNATURES, tmp_path / "damaged.so") is None
    assert library.describe(tmp_path / "damaged.so").startswith("none: it cannot be loaded: ")
    monkeypatch.setenv("NMT_ENGINE", "base")  # a forced level must not be replaced silently
    with pytest.raises(UsageError, match="NMT_ENGINE=base needs the engine, but nmt was installed without it"):
        library.load(SIGNATURES, tmp_path / "absent.so")


@pytest.mark.parametrize(
    ("compiled", "runnable", "chosen"),
    [
        ("avx512 avx2 base", "amx avx512 avx2 base", "avx512"),
        ("base avx2", "avx2 base", "avx2"),
        ("amx base", "avx2 base", "base"),
        ("amx avx512", "avx2 base", None),
        ("base", "", None),
    ],
)
def test_the_fastest_compiled_level_is_chosen(compiled: str, runnable: str, chosen: str | None) -> None:
    assert library.fastest_level(compiled.split(), runnable.split()) == chosen


@pytest.mark.parametrize("level", ["avx2", "amx"])
def test_a_forced_level_must_be_compiled_and_runnable(level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NMT_ENGINE", level)
    with pytest.raises(UsageError, match=rf"^NMT_ENGINE={level} is not available here. Available levels: base$"):
        library.fastest_level(["amx", "base"], ["avx2", "base"])


def test_the_engine_is_opened_without_numpy_and_torch(own_library: Path) -> None:
    code = (
        "import sys; from nmt_cli.engine import library; library.describe(); print({'numpy', 'torch'} & {*sys.modules})"
    )
    assert texts.python("-c", code).stdout == "set()\n"


def test_levels_have_the_same_names_and_order_in_c_and_python() -> None:
    for levels in build.LEVELS.values():
        assert list(levels) == [level for level in library.LEVELS if level in levels]


def glibc_of(file: Path) -> tuple[int, int]:
    """Return the newest version of glibc symbols that a library requires."""
    return max((int(a), int(b)) for a, b in re.findall(rb"GLIBC_(\d+)\.(\d+)", file.read_bytes()))


def test_the_library_runs_with_the_glibc_of_the_wheel_tag(own_library: Path) -> None:
    assert glibc_of(own_library) <= (2, 17)


# A stand-in for the compiler. It writes its input objects and arguments to the output, and fails at one flag.
STAND_IN = """
import sys
words = sys.argv[1:]
if "-fno-such-thing" in words:
    sys.exit("error: unknown argument -fno-such-thing")
output = words[words.index("-o") + 1]
objects = [open(word).read() for word in words if word.endswith(".o") and word != output]
open(output, "w").write("\\n".join([*objects, *words]))
"""


def test_a_library_with_other_flags_is_compiled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same call again does nothing; other flags compile again. A failed build keeps the library."""
    compiler, made = tmp_path / "path" / "ziglang", tmp_path / "made" / "one.so"
    compiler.mkdir(parents=True)
    made.parent.mkdir()
    (compiler / "__init__.py").touch()
    (compiler / "__main__.py").write_text(STAND_IN)
    monkeypatch.syspath_prepend(compiler.parent)
    monkeypatch.setenv("PYTHONPATH", str(compiler.parent))
    monkeypatch.delitem(sys.modules, "ziglang", raising=False)
    levels = list(build.LEVELS[platform.machine()])[-2:]
    assert build.build(made, levels=levels, flags=["-O1"])
    words = made.read_text().split("\n")
    assert f'-DCOMPILED="{" ".join(levels)}"' in words
    assert {f"-DLEVEL={level}" for level in levels} <= {*words}
    assert not build.build(made, levels=levels, flags=["-O1"])
    assert build.build(made, levels=levels, flags=["-O1", "-g"])
    with pytest.raises(build.CannotBuildError, match=r"^the compiler failed: error: unknown argument -fno-such-thing$"):
        build.build(made, levels=levels, flags=["-fno-such-thing"])
    assert "-g" in made.read_text().split("\n")
    assert [path.name for path in made.parent.iterdir()] == ["one.so"]


def test_a_library_of_another_build_is_not_current(tmp_path: Path) -> None:
    """The other build has fewer levels, other flags or another processor."""
    made, target, levels = tmp_path / "made.so", build.own_target(), list(build.LEVELS[platform.machine()])
    builds = [(target, levels, []), (target, levels[-1:], []), (target, levels, ["-g"]), (f"x{target}", levels, [])]
    for number, arguments in enumerate(builds):
        made.write_bytes(build._stamp(*arguments).encode())
        assert build.is_current(made) == (number == 0)


@pytest.mark.slow
def test_the_engine_compiles_for_arm(tmp_path: Path) -> None:
    pytest.importorskip("ziglang")
    made = tmp_path / "arm.so"
    assert build.build(made, "aarch64-linux-gnu.2.17")
    assert made.read_bytes()[:20].endswith(b"\xb7\x00")  # ELF's e_machine of AArch64
    assert glibc_of(made) <= (2, 17)
    assert {f"run_{level}".encode() for level in build.LEVELS["aarch64"]} <= set(made.read_bytes().split(b"\0"))
    if platform.machine() != "aarch64":
        assert library.describe(made).startswith("none: it cannot be loaded: ")


ARM_MAC, INTEL_MAC = 0x0100000C, 0x01000007  # CPU types in mach-o/loader.h


@pytest.mark.parametrize("machine", build.LEVELS)
def test_the_choice_of_a_level_compiles_for_macos(machine: str, tmp_path: Path) -> None:
    """dispatch.c is the only source that depends on the system."""
    pytest.importorskip("ziglang")
    zig = [sys.executable, "-m", "ziglang", "cc", "-target", build.target_of(f"{machine}-macos"), *build.FLAGS]
    source = ['-DCOMPILED="base"', '-DSTAMP=""', "-c", build.HERE / "dispatch.c", "-o", tmp_path / "dispatch.o"]
    subprocess.run([*zig, *build.WARNINGS, "-Werror", *source], check=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "cpu", "levels", "tag"),
    [
        ("aarch64-macos", ARM_MAC, "i8mm dotprod base", "macosx_11_0_arm64"),
        ("x86_64-macos", INTEL_MAC, "avx2 base", "macosx_11_0_x86_64"),
    ],
)
def test_the_engine_compiles_for_macos(tmp_path: Path, name: str, cpu: int, levels: str, tag: str) -> None:
    """The result is a dynamic library with the levels that a Mac may have and without paths of the build."""
    pytest.importorskip("ziglang")
    made, target = tmp_path / "mac.so", build.target_of(name)
    assert build.build(made, target)
    content = made.read_bytes()
    magic, found, _, kind = struct.unpack("<4I", content[:16])
    assert (magic, found, kind) == (0xFEEDFACF, cpu, 6)
    assert f"\0{levels}\0".encode() in content
    assert {f"_run_{level}".encode() for level in levels.split()} <= set(content.split(b"\0"))
    assert str(tmp_path).encode() not in content
    assert build.wheel_tag(target) == f"py3-none-{tag}"


def test_only_supported_systems_have_a_target() -> None:
    assert build.target_of("aarch64") == "aarch64-linux-gnu.2.17"
    assert build.levels_of("aarch64-macos.11.0") == ["i8mm", "dotprod", "base"]
    assert build.levels_of("x86_64-macos.11.0") == ["avx2", "base"], "no Mac has AMX or reports AVX-512"
    for name in ("riscv64", "aarch64-windows", "x86_64-linux", "macos", ""):
        with pytest.raises(build.CannotBuildError, match="The targets are x86_64 and aarch64, also with -macos"):
            build.target_of(name)


@pytest.mark.parametrize(
    ("system", "machine", "libc", "target"),
    [
        ("linux", "x86_64", "glibc", "x86_64-linux-gnu.2.17"),
        ("linux", "aarch64", "glibc", "aarch64-linux-gnu.2.17"),
        ("darwin", "arm64", "", "aarch64-macos.11.0"),
        ("darwin", "x86_64", "", "x86_64-macos.11.0"),
        ("linux", "x86_64", "", None),
        ("linux", "riscv64", "glibc", None),
        ("win32", "x86_64", "", None),
    ],
)
def test_this_system_is_recognized(
    monkeypatch: pytest.MonkeyPatch, system: str, machine: str, libc: str, target: str | None
) -> None:
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    monkeypatch.setattr(platform, "libc_ver", lambda: (libc, ""))
    if target:
        assert build.own_target() == target
    else:
        with pytest.raises(
            build.CannotBuildError, match="the engine needs macOS or Linux with glibc on x86_64 or aarch64, not"
        ):
            build.own_target()


def wheel_of(tmp_path: Path, **environment: str) -> tuple[Path, str]:
    """Build an sdist, and a wheel from it, without a compiler on the PATH; return the wheel and the output."""
    tools = tmp_path / "tools"
    subprocess.run([sys.executable, "-m", "venv", tools], check=True)
    python, nowhere = tools / "bin" / "python", os.environ | {"PATH": str(tmp_path), **environment}
    subprocess.run([python, "-m", "pip", "install", "-q", "build"], check=True)
    command = [python, "-m", "build", "--outdir", tmp_path, ROOT]
    done = subprocess.run(command, env=nowhere, capture_output=True, text=True, check=True)
    assert not list(tmp_path.glob("*.so"))
    [wheel] = tmp_path.glob("*.whl")
    return wheel, done.stdout + done.stderr


def test_env_shows_the_level_or_the_reason_for_none(own_library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unknown level is a usage error in one line."""
    for name, expected in (("base", '"engine": "base"'), ("off", '"engine": "none: NMT_ENGINE=off"')):
        monkeypatch.setenv("NMT_ENGINE", name)
        assert expected in run_nmt("env", "--json")[1]
    monkeypatch.setenv("NMT_ENGINE", "sse9")
    code, _, stderr = run_nmt("env")
    assert (code, stderr.count("\n")) == (2, 1)
    assert stderr.startswith("nmt env: error: NMT_ENGINE must be amx, ")


@pytest.fixture
def hook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The build hook, in a temporary directory. Its compiler records its calls in `built` and raises `error` if set."""
    interface = SimpleNamespace(BuildHookInterface=object)
    for name in ("hatchling", "hatchling.builders", "hatchling.builders.hooks", "hatchling.builders.hooks.plugin"):
        monkeypatch.setitem(sys.modules, name, SimpleNamespace())
    monkeypatch.setitem(sys.modules, "hatchling.builders.hooks.plugin.interface", interface)
    for name in (build.SWITCH, build.TARGET):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(build, "HERE", tmp_path)
    monkeypatch.setattr(build, "LIBRARY", tmp_path / "libengine.so")
    hook = build.get_build_hook()()
    hook.app, hook.warnings, hook.built, hook.error = SimpleNamespace(), [], [], None
    hook.app.display_warning = hook.warnings.append

    def compiled(output: Path, target: str) -> None:
        hook.built.append((output.name, target))
        if hook.error:
            raise hook.error
        output.write_text(target)

    monkeypatch.setattr(build, "build", compiled)
    return hook


OTHER = "aarch64-macos" if platform.machine() == "x86_64" else "x86_64-macos"


@pytest.mark.parametrize("version", ["standard", "editable"])
@pytest.mark.parametrize("wanted", ["", platform.machine(), OTHER])
def test_a_wheel_has_the_library_of_its_target(
    hook: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, wanted: str
) -> None:
    """A library for another system never replaces that of this system, and is removed afterwards."""
    if wanted:
        monkeypatch.setenv(build.TARGET, wanted)
    (tmp_path / "libengine.so").write_text("own")
    data: dict[str, Any] = {"force_include": {}}
    assert hook.dependencies() == [build.COMPILER]
    hook.initialize(version, data)
    name, target = f".libengine-{OTHER}.so" if wanted == OTHER else "libengine.so", build.own_target()
    target = build.target_of(wanted) if wanted else target
    assert hook.built == [(name, target)]
    expected = {"tag": build.wheel_tag(target), "pure_python": False} if version == "standard" else {}
    included = {str(tmp_path / name): "nmt_cli/engine/libengine.so"} if version == "standard" else {}
    assert data == {"force_include": included, **expected}
    hook.finalize(version, data, "")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        "libengine.so": "own" if wanted == OTHER else target
    }
    assert hook.warnings == []


@pytest.mark.parametrize("reason", ["switch", "compiler", "disk"])
@pytest.mark.parametrize("wanted", [False, True])
def test_a_wheel_without_the_library_is_pure_or_refused(
    hook: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reason: str, wanted: bool
) -> None:
    """If the wheel is pure, an older library is removed. A requested target must be built."""
    (tmp_path / "libengine.so").write_text("older")
    hook.error = {"compiler": build.CannotBuildError("x is wrong"), "disk": OSError("no space")}.get(reason)
    if reason == "switch":
        monkeypatch.setenv(build.SWITCH, "0")
    assert hook.dependencies() == ([] if reason == "switch" else [build.COMPILER])
    data: dict[str, Any] = {"force_include": {}}
    words = {"switch": f"{build.SWITCH}=0", "compiler": "x is wrong", "disk": "no space"}[reason]
    if wanted:
        monkeypatch.setenv(build.TARGET, "aarch64")
        with pytest.raises(build.CannotBuildError, match=f"^{build.TARGET}=aarch64: {words}$"):
            hook.initialize("standard", data)
    else:
        hook.initialize("standard", data)
        assert hook.warnings == [f"nmt is built without its engine ({words}). CPU translation is slower"]
        assert not list(tmp_path.iterdir())
    assert data == {"force_include": {}}


@pytest.mark.parametrize(
    ("arguments", "call"),
    [
        ([], (build.LIBRARY, None, [], [])),
        (["--levels", "avx2,base", "-g", "-DX=1"], (build.LIBRARY, None, ["avx2", "base"], ["-g", "-DX=1"])),
        (["--output", "a.so", "--target", "aarch64-linux-gnu"], (Path("a.so"), "aarch64-linux-gnu", [], [])),
    ],
)
def test_the_library_can_be_built_by_hand(monkeypatch: pytest.MonkeyPatch, arguments: list[str], call: Any) -> None:
    calls = list[Any]()
    monkeypatch.setattr(build, "build", lambda *x: calls.append(x))
    monkeypatch.setattr(sys, "argv", ["build.py", *arguments])
    build.main()
    assert calls == [call]


def test_the_first_error_of_the_compiler_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    code = "import sys; sys.exit('warning: a\\n1.c: error: b\\nerror: c')"
    with pytest.raises(build.CannotBuildError, match=r"^the compiler failed: 1\.c: error: b$"):
        build._run([sys.executable, "-c", code], os.environ)
    assert "warning: a" in capsys.readouterr().err
    with pytest.raises(build.CannotBuildError, match=r"^the compiler failed: exit code 3$"):
        build._run([sys.executable, "-c", "raise SystemExit(3)"], os.environ)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_an_sdist_builds_a_wheel_that_needs_no_compiler(tmp_path: Path) -> None:
    """The wheel names its platform, includes the library but no C source, and its engine needs no other packages."""
    wheel, _ = wheel_of(tmp_path)
    assert wheel.name.endswith(f"-py3-none-manylinux_2_17_{platform.machine()}.whl")
    inside = {Path(name).name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("nmt_cli/engine/")}
    assert {"libengine.so", "library.py"} <= inside
    assert not inside & {"build.py", "engine.c", "neon.c", "team.c", "dispatch.c"}
    python = tmp_path / "tools" / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "-q", "--no-deps", wheel], check=True)
    code = "from nmt_cli.engine import library; print(library.describe())"
    level = subprocess.run([python, "-I", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert level.strip() == levels_of(Path("/proc/cpuinfo").read_text())[0]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_without_the_engine_the_wheel_is_pure(tmp_path: Path) -> None:
    wheel, output = wheel_of(tmp_path, NMT_ENGINE_BUILD="0")
    assert wheel.name.endswith("-py3-none-any.whl")
    assert not [name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".so")]
    assert "nmt is built without its engine (NMT_ENGINE_BUILD=0). CPU translation is slower" in output
    assert "ziglang" not in output


def fuzz(path: Path, level: str, sentences: int) -> str:
    command = [sys.executable, str(ROOT / "tests/helpers/engine_fuzz.py"), str(path), str(sentences), "1"]
    done = subprocess.run(command, env={**os.environ, "NMT_ENGINE": level}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (level, done.stderr)
    return done.stdout


def test_random_models_search_random_sentences_without_a_fault(own_library: Path) -> None:
    level = library.describe(own_library)
    assert f"sentences at level {level}: no fault" in fuzz(own_library, level, 10)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_random_models_have_no_undefined_behavior(own_library: Path, tmp_path: Path) -> None:
    """Random shapes, options and lengths: no undefined behavior and no access beyond a buffer, at any level.

    The checks also change how the compiler arranges and fuses operations, but results stay the same to the last bit.
    """
    flags = [
        "-fsanitize=undefined",
        "-fsanitize-trap=undefined",
        "-fno-sanitize=function",
        "-DGUARD_PAGES",
        "-DSHARED=1",
    ]
    build.build(tmp_path / "guarded.so", flags=flags)
    for level in levels_of(Path("/proc/cpuinfo").read_text()):
        outputs = [fuzz(path, level, 40) for path in (tmp_path / "guarded.so", own_library)]
        assert outputs[0] == outputs[1]
