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
    """pip only warns about an extra that does not exist, and installs less."""
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
    """An sdist and two wheels, each with the engine of its processor."""
    subprocess.run([ROOT / ".ci/release", tmp_path / "dist"], check=True, capture_output=True)
    version = nmt_cli.__version__
    machines = {"x86_64": b"\x3e\x00", "aarch64": b"\xb7\x00"}  # e_machine of ELF
    wheels = {machine: f"nmt_cli-{version}-py3-none-manylinux_2_17_{machine}.whl" for machine in machines}
    assert {path.name for path in (tmp_path / "dist").iterdir()} == {f"nmt_cli-{version}.tar.gz", *wheels.values()}
    for machine, wheel in wheels.items():
        with zipfile.ZipFile(tmp_path / "dist" / wheel) as archive:
            assert archive.read("nmt_cli/engine/libengine.so")[18:20] == machines[machine]
