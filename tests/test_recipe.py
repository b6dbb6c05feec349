"""Recipes are read strictly: by each setting's type, all errors at once, nothing that YAML invented."""

import itertools
import typing
from pathlib import Path

import pytest
import yaml

from nmt_cli import recipe
from nmt_cli.errors import DataError, MissingError, UsageError
from nmt_cli.recipe import Recipe, from_plain, load, load_stored, to_yaml
from nmt_cli.training import checkpoints

Read = typing.Callable[..., Recipe]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """Read a recipe from text: read(text, "training.steps=5")."""

    def read(text: str | bytes, *overrides: str) -> Recipe:
        (tmp_path / "mine.yaml").write_bytes(text if isinstance(text, bytes) else text.encode())
        return load(tmp_path / "mine.yaml", overrides)

    return read


def complaint(read: Read, text: str | bytes, *overrides: str) -> str:
    with pytest.raises(UsageError) as caught:
        read(text, *overrides)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_the_defaults_are_the_papers_base_model(read: Read) -> None:
    empty = read("name: mine")
    assert empty.model_copy(update={"name": "", "corpus": recipe.Corpus()}) == Recipe()
    training = empty.training
    assert (training.steps, training.tokens_per_step, training.warmup_steps) == (100_000, 25_000, 4000)
    assert (training.adam_beta1, training.adam_beta2, training.adam_epsilon) == (0.9, 0.98, 1e-9)
    assert (training.label_smoothing, empty.model.dropout, empty.averaging.last) == (0.1, 0.1, 5)
    assert (empty.decoding.beam, empty.decoding.alpha, empty.decoding.extra_length) == (4, 0.6, 50)
    assert (read("model:").name, read("name: base-en-de").name) == ("mine", "base-en-de")
    assert read("model: {d_model: 66}").model.d_model == 66
    assert read("model:\ntraining:\n") == empty  # a section whose settings are all commented out


def test_every_setting_says_what_it_is_and_keeps_its_default_in_range() -> None:
    for section in recipe.Section.__subclasses__():
        for name, field in section.model_fields.items():
            assert field.description or issubclass(field.annotation, recipe.Section), f"{section}: {name}"
        section.model_validate(section().model_dump())


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *((f"training: {{rate_factor: {text}}}", 3e-4) for text in ("3e-4", "'3e-4'", ".0003", "+3E-4", "3_0e-5")),
        *((f"training: {{tokens_per_step: {text}}}", 25_000) for text in ("25000", "25_000", "+25000")),
        # PyYAML makes False, True, a date, 15 and 45000 of some of these. Norwegian is "no".
        *((f"corpus: {{src: {text}}}", text) for text in ("no", "on", "123", "1e3", "2026-01-01", "0o17", "12:30:00")),
        *((f"model: {{attention_bias: {text}}}", text in ("yes", "true")) for text in ("no", "off", "yes", "true")),
        *((f"corpus: {{cleaning: {{max_ratio: {text}}}}}", None) for text in ("null", "~", "", "None")),
        ("expect: {pairs: [1, 2_0]}", [1, 20]),
        ("expect: {dev_steps: 300}", [300]),
        ("corpus: {train_src: , train_tgt: }", []),
    ],
)
def test_a_value_is_read_by_its_settings_type(read: Read, text: str, value: object) -> None:
    node: typing.Any = read(text)
    keys = yaml.safe_load(text)
    while isinstance(keys, dict):
        ((key, keys), *_) = keys.items()
        node = getattr(node, key)
    assert node == value
    assert type(node) is type(value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("training: {steps: many}", "training.steps must be a valid integer, not 'many'"),
        ("training: {steps: 0}", "training.steps must be greater than or equal to 1, not '0'"),
        ("training: {rate_factor: nan}", "training.rate_factor must be a finite number, not 'nan'"),
        ("model: {dropout: 1}", "model.dropout must be less than or equal to 0.99, not '1'"),
        ("model: {attention_bias: maybe}", "model.attention_bias must be a valid boolean, not 'maybe'"),
        ("model: 5", "model must be a mapping of keys to values, not '5'"),
        ("training: {warmup: 10}", "unknown key 'training.warmup'; did you mean 'training.warmup_steps'?"),
        ("max_ratio: 3", "unknown key 'max_ratio'; did you mean 'corpus.cleaning.max_ratio'?"),
        ("qqq: 1\nmodel: {norm: x}\ntraining: {steps: 0}", "model.norm must be 'post' or 'pre', not 'x'; training.st"),
        ("qqq: 1", "mine.yaml: unknown key 'qqq'; there are name, corpus, model,"),
        # valid alone, wrong together
        ("training: {keep_checkpoints: 4}\naveraging: {last: 5}", "averaging.last is larger"),
        ("model: {d_model: 65536, max_length: 1048576}", "max_length x d_model may be 268,435,456 at most"),
        ("model: {d_model: 63}", "model.d_model must be even"),
        *(
            (f"corpus: {{name: mine, {kind}_src: [a, b], {kind}_tgt: [a]}}", f"{kind}_tgt must name as many files")
            for kind in ("train", "mix")
        ),
        *(
            (f"corpus: {{name: mine, {kind}_src: a}}", f"{kind}_tgt must name as many files")
            for kind in ("dev", "test", "general")
        ),
        ("expect: {bleu: 30}", "two numbers"),
        ("expect: {pairs: [30, 20]}", "expect.pairs and expect.bleu must be two numbers"),
        ("expect: {dev_steps: [300, 300]}", "dev_steps must rise"),
        ("expect: {dev_steps: [300], dev_bleu: [1, 2]}", "dev_bleu have as many"),
        # YAML that is no recipe
        ("training:\n  steps: 5\ntraining:\n  seed: 6", "not valid YAML: key 'training' occurs twice"),
        ("name: !!python/object/apply:os.system ['touch pwned']", "name must be a valid string, not \"['touch pwned"),
        ("name: &a [*a]", "not valid YAML: aliases (*) are not supported"),
        ('name: "a\\0b"', "not valid YAML: a character that is no text"),
        ('name: "\\ud800"', "not valid YAML: a character that is no text"),
        *((empty, "is empty") for empty in ("", "# a comment\n", "{}", "---\n...\n")),
        # a name is a directory's under runs/ or data/
        *((f"name: {name}", "a directory of its own under runs/") for name in ("../../x", "/abs", "..", "a/b")),
        *((f"corpus: {{name: {name}}}", "a directory of its own under data/") for name in ("..", ".")),
        ("name: a\nmodel: {norm", "line 2"),
        ("? [a, b]\n: c", "not valid YAML"),
        (b"\x80\xff", "not valid YAML"),
        ("name: \x01", "not valid YAML"),
        ("name: " + "[" * 5000, "not valid YAML"),
        ("just words", "must be a mapping"),
        ("# " + "x" * (1 << 20), "too large"),
    ],
)
def test_a_mistake_is_named_with_what_would_be_right(read: Read, text: str | bytes, message: str) -> None:
    assert message in (said := complaint(read, text))
    assert "byte string" not in said


