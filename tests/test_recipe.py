"""Recipes are read strictly: by each knob's type, all errors at once, nothing that YAML invented."""

import contextlib
import dataclasses
import typing
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from nmt_cli import recipe
from nmt_cli.errors import DataError, MissingError, UsageError
from nmt_cli.recipe import Recipe, differences, from_plain, load, load_stored, to_plain, to_yaml


def read(tmp_path: Path, text: str, *overrides: str) -> Recipe:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    return load(path, overrides)


def complaint(tmp_path: Path, text: str, *overrides: str) -> str:
    with pytest.raises(UsageError) as caught:
        read(tmp_path, text, *overrides)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# --- defaults -------------------------------------------------------------------------------------------------------


def test_the_defaults_are_the_papers_base_model(tmp_path: Path) -> None:
    found = read(tmp_path, "")
    assert found.model_copy(update={"name": "", "corpus": recipe.Corpus()}) == Recipe()
    assert found.name == "mine"
    training = found.training
    assert (training.steps, training.tokens_per_step, training.warmup_steps) == (100_000, 25_000, 4000)
    assert (training.adam_beta1, training.adam_beta2, training.adam_epsilon) == (0.9, 0.98, 1e-9)
    assert (training.label_smoothing, found.model.dropout) == (0.1, 0.1)
    assert (found.decoding.beam, found.decoding.alpha, found.decoding.extra_length) == (4, 0.6, 50)
    assert found.averaging.last == 5


def test_a_recipe_may_name_itself(tmp_path: Path) -> None:
    assert read(tmp_path, "name: base-en-de").name == "base-en-de"


def test_two_recipes_share_no_lists(tmp_path: Path) -> None:
    a, b = read(tmp_path, ""), read(tmp_path, "")
    a.expect.bleu.append(1.0)
    a.corpus.train_src.append("x")
    assert b.expect.bleu == b.corpus.train_src == Recipe().expect.bleu == []


def test_every_setting_says_what_it_is_and_keeps_its_default_in_range() -> None:
    for section in recipe.Section.__subclasses__():
        for name, field in section.model_fields.items():
            if section is not Recipe or name == "name":
                assert field.description or issubclass(field.annotation, recipe.Section), f"{section}: {name}"
        section.model_validate(section().model_dump())  # defaults are valid themselves


# --- values by their knob's type ------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["3e-4", "3.0e-4", "0.0003", "'3e-4'", ".0003", "+3E-4", "3_0e-5"])
def test_a_number_is_a_number_however_it_is_written(tmp_path: Path, text: str) -> None:
    assert read(tmp_path, f"training: {{rate_factor: {text}}}").training.rate_factor == 3e-4


@pytest.mark.parametrize(("text", "value"), [("25000", 25_000), ("25_000", 25_000), ("+7", 7)])
def test_whole_numbers(tmp_path: Path, text: str, value: int) -> None:
    found = read(tmp_path, f"training: {{tokens_per_step: {text}}}").training.tokens_per_step
    assert found == value
    assert type(found) is int


@pytest.mark.parametrize("text", ["no", "on", "false", "yes", "123", "1e3", "2026-01-01", "0o17", "12:30:00"])
def test_text_stays_text(tmp_path: Path, text: str) -> None:
    # PyYAML makes False, True, a date, 15 and 45000 of some of these. Norwegian is "no".
    found = read(tmp_path, f"corpus: {{name: mine, src: {text}, tgt: en}}").corpus.src
    assert found == text


@pytest.mark.parametrize(
    ("word", "value"), [("no", False), ("off", False), ("False", False), ("yes", True), ("on", True)]
)
def test_switches(tmp_path: Path, word: str, value: bool) -> None:
    assert read(tmp_path, f"model: {{attention_bias: {word}}}").model.attention_bias is value


@pytest.mark.parametrize("word", ["null", "~", "", "None", "none"])
def test_off(tmp_path: Path, word: str) -> None:
    assert read(tmp_path, f"corpus: {{cleaning: {{max_ratio: {word}}}}}").corpus.cleaning.max_ratio is None


