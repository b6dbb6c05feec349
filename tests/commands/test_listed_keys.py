"""Lists of keys and of models; the arguments of `score --robust`, `shortlist` and `serve`."""

import json
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from command_line import Nmt
from tiny_model import make_model

from nmt_cli.scoring.score import ScoreOptions
from nmt_cli.serving.database import Database
from nmt_cli.serving.key_store import KeyStore
from nmt_cli.translation.stored_models import Direction, StoredModel


def test_keys_are_listed_with_their_own_limits(nmt: Nmt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """0 is a limit, too. Changing one limit keeps the other. `keys limit` without an option removes both."""
    monkeypatch.setattr("nmt_cli.serving.key_store._now", lambda: "now")
    options = ["--database", "a.db"]
    for name, *limits in (("b",), ("a", "--per-minute", "0"), ("c", "--per-day", "1000000", "--per-minute", "1500")):
        assert nmt("keys", "add", name, *limits, *options)[0] == 0
    assert nmt("keys", "revoke", "a", *options) == (0, "", "revoked a\n")
    assert nmt("keys", "list", *options)[1].split("\n") == [
        "b\tno limit on requests/minute\tno limit on characters/day\tcreated now",
        "a\t0 requests/minute\tno limit on characters/day\trevoked now",
        "c\t1,500 requests/minute\t1,000,000 characters/day\tcreated now",
        "",
    ]
    changed = nmt("keys", "limit", "c", "--per-day", "7", *options)
    assert changed == (0, "", "c: 1,500 requests/minute, 7 characters/day\n")
    assert nmt("keys", "list", *options)[1].split("\n")[2].startswith("c\t1,500 requests/minute\t7 characters/day")
    assert nmt("keys", "limit", "c", *options)[2] == "c: no limit on requests/minute, no limit on characters/day\n"
    store = KeyStore(Database(tmp_path / "a.db"))
    [key] = [key for key in store if key.name == "b"]
    for day, characters in ((1, 2000), (2, 50)):
        store.charge(key, characters, day * 86400.0)
    assert nmt("keys", "usage", *options)[1].split("\n") == [
        "1970-01-03\tb\t1 requests\t50 characters",
        "1970-01-02\tb\t1 requests\t2,000 characters",
        "",
    ]


def test_only_adding_a_key_creates_a_database(nmt: Nmt, tmp_path: Path) -> None:
    for words in (["list"], ["revoke", "a"], ["limit", "a"], ["usage"]):
        code, out, err = nmt("keys", *words, "--database", "a.db")
        assert (code, out) == (66, "")
        assert "no database a.db. To make one: nmt keys add NAME --database a.db" in err
    assert not (tmp_path / "a.db").exists()
    for limit, code in (("9223372036854775808", 2), ("-1", 2), ("9223372036854775807", 0)):  # SQL's largest integer
        assert nmt("keys", "add", "a", "--database", "a.db", "--per-day", limit, "--per-minute", limit)[0] == code
    assert nmt("keys", "limit", "a", "--database", "a.db", "--per-day", "9223372036854775807")[0] == 0
    for words, code in ((["revoke", "x"], 66), (["limit", "x"], 66), (["add", "a"], 73)):
        assert nmt("keys", *words, "--database", "a.db")[0] == code


def test_models_are_listed_in_columns(nmt: Nmt, monkeypatch: pytest.MonkeyPatch) -> None:
    several = (Direction("en", "deu_Latn", ">>deu_Latn<< "), Direction("en", "fr", ">>fr<< "))
    found = [
        StoredModel(Path("models/a\x1b"), "nmt", several, 1_280_000, 65_000_000, Path),
        StoredModel(Path("b.argosmodel"), "argos", (Direction("de", "en"),), 99_000_000, 0, Path),
    ]
    monkeypatch.setattr("nmt_cli.interop.model_kinds.list_models", asked := Mock(return_value=found))
    assert nmt("models", "x", "y")[1].split("\n") == [
        "en-deu_Latn  nmt         65.0 M parameters      1.3 MB  models/a\\x1b",
        "en-fr        nmt         65.0 M parameters      1.3 MB  models/a\\x1b",
        "de-en        argos                             99.0 MB  b.argosmodel",
        "",
    ]
    assert json.loads(nmt("models", "--json")[1]) == [
        {"path": "models/a\x1b", "kind": "nmt", "pairs": [["en", "deu_Latn"], ["en", "fr"]], "parameters": 65_000_000,
         "bytes": 1_280_000},
        {"path": "b.argosmodel", "kind": "argos", "pairs": [["de", "en"]], "parameters": None, "bytes": 99_000_000},
    ]  # fmt: skip
    Path("models").mkdir()
    nmt("models")
    Path("runs").mkdir()
    nmt("models")
    places = [[Path("x"), Path("y")], [], [Path("models")], [Path("runs"), Path("models")]]
    assert [call.args[0] for call in asked.call_args_list] == places


@pytest.mark.parametrize(
    ("words", "source", "hypothesis"),
    [
        ("--robust i", "i", None),
        ("--robust i --source s", "s", "i"),
        ("i", None, "i"),
        ("--robust --source s", "s", None),
    ],
)
def test_with_robust_the_argument_is_the_source_unless_source_is_given(
    nmt: Nmt, monkeypatch: pytest.MonkeyPatch, words: str, source: str | None, hypothesis: str | None
) -> None:
    def evaluate(options: ScoreOptions, translate: Any) -> None:
        found = [path and str(path) for path in (options.source, options.hypothesis)]
        assert found == [source, hypothesis]
        assert translate is None
        raise LookupError

    monkeypatch.setattr("nmt_cli.scoring.score.evaluate", evaluate)
    with pytest.raises(LookupError):
        nmt("score", *words.split())


@pytest.mark.parametrize(
    "words", ["", "--src a", "--tgt a", "--vmap v --src a", "--vmap v --tgt a", "--vmap v --src a --tgt b"]
)
def test_a_shortlist_has_one_origin(nmt: Nmt, words: str) -> None:
    code, _, err = nmt("shortlist", "m", *words.split())
    assert (code, "pass either --src and --tgt, or --vmap" in err) == (2, True)


def test_a_directory_of_models_is_served_when_needed(nmt: Nmt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("starlette")
    for name in ("a", "b"):
        make_model(tmp_path / "all" / name, f"corpus.src={name}x")
    named = make_model(tmp_path / "one")
    monkeypatch.setattr("nmt_cli.serving.server.serve", asked := Mock(return_value=0))
    assert nmt("serve", str(named), str(tmp_path / "all"), "--idle", "0")[0] == 0
    [options] = asked.call_args.args
    assert options.models == (named,)
    assert [model.directions[0].source for model in options.stored] == ["ax", "bx"]
    assert (options.idle, options.memory, options.pivot) == (0, None, True)
