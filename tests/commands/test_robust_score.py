"""`nmt score --robust SOURCE --model DIR`."""

import json
from pathlib import Path

from command_line import Nmt
from tiny_model import make_model


def test_the_argument_is_the_source(nmt: Nmt, tmp_path: Path) -> None:
    (tmp_path / "test.en").write_text("der Hund geht.\ndie Katze ist rot.\n")
    (tmp_path / "test.de").write_text("das Haus ist rot.\nein Baum.\n")
    model = str(make_model(tmp_path / "m"))
    words = ["score", "--robust", "test.en", "--reference", "test.de", "--model", model, "--metric", "chrf"]
    code, out, err = nmt(*words, "--format", "json")
    assert code == 0, err
    rows = json.loads(out)["robust"]
    names = ["as it is", "lower case", "no final stop", "typos", "Title Case", "UPPER CASE"]
    assert [row["source"] for row in rows] == names
    code, out, _ = nmt(*words)
    assert code == 0
    assert "Scores with damaged sources" in out
    code, _, err = nmt("score", "--robust", "test.en", "--reference", "test.de")
    assert code == 2
    assert "--robust translates the damaged source. Pass --model DIR" in err
