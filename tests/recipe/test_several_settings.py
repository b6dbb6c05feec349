"""Checks that involve several settings: each part of a condition counts, and errors name the wrong values."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from nmt_cli.recipe import loading, yaml_file
from nmt_cli.system.errors import UsageError

FILES = {f"train_{side}": ["a", "b"] for side in ("src", "tgt")}


def refusal(**sections: Any) -> str:
    """Return the error message for a recipe, or "" if it is valid."""
    try:
        loading.from_plain({"name": "x", "corpus": {"name": "own", **FILES}, **sections}, "test")
    except UsageError as error:
        return str(error)
    return ""


NUMBERS = "must each be two numbers, the lowest and the highest"
CURVES = "expect.dev_steps must ascend. dev_perplexity and dev_bleu must each have one number for each step"


@pytest.mark.parametrize(
    ("expect", "says"),
    [
        ({"pairs": [40, 50], "bleu": [10, 20]}, ""),
        ({"pairs": [50, 50], "bleu": [20, 20]}, ""),
        ({"pairs": [50, 40], "bleu": [10, 20]}, NUMBERS),
        ({"pairs": [40, 50], "bleu": [20, 10]}, NUMBERS),
        ({"pairs": [40], "bleu": [10, 20]}, NUMBERS),
        ({"pairs": [40, 50], "bleu": [10, 15, 20]}, NUMBERS),
        ({"dev_steps": [1, 2], "dev_bleu": [9, 8], "dev_perplexity": [7, 6]}, ""),
        ({"dev_steps": [1, 2], "dev_perplexity": [7, 6]}, ""),
        ({"dev_steps": [1, 2], "dev_bleu": [9, 8], "dev_perplexity": [7]}, CURVES),
        ({"dev_steps": [1, 2], "dev_bleu": [9], "dev_perplexity": [7, 6]}, CURVES),
        ({"dev_steps": [2, 1], "dev_bleu": [9, 8]}, CURVES),
        ({"dev_steps": [1, 1], "dev_bleu": [9, 8]}, CURVES),
    ],
)
def test_expected_figures_are_pairs_and_curves(expect: dict[str, Any], says: str) -> None:
    assert says in refusal(expect=expect)
    assert bool(says) == bool(refusal(expect=expect))


@pytest.mark.parametrize("split", ["train", "dev", "test", "mix", "general"])
def test_both_sides_of_each_split_have_the_same_number_of_files(split: str) -> None:
    several = split in ("train", "mix")
    one: Any = ["a"] if several else "a"
    assert refusal(corpus={"name": "own", **FILES, f"{split}_src": one, f"{split}_tgt": one}) == ""
    says = f"corpus.{split}_src and corpus.{split}_tgt must name the same number of files"
    if several:
        assert says in refusal(corpus={"name": "own", **FILES, f"{split}_src": ["a", "b"], f"{split}_tgt": one})
    assert says in refusal(
        corpus={"name": "own", **FILES, f"{split}_src": one, f"{split}_tgt": [] if several else None}
    )


def test_settings_that_exclude_each_other_are_valid_alone() -> None:
    mix = {"mix_src": ["c"], "mix_tgt": ["c"]}
    assert refusal(corpus={"name": "own", **FILES, **mix}) == ""
    assert refusal(corpus={"name": "own", **FILES, "limit": 9}) == ""
    assert "corpus.limit would cut off corpus.mix_src" in refusal(corpus={"name": "own", **FILES, **mix, "limit": 9})
    start = {"with_start": [0.5]}
    assert "averaging.with_start requires training.init_from" in refusal(averaging=start)
    assert refusal(averaging=start, training={"init_from": "m"}) == ""
    assert refusal(averaging={"last": 4}, training={"keep_checkpoints": 4}) == ""
    assert "averaging.last is larger" in refusal(averaging={"last": 5}, training={"keep_checkpoints": 4})


def test_at_most_five_wrong_values_are_named() -> None:
    names = ["steps", "warmup_steps", "log_every", "validate_every", "checkpoint_every", "tokens_per_step"]
    five = refusal(training=dict.fromkeys(names[:5], "x"))
    assert [name for name in names if f"training.{name} " in five] == names[:5]
    assert "and more" not in five
    six = refusal(training=dict.fromkeys(names, "x"))
    assert six.count("must be") == 5
    assert six.endswith("and more")


ENTRY = {"files": ["a.tsv"]}


@pytest.mark.parametrize(
    ("sections", "says"),
    [
        ({"corpus": {"sources": [ENTRY]}}, ""),
        *(
            ({"corpus": {"sources": [ENTRY], **other}}, "corpus.sources cannot be combined with")
            for other in ({"mix_src": ["a"], "mix_tgt": ["a"]}, {"moses": True}, {"format": "trees"})
        ),
        ({"corpus": {"sources": [{**ENTRY, "split": "dev"}]}}, "corpus.sources has no entry with split=train"),
        ({"corpus": {"sources": [{**ENTRY, "split": "dev"}, ENTRY]}}, ""),
        ({"corpus": {**FILES, "sources": [{**ENTRY, "split": "dev"}]}}, ""),
        ({"corpus": {"sources": [ENTRY, {"format": "tmx"}]}}, "an entry of corpus.sources has neither"),
        ({"corpus": {"sources": [{**ENTRY, "min_score": 0, "score": "3"}]}}, ""),
        ({"corpus": {"sources": [{**ENTRY, "min_score": 0}]}}, "min_score requires score"),
        *(
            ({"corpus": {"sources": [ENTRY, {**ENTRY, "tgt": "fr"}], "synthetic": [{"model": "m", **codes}]}}, says)
            for codes, says in (
                ({"src": "en", "tgt": "fr"}, ""),
                ({"src": "en"}, "corpus.synthetic needs the languages src and tgt"),
                ({"tgt": "fr"}, "corpus.synthetic needs the languages src and tgt"),
            )
        ),
        ({"corpus": {"sources": [ENTRY], "synthetic": [{"model": "m"}]}}, ""),
        (
            {"corpus": {**FILES, "synthetic": [{"model": "m"}, {"side": "tgt"}]}},
            "needs a model. Set corpus.synthetic.model",
        ),
        ({"corpus": {**FILES, "synthetic": [{"model": "m"}, {}]}, "training": {"teacher": "t"}}, ""),
        ({"corpus": {**FILES, "augment": {"typos": 0.1}}}, ""),
        ({"corpus": {**FILES, "format": "trees"}}, ""),
        (
            {"corpus": {**FILES, "format": "trees", "augment": {"typos": 0.1}}},
            "corpus.augment and training.augment support text, not",
        ),
        ({"training": {"stages": [{"from_step": 3}, {"from_step": 9}]}}, ""),
        ({"training": {"stages": [{"from_step": 9}, {"from_step": 9}]}}, "training.stages must be in ascending order"),
        ({"model": {"d_model": 63, "positions": "marian"}}, "model.d_model must be even for sinusoidal positions"),
    ],
)
def test_sources_stages_and_positions_must_fit_together(sections: dict[str, Any], says: str) -> None:
    sections = {**sections, "corpus": {"name": "own", **sections.get("corpus", FILES)}}
    assert says in refusal(**sections)
    assert bool(says) == bool(refusal(**sections))


def test_weights_of_sources_are_used_unless_training_has_its_own() -> None:
    """A weight of 0 counts as a weight."""
    sources = [{**ENTRY, "weight": 0}, ENTRY, {**ENTRY, "weight": 2}]
    sources += [{**ENTRY, "split": split, "weight": 5} for split in ("dev", "test")]
    corpus = {"name": "own", "sources": sources}
    assert loading.from_plain({"corpus": corpus}, "test").training.weights == [0, 1, 2]
    own = loading.from_plain({"corpus": corpus, "training": {"weights": [3, 4, 5]}}, "test")
    assert own.training.weights == [3, 4, 5]
    named = loading.from_plain({"corpus": {"synthetic": [{"model": "m", "weight": 2}]}}, "test")
    assert named.training.weights == [1, 2], "the text of the named corpus is a part, too"


def test_parts_of_a_corpus_have_their_own_languages_filters_and_tags() -> None:
    filters, synthetic = {"language": True}, [{"model": "m", "src": "fr", "tgt": "de", "tag": "bt"}]
    sources = [
        {**ENTRY, "tag": "a"},
        {**ENTRY, "tgt": "fr", "filters": filters},
        {**ENTRY, "src": "nl", "split": "dev"},
        {**ENTRY, "split": "test"},
    ]
    values = {"name": "own", "sources": sources, "synthetic": synthetic, "filters": {"numbers": True}}

    def trained(**more: Any) -> list[tuple[str, str, bool, bool]]:
        corpus = loading.from_plain({"corpus": {**values, **more}}, "test").corpus
        return [(each.src, each.tgt, each.filters.language, each.filters.numbers) for each in corpus.trained]

    parts = [("en", "de", False, True), ("en", "fr", True, False), ("fr", "de", False, True)]
    assert trained() == parts
    assert trained(**FILES) == [("en", "de", False, True), *parts]
    assert trained(real_pairs=False) == parts[2:]
    corpus = loading.from_plain({"corpus": values}, "test").corpus
    assert (corpus.targets, corpus.target_tokens, corpus.tags) == (["de", "fr"], ["de", "fr"], ["de", "fr", "a", "bt"])
    assert corpus.languages == ["en", "de", "fr", "nl"]
    prefixes = [corpus.prefix(index) for index in (None, 0, 1, 2)]
    assert prefixes == [">>de<< ", ">>de<< >>a<< ", ">>fr<< ", ">>de<< "]
    one = loading.from_plain({"corpus": {"name": "own", "sources": sources[:1]}}, "test").corpus
    assert (one.targets, one.target_tokens, one.prefix(0), one.prefix(None)) == (["de"], [], ">>a<< ", "")
    plain = loading.from_plain({"corpus": {"name": "own", **FILES, "tgt": "fi"}}, "test").corpus
    assert (plain.targets, plain.languages, plain.tags) == (["fi"], ["en", "fi"], [])
    assert loading.from_plain({}, "test").corpus.targets == ["de"], "of a named corpus"


def test_limits_of_a_yaml_file_are_exact(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The number of values, the nesting depth, and the size of a file are limited."""
    nested = "{a: " * (yaml_file.MAX_DEPTH - 1) + "x" + "}" * (yaml_file.MAX_DEPTH - 1)
    assert yaml_file.parse_mapping(nested.encode(), "here")
    with pytest.raises(UsageError, match="nested 50 or more levels deep"):
        yaml_file.parse_mapping(f"{{a: {nested}}}".encode(), "here")
    assert yaml_file.parse_mapping(b"{a: [b, c]}", "here", 5) == {"a": ["b", "c"]}
    with pytest.raises(UsageError, match="has more than 4 values"):
        yaml_file.parse_mapping(b"{a: [b, c]}", "here", 4)
    monkeypatch.setattr(yaml_file, "MAX_BYTES", 6)
    (tmp_path / "x").write_text("a: bcd")
    assert yaml_file.read_mapping(tmp_path / "x") == {"a": "bcd"}
    (tmp_path / "x").write_text("a: bcde")
    with pytest.raises(UsageError, match="x is too large for a recipe"):
        yaml_file.read_mapping(tmp_path / "x")
    assert yaml_file.parse_mapping(b"a: ! b", "here") == {"a": "b"}, "a tag without a name"


