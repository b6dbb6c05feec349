"""The paper's BLEU against what the Perl programs print (tests/data/moses/record.py says how that was recorded)."""

import json
import os
import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sacrebleu.metrics.bleu import BLEUScore

from nmt_cli.errors import UsageError
from nmt_cli.scoring.paper_bleu import (
    LANGUAGES,
    moses_tokenize,
    multi_bleu,
    paper_bleu,
    prepare_line,
    replace_unicode_punctuation,
    signature,
    split_compounds,
)

GOLDEN = Path(__file__).parent / "data" / "moses"
record = SimpleNamespace(**runpy.run_path(str(GOLDEN / "record.py")))


def json_lines(name: str, count: int) -> list[list]:
    rows = [json.loads(line) for line in (GOLDEN / name).read_text().splitlines()]
    assert len(rows) == count
    return rows


def printed(bleu: BLEUScore) -> str:
    counts = f"BP={bleu.bp:.3f}, ratio={bleu.ratio:.3f}, hyp_len={bleu.sys_len}, ref_len={bleu.ref_len}"
    return f"BLEU = {bleu.score:.2f}, {bleu.prec_str} ({counts})"


def test_every_step_equals_perl_on_a_thousand_lines() -> None:
    for language, line, punctuation, tokens, compounds in json_lines("steps.jsonl", 1000):
        assert replace_unicode_punctuation(line) == punctuation
        assert moses_tokenize(punctuation, language) == tokens
        assert split_compounds(tokens.encode()).decode() == compounds


def test_multi_bleu_prints_what_perl_prints() -> None:
    for hypotheses, references, output in json_lines("multi_bleu.jsonl", 50):
        result = multi_bleu(*([line.encode() for line in lines] for lines in (hypotheses, *references)))
        if output and result.ref_len:
            assert printed(result) == output
        else:  # Perl divides by zero where no hypothesis has a token
            assert (result.score, result.sys_len * result.ref_len) == (0, 0)


@pytest.mark.skipif("NMT_CORPORA" not in os.environ, reason="NMT_CORPORA is not set")
def test_real_text_gives_the_hashes_and_scores_of_perl() -> None:
    facts = json.loads((GOLDEN / "real_text.json").read_text())
    for name, (language, lines) in record.real_text(Path(os.environ["NMT_CORPORA"])).items():
        prepared = [prepare_line(line, language).decode() for line in lines]
        assert len(prepared) == facts[name]["lines"]
        assert record.digest(prepared) == facts[name]["sha256"], name
        if "multi_bleu" in facts[name]:
            assert printed(paper_bleu(record.thin(lines), lines, language=language)) == facts[name]["multi_bleu"], name


@pytest.mark.skipif("NMT_CORPORA" not in os.environ, reason="NMT_CORPORA is not set")
def test_newstest2014_has_the_published_numbers_of_tokens() -> None:
    _, lines = record.real_text(Path(os.environ["NMT_CORPORA"]))["de-en/test.de"]
    tokens = [moses_tokenize(replace_unicode_punctuation(line), "de").encode() for line in lines]
    assert len(lines) == 3003
    assert sum(len(line.split()) for line in tokens) == 63_078
    assert sum(len(split_compounds(line).split()) for line in tokens) == 64_496


@pytest.mark.parametrize(
    ("language", "line", "expected"),
    [
        ("de", "Er sagte: „Nein.“", "Er sagte : „ Nein . “"),
        ("de", "am 3. Mai, ca. 1,5 Mio. Euro.", "am 3. Mai , ca. 1,5 Mio. Euro ."),
        ("de", "mit der Nr. 5.", "mit der Nr. 5."),  # the Moses of 2017; since 2018: 5 .
        ("en", "No. 5 is no. No. It's 1990's.", "No. 5 is no . No . It &apos;s 1990 &apos;s ."),
        ("fr", "aujourd'hui, l'été", "aujourd&apos; hui , l&apos; été"),
        ("de", "&quot;", "&amp; quot ;"),  # tokenising twice escapes twice
        ("de", "\u00a0", "\u00a0"),
        ("de", "\x01", ""),
    ],
)
def test_tokens(language: str, line: str, expected: str) -> None:
    assert moses_tokenize(line, language) == expected


def test_compounds_are_split_for_german_only() -> None:
    assert prepare_line("a-b-c a-é-b", "de") == "a ##AT##-##AT## b-c a ##AT##-##AT## é ##AT##-##AT## b".encode()
    assert prepare_line("peut-être", "fr") == "peut-être".encode()
    assert "split:none" in signature("fr", 1)
    assert "split:atat" in signature("de", 1)


def test_folded_quotes_match_ascii_ones() -> None:
    ours, reference = ["Er sagt „ja“ und ‚nein‘ dazu."], ["Er sagt \"ja\" und 'nein' dazu."]
    assert paper_bleu(ours, reference, language="de").score < 60
    assert paper_bleu(ours, reference, language="de", fold_quotes=True).score == pytest.approx(100)


def test_perfect_empty_and_short_hypotheses() -> None:
    lines = ["Das ist ein kleiner Satz .", "Und noch einer mit Wörtern"]
    assert paper_bleu(lines, lines, language="de").score == pytest.approx(100)
    assert paper_bleu(["", ""], lines, language="de").score == 0
    assert paper_bleu(lines, ["", ""], language="de").score == 0
    assert paper_bleu(["ein Satz"], ["ein Satz"], language="de").score == 0  # no 4-gram, no smoothing


def test_there_are_rules_for_three_languages_only() -> None:
    with pytest.raises(UsageError, match="de, en, fr"):
        moses_tokenize("a", "xx")


@given(st.text(), st.sampled_from(LANGUAGES))
def test_any_text_gives_one_line_without_control_characters(line: str, language: str) -> None:
    line = line.replace("\n", "")
    assert not line.strip() or not any(ord(c) < 32 for c in moses_tokenize(line, language))
    prepare_line(line, language).decode()
