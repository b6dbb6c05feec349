"""The Python API: options, samples, scores, prefixes, ensembles and models in memory."""

import math
import shutil
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_model import make_model, train_tokenizer
from translators import one_at_a_time, one_by_one, parts_of, run, translator_by

from nmt_cli import Terms, Translator
from nmt_cli.corpus.tokenizer import EOS, files_of, target_file
from nmt_cli.system.errors import DataError, StorageError, UsageError
from nmt_cli.transformer.weights import load_model, read_tensors, save_model, save_tensors
from nmt_cli.translation import translator as module
from nmt_cli.translation.options import Sampling, SearchOptions
from nmt_cli.translation.segments import Hypothesis, Segment
from nmt_cli.translation.shortlist import Shortlist


def test_a_translation_does_not_depend_on_other_lines_or_threads(translator: Translator, model: Path) -> None:
    lines = [b"der Hund", b"", b"die Katze sieht " * 40, b"\xff rot", b"ein Haus, das blau ist", b" ", b"\r"]
    alone = b"".join(run(translator, line + b"\n") for line in lines)
    assert run(translator, b"\n".join(lines)) == alone
    data = b"\n".join([*lines, *(b"der Hund %d sieht die Katze %d\n" % (i, i * 7) for i in range(150))])
    one = run(translator, data)
    with Translator(model, precision="fp32", workers=3) as three:
        assert run(three, data) == one
        assert run(three, data, beam=1) == run(translator, data, beam=1)
        assert [t.text for t in three.translate(["der Hund", " "])] == one.decode().split("\n")[:2]


def test_blank_lines_stay_blank_without_a_search(model: Path) -> None:
    def fail(_: Segment) -> list[int]:
        raise AssertionError

    with translator_by(model, one_at_a_time(fail)) as nothing:
        assert run(nothing, b"") == b""
        assert run(nothing, b"\n \n\t\r\n\xe2\x80\xa8\n") == b"\n\n\n\n"
        with pytest.raises(AssertionError):
            run(nothing, b"rot\n")


def test_options_reach_the_search_and_default_to_those_of_the_model(model: Path) -> None:
    """An alpha of 0 is not replaced by the model's. n hypotheses need a beam of n, and samples need none."""
    seen = list[Segment]()

    def find(segment: Segment) -> list[Hypothesis]:
        seen.append(segment)
        return [Hypothesis([5], -1.0, -1.0, [-1.0])]

    defaults: Any = {"copy_wordless": True, "case": "auto", "spelling": "auto", "penalty_offset": 5}
    own, draw = SearchOptions(2, 0.6, 6, True, **defaults), Sampling(top_k=3)
    with translator_by(model, one_by_one(find)) as translator:
        for options, expected in (
            ({}, own),
            ({"beam": 3}, replace(own, beam=3)),
            ({"beam": 1}, replace(own, beam=1)),
            ({"alpha": 0.0}, replace(own, alpha=0.0)),
            ({"alpha": 1.5}, replace(own, alpha=1.5)),
            ({"penalty_offset": 0}, replace(own, penalty_offset=0)),
            ({"extra_length": 1}, replace(own, extra_length=1)),
            ({"n_best": 3}, replace(own, beam=3, n_best=3)),
            ({"n_best": 2, "beam": 5, "alignments": True}, replace(own, beam=5, n_best=2, alignments=True)),
            ({"n_best": 2, "beam": 1, "sampling": draw}, replace(own, beam=1, sampling=draw)),
        ):
            seen.clear()
            (translation,) = translator.translate(["der Hund"], **options)
            assert {segment.options for segment in seen} == {expected}, options
            assert len(translation.hypotheses) == options.get("n_best", 1)
            [(same,)] = translator.translate_chunks([["der Hund"]], SearchOptions(**options))
            assert same.hypotheses == translation.hypotheses


def test_an_error_of_the_reader_reaches_the_caller(translator: Translator) -> None:
    """It reaches no other call, and the Translator can still be used."""
    for error in (MemoryError, ValueError):

        def lines(error: type[Exception] = error) -> Iterator[str]:
            yield "der Hund"
            raise error

        with pytest.raises(error):
            list(translator.translate(lines()))
        with pytest.raises(error):
            list(translator.translate_chunks(map(list, lines())))
    assert len(list(translator.translate(["der Hund"]))) == 1


def test_a_model_in_memory_translates_as_its_directory_does(model: Path, translator: Translator) -> None:
    loaded = load_model(model)
    memory = Translator.of(loaded.model, translator.tokenizer, loaded.recipe, torch.float32, 12)
    assert memory.segmenter.seen_tokens == 12
    lines = ["der Hund", "", "die Katze ist rot"]
    expected = list(translator.translate(lines, n_best=2))
    assert [each.hypotheses for each in memory.translate(lines, n_best=2)] == [each.hypotheses for each in expected]
    assert [len(t.segments) for t in expected] == [1, 0, 1]
    assert expected[0].segments[0].hypotheses[0].ids == expected[0].hypotheses[0].ids