def test_lists_and_single_values(tmp_path: Path) -> None:
    found = read(
        tmp_path, "corpus: {name: mine, train_src: [a.en, b.en], train_tgt: [a.de, b.de]}\nexpect: {bleu: [1, 2e1]}"
    )
    assert found.corpus.train_src == ["a.en", "b.en"]
    assert found.expect.bleu == [1.0, 20.0]
    found = read(tmp_path, "corpus: {name: mine, train_src: a.en, train_tgt: a.de}")
    assert (found.corpus.train_src, found.corpus.train_tgt) == (["a.en"], ["a.de"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("training: {steps: many}", "training.steps must be a whole number, not 'many'"),
        ("training: {steps: 1.5}", "training.steps must be a whole number, not '1.5'"),
        ("training: {steps: null}", "training.steps must be a whole number"),
        ("training: {steps: [1]}", "training.steps must be a whole number"),
        ("training: {steps: {a: 1}}", "training.steps must be a whole number"),
        ("training: {steps: yes}", "training.steps must be a whole number"),
        ("training: {steps: 0}", "training.steps must be greater than or equal to 1, not '0'"),
        ("training: {steps: -5}", "training.steps must be greater than or equal to 1"),
        ("training: {rate_factor: nan}", "training.rate_factor must be a finite number, not 'nan'"),
        ("training: {rate_factor: .inf}", "training.rate_factor must be a valid number"),
        ("training: {steps: 1e999}", "training.steps must be a whole number"),
        ("model: {dropout: 1}", "model.dropout must be less than or equal to 0.99, not '1'"),
        ("model: {norm: rms}", "model.norm must be 'post' or 'pre', not 'rms'"),
        ("model: {attention_bias: maybe}", "model.attention_bias must be a valid boolean, not 'maybe'"),
        ("model: 5", "model must be a mapping"),
        ("model: [a]", "model must be a mapping"),
        ("training: {adam_beta2: 1}", "training.adam_beta2 must be less than or equal to 0.999999"),
    ],
)
def test_wrong_values_are_named_with_what_would_be_right(tmp_path: Path, text: str, message: str) -> None:
    assert message in complaint(tmp_path, text)


def test_an_unknown_key_comes_with_the_nearest_valid_one(tmp_path: Path) -> None:
    assert "unknown key 'training.warmup'; did you mean 'warmup_steps'?" in complaint(
        tmp_path, "training: {warmup: 10}"
    )
    assert "unknown key 'modle'; did you mean 'model'?" in complaint(tmp_path, "modle: {}")
    message = complaint(tmp_path, "averaging: {xyz: 1}")
    assert "unknown key 'averaging.xyz'; valid keys: last" in message


def test_all_errors_are_reported_together(tmp_path: Path) -> None:
    text = "modle: {}\ntraining: {steps: x, warmup: 1, label_smoothing: 2}\nmodel: {norm: none-such}"
    message = complaint(tmp_path, text)
    for part in ("modle", "training.steps", "training.warmup", "training.label_smoothing", "model.norm", "mine.yaml"):
        assert part in message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("training: {keep_checkpoints: 3}\naveraging: {last: 5}", "averaging.last is larger"),
        ("model: {d_model: 63}", "model.d_model must be even"),
        ("corpus: {name: mine, train_src: [a, b], train_tgt: [a]}", "as many files"),
        ("expect: {bleu: 30}", "two numbers"),
        ("expect: {bleu: [30, 20]}", "two numbers"),
        ("expect: {pairs: [9]}", "expect.pairs must be two numbers"),
        ("expect: {dev_steps: [600, 300]}", "dev_steps must rise"),
        ("expect: {dev_steps: [300], dev_bleu: [1, 2]}", "dev_bleu must have as many"),
        ("expect: {dev_perplexity: [1]}", "dev_perplexity must have as many"),
    ],
)
def test_knobs_that_contradict_each_other(tmp_path: Path, text: str, message: str) -> None:
    assert message in complaint(tmp_path, text)
    assert read(tmp_path, "model: {d_model: 63, positions: learned}").model.d_model == 63