@pytest.mark.parametrize("stored", [False, True], ids=["a recipe", "a model's recipe"])
def test_a_small_file_that_would_become_gigabytes_is_refused_at_once(tmp_path: Path, stored: bool) -> None:
    """Nested aliases, and more values than a recipe can have; wrong ones are not all listed."""
    letters, path = "abcdefghi", tmp_path / "bomb.yaml"
    nested = [f"{b}: &{b} [{','.join([f'*{a}'] * 9)}]" for a, b in itertools.pairwise(letters)]
    for text in ("\n".join(["a: &a [x]", *nested]), "a: [" + "x," * 100_000 + "]"):
        path.write_text(text)
        with pytest.raises(DataError if stored else UsageError, match=r"not valid YAML: (aliases|it has more than)"):
            (load_stored if stored else load)(path)
    path.write_text("".join(f"key{i}: 1\n" for i in range(9000)))
    with pytest.raises(UsageError, match=r"key0.*and more$") as caught:
        load(path)
    assert "key9" not in str(caught.value)


def test_set_changes_one_setting(read: Read) -> None:
    text = "training: {steps: 5, seed: 7}"
    changed = read(text, "training.steps=200", "corpus.tokenizer.vocabulary_size=500")
    assert (changed.training.steps, changed.training.seed) == (200, 7)
    assert changed.corpus.tokenizer.vocabulary_size == 500
    assert read(text, "training.steps=1", "training.steps=2").training.steps == 2
    assert read("training: {patience: 3}", "training.patience=null").training.patience is None
    assert read(text, "expect.bleu=[30, 35]").expect.bleu == [30.0, 35.0]
    assert read(text, "name=a=b").name == "a=b"
    for override, message in (
        *((wrong, "write it as section.key=value") for wrong in ("training.steps", "=5")),
        ("training.stepz=5", "did you mean 'training.steps'?"),
        ("training.steps.more=5", "training.steps must be a valid integer"),
    ):
        assert message in complaint(read, "name: mine", override)
    assert "a directory of its own" in complaint(read, text, "name=../x")


