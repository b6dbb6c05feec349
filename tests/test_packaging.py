"""What `pip install` is given: the extras that our own commands and messages name."""

import re
import tomllib
from pathlib import Path

import pytest

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