@pytest.mark.parametrize(("name", "valid"), [(".", False), ("..", False), ("a/b", False), ("...", True), (".a", True)])
def test_the_name_of_a_run_must_be_valid_for_a_directory(tmp_path: Path, name: str, valid: bool) -> None:
    (tmp_path / "x.yaml").write_text(f"name: {name}")
    with nullcontext() if valid else pytest.raises(UsageError, match="name must be the name of a directory"):
        assert loading.load(tmp_path / "x.yaml").name == name


@pytest.mark.parametrize("empty", ["", " null", " ~"])
def test_an_empty_section_keeps_the_settings_of_the_base(tmp_path: Path, empty: str) -> None:
    (tmp_path / "base.yaml").write_text("training: {steps: 900, warmup_steps: 80}\n")
    (tmp_path / "mine.yaml").write_text(f"base: base.yaml\ntraining:{empty}\n# steps: 500\ndecoding: {{beam: 5}}\n")
    recipe = loading.load(tmp_path / "mine.yaml")
    assert (recipe.training.steps, recipe.training.warmup_steps, recipe.decoding.beam) == (900, 80, 5)


def test_each_list_of_weights_has_a_number_for_each_part() -> None:
    entries = [{"files": ["a.tsv"]}, {"files": ["b.tsv"]}, {"files": ["d.tsv"], "split": "dev"}]
    stages = [{"from_step": 5, "weights": [1, 2]}, {"from_step": 9, "weights": [1]}]
    corpus = {"name": "a", "train_src": [], "train_tgt": [], "sources": entries}
    says = refusal(corpus=corpus, training={"stages": stages})
    assert says == "test: training.stages[1].weights has 1 number, but the corpus has 2 parts"
    says = refusal(corpus=corpus, training={"weights": [1, 2, 3]})
    assert says == "test: training.weights has 3 numbers, but the corpus has 2 parts"
    loading.from_plain({"training": {"weights": [1, 2, 3]}}, "a")  # the corpus may come from another recipe