def test_a_recipe_may_stand_on_another(read: Read, tmp_path: Path) -> None:
    (tmp_path / "low.yaml").write_text("name: low\nmodel: {num_layers: 2, d_ff: 99}\ntraining: {steps: 7}")
    upper = read("base: low.yaml\nmodel: {num_layers: 3}", "training.seed=9")
    assert (upper.model.num_layers, upper.model.d_ff) == (3, 99)
    assert (upper.training.steps, upper.training.seed) == (7, 9)
    assert "its base mine.yaml has a base itself. Name that one (mine.yaml)" in complaint(read, "base: mine.yaml")
    for missing in ("nowhere.yaml", "."):
        with pytest.raises(MissingError, match="no recipe"):
            read(f"base: {missing}")
    assert read("base: recipes/parsing.yaml").model.d_model == 1024  # the package's own
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes" / "parsing.yaml").write_text("model: {d_model: 768}")
    assert read("base: recipes/parsing.yaml").model.d_model == 768  # that beside the recipe comes first


def test_depths_are_num_layers_unless_the_recipe_says_otherwise(read: Read) -> None:
    assert read("model: {num_layers: 3}").model.depths == (3, 3)
    assert read("model: {num_layers: 3, decoder_layers: 1}").model.depths == (3, 1)
    assert read("model: {encoder_layers: 6, decoder_layers: 2}").model.depths == (6, 2)
    assert read("model: {num_layers: 3, encoder_layers: 5, decoder_layers: null}").model.depths == (5, 3)


def test_what_a_base_expects_is_expected_of_its_own_corpus_only(read: Read) -> None:
    assert read("base: recipes/base.yaml\nmodel: {dropout: 0.2}").expect.bleu == [26.2, 27.0]
    other = read("base: recipes/base.yaml\ncorpus: {name: mine}\nexpect: {bleu: [20, 30]}")
    assert (other.expect.pairs, other.expect.paper_bleu, other.expect.bleu) == ([], None, [20, 30])


def test_a_corpus_named_on_the_command_line_is_not_beside_the_expectations_of_another(read: Read) -> None:
    text = "corpus: {name: multi30k-en-de}\nexpect: {bleu: [38, 40], parameters: 7}"
    assert read(text, "corpus.name=multi30k-en-de", "corpus.moses=no", "model.dropout=0").expect.bleu == [38, 40]
    for change in ("name=multi30k-en-fr", "moses=yes", "limit=100", "src=de"):
        assert read(text, f"corpus.{change}").expect == recipe.Expect(), change
    own = "expect: {bleu: [38, 40]}"
    assert read(own, "corpus.name=toy-en-de").expect == read(own).expect == recipe.Expect(bleu=[38, 40])
    english = recipe.with_languages(read(text), {"src": "en", "tgt": "fr"})
    assert english.expect == recipe.Expect()
    assert recipe.with_languages(read(text), {"src": "en", "tgt": "de"}).expect.bleu == [38, 40]
    assert read(text, "expect.bleu=[50,60]", "corpus.name=multi30k-en-fr").expect == recipe.Expect(bleu=[50, 60])


def test_named_corpora_bring_their_defaults_and_give_way(read: Read) -> None:
    wmt14 = read("corpus: {name: wmt14-en-de}").corpus
    assert (wmt14.src, wmt14.tgt, wmt14.tokenizer.vocabulary_size, wmt14.rows) == ("en", "de", 37_000, 4_508_785)
    mine = read("corpus: {name: multi30k-de-en, tokenizer: {vocabulary_size: 4000}}").corpus
    assert (mine.src, mine.tgt, mine.tokenizer.vocabulary_size, mine.rows) == ("de", "en", 4000, 29_000)
    toy = read("name: toy").corpus
    assert (toy.name, toy.tokenizer.vocabulary_size) == ("toy-en-de", 1000)
    own = read("corpus: {name: mine, src: fi, tgt: sv}").corpus
    assert (own.tokenizer.vocabulary_size, own.cleaning, own.rows) == (8000, wmt14.cleaning, None)
    assert wmt14.cleaning.max_ratio == 9.0, "a smaller ratio drops short sentences"
    assert recipe.Corpus(name="hub:owner/name").directory == Path("data/owner-name")


def test_a_corpus_with_synthetic_text_lies_beside_the_one_without() -> None:
    """So the recipes of a teacher, of its student and of back-translation can be played one after the other."""
    recipes = [recipe.load(Path(name)) for name in ("multi30k", "student", "backtranslate")]
    places = [each.corpus.directory for each in recipes]
    names = ["multi30k-en-de", "multi30k-en-de-distilled", "multi30k-en-de-back-translated"]
    assert places == [Path("data") / name for name in names]
    both = [{"side": side, "model": "m"} for side in ("tgt", "src", "tgt")]
    corpus = recipe.from_plain({"corpus": {"name": "mine", "synthetic": both}}, "both").corpus
    assert corpus.directory == Path("data/mine-back-translated-distilled")