# --- strict YAML ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("training: {steps: 5, steps: 6}", "key 'steps' occurs twice"),
        ("training:\n  steps: 5\ntraining:\n  seed: 6", "key 'training' occurs twice"),
        ("name: !!python/object/apply:os.system ['touch pwned']", "tags, anchors and aliases are not allowed"),
        ("name: !!str x", "line 1"),
        ("name: !mine x", "not allowed"),
        ("corpus: &a {src: en}\nmodel: *a", "not allowed"),
        ("corpus: &a {src: en}", "not allowed"),
        ("training: {steps: 5", "not valid YAML"),
        ("training:\n\tsteps: 5", "not valid YAML"),
        ("a: b: c", "not valid YAML"),
        ("--- {}\n--- {}", "not valid YAML"),
        ("- a\n- b", "must be a mapping"),
        ("just words", "must be a mapping"),
        ("? [a, b]\n: c", "not valid YAML"),
    ],
)
def test_what_yaml_allows_and_a_recipe_does_not(tmp_path: Path, text: str, message: str) -> None:
    assert message in complaint(tmp_path, text)
    assert not (Path.cwd() / "pwned").exists()


def test_the_line_of_a_wrong_thing_is_named(tmp_path: Path) -> None:
    assert "line 3" in complaint(tmp_path, "name: a\nmodel:\n  norm: !x post")
    assert "line 2" in complaint(tmp_path, "name: a\nmodel: {norm")


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    for data in (b"\xff\xfe\x00", b"name: \xc3\x28", b"name: \x00", b"\x1b[2J: 1"):
        path.write_bytes(data)
        with pytest.raises(UsageError) as caught:
            load(path)
        assert str(caught.value).isprintable()


def test_a_recipe_has_a_size(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_bytes(b"# " + b"x" * (1 << 20))
    with pytest.raises(UsageError, match="too large"):
        load(path)


def test_endless_nesting_is_an_error(tmp_path: Path) -> None:
    assert "not valid YAML" in complaint(tmp_path, "name:\n  " + "[" * 5000)


@settings(max_examples=100, deadline=None)
@given(st.text(alphabet="abné:-{}[]&*!|>'\"#%@`,?~ \n\t\x01\x85\u2028019.", max_size=40))
def test_no_text_gives_anything_but_a_recipe_or_a_usage_error(
    tmp_path_factory: pytest.TempPathFactory, text: str
) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzz.yaml"
    path.write_bytes(text.encode())
    with contextlib.suppress(UsageError):  # which has one line, as complaint() checks elsewhere
        assert isinstance(load(path), Recipe)


def test_a_missing_recipe(tmp_path: Path) -> None:
    for path in (tmp_path / "none.yaml", tmp_path):
        with pytest.raises(MissingError, match="no recipe"):
            load(path)


# --- overrides, bases, named corpora --------------------------------------------------------------------------------


def test_set_changes_one_knob(tmp_path: Path) -> None:
    text = "training: {steps: 5, seed: 7}"
    found = read(tmp_path, text, "training.steps=200", "model.norm=pre", "corpus.tokenizer.vocabulary_size=500")
    assert (found.training.steps, found.training.seed, found.model.norm) == (200, 7, "pre")
    assert found.corpus.tokenizer.vocabulary_size == 500
    assert read(tmp_path, text, "training.steps=1", "training.steps=2").training.steps == 2
    assert read(tmp_path, text, "training.patience=null").training.patience is None
    assert read(tmp_path, text, "expect.bleu=[30, 35]").expect.bleu == [30.0, 35.0]
    assert read(tmp_path, text, "name=a=b").name == "a=b"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("training.steps", "write it as section.key=value"),
        ("=5", "write it as section.key=value"),
        ("training.stepz=5", "did you mean 'steps'?"),
        ("training.steps=x", "training.steps must be a whole number"),
        ("training=5", "training must be a mapping"),
        ("training.steps.more=5", "training.steps must be a whole number"),
    ],
)
def test_a_wrong_set(tmp_path: Path, override: str, message: str) -> None:
    assert message in complaint(tmp_path, "", override)


