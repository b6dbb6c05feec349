"""Packaging: the extras named in commands exist, and one command builds the release."""

import re
import subprocess
import tomllib
import zipfile
from pathlib import Path

import pytest

import nmt_cli

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / ".ci/run", ROOT / "README.md", *ROOT.glob("recipes/*.yaml"), *ROOT.glob("nmt_cli/**/*.py")]


@pytest.mark.skipif(not (ROOT / "pyproject.toml").exists(), reason="not a source tree")
def test_every_extra_that_an_install_command_names_exists() -> None:
    """pip only warns about an extra that does not exist, and installs nothing for it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = {
        extra
        for page in PAGES
        for extras in re.findall(r'"(?:\.|nmt-cli)\[([\w,]+)\]"', page.read_text())
        for extra in extras.split(",")
    }
    assert {"dev", "serve", "moses", "export", "test"} <= named <= set(project["optional-dependencies"])


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_one_command_builds_the_release(tmp_path: Path) -> None:
    """An sdist and three wheels, each with the engine of its system and processor."""
    subprocess.run([ROOT / ".ci/release", tmp_path / "dist"], check=True, capture_output=True)
    version = nmt_cli.__version__
    parts = {  # where the header names the processor, the name there, and the engine's levels
        "manylinux_2_17_x86_64": (slice(18, 20), b"\x3e\x00", b"amx avx512 avxvnni avx2 base"),
        "manylinux_2_17_aarch64": (slice(18, 20), b"\xb7\x00", b"i8mm dotprod base"),
        "macosx_11_0_arm64": (slice(0, 8), b"\xcf\xfa\xed\xfe\x0c\x00\x00\x01", b"i8mm dotprod base"),
    }
    wheels = {system: f"nmt_cli-{version}-py3-none-{system}.whl" for system in parts}
    assert {path.name for path in (tmp_path / "dist").iterdir()} == {f"nmt_cli-{version}.tar.gz", *wheels.values()}
    for system, (header_bytes, processor, levels) in parts.items():
        with zipfile.ZipFile(tmp_path / "dist" / wheels[system]) as archive:
            library = archive.read("nmt_cli/engine/libengine.so")
        assert library[header_bytes] == processor
        assert b"\0" + levels + b"\0" in library
