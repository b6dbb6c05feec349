"""Cases in which similar rules give different results: shares, orders of files, kinds of models, single numbers."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from tiny_model import make_model

from nmt_cli.corpus.tokenizer import EOS, PAD
from nmt_cli.interop import formats, importing, model_kinds, verification
from nmt_cli.interop.argos_package import metadata_of
from nmt_cli.interop.export import export
from nmt_cli.interop.marian_files import find_files
from nmt_cli.interop.model_kinds import find_models, list_models, named_and_found
from nmt_cli.system.errors import DataError, MissingError, OutputError
from nmt_cli.transformer.weights import load_model, load_tensors, save_model


@pytest.mark.parametrize(
    ("ended", "differing", "kept"), [(49, 1, True), (49, 2, False), (50, 2, True), (1, 1, True), (20, 2, False)]
)
def test_the_share_of_differing_lines_counts_only_lines_that_end(ended: int, differing: int, kept: bool) -> None:
    """The rest of the 80 lines reach the limit."""
    ours = [[7, EOS] if i < ended else [7] * 9 for i in range(80)]
    segments = [SimpleNamespace(ids=[5, EOS], hypotheses=[SimpleNamespace(ids=ids[:-1])]) for ids in ours]
    theirs = [[8, EOS] if i < differing else [*segment.hypotheses[0].ids, EOS] for i, segment in enumerate(segments)]
    translator = Mock(config=SimpleNamespace(decoding=SimpleNamespace(beam=2, extra_length=4)))
    translator.translate.return_value = [SimpleNamespace(segments=[segment]) for segment in segments]
    translator.tokenizer.target.decode = lambda lines: ["text"] * len(lines)
    translator.score_ids.return_value = [[-1.0]] * 80
    adapter = Mock(beam=None, difference="")
    adapter.translate.return_value, adapter.score.return_value = theirs, [[-1.0]] * 80
    lines = dict.fromkeys(range(80), "line")
    same = f"{ended - differing} of {ended} translations that end within the limit are the same."
    if kept:
        assert same in verification.compare(translator, adapter, lines, exact=True)[0]
    else:
        with pytest.raises(DataError, match=same):
            verification.compare(translator, adapter, lines, exact=True)
    assert same in verification.compare(translator, adapter, lines, exact=False)[0]


def test_differences_are_relative_to_unlikely_tokens_of_ours() -> None:
    for ours, theirs, *differences in (
        ([-0.5], [-0.25], 0.25),
        ([-4.0], [-5.0], 0.25),
        ([-5.0], [-4.0], 0.2),
        ([-1.0, -2.0], [-1.5, -4.0], 1.0, 0.5),
        ([0.0], [-3.0], 3.0),
    ):
        assert verification.differences_of([[], ours], [[], theirs]) == differences


@pytest.mark.parametrize(
    ("far", "others", "allowed"),
    [
        ([], 999 * [1e-4], True),
        ([1.1e-4], 998 * [0.0], False),
        ([1e-3], 999 * [1e-4], True),
        ([1.1e-3], 999 * [0.0], False),
        ([1e-3, 1e-3], 1998 * [0.0], True),
        ([1e-3, 1e-3], 1997 * [0.0], False),
        ([float("nan")], [], False),
    ],
)
def test_one_token_in_a_thousand_may_differ_by_more(far: list[float], others: list[float], allowed: bool) -> None:
    assert verification.are_rounding_errors(far + others) == allowed


def test_one_nonzero_number_in_the_start_embedding_prevents_an_export_to_ctranslate2(tmp_path: Path) -> None:
    pytest.importorskip("ctranslate2")
    loaded = load_model(make_model(tmp_path / "m"))
    state = loaded.model.state_dict()
    state["embedding.weight"][PAD] = 0
    state["embedding.weight"][PAD, 3] = 1
    save_model(tmp_path / "model", state, loaded.recipe, loaded.tokenizer_file, {})
    (tmp_path / "lines").write_text("der Hund\n")
    with pytest.raises(DataError, match="starts decoding with a zero embedding, and this model does not"):
        export(tmp_path / "model", "ctranslate2", tmp_path / "out", None, tmp_path / "lines")
    assert not (tmp_path / "out").exists()


def test_decoder_yml_is_preferred_to_model_npz_decoder_yml(tmp_path: Path) -> None:
    for name, vocabulary in (("decoder.yml", "first.spm"), ("model.npz.decoder.yml", "second.spm")):
        (tmp_path / name).write_text(f"models: [model.npz]\nvocabs: [{vocabulary}]\n")
        (tmp_path / vocabulary).touch()
    (tmp_path / "model.npz").touch()
    assert find_files(tmp_path) == (tmp_path / "model.npz", [tmp_path / "first.spm"] * 2)


def test_a_model_that_does_not_translate_is_not_listed(tmp_path: Path) -> None:
    """A parser is not listed, even if it is named. A command that opens it reports the error."""
    make_model(tmp_path / "translates")
    parser = Path(shutil.copytree(tmp_path / "translates" / "model", tmp_path / "parser"))
    settings = json.loads((parser / "model.json").read_text())
    (parser / "model.json").write_text(json.dumps({**settings, "output": "trees"}))
    [found] = list_models([parser, tmp_path / "translates"])
    tensors = load_tensors(tmp_path / "translates" / "model" / "model.safetensors")
    assert (found.path.name, found.parameters) == ("translates", sum(each.numel() for each in tensors.values()))
    with pytest.raises(MissingError, match=f"no model in {parser}"):
        list_models([parser])
    assert named_and_found([parser]) == ((parser,), ())


def test_a_missing_file_is_no_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """The warning about a damaged package names it only once."""
    assert not formats.is_argos_package(tmp_path / "a.argosmodel")
    (tmp_path / "a.argosmodel").touch()
    assert formats.is_argos_package(tmp_path / "a.argosmodel")

    def fail(path: Path) -> Any:
        raise DataError(f"{path} is damaged")

    kind = model_kinds.Kind("argos", formats.is_argos_package, fail)
    monkeypatch.setattr(model_kinds, "KINDS", (kind,))
    assert find_models(tmp_path) == []
    assert capsys.readouterr().err == f"nmt: warning: {tmp_path / 'a.argosmodel'} is skipped: it is damaged\n"


@pytest.mark.parametrize(
    ("theirs", "ours"), [("zh", "zh-Hans"), ("zt", "zh-Hant"), ("pb", "pt-BR"), ("pt", "pt"), ("de", "de")]
)
def test_codes_in_metadata_become_ours(tmp_path: Path, theirs: str, ours: str) -> None:
    (tmp_path / "metadata.json").write_text(json.dumps({"from_code": theirs, "to_code": "en"}))
    assert metadata_of(tmp_path) == {"from_code": ours, "to_code": "en", "target_prefix": ""}
    (tmp_path / "metadata.json").write_text(json.dumps({"from_code": "en", "to_code": theirs}))
    assert metadata_of(tmp_path)["to_code"] == ours


def test_each_side_of_an_import_is_compared_on_its_own_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    target: Any = object()
    tokenizer: Any = SimpleNamespace(
        target=target, vocabulary_size=2, decode=lambda _: ["a", "b"], language=lambda _: []
    )
    monkeypatch.setattr(importing, "_random_lines", lambda side: ["source" if side is tokenizer else "target"])
    monkeypatch.setattr(importing, "compare", Mock(return_value=("proof", [], [])))
    monkeypatch.setattr(importing, "Translator", Mock())
    adapter = Mock()
    assert importing.verify_import(Mock(), tokenizer, Mock(), adapter) == "proof"
    adapter.check_tokenizer.assert_called_once_with(tokenizer, ["source"], ["target"], allowed=6)


def test_nothing_is_read_or_downloaded_for_an_output_that_exists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importing.hub, "download", download := Mock())
    for act in (
        lambda: importing.import_model("owner/name", tmp_path),
        lambda: export(Path("nowhere"), "hf", tmp_path, None, None),
    ):
        with pytest.raises(OutputError, match=f"{tmp_path} exists already. Choose another --out"):
            act()
    assert not download.called
    assert not [*tmp_path.iterdir()]