def test_a_recipe_may_stand_on_another(tmp_path: Path) -> None:
    (tmp_path / "low.yaml").write_text("name: low\nmodel: {num_layers: 2, d_ff: 99}\ntraining: {steps: 7}")
    found = read(tmp_path, "base: low.yaml\nmodel: {num_layers: 3}", "training.seed=9")
    assert (found.model.num_layers, found.model.d_ff) == (3, 99)
    assert (found.training.steps, found.training.seed) == (7, 9)


def test_only_one_recipe_may_stand_below(tmp_path: Path) -> None:
    (tmp_path / "lowest.yaml").write_text("{}")
    (tmp_path / "low.yaml").write_text("base: lowest.yaml")
    assert "has a base itself" in complaint(tmp_path, "base: low.yaml")
    assert "has a base itself" in complaint(tmp_path, "base: mine.yaml")
    with pytest.raises(MissingError, match=r"mine\.yaml: no recipe nowhere\.yaml, its base"):
        read(tmp_path, "base: nowhere.yaml")


def test_a_base_is_found_beside_the_recipe_else_as_recipes_are(tmp_path: Path) -> None:
    assert read(tmp_path, "base: recipes/parsing.yaml").model.d_model == 1024  # the package's own
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes" / "parsing.yaml").write_text("model: {d_model: 768}")
    assert read(tmp_path, "base: recipes/parsing.yaml").model.d_model == 768


def test_what_a_base_expects_is_expected_of_its_own_corpus_only(tmp_path: Path) -> None:
    assert read(tmp_path, "base: recipes/base.yaml\nmodel: {dropout: 0.2}").expect.bleu == [26.2, 27.0]
    other = read(tmp_path, "base: recipes/base.yaml\ncorpus: {name: mine}\nexpect: {bleu: [20, 30]}")
    assert (other.expect.pairs, other.expect.paper_bleu, other.expect.bleu) == ([], None, [20, 30])
    assert other.averaging.last == 5


def test_named_corpora_bring_their_defaults_and_give_way(tmp_path: Path) -> None:
    found = read(tmp_path, "corpus: {name: wmt14-en-de}").corpus
    assert (found.src, found.tgt, found.tokenizer.vocabulary_size, found.rows) == ("en", "de", 37_000, 4_508_785)
    assert read(tmp_path, "corpus: {name: wmt14-en-fr}").corpus.tokenizer.vocabulary_size == 32_000
    found = read(tmp_path, "corpus: {name: multi30k-de-en, tokenizer: {vocabulary_size: 4000}}").corpus
    assert (found.src, found.tgt, found.tokenizer.vocabulary_size, found.rows) == ("de", "en", 4000, 29_000)
    toy = read(tmp_path, "").corpus
    assert (toy.name, toy.src, toy.tgt, toy.tokenizer.vocabulary_size) == ("toy-en-de", "en", "de", 1000)
    own = read(tmp_path, "corpus: {name: mine, src: fi, tgt: sv}").corpus
    assert (own.tokenizer.vocabulary_size, own.cleaning.max_ratio, own.rows) == (8000, 9.0, None)


@pytest.mark.parametrize("name", recipe.NAMED_CORPORA)
def test_every_named_corpus_goes_both_ways(name: str) -> None:
    found = from_plain({"corpus": {"name": name}}, name).corpus
    assert name.endswith(f"-{found.src}-{found.tgt}")
    parts = name.split("-")
    other = "-".join([*parts[:-2], parts[-1], parts[-2]])
    back = from_plain({"corpus": {"name": other}}, other).corpus
    assert (back.src, back.tgt) == (found.tgt, found.src)
    assert back.cleaning == found.cleaning
    assert back.tokenizer == found.tokenizer


def test_the_shared_defaults_are_not_changed_by_reading(tmp_path: Path) -> None:
    before = repr(recipe.NAMED_CORPORA)
    read(tmp_path, "corpus: {name: wmt14-en-de, tokenizer: {vocabulary_size: 500}}", "corpus.cleaning.max_ratio=3")
    assert repr(recipe.NAMED_CORPORA) == before


# --- the resolved recipe --------------------------------------------------------------------------------------------