def test_every_named_corpus_goes_both_ways() -> None:
    named = {name: from_plain({"corpus": {"name": name}}, name).corpus for name in recipe.NAMED_CORPORA}
    for name, there in named.items():
        assert name.endswith(f"-{there.src}-{there.tgt}")
        back = named[f"{name[:-6]}-{there.tgt}-{there.src}"]
        assert back == there.model_copy(update={"name": back.name, "src": there.tgt, "tgt": there.src})


@pytest.mark.parametrize("word", ["no", "1e3", "12:30", "2026-01-01", "'", '"', "#", "a: b", "é\u2028", "- x", " x "])
@pytest.mark.parametrize(("rate", "ratio"), [(0.1 + 0.2, None), (1e-300, 9.000000000000002)])
def test_what_is_written_reads_back_the_same(tmp_path: Path, word: str, rate: float, ratio: float | None) -> None:
    first = Recipe(name="n")
    first.corpus.name, first.corpus.src, first.corpus.cleaning.max_ratio = "mine", word, ratio
    first.corpus.train_src = first.corpus.train_tgt = [word, "x"] if ratio else []
    first.training.rate_factor = rate
    path = tmp_path / "resolved.yaml"
    path.write_bytes(to_yaml(first))
    assert load(path) == from_plain(first.model_dump(), "here") == first


def test_settings_that_were_removed_do_not_make_a_stored_recipe_unreadable(
    read: Read, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stored, path = read("model: {d_model: 8}\ntraining: {steps: 7}"), tmp_path / "stored.yaml"
    removed = {"training": {"momentum": 0.9}, "corpus": {"cleaning": {"lower": True}}, "serving": {"port": 80}}
    path.write_text(yaml.safe_dump(recipe.merge(stored.model_dump(), removed)))
    assert load_stored(path) == stored
    assert "are ignored: " in capsys.readouterr().err
    with pytest.raises(UsageError, match=r"unknown key 'corpus\.cleaning\.lower'.*unknown key 'serving'"):
        load(path)  # a user's recipe is read strictly


@pytest.mark.parametrize("change", ["model.experts=4", "model.activation=geglu", "training.precision=fp8"])
def test_a_stored_recipe_of_a_newer_version_is_refused(tmp_path: Path, change: str) -> None:
    path, key = tmp_path / "stored.yaml", change.partition("=")[0].removeprefix("model.")
    path.write_text(yaml.safe_dump(recipe.merge(Recipe(name="n").model_dump(), recipe.override(change))))
    with pytest.raises(DataError, match=rf"{key}.* newer than .*update"):
        load_stored(path)


def test_which_settings_a_begun_run_may_change() -> None:
    free = {key for key in recipe._keys(Recipe().model_dump()) if checkpoints.FREE_SETTINGS.match(f"{key}: ")}
    for section, names in {
        "training": "steps max_hours log_every validate_every validate_bleu checkpoint_every keep_checkpoints patience "
        "memory_tokens micro_batches cuda_graphs processes",
        "corpus": "src tgt train_src train_tgt dev_src dev_tgt test_src test_tgt mix_src mix_tgt general_src "
        "general_tgt tokenizer.file",  # their hashes are compared
        "model": "",
    }.items():
        assert {key for key in free if key.startswith(section)} == {f"{section}.{name}" for name in names.split()}


def test_what_a_start_decides_and_what_the_recipe_still_says(read: Read, tmp_path: Path) -> None:
    """Sizes, languages and tokenizer are the model's; how it is trained, and what the recipe names itself, is not."""
    theirs = "model: {d_model: 48, norm: pre}\ntraining: {seed: 7}\ndecoding: {beam: 9}\n"
    stored = read(theirs + "corpus: {name: old, src: fr, tgt: zh, train_src: [a], train_tgt: [b]}")
    (tmp_path / "recipe.yaml").write_bytes(to_yaml(stored))
    for corpus, languages in (("name: mine", ("fr", "zh")), ("name: mine, tgt: ja", ("fr", "ja"))):
        found = read(f"corpus: {{{corpus}}}\nmodel: {{dropout: 0.3}}\ntraining: {{init_from: {tmp_path}}}")
        assert (found.model.d_model, found.model.norm, found.model.dropout) == (48, "pre", 0.3)
        assert (found.corpus.src, found.corpus.tgt) == languages
        assert found.corpus.tokenizer.file == str(tmp_path / "tokenizer.model")
        assert (found.corpus.train_src, found.training.seed, found.decoding.beam) == ([], 1, 4)
