"""Values that two readings of a rule tell apart: names of outputs, states of many folders, and shares of few units."""

from pathlib import Path

import pytest
from shouting import begin

from nmt_cli.system.errors import OutputError


def test_a_file_is_no_place_for_units_whatever_its_name(tmp_path: Path) -> None:
    (tmp_path / "text.en").write_bytes(b"x\n")
    for name in ("file", "file.d"):
        (tmp_path / name).write_bytes(b"kept")
        with pytest.raises(OutputError, match=rf"{name} is a file\. Units need a directory"):
            begin(tmp_path / name, tmp_path / "text.en")
        assert (tmp_path / name).read_bytes() == b"kept"
