"""The BLEU of Vaswani et al. (2017) equals the output of the Perl programs of the Moses project (data/moses).

Recorded with mosesdecoder of 2017, before pull request 204. steps.jsonl: [language, made-up line, the line after
replace-unicode-punctuation.perl, after tokenizer.perl -q -l LANGUAGE, after s{(\\S)-(\\S)}{$1 ##AT##-##AT## $2}g of
perl -ple]; multi_bleu.jsonl: [hypotheses, references, output of multi-bleu.perl]; real_text.json: lines and SHA-256 of
each side of wmt14-mini after these steps (the last one for German only), and the output of multi-bleu.perl
for their `thin` lines.
"""

import functools
import hashlib
import json
from pathlib import Path

import pytest

from nmt_cli.scoring import paper_bleu as paper
from nmt_cli.scoring.metrics import Score, score_lines
from nmt_cli.scoring.published import comparable
from nmt_cli.system.errors import DataError, UsageError

GOLDEN = Path(__file__).parents[1] / "data" / "moses"
PUBLISHED = {
    "de-en/test.de": {"bleu": "28.6", "paper-bleu": "compare paper-BLEU-quotes", "paper-bleu-quotes": "27.3 (base)"},
    "fr-en/test.fr": {"bleu": "41.4", "paper-bleu": "38.1 (base)"},
}


def golden(name: str) -> list[list]:
    return [json.loads(line) for line in (GOLDEN / name).read_text().splitlines()]


def prepare(lines: list[str], language: str, *, fold_quotes: bool = False) -> list[bytes]:
    return [line.encode("ascii", "surrogateescape") for line in paper.prepare(lines, language, fold_quotes=fold_quotes)]


def scored(hypotheses: list[str], *references: list[str], metric: str = "paper-bleu", language: str = "de") -> Score:
    return score_lines(metric, hypotheses, references, language=language)[0]


def test_every_step_equals_perl_on_a_thousand_lines() -> None:
    for language, line, punctuation, tokens, compounds in golden("steps.jsonl"):
        assert paper.moses_tokenize(punctuation, language) == tokens
        assert prepare([line], language) == [(compounds if language == "de" else tokens).encode()]


def test_multi_bleu_prints_what_perl_prints() -> None:
    for hypotheses, references, output in golden("multi_bleu.jsonl"):
        texts = [[line.encode().decode("ascii", "surrogateescape") for line in x] for x in (hypotheses, *references)]
        bleu = paper.multi_bleu().corpus_score(texts[0], texts[1:])
        if output and bleu.ref_len:
            counts = f"BP={bleu.bp:.3f}, ratio={bleu.ratio:.3f}, hyp_len={bleu.sys_len}, ref_len={bleu.ref_len}"
            assert f"BLEU = {bleu.score:.2f}, {bleu.prec_str} ({counts})" == output
        else:  # Perl divides by zero where no hypothesis has a token
            assert (bleu.score, bleu.sys_len * bleu.ref_len) == (0, 0)


@pytest.mark.parametrize("references", [["a b c d", "a b c d e f"], ["a b c d e f", "a b c d"]])
def test_the_shorter_of_two_equally_close_references_counts(references: list[str]) -> None:
    details = scored(["a b c d e"], *([line] for line in references)).details
    assert (details["ref_len"], details["bp"], details["precisions"]) == (4, 1, [100] * 4)


def thin(lines: list[str]) -> list[str]:
    """Return hypotheses for real text: each line without some of its words."""
    return [" ".join(w for j, w in enumerate(line.split(" ")) if (i * 7 + j * 3) % 11) for i, line in enumerate(lines)]


