"""The translate command: models, files, prefixes, scores and contradictory options."""

import gzip
import json
import math
import os
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_model import content, memory_file
from translators import records, run

from nmt_cli import Terms, Translator
from nmt_cli.corpus.tokenizer import EOS
from nmt_cli.system import console
from nmt_cli.system.console import Progress
from nmt_cli.system.errors import DataError, MissingError, OutputError, StorageError, UsageError
from nmt_cli.transformer.cache import for_inference
from nmt_cli.transformer.weights import load_model
from nmt_cli.translation import backends
from nmt_cli.translation import translator as module
from nmt_cli.translation.options import Sampling, SearchOptions
from nmt_cli.translation.queue import Backend
from nmt_cli.translation.search import score_targets
from nmt_cli.translation.translate import TranslateOptions, choose_models, translate, translate_lines


def test_pairs_are_scored_without_search(
    translator: Translator, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sources, targets = ["der Hund geht", "", "die Katze ist rot"], ["das Haus", "rot", "ein Baum und"]
    (tmp_path / "in").write_text("\n".join(sources))
    (tmp_path / "out").write_text("\n".join(targets))
    options = TranslateOptions(
        tmp_path / "in", tmp_path / "scores", (model,), SearchOptions(alpha=0.5), precision="fp32", format="jsonl",
        score_pairs=tmp_path / "out",
    )  # fmt: skip
    assert translate(options) == 0
    scored = records((tmp_path / "scores").read_bytes())
    assert [record["line"] for record in scored] == [1, 2, 3]
    both = zip(*map(translator.tokenizer.encode, (sources, targets)), strict=True)
    ids = [[[*side, EOS] for side in pair] for pair in both]
    exact = score_targets([for_inference(load_model(model).model, torch.float32)], torch.float32, ids)
    for record, pair, values in zip(scored, ids, exact, strict=True):
        assert list(record) == ["line", "log_probability", "score", "tokens", "token_log_probabilities"]
        assert record["token_log_probabilities"] == pytest.approx(values, abs=1e-5)
        assert record["tokens"] == translator.tokenizer.tokens(pair[1])
        assert record["log_probability"] == pytest.approx(math.fsum(values), abs=1e-5)
        assert record["score"] == pytest.approx(record["log_probability"] / ((5 + len(values)) / 6) ** 0.5)
    for alpha, power in ((0, 0), (None, translator.config.decoding.alpha)):  # 0 means no penalty, None the recipe's
        (one,) = translator.score([(sources[0], targets[0])], alpha=alpha)
        assert one.score == pytest.approx(one.log_probability / ((5 + len(exact[0])) / 6) ** power)
    assert power > 0
    nats = -sum(record["log_probability"] for record in scored) / sum(len(record["tokens"]) for record in scored)
    assert f"3 pairs, {nats:.4f} nats per token, perplexity {math.exp(nats):.3f}" in capsys.readouterr().err
    assert translate(replace(options, format="text")) == 0
    assert (tmp_path / "scores").read_text().split("\n")[:-1] == [f"{record['score']:.6f}" for record in scored]
    capsys.readouterr()
    for name in ("in", "out"):
        (tmp_path / f"no {name}").touch()
    nothing = replace(options, input=tmp_path / "no in", score_pairs=tmp_path / "no out", output=tmp_path / "none")
    assert translate(nothing) == 0
    assert (tmp_path / "none").read_bytes() == b""
    assert "pairs" not in capsys.readouterr().err
    (tmp_path / "out").write_text("eins\nzwei\n")
    with pytest.raises(DataError, match="ends after line 2"):
        translate(options)
    (tmp_path / "out").write_bytes(b"eins\n\xff\ndrei\n")
    with pytest.raises(DataError, match="translation 2 is not UTF-8"):
        translate(replace(options, strict=True))
    for pair in (("rot", "rot " * 128), ("rot " * 128, "rot")):
        with pytest.raises(DataError, match="line 2 has more tokens than the model's limit of 128"):
            list(translator.score([("rot " * 127, "rot " * 127), pair]))


def test_prefixes_begin_their_lines(translator: Translator, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = b"der Hund\ndie Katze\nein Baum\nrot\n"
    prefixes = tmp_path / "prefixes"
    prefixes.write_text("das Haus\n\nrot und\n" + "rot " * 500)
    out = run(translator, data, prefix=prefixes).decode().split("\n")
    assert out[0].startswith("das Haus")
    assert out[1] == run(translator, data).decode().split("\n")[1]
    assert out[2].startswith("rot und")
    assert re.fullmatch("rot( rot){50,}( .*)?", out[3])
    assert "1 line or prefix was longer than the model's 128 tokens and was cut" in capsys.readouterr().err
    with pytest.raises(DataError, match=r"fewer prefixes than lines: line 5 has none$"):
        run(translator, data + b"a\n", prefix=prefixes)
    with pytest.raises(DataError, match=r"more prefixes than lines \(2\)"):
        run(translator, b"rot\nrot\n", prefix=prefixes)
    with pytest.raises(DataError, match=r"more prefixes than lines \(1\)"):
        run(translator, b"rot\n", prefix=prefixes)  # the next prefix is empty
    prefixes.write_bytes(b"rot\xc2\xa0 und\n\xff\n")
    assert run(translator, b"der Hund\nrot\n", prefix=prefixes).startswith(b"rot und"), (
        "white space is cleaned as in lines"
    )
    with pytest.raises(DataError, match="prefix 2 is not UTF-8"):
        run(translator, b"der Hund\nrot\n", prefix=prefixes, strict=True)


def test_the_model_is_the_named_or_the_newest_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(MissingError, match="nmt reproduce"):
        choose_models([])
    years = {"b": 2026, "c": 2025, "d": 2027, "e": 2028, "a": 2024}
    for name, year in years.items():
        form = "trees" if name in "de" else "text"
        (model := tmp_path / "runs" / name / "model").mkdir(parents=True)
        (model / "manifest.json").write_text(json.dumps({"created": f"{year}-01-01T00:00:00"}))
        (model / "recipe.yaml").write_text(f"corpus: {{name: own, format: {form}}}")
    console.set_quiet(False)
    assert choose_models([]) == (Path("runs/b/model"),)  # by its creation, not by file times; d and e are parsers
    assert "model: runs/b/model" in capsys.readouterr().err
    assert choose_models([Path("a"), Path("b")]) == (Path("a"), Path("b"))


def test_the_options_of_a_command_reach_its_backend(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    choose, asked = backends.choose, list[Any]()

    def noted(models: Any, precision: str, workers: int | None, cores: int) -> Backend:
        asked.append(([each.directory for each in models], precision, workers, cores))
        return choose(models, precision, workers, cores)

    monkeypatch.setattr(backends, "choose", noted)
    monkeypatch.setattr(module, "usable_cores", lambda: 7)
    (tmp_path / "in").write_bytes(b"der Hund\n")
    options = TranslateOptions(
        tmp_path / "in", tmp_path / "out", (model, model), SearchOptions(n_best=2), "int8", workers=3
    )
    assert translate(options) == 0
    assert translate(replace(options, precision="fp32", workers=None, models=(model,))) == 0
    assert asked == [([model, model], "int8", 3, 7), ([model], "fp32", None, 7)]
    assert (tmp_path / "out").read_bytes().count(b"\n") == 2


def test_an_output_file_appears_only_once_it_is_complete(model: Path, tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b"der Hund\n\nrot")
    options = TranslateOptions(tmp_path / "in", tmp_path / "new" / "out", (model,), precision="fp32")
    assert translate(options) == 0
    assert [path.read_bytes().count(b"\n") for path in tmp_path.glob("new/*")] == [3]
    (tmp_path / "new" / "linked.part").write_bytes(b"what was stopped left this\n" * 100)
    (tmp_path / "link").symlink_to(tmp_path / "new" / "linked")
    assert translate(replace(options, output=tmp_path / "link")) == 0
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "new" / "linked").read_bytes() == (tmp_path / "new" / "out").read_bytes()
    out, into = os.pipe()
    (tmp_path / "pipe").symlink_to(f"/proc/self/fd/{into}")
    assert translate(replace(options, output=tmp_path / "pipe")) == 0
    assert os.read(out, 9999) == (tmp_path / "new" / "out").read_bytes()
    (tmp_path / "same").hardlink_to(tmp_path / "in")
    (tmp_path / "points").symlink_to("in")
    for name in ("in", "same", "points"):
        with pytest.raises(OutputError, match=f"{name} is also the input"):
            translate(replace(options, output=tmp_path / name))
    (tmp_path / "in.gz").write_bytes(gzip.compress(b"der Hund\n"))
    with pytest.raises(DataError, match="the input is not plain text, it looks like gzip"):
        translate(replace(options, input=tmp_path / "in.gz"))
    assert not list(tmp_path.glob("new/*.part")), "an empty .part file remains"
    with pytest.raises(OutputError, match="new is a directory"):
        translate(replace(options, output=tmp_path / "new"))


def test_a_file_of_another_process_never_becomes_the_output(model: Path, tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b"der Hund\n")

    def replaced(*_: object) -> None:
        (tmp_path / "out.part").unlink()
        (tmp_path / "out.part").write_bytes(b"of another process\n")

    with pytest.raises(OutputError, match=r"another process has replaced .*out\.part"):
        translate(TranslateOptions(tmp_path / "in", tmp_path / "out", (model,)), replaced)
    assert not (tmp_path / "out").exists()


def test_contradictions_are_refused_before_a_model_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    absent = TranslateOptions(Path("absent"), score_pairs=Path("absent"))
    for more in (
        {"search": SearchOptions(n_best=2)}, {"search": SearchOptions(sampling=Sampling())},
        {"search": SearchOptions(terms=Terms([]))}, {"search": SearchOptions(alignments=True)},
        {"prefix": Path("absent")}, {"search": SearchOptions(target="fr")}, {"search": SearchOptions(shortlist=True)},
    ):  # fmt: skip
        with pytest.raises(UsageError, match="--score-pairs"):
            translate(replace(absent, **more))
    with pytest.raises((FileNotFoundError, MissingError)):
        translate(replace(absent, search=SearchOptions(alpha=0.5, beam=3)))
    with pytest.raises(MissingError, match="no file"):
        translate(TranslateOptions(tmp_path / "absent", tmp_path / "out", (Path("absent"),)))
    assert not list(tmp_path.iterdir())
    monkeypatch.setenv("RANK", "1")  # in a launched job the first process does the work
    assert translate(TranslateOptions(input=Path("absent"))) == 0


def test_a_part_file_replaced_by_a_link_does_not_become_the_output(model: Path, tmp_path: Path) -> None:
    """This holds even if the link points to the file that was written."""
    (tmp_path / "in").write_bytes(b"der Hund\n")

    def linked(*_: object) -> None:
        (tmp_path / "out.part").rename(tmp_path / "moved")
        (tmp_path / "out.part").symlink_to("moved")

    with pytest.raises(OutputError, match=r"another process has replaced .*out\.part"):
        translate(TranslateOptions(tmp_path / "in", tmp_path / "out", (model,)), linked)
    assert not (tmp_path / "out").exists()


def test_an_error_names_its_own_file_or_else_the_output(model: Path, tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b"der Hund\n")
    for error, name in ((OSError(5, "x", "glossary"), "glossary"), (OSError(28, "full"), f"{tmp_path / 'out.part'}")):

        def failing(*_: object, error: OSError = error) -> None:
            raise error

        with pytest.raises(OSError, match=r"x|full") as caught:
            translate(TranslateOptions(tmp_path / "in", tmp_path / "out", (model,)), failing)
        assert caught.value.filename == name
        assert not (tmp_path / "out.part").exists()


def test_an_output_file_has_the_usual_permissions(model: Path, tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b"der Hund\n")
    before = os.umask(0o027)
    try:
        assert translate(TranslateOptions(tmp_path / "in", tmp_path / "out", (model,))) == 0
    finally:
        os.umask(before)
    assert (tmp_path / "out").stat().st_mode & 0o777 == 0o640


def test_standard_output_may_be_named(model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """It is written to, never replaced by a file. A closed stream matters only where it is used."""
    (tmp_path / "in").write_bytes(b"der Hund\nrot\n")
    for output in (None, Path("/dev/stdout")):
        assert translate(TranslateOptions(tmp_path / "in", output, (model,))) == 0
        assert capfd.readouterr().out.count("\n") == 2
    with pytest.MonkeyPatch.context() as patch:
        for name in ("stdin", "stdout"):
            patch.setattr(sys, name, None)
        assert translate(TranslateOptions(tmp_path / "in", tmp_path / "out", (model,))) == 0
        with pytest.raises(MissingError, match="stdin is closed"):
            translate(TranslateOptions(None, tmp_path / "out", (model,)))
        with pytest.raises(StorageError, match="stdout is closed"):
            translate(TranslateOptions(tmp_path / "in", None, (model,)))


def test_lines_of_a_unit_have_their_numbers_in_the_whole_file(translator: Translator) -> None:
    """This holds in messages and in jsonl. Only the first line of the whole file is checked for other file formats."""

    def translated(data: bytes, **options: Any) -> list[int]:
        source, target = memory_file(data), memory_file()
        chosen = TranslateOptions(first_line=41, format="jsonl", is_unit=True, **options)
        with Progress("translating", None, "lines") as progress:
            translate_lines(translator, chosen, source, target, progress)
        return [record["line"] for record in records(content(target))]

    queued = list[int]()
    count = lambda: queued.append(translator.counts["lines"])  # noqa: E731
    assert translated(b"rot\nder Hund\n", all_read=count) == [41, 42]
    assert queued == [2]
    translator.counts.clear()
    assert translated(b"\xff\xfe\nrot\n\x1f\x8b\xff\n") == [41, 42, 43]
    assert (translator.counts["invalid"], translator.counts["first invalid"]) == (2, 41)
    with pytest.raises(DataError, match="line 42 is not UTF-8"):
        translated(b"rot\n\xff\n", strict=True)