def test_samples_do_not_depend_on_other_lines_threads_or_earlier_samples(
    translator: Translator, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = {"sampling": Sampling(top_k=20, seed=3), "n_best": 2}
    data = b"der Hund\nder Hund\n\ndie Katze ist rot\n"
    one = run(translator, data, **options).decode()
    with Translator(model, precision="fp32", workers=2) as two:
        assert [run(two, data, **options).decode() for _ in range(2)] == [one, one]
        first = two.submit("der Hund", SearchOptions(**options)).result()
        assert [hypothesis.text for hypothesis in first.hypotheses] == [
            x.split(" ||| ")[1] for x in one.split("\n")[:2]
        ]
    lines = one.split("\n")
    (many,) = translator.translate(["der Hund ist"], n_best=300, sampling=Sampling())
    assert len({h.text for h in many.hypotheses}) > 250  # every sample has random numbers of its own
    assert lines[0][4:] != lines[2][4:]  # the same source on another line has numbers of its own
    assert run(translator, data + b"rot\n" * 50, **options).decode().startswith(one)
    monkeypatch.setattr(translator.segmenter, "seen_tokens", 5)
    (twice,) = translator.translate(["der Hund geht auf. der Hund geht auf."], sampling=Sampling())
    (source, first), (again, second) = parts_of(twice)
    assert source == again
    assert first != second  # so has the same source elsewhere in its line


def test_sampling_options_out_of_range_are_refused() -> None:
    nonsense = ({"temperature": 0}, {"temperature": math.nan}, {"top_k": -1}, {"top_p": 1.1}, {"top_p": -0.1})
    for wrong in (*nonsense, {"seed": -1}):
        with pytest.raises(UsageError, match=next(iter(wrong))):
            Sampling(**wrong)
    assert (Sampling(1e-9, 0, 0.0, 0).seed, Sampling(top_p=1.0).top_p) == (0, 1.0), "the bounds themselves are allowed"


def test_an_ensemble_needs_one_tokenizer(model: Path, tmp_path: Path) -> None:
    other = make_model(tmp_path / "same", seed=2)
    assert run(Translator([model, other], precision="fp32", workers=1), b"der Hund\n").count(b"\n") == 1
    short = make_model(tmp_path / "short", "model.max_length=24")
    assert [Translator(both).max_length for both in ([model, short], [short, model])] == [24, 24]
    loaded, changed = load_model(model), tmp_path / "tokenizer"
    changed.write_bytes(train_tokenizer(seed=6))
    save_model(tmp_path / "other", loaded.model.state_dict(), loaded.recipe, changed, {})
    with pytest.raises(DataError, match="different tokenizers"):
        Translator([model, tmp_path / "other"])
    target_file(shutil.copytree(model, tmp_path / "two") / "tokenizer.model").write_bytes(changed.read_bytes())
    with pytest.raises(DataError, match="different tokenizers"):
        Translator([model, tmp_path / "two"])


def test_a_model_directory_is_complete(model: Path, tmp_path: Path) -> None:
    """It has weights, recipe and both tokenizers. A newer model replaces an older one."""
    loaded, tokenizer, start = load_model(model), tmp_path / "tokenizer.model", datetime.now(UTC).replace(microsecond=0)
    shutil.copy(model / "tokenizer.model", tokenizer)
    target_file(tokenizer).write_bytes(train_tokenizer(seed=6))
    tensors = loaded.model.state_dict()
    for steps in ([1], [2]):
        save_model(tmp_path / "new", tensors, loaded.recipe, tokenizer, {"steps": steps})
        again = load_model(tmp_path / "new")
        assert again.manifest["steps"] == steps
    assert start <= datetime.fromisoformat(again.manifest["created"]) <= datetime.now(UTC)
    assert not again.model.training
    assert again.recipe == loaded.recipe
    assert [file.read_bytes() for file in files_of(again.tokenizer_file)] == [
        file.read_bytes() for file in (tokenizer, target_file(tokenizer))
    ]
    assert {*again.manifest["files"]} == {file.name for file in (tmp_path / "new").iterdir()} - {"manifest.json"}
    assert [*dict(read_tensors(tmp_path / "new" / "model.safetensors"))] == sorted(tensors)
    assert all(torch.equal(tensor, tensors[name]) for name, tensor in again.model.state_dict().items())
    save_model(tmp_path / "new", tensors, loaded.recipe, model / "tokenizer.model", {})
    assert not target_file(tmp_path / "new" / "tokenizer.model").exists()
    with pytest.raises(StorageError, match=r"cannot write .*Free some space"):
        save_tensors(tmp_path / "absent" / "w", tensors)


def test_models_of_which_only_some_read_source_eos_make_no_ensemble(model: Path, tmp_path: Path) -> None:
    other = make_model(tmp_path, "model.source_eos=false")
    with pytest.raises(DataError, match="only some of the models expect </s> after a source"):
        Translator([model, other])


def test_a_filter_beyond_the_models_length_has_no_effect(tmp_path: Path) -> None:
    with Translator(make_model(tmp_path, "corpus.cleaning.max_tokens=4000")) as translator:
        segmenter = translator.segmenter
        assert (segmenter.max_length, segmenter.filter_tokens, segmenter.seen_tokens) == (128, 128, 128)


def test_a_shortlist_is_used_only_on_request_and_by_a_single_model(model: Path, tmp_path: Path) -> None:
    own = Path(shutil.copytree(model, tmp_path / "own"))
    data = Shortlist([5], [0] * 340, []).to_bytes(own / "tokenizer.model")
    (own / "shortlist.bin").write_bytes(data)
    asked = SearchOptions(shortlist=True)
    with Translator(own) as one, Translator([own, model]) as two:
        assert one.resolved(asked).shortlist.frequent.tolist() == [5]
        assert one.resolved(SearchOptions()).shortlist is None
        assert two.resolved(asked).shortlist is None


def test_all_pairs_are_scored_or_their_error_is_raised(
    echo: Translator, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pairs are scored in chunks. An error ends the wait for the others."""
    monkeypatch.setattr(module, "SCORE_LINES", 2)
    pairs = [("rot", "rot " * count) for count in (1, 4, 2, 5, 3)]
    sizes = [len(echo.tokenizer.encode([target])[0]) + 1 for _, target in pairs]
    forced = one_at_a_time(lambda segment: segment.prefix)
    with translator_by(model, forced) as translator:
        assert [scored.log_probability for scored in translator.score(pairs)] == [-size for size in sizes]

        with pytest.raises(DataError, match=r"^line 5 has more tokens than the model's limit of 128"):
            list(translator.score([*pairs[:4], ("rot", "rot " * 128)]))

    def failing(segment: Segment) -> list[int]:
        if len(segment.prefix) == sizes[1] - 1:
            raise KeyError("x")
        return segment.prefix

    errors = list[Exception]()

    def score() -> None:
        try:
            list(translator.score(pairs))
        except KeyError as error:
            errors.append(error)

    with translator_by(model, one_at_a_time(failing)) as translator:
        (thread := threading.Thread(target=score, daemon=True)).start()
        thread.join(30)
        assert len(errors) == 1


def test_a_model_may_begin_every_translation_with_a_token(tmp_path: Path) -> None:
    """Each translation is found and scored after this token, whose own score is not counted."""
    plain = make_model(tmp_path / "plain")
    begun = make_model(tmp_path / "begun", "decoding.target_prefix=\u2581der")
    with Translator(plain, precision="fp32") as one, Translator(begun, precision="fp32") as other:
        [head] = other.head
        [after], [shown] = one.translate(["rot"], prefixes=["der"]), other.translate(["rot"])
        assert after.hypotheses[0].ids == shown.hypotheses[0].ids
        assert after.text == shown.text
        ids = one.tokenizer.encode(["rot", "ein Baum"])
        pair = [[*ids[0], EOS], [head, *ids[1], EOS]]
        [scored] = other.score([("rot", "ein Baum")])
        assert scored.token_log_probabilities == pytest.approx(one.score_ids([pair])[0][1:])
        assert scored.ids == ids[1]


def test_missing_terms_are_counted_one_by_one(echo: Translator) -> None:
    terms = Terms.parse(["Hund\tx", "rot\ty", "Haus\tHaus"])
    list(echo.translate(["der Hund ist rot", "rot", "das Haus"], terms=terms))
    assert echo.counts["unsaid"] == 3


def test_a_rank_beyond_the_last_gives_the_last_hypothesis(echo: Translator) -> None:
    [found] = echo.translate(["rot"], n_best=2)
    [one] = found.hypotheses[:1]
    alone = replace(found, hypotheses=[one])
    assert [alone.at(rank) for rank in (0, 1, 5)] == [one] * 3
    assert found.at(1) is found.hypotheses[1]


def test_a_beam_has_room_for_all_hypotheses(model: Path) -> None:
    with Translator(model) as translator:
        assert translator.resolved(SearchOptions(n_best=1000)).beam == 1000
        assert translator.resolved(SearchOptions(n_best=1000, sampling=Sampling())).beam == 1
        with pytest.raises(UsageError, match=r"^5 hypotheses need a beam of 5 or more, not 2$"):
            translator.resolved(SearchOptions(n_best=5, beam=2))


def test_the_case_follows_the_languages_of_the_model(tmp_path: Path) -> None:
    with Translator(make_model(tmp_path, "corpus.src=tr", "corpus.tgt=nl")) as translator:
        caser = translator.segmenter.caser
        assert (caser.source, caser.target, caser.tags) == ("tr", "nl", translator.config.tags)