@pytest.mark.parametrize(
    "part", ["test", *(pytest.param(name, marks=pytest.mark.slow) for name in ("validation", "train"))]
)
def test_real_text_gives_the_hashes_and_scores_of_perl_and_the_published_number_of_tokens(
    corpora: Path, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    import pyarrow.parquet as parquet

    monkeypatch.setattr(paper, "moses_tokenize", functools.cache(paper.moses_tokenize))
    for name, expected in json.loads((GOLDEN / "real_text.json").read_text()).items():
        pair, split, language = name.replace(".", "/").split("/")
        if split != part:
            continue
        files = sorted((corpora / "wmt14-mini" / pair).glob(f"{split}-*.parquet"))
        columns = [parquet.read_table(file)["translation"].combine_chunks().field(language) for file in files]
        lines = [line for column in columns for line in column.to_pylist()]
        prepared = prepare(lines, language)
        digest = hashlib.sha256(b"".join(line + b"\n" for line in prepared)).hexdigest()
        assert (len(prepared), digest) == (expected["lines"], expected["sha256"]), name
        compared = dict[str, str]()
        if "multi_bleu" in expected:
            score = scored(thin(lines), lines, language=language)
            compared["paper-bleu"] = score.compare_with
            assert f"BLEU = {score.score:.2f}, {score.verbose}" == expected["multi_bleu"], name
        for metric, published in PUBLISHED.get(name, {}).items():
            if metric not in compared:  # the hypotheses do not matter
                compared[metric] = scored([""] * len(lines), lines, metric=metric, language=language).compare_with
            assert published in compared[metric]
        if name == "de-en/test.de":
            assert sum(len(line.replace(b" ##AT##-##AT## ", b"-").split()) for line in prepared) == 63_078
            folded = prepare(lines, language, fold_quotes=True)
            assert [sum(len(line.split()) for line in text) for text in (prepared, folded)] == [64_496] * 2
            assert sum(a != b for a, b in zip(prepared, folded, strict=True)) == 305  # 304 lines have „, and one has ›


def test_published_scores_need_the_same_metric_case_and_test_set() -> None:
    for metric, case, length in (("paper-bleu-quotes", "mixed", 64_495), ("bleu", "lc", 62_688)):
        assert "on the same test set" in comparable(metric, f"case:{case}", length, "de")
    same = "on the same test set"
    for metric in ("paper-bleu", "paper-bleu-quotes"):
        for language, kind in (("de", "tokenized, compound-split"), ("fr", "Moses-tokenized")):
            said = f"{kind} BLEU {same}, not with sacreBLEU"
            assert comparable(metric, "case:mixed", 1, language) == said
    for metric, signature, language in (
        ("chrf", "case:mixed", "de"),
        ("bleu", "tok:char", "th"),
        ("bleu", "tok:13a", "ja"),
    ):
        assert comparable(metric, signature, 1, language) == f"figures with this signature {same}"
    assert comparable("bleu", "tok:char", 1, "JA-jp").endswith(" need --tokenize ja-mecab")


@pytest.mark.parametrize(
    ("metric", "language", "signature"),
    [
        ("paper-bleu", "de", "tok:moses2017-de|punct:replace-unicode|split:atat"),
        ("paper-bleu-quotes", "de", "tok:moses2017-de|punct:replace-unicode|quotes:ascii|split:atat"),
        ("paper-bleu", "fr", "tok:moses2017-fr|punct:replace-unicode|split:none"),
    ],
)
def test_a_signature_describes_the_tokenization(metric: str, language: str, signature: str) -> None:
    score = scored(["a"], ["a"], ["b"], metric=metric, language=language)
    assert score.signature == f"nrefs:2|case:mixed|{signature}|smooth:none|arithmetic:multi-bleu"


@pytest.mark.parametrize("written", ["„ja“", "„ja”", "«ja»", "»ja«", "‚ja‘", "›ja‹", "‹ja›"])
def test_folded_quotes_match_ascii_ones(written: str) -> None:
    ascii_quote = "'" if written[0] in "‚›‹" else '"'
    ours, reference = [f"Er sagt {written} dazu."], [f"Er sagt {ascii_quote}ja{ascii_quote} dazu."]
    assert scored(ours, reference).score < 60
    for texts in ((ours, reference), (reference, ours)):
        assert scored(*texts, metric="paper-bleu-quotes").score == pytest.approx(100)


def test_the_language_decides_whether_the_abbreviation_no_keeps_its_full_stop() -> None:
    tokens = [paper.moses_tokenize("No. 5 No. X", language) for language in paper.LANGUAGES]
    assert tokens == ["No. 5 No. X", "No. 5 No . X", "No . 5 No . X"]  # German, English, French


def test_a_line_of_white_space_is_unchanged() -> None:
    """multi-bleu.perl counts a no-break space as a token, but not a tab."""
    for line in ("", " ", "  ", "\t", "\u00a0", "\u2003 \u00a0"):
        assert [paper.moses_tokenize(line, language) for language in paper.LANGUAGES] == [line] * 3
    assert scored(["a b c d"] * 2, ["a b c d", "\u00a0"]).details["ref_len"] == 5


def test_a_baseline_is_tokenized_in_the_same_way() -> None:
    lines = ["Er sagt: „Die E-Mail-Adresse ist gut.“"]
    _, compared = score_lines("paper-bleu", lines, [lines], lines, language="de")
    assert (compared["baseline"], compared["score"]) == pytest.approx((100, 100))


def test_empty_and_short_hypotheses() -> None:
    lines = ["Das ist ein kleiner Satz .", "Und noch einer mit Wörtern"]
    assert scored(["", ""], lines).score == 0
    empty = scored(lines, ["", ""])
    assert (empty.score, empty.details["length_ratio"]) == (0, 0)
    assert scored(["ein Satz"], ["ein Satz"]).score == 0  # no 4-gram, no smoothing


def test_refuses_other_languages_and_unequal_counts() -> None:
    with pytest.raises(UsageError, match="de, en, fr"):
        scored(["a"], ["a"], language="xx")
    for ours, theirs in ((1, 2), (2, 1), (0, 0)):
        for metric in ("bleu", "paper-bleu"):
            with pytest.raises(DataError, match=f"cannot score {ours} hypotheses against {theirs} references"):
                scored(["a"] * ours, ["a"] * theirs, metric=metric)