texts = st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=12)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(["no", "yes", "on", "1e3", "0o17", "12:30", "2026-01-01", "'", '"', "#", "a: b", "é", "- x"])
    | texts,
    st.floats(0, 1e6, allow_nan=False),
    st.lists(texts.filter(lambda t: t.strip().lower() not in ("null", "none", "~", "")), max_size=3),
    st.one_of(st.none(), st.floats(1, 1e3)),
)
def test_what_is_written_reads_back_the_same(
    tmp_path_factory: pytest.TempPathFactory, word: str, rate: float, files: list[str], ratio: float | None
) -> None:
    if word.strip().lower() in ("null", "none", "~", ""):
        return
    first = Recipe(name="n")
    first.corpus.name, first.corpus.src = "mine", word
    first.corpus.train_src = first.corpus.train_tgt = files
    first.corpus.cleaning.max_ratio = ratio
    first.training.rate_factor = rate
    path = tmp_path_factory.getbasetemp() / "resolved.yaml"
    path.write_bytes(to_yaml(first))
    assert load(path) == first


def test_the_resolved_recipe_names_every_knob(tmp_path: Path) -> None:
    found = read(tmp_path, "corpus: {name: multi30k-en-de}\ntraining: {adam_epsilon: 1e-9, rate_factor: 1e-20}")
    text = to_yaml(found).decode()
    for path in recipe._paths(to_plain(Recipe())):
        assert f"{path.split('.')[-1]}:" in text
    (tmp_path / "resolved.yaml").write_text(text)
    assert load(tmp_path / "resolved.yaml") == found
    assert from_plain(to_plain(found), "here") == found


# --- stored with a run or a model, by any version -------------------------------------------------------------------


def test_knobs_that_were_removed_do_not_make_a_stored_recipe_unreadable(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    known = read(tmp_path, "model: {d_model: 8}\ntraining: {steps: 7}")
    values = to_plain(known)
    values["training"]["momentum"] = 0.9
    values["corpus"]["cleaning"]["lower"] = True
    values["serving"] = {"port": 80}
    path = tmp_path / "stored.yaml"
    path.write_text(yaml.safe_dump(values))
    assert load_stored(path) == known
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"nmt: warning: {path} ")
    assert line.endswith(": recipe.serving, cleaning.lower, training.momentum")
    with pytest.raises(UsageError, match=r"unknown key 'corpus\.cleaning\.lower'.*unknown key 'serving'"):
        load(path)  # a user's recipe is read strictly


@pytest.mark.parametrize(
    ("section", "knob", "value"),
    [("model", "experts", 4), ("model", "activation", "geglu"), ("training", "precision", "fp8")],
)
def test_a_stored_recipe_of_a_newer_version_is_refused(tmp_path: Path, section: str, knob: str, value: object) -> None:
    values = to_plain(Recipe(name="n"))
    values[section][knob] = value
    path = tmp_path / "stored.yaml"
    path.write_text(yaml.safe_dump(values))
    with pytest.raises(DataError, match=rf"{section}\.{knob}.* newer nmt than this one .*update") as caught:
        load_stored(path)
    assert caught.value.exit_code == 65


def test_a_damaged_stored_recipe_is_bad_data(tmp_path: Path) -> None:
    path = tmp_path / "stored.yaml"
    path.write_text("model: [")
    with pytest.raises(DataError, match="not valid YAML"):
        load_stored(path)
    with pytest.raises(MissingError):
        load_stored(tmp_path / "none.yaml")


def test_differences_between_two_recipes(tmp_path: Path) -> None:
    a = to_plain(read(tmp_path, "training: {steps: 5}"))
    b = to_plain(read(tmp_path, "training: {steps: 6}\nmodel: {norm: pre}"))
    assert differences(a, a) == []
    assert differences(a, b) == ["model.norm: post -> pre", "training.steps: 5 -> 6"]
    assert differences({"a": 1}, {"b": 2}) == ["a: 1 -> None", "b: None -> 2"]


@pytest.mark.parametrize(
    "path", sorted((Path(__file__).parent.parent / "recipes").rglob("*.yaml")), ids=lambda p: p.stem
)
def test_the_packages_own_recipes_are_valid(path: Path) -> None:
    assert load(path).name