def test_settings_without_effect_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(
        "corpus: {name: a, sources: [{files: [a.tsv]}, {files: [b.tsv], weight: 2}]}\ntraining: {steps: 9}\n"
    )

    def warnings(*overrides: str) -> list[str]:
        loading.load(path, overrides)
        return [line.partition("a.yaml: ")[2] for line in capsys.readouterr().err.splitlines()]

    assert warnings() == warnings("training.stages=[{from_step: 8, weights: [1, 0]}]") == []
    unused = "training.temperature has no effect if weights are set. Remove one of the two settings"
    assert warnings("training.temperature=2") == [unused]
    assert warnings("training.temperature=2", "training.stages=[{from_step: 3}]") == []
    late = "training.stages[0] begins after step 9, but training ends after 9 steps"
    assert warnings("training.stages=[{from_step: 9, weights: [1, 0]}]") == [late]


def test_a_list_of_mappings_is_set_as_yaml() -> None:
    assert loading.override("training.stages=[{from_step: 15, weights: [1, 0]}, {from_step: 20}]") == {
        "training": {"stages": [{"from_step": "15", "weights": ["1", "0"]}, {"from_step": "20"}]}
    }
    assert loading.override("a=[ [x, y], [z] ]") == {"a": [["x", "y"], ["z"]]}
    assert loading.override("a=[x: {y, *z]") == {"a": ["x: {y", "*z"]}, "a plain list"
    with pytest.raises(UsageError, match=r"^--set training\.stages is not valid YAML: "):
        loading.override("training.stages=[{from_step: 15")
