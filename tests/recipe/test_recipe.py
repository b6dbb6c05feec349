"""Recipes are read strictly: values have the types of their settings, and all mistakes are reported at once."""

import itertools
import re
import typing
from pathlib import Path

import pytest
import yaml

from nmt_cli.recipe import loading, schema, yaml_file
from nmt_cli.recipe.loading import from_plain, load, load_stored, to_yaml
from nmt_cli.recipe.named import NAMED_CORPORA
from nmt_cli.recipe.schema import Recipe
from nmt_cli.system.errors import DataError, MissingError, UsageError

Read = typing.Callable[..., Recipe]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """Read a recipe from text: read(text, "training.steps=5")."""

    def read(text: str | bytes, *overrides: str) -> Recipe:
        (tmp_path / "mine.yaml").write_bytes(text if isinstance(text, bytes) else text.encode())
        return load(tmp_path / "mine.yaml", overrides)

    return read


def error_of(read: Read, text: str | bytes, *overrides: str) -> str:
    with pytest.raises(UsageError) as caught:
        read(text, *overrides)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_the_defaults_are_the_papers_base_model(read: Read) -> None:
    empty = read("name: mine")
    assert empty.model_copy(update={"name": "", "corpus": schema.Corpus()}) == Recipe()
    training = empty.training
    assert (training.steps, training.tokens_per_step, training.warmup_steps) == (100_000, 25_000, 4000)
    assert (training.adam_beta1, training.adam_beta2, training.adam_epsilon) == (0.9, 0.98, 1e-9)
    assert (training.label_smoothing, empty.model.dropout, empty.averaging.last) == (0.1, 0.1, 5)
    assert (empty.decoding.beam, empty.decoding.alpha, empty.decoding.extra_length) == (4, 0.6, 50)
    assert [read(text).name for text in ("model:", "name: ''", "name: base-en-de")] == ["mine", "mine", "base-en-de"]
    assert read("model: {d_model: 66}").model.d_model == 66
    assert read("model:\ntraining:\n") == empty  # all settings of the sections are commented out


DEFAULTS = """
Corpus: name=toy-en-de config=None format=text src=en tgt=de train_src=[] train_tgt=[] dev_src=None dev_tgt=None
  test_src=None test_tgt=None sources=[] hold_out=0 mix_src=[] mix_tgt=[] mix_share=0.5 general_src=None
  general_tgt=None synthetic=[] real_pairs=True moses=False rows=None limit=None seed=1
Cleaning: unescape=True max_tokens=250 max_ratio=9.0 drop_copies=True drop_duplicates=True drop_near_twins=False
  check_script=True
Filters: language=False swapped=keep numbers=False repeats=False min_letters=0 max_capitals=1
Tokenizer: vocabulary_size=8000 file=None words=False
Augment: no_stop=0 typos=0 upper=0 title=0 noise=0 joined=0 bpe_dropout=0
Synthetic: side=src files=[] src=None tgt=None model=None tag= beam=4 sampling=False weight=None
TextSource: files=[] corpus=None config=None format=None split=train src=None tgt=None columns=[] score=None
  min_score=None finished=False tag= weight=None cleaning=None filters=None augment=None
Stage: from_step=1 weights=[]
Model: num_layers=6 encoder_layers=None decoder_layers=None d_model=512 d_ff=2048 num_heads=8 d_k=64 d_v=64
  dropout=0.1 norm=post positions=sinusoidal max_length=1024 attention_bias=False output_bias=False activation=relu
  source_vocabulary=0 tied_output=True source_eos=True decoder_cell=attention
Training: steps=100000 max_hours=None weights=[] temperature=1 stages=[] augment=[] tokens_per_step=25000
  micro_batches=8 warmup_steps=4000 rate_factor=1.0 cooldown_steps=0 adam_beta1=0.9 adam_beta2=0.98 adam_epsilon=1e-09
  label_smoothing=0.1 seed=1 precision=auto memory_tokens=None cuda_graphs=True processes=None log_every=50
  validate_every=1000 validate_bleu=500 checkpoint_every=1500 keep_checkpoints=5 patience=None teacher=None
  init_from=None
Averaging: last=5 best=False with_start=[]
Decoding: beam=4 alpha=0.6 penalty_offset=5 extra_length=50 split=True copy_wordless=True case=auto spelling=auto
target_prefix=
Expect: pairs=[] parameters=None dev_steps=[] dev_perplexity=[] dev_bleu=[] bleu=[] paper_bleu=None paper_f1=None
  paper_dev_bleu=None source=None"""


def test_defaults_never_change() -> None:
    """Recipes leave settings out, so a changed default would change what they train."""
    sections = [
        section for section in schema.Section.__subclasses__() if section.__module__.startswith("nmt_cli.recipe.")
    ]
    words = [f"{section.__name__}:" for section in sections]
    for section in sections:
        fields = section.model_fields.items()
        words += [f"{name}={field.default}" for name, field in fields if field.annotation not in sections]
    assert sorted(words) == sorted([*DEFAULTS.split(), "Recipe:", "name="])


def test_every_setting_has_a_description_and_a_default_in_range() -> None:
    for section in schema.Section.__subclasses__():
        for name, field in section.model_fields.items():
            assert field.description or issubclass(field.annotation, schema.Section), f"{section}: {name}"
        section.model_validate(section().model_dump())


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *((f"training: {{rate_factor: {text}}}", 3e-4) for text in ("3e-4", "'3e-4'", ".0003", "+3E-4", "3_0e-5")),
        *((f"training: {{tokens_per_step: {text}}}", 25_000) for text in ("25000", "25_000", "+25000")),
        # PyYAML converts some of these to False, True, a date, 15 and 45000. "no" is Norwegian.
        *((f"corpus: {{src: {text}}}", text) for text in ("no", "on", "123", "1e3", "2026-01-01", "0o17", "12:30:00")),
        *((f"model: {{attention_bias: {text}}}", text in ("yes", "true")) for text in ("no", "off", "yes", "true")),
        *((f"corpus: {{cleaning: {{max_ratio: {text}}}}}", None) for text in ("null", "~", "", "None")),
        ("expect: {pairs: [1, 2_0]}", [1, 20]),
        ("expect: {dev_steps: 300}", [300]),
        # combinations at their limits
        ("model: {d_model: 63, positions: learned}", 63),
        ("model: {max_length: 8192, d_model: 8192}", 8192),
        ("averaging: {last: 7}\ntraining: {keep_checkpoints: 7}", 7),
        ("corpus: {train_src: , train_tgt: }", []),
    ],
)
def test_a_value_has_the_type_of_its_setting(read: Read, text: str, value: object) -> None:
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
        ("corpus: {cleaning: {max_tokens: 0}}", "max_tokens must be greater than or equal to 1, not '0'"),
        ("training: {rate_factor: nan}", "training.rate_factor must be a finite number, not 'nan'"),
        ("model: {dropout: 1}", "model.dropout must be less than or equal to 0.99, not '1'"),
        ("model: {attention_bias: maybe}", "model.attention_bias must be a valid boolean, not 'maybe'"),
        ("model: 5", "model must be a mapping of keys to values, not '5'"),
        ("training: {warmup: 10}", "unknown key 'training.warmup'; did you mean 'training.warmup_steps'?"),
        ("max_ratio: 3", "unknown key 'max_ratio'; did you mean 'corpus.cleaning.max_ratio'?"),
        ("qqq: 1\nmodel: {norm: x}\ntraining: {steps: 0}", "model.norm must be 'post' or 'pre', not 'x'; training.st"),
        ("qqq: 1", "mine.yaml: unknown key 'qqq'; the keys are name, corpus, model,"),
        # valid alone but not together
        ("model: {d_model: 65536, max_length: 1048576}", "max_length x model.d_model must be at most 67,108,864"),
        ("model: {d_model: 63}", "model.d_model must be even"),
        ("expect: {bleu: 30}", "two numbers"),
        ("corpus: {real_pairs: no}", "mine.yaml: corpus.real_pairs=no requires corpus.synthetic"),
        ("corpus: {synthetic: {tag: b-t}}", "corpus.synthetic.0.tag must be String should match pattern"),
        ("corpus: {sources: [{tag: b-t}]}", "corpus.sources.0.tag must be String should match pattern"),
        ("averaging: {with_start: 1.5}", "averaging.with_start.0 must be less than or equal to 1"),
        (f"training: {{steps: {'x' * 50}}}", f"a valid integer, not '{'x' * 40}'"),
        # YAML that is not a recipe
        (
            "training:\n  steps: 5\ntraining:\n  seed: 6",
            "not valid YAML: key 'training' occurs twice in line 3, column 1",
        ),
        ("name: !!python/object/apply:os.system ['touch pwned']", "tags (!) are not supported"),
        ("name: &a [*a]", "not valid YAML: aliases (*) are not supported"),
        ('name: "a\\0b"', "not valid YAML: it has a NUL or surrogate character"),
        ('name: "\\ud800"', "not valid YAML: "),
        *((empty, "is empty") for empty in ("", "# a comment\n", "{}", "---\n...\n")),
        # names of directories under runs/ and data/
        *((f"name: {name}", "be the name of a directory under runs/") for name in ("../../x", "/abs", "..", "a/b")),
        *((f"corpus: {{name: {name}}}", "be the name of a directory under data/") for name in ("..", ".")),
        ("name: a\nmodel: {norm", "line 2"),
        ("? [a, b]\n: c", "not valid YAML"),
        ("name: a\n---\nname: b", "not valid YAML"),
        (b"\x80\xff", "not valid YAML"),
        ("name: \x01", "not valid YAML"),
        ("name: " + "[" * 5000, "not valid YAML"),
        ("just words", "must be a mapping"),
        ("# " + "x" * (1 << 20), "too large"),
    ],
)
def test_a_mistake_is_named_with_its_correction(read: Read, text: str | bytes, message: str) -> None:
    error = error_of(read, text)
    assert message in error
    assert "byte string" not in error


@pytest.mark.parametrize(
    "text", ["a: [", "- a", "a: \x00", "", "{}", "name: " + "[" * 30_000, "{a: " * 30_000, "- " * 30_000]
)
def test_the_error_for_a_damaged_stored_recipe_names_its_file(tmp_path: Path, text: str) -> None:
    (tmp_path / "recipe.yaml").write_text(text)
    with pytest.raises(DataError, match=re.escape(str(tmp_path / "recipe.yaml"))):
        load_stored(tmp_path / "recipe.yaml")


@pytest.mark.parametrize("stored", [False, True], ids=["a recipe", "a model's recipe"])
def test_a_small_file_that_would_expand_to_gigabytes_is_refused_at_once(tmp_path: Path, stored: bool) -> None:
    """Nested aliases, and too many values. A message lists only some of many mistakes."""
    letters, path = "abcdefghi", tmp_path / "bomb.yaml"
    nested = [f"{b}: &{b} [{','.join([f'*{a}'] * 9)}]" for a, b in itertools.pairwise(letters)]
    for text in ("\n".join(["a: &a [x]", *nested]), "a: [" + "x," * 100_000 + "]"):
        path.write_text(text)
        with pytest.raises(DataError if stored else UsageError, match=r"not valid YAML: (aliases|it has more than)"):
            (load_stored if stored else load)(path)
    path.write_text("".join(f"key{i}: 1\n" for i in range(9000)))
    with pytest.raises(UsageError, match=r"key0.*and more$") as caught:
        load(path)
    assert "key5" not in str(caught.value)
    path.write_text("".join(f"key{i}: 1\n" for i in range(5)))
    with pytest.raises(UsageError, match=r"'key4'; the keys are [\w, ]*expect$"):
        load(path)
    path.write_text("name: x\n" + f"{'k' * 600}: 1\n" * 2)
    with pytest.raises(UsageError) as caught:
        load(path)
    assert len(str(caught.value)) < len(str(path)) + 330
    assert (yaml_file.MAX_BYTES, yaml_file.MAX_VALUES) == (1 << 20, 20_000), "a recipe may name many files"


def test_set_changes_one_setting(read: Read) -> None:
    text = "training: {steps: 5, seed: 7}"
    changed = read(text, "training.steps=200", "corpus.tokenizer.vocabulary_size=500")
    assert (changed.training.steps, changed.training.seed) == (200, 7)
    assert changed.corpus.tokenizer.vocabulary_size == 500
    assert read(text, "training.steps=1", "training.steps=2").training.steps == 2
    assert read("training: {patience: 3}", "training.patience=null").training.patience is None
    assert read(text, "expect.bleu=[30, 35]").expect.bleu == [30.0, 35.0]
    assert read(text, "name=a=b").name == "a=b"
    assert read(text, " training.steps =8").training.steps == 8
    assert read("expect: {bleu: [30, 35]}", "expect.bleu=[]").expect.bleu == []
    named = read("name: mine", "corpus.name=m", "corpus.train_src=[ a b , c,]", "corpus.train_tgt=[d,e]").corpus
    assert (named.train_src, named.train_tgt) == (["a b", "c"], ["d", "e"])
    for override, message in (
        *((wrong, "is malformed. Write section.key=value") for wrong in ("training.steps", "=5", " =5")),
        ("training.stepz=5", "did you mean 'training.steps'?"),
        ("training.steps.more=5", "training.steps must be a valid integer"),
    ):
        assert message in error_of(read, "name: mine", override)
    assert "the name of a directory" in error_of(read, text, "name=../x")


def test_a_recipe_may_have_a_base(read: Read, tmp_path: Path) -> None:
    (tmp_path / "low.yaml").write_text("name: low\nmodel: {num_layers: 2, d_ff: 99}\ntraining: {steps: 7}")
    upper = read("base: low.yaml\nmodel: {num_layers: 3}", "training.seed=9")
    assert (upper.model.num_layers, upper.model.d_ff) == (3, 99)
    assert (upper.training.steps, upper.training.seed) == (7, 9)
    assert "its base mine.yaml has a base itself. Make mine.yaml the base" in error_of(read, "base: mine.yaml")
    (tmp_path / "mid.yaml").write_text("base: low.yaml")
    message = "its base mid.yaml has a base itself. Make low.yaml the base, and copy the settings of mid.yaml here"
    assert message in error_of(read, "base: mid.yaml")
    (tmp_path / "toy.yaml").write_text("model: {d_ff: 77}")
    assert read("base: toy.yaml").model.d_ff == 77, "found in the package"
    for missing in ("nowhere.yaml", "."):
        with pytest.raises(MissingError, match="no recipe"):
            read(f"base: {missing}")
    assert read("base: recipes/parsing.yaml").model.d_model == 1024  # of the package
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes" / "parsing.yaml").write_text("model: {d_model: 768}")
    assert read("base: recipes/parsing.yaml").model.d_model == 768  # beside the recipe


def test_depths_are_num_layers_by_default(read: Read) -> None:
    assert read("model: {num_layers: 3}").model.depths == (3, 3)
    assert read("model: {num_layers: 3, decoder_layers: 1}").model.depths == (3, 1)
    assert read("model: {encoder_layers: 6, decoder_layers: 2}").model.depths == (6, 2)
    assert read("model: {num_layers: 3, encoder_layers: 5, decoder_layers: null}").model.depths == (5, 3)


def test_expectations_of_a_base_hold_only_for_its_corpus(read: Read) -> None:
    assert read("base: recipes/base.yaml\nmodel: {dropout: 0.2}").expect.bleu == [26.2, 27.0]
    other = read("base: recipes/base.yaml\ncorpus: {name: mine}\nexpect: {bleu: [20, 30]}")
    assert (other.expect.pairs, other.expect.paper_bleu, other.expect.bleu) == ([], None, [20, 30])


def test_expected_scores_hold_only_for_the_recipes_own_steps(read: Read) -> None:
    """Pairs, parameters and published figures hold for any number of steps."""
    curve = "dev_steps: [600, 900], dev_perplexity: [3, 2], dev_bleu: [20, 30], bleu: [20, 30]"
    text = f"training: {{steps: 900}}\nexpect: {{{curve}, pairs: [40, 50], parameters: 7, paper_bleu: 27.3}}"
    kept = schema.Expect(pairs=[40, 50], parameters=7, paper_bleu=27.3)
    assert read(text, "training.steps=200").expect == kept
    assert read(text, "training.steps=200", "expect.bleu=[5,6]").expect == kept.model_copy(update={"bleu": [5, 6]})
    assert read(text, "training.steps=900", "training.seed=3").expect == read(text).expect != kept
    derived = read("base: recipes/toy.yaml\ntraining: {steps: 300}").expect
    assert (derived.bleu, derived.dev_steps, derived.parameters) == ([], [], 1051136)


def test_another_corpus_on_the_command_line_drops_the_expectations(read: Read) -> None:
    text = "corpus: {name: multi30k-en-de}\nexpect: {bleu: [38, 40], parameters: 7}"
    assert read(text, "corpus.name=multi30k-en-de", "corpus.moses=no", "model.dropout=0").expect.bleu == [38, 40]
    for change in ("name=multi30k-en-fr", "moses=yes", "limit=100", "src=de", "tgt=fr"):
        assert read(text, f"corpus.{change}").expect == schema.Expect(), change
    text = "corpus: {name: toy-en-de, synthetic: {side: src}}\ntraining: {teacher: a}\nexpect: {bleu: [38, 40]}"
    assert read(text, "training.teacher=a", "corpus.synthetic.beam=4").expect.bleu == [38, 40]
    for change in ("training.teacher=b", "corpus.synthetic.files=[more.en]", "corpus.synthetic=[]"):
        assert read(text, change).expect == schema.Expect(), change
    own = "expect: {bleu: [38, 40]}"
    assert read(own, "training.teacher=a").expect.bleu == [38, 40], "nothing is translated"
    assert read(own, "corpus.name=toy-en-de").expect == read(own).expect == schema.Expect(bleu=[38, 40])
    english = loading.with_languages(read(text), {"src": "en", "tgt": "fr"})
    assert english.expect == schema.Expect()
    assert loading.with_languages(read(text), {"src": "en", "tgt": "de"}).expect.bleu == [38, 40]
    assert read(text, "expect.bleu=[50,60]", "corpus.name=multi30k-en-fr").expect == schema.Expect(bleu=[50, 60])


def test_named_corpora_have_defaults_that_recipes_override(read: Read) -> None:
    wmt14 = read("corpus: {name: wmt14-en-de}").corpus
    assert (wmt14.src, wmt14.tgt, wmt14.tokenizer.vocabulary_size, wmt14.rows) == ("en", "de", 37_000, 4_508_785)
    mine = read("corpus: {name: multi30k-de-en, tokenizer: {vocabulary_size: 4000}}").corpus
    assert (mine.src, mine.tgt, mine.tokenizer.vocabulary_size, mine.rows) == ("de", "en", 4000, 29_000)
    toy = read("name: toy").corpus
    assert (toy.name, toy.tokenizer.vocabulary_size) == ("toy-en-de", 1000)
    own = read("corpus: {name: mine, src: fi, tgt: sv}").corpus
    assert (own.tokenizer.vocabulary_size, own.cleaning, own.rows) == (8000, wmt14.cleaning, None)
    assert wmt14.cleaning.max_ratio == 9.0, "a smaller ratio drops short sentences"
    assert schema.Corpus(name="hub:owner/name").directory == Path("data/owner-name")
    assert schema.Corpus(name="hub:hubble/hub:b").directory == Path("data/hubble-hub:b")
    known = {"toy-en-de": {}, "hub:owner/name": {}, "mine": {"train_src": ["a"], "train_tgt": ["b"]}, "yours": {}}
    has_text = [schema.Corpus(name=name, **files).has_text for name, files in known.items()]
    assert has_text == [True, True, True, False]


def test_a_corpus_with_synthetic_text_has_its_own_directory() -> None:
    """Therefore, the recipes of a teacher, of its student and of back-translation can run in turn."""
    recipes = [loading.load(Path(name)) for name in ("multi30k", "student", "backtranslate")]
    directories = [each.corpus.directory for each in recipes]
    names = ["multi30k-en-de", "multi30k-en-de-distilled", "multi30k-en-de-back-translated"]
    assert directories == [Path("data") / name for name in names]
    both = [{"side": side, "model": "m"} for side in ("tgt", "src", "tgt")]
    corpus = loading.from_plain({"corpus": {"name": "mine", "synthetic": both}}, "both").corpus
    assert corpus.directory == Path("data/mine-back-translated-distilled")


def test_defaults_of_each_named_corpus() -> None:
    found = {name: from_plain({"corpus": {"name": name}}, name).corpus for name in NAMED_CORPORA}
    defaults = {name: (each.config, each.rows, each.tokenizer.vocabulary_size) for name, each in found.items()}
    assert {name: values for name, values in defaults.items() if "-en-" in name} == {
        "toy-en-de": (None, None, 1000),
        "wmt14-en-de": ("de-en", 4_508_785, 37_000),  # wmt/wmt14 on the hub
        "wmt14-en-fr": ("fr-en", 40_836_715, 32_000),
        **dict.fromkeys(("multi30k-en-de", "multi30k-en-fr", "multi30k-en-cs"), (None, 29_000, 8000)),
    }


def test_a_synthetic_entrys_own_model_overrides_the_teacher(read: Read) -> None:
    """If there is only one entry, its settings can be changed one by one."""
    text = "corpus: {synthetic: [{side: tgt, model: own}, {tag: x}]}\ntraining: {teacher: other}"
    assert [entry.model for entry in read(text).corpus.synthetic] == ["own", "other"]
    one = "corpus: {synthetic: [{side: tgt, model: own, tag: bt}]}"
    with pytest.raises(UsageError, match=r"synthetic has 2 entries, so it cannot be set in part\. Write"):
        read(text, "corpus.synthetic.beam=9")
    (entry,) = read(one, "corpus.synthetic.files=[a,b]", "corpus.synthetic.beam=9").corpus.synthetic
    assert (entry.side, entry.model, entry.tag, entry.files, entry.beam) == ("tgt", "own", "bt", ["a", "b"], 9)


def test_differences_cover_the_keys_of_both_sides() -> None:
    old, new = {"a": {"b": 1, "c": 2}, "d": 0}, {"a": {"b": 1, "c": "2", "e": None}, "f": False}
    assert loading.differences(old, new) == ["a.c: 2 -> 2", "d: 0 -> None", "f: None -> False"]
    old, new = {"a": [{"b": 1}, {"b": 2}]}, {"a": [{"b": 1}, {"b": 3}]}
    assert loading.differences(old, new) == ["a.1.b: 2 -> 3"]
    for other in ([], [{"b": 1}], [1, 2]):
        assert loading.differences(old, {"a": other}) == [f"a: {old['a']} -> {other}"]
    assert loading.has_policy("corpus.sources.1.files: a -> b", schema.MAY_CHANGE)
    assert not loading.has_policy("training.augment.0.typos: 0 -> 1", schema.MAY_CHANGE)


def test_merging_keeps_the_rest_and_changes_neither_side() -> None:
    low, high = {"a": {"b": 1}, "c": [1, 2]}, {"a": {"d": 2}, "c": [3]}
    assert loading.merge(low, high) == {"a": {"b": 1, "d": 2}, "c": [3]}
    assert (low, high) == ({"a": {"b": 1}, "c": [1, 2]}, {"a": {"d": 2}, "c": [3]})


def test_every_named_corpus_exists_in_both_directions() -> None:
    named = {name: from_plain({"corpus": {"name": name}}, name).corpus for name in NAMED_CORPORA}
    for name, there in named.items():
        assert name.endswith(f"-{there.src}-{there.tgt}")
        back = named[f"{name[:-6]}-{there.tgt}-{there.src}"]
        assert back == there.model_copy(update={"name": back.name, "src": there.tgt, "tgt": there.src})


@pytest.mark.parametrize("word", ["no", "1e3", "12:30", "2026-01-01", "'", '"', "#", "a: b", "é\u2028", "- x", " x "])
@pytest.mark.parametrize(("rate", "ratio"), [(0.1 + 0.2, None), (1e-300, 9.000000000000002)])
def test_a_written_recipe_reads_back_the_same(tmp_path: Path, word: str, rate: float, ratio: float | None) -> None:
    first = Recipe(name="n")
    first.corpus.name, first.corpus.src, first.corpus.cleaning.max_ratio = "mine", word, ratio
    first.corpus.train_src = first.corpus.train_tgt = [word, "x"] if ratio else []
    first.training.rate_factor = rate
    path = tmp_path / "resolved.yaml"
    path.write_bytes(to_yaml(first))
    assert path.read_bytes().startswith(b"name: n\ncorpus:\n  name: mine\n  config: null\n")
    assert word not in ("é\u2028", "-") or "é" in path.read_text("utf-8"), "escaped"
    assert load(path) == from_plain(first.model_dump(), "here") == first


def test_removed_settings_do_not_make_a_stored_recipe_unreadable(
    read: Read, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stored, path = read("model: {d_model: 8}\ntraining: {steps: 7}"), tmp_path / "stored.yaml"
    removed = {"training": {"momentum": 0.9}, "corpus": {"cleaning": {"lower": True}}, "serving": {"port": 80}}
    path.write_text(yaml.safe_dump(loading.merge(stored.model_dump(), removed)))
    assert load_stored(path) == stored
    assert "are ignored: corpus.cleaning.lower, serving, serving.port, training.momentum\n" in capsys.readouterr().err
    with pytest.raises(UsageError, match=r"unknown key 'corpus\.cleaning\.lower'.*unknown key 'serving'"):
        load(path)  # a user's recipe is read strictly


@pytest.mark.parametrize("change", ["model.experts=4", "model.activation=geglu", "training.precision=fp8"])
def test_a_stored_recipe_of_a_newer_version_is_refused(tmp_path: Path, change: str) -> None:
    path, key = tmp_path / "stored.yaml", change.partition("=")[0].removeprefix("model.")
    path.write_text(yaml.safe_dump(loading.merge(Recipe(name="n").model_dump(), loading.override(change))))
    with pytest.raises(DataError, match=rf"{key}.* newer nmt than .* wrote it"):
        load_stored(path)


def keys_with(policy: schema.Policy) -> set[str]:
    return {key for key, each in schema.POLICIES.items() if policy in each}


def keys_of(*sections: str) -> set[str]:
    return {key for key in schema.POLICIES if key.startswith(sections)}


def test_settings_that_may_change_when_a_run_resumes() -> None:
    """Hashes of the training text are compared, so its files may be elsewhere."""
    training = "steps max_hours log_every validate_every validate_bleu checkpoint_every keep_checkpoints patience "
    training += "memory_tokens micro_batches cuda_graphs processes"
    corpus = "sources src tgt train_src train_tgt dev_src dev_tgt test_src test_tgt mix_src mix_tgt general_src "
    corpus += "general_tgt "
    corpus += "tokenizer.file tokenizer.words"
    free = {f"training.{name}" for name in training.split()} | {f"corpus.{name}" for name in corpus.split()}
    assert keys_with(schema.MAY_CHANGE) == free | keys_of("name", "averaging", "decoding", "expect")
    assert loading.has_policy("training.steps: 1 -> 2", schema.MAY_CHANGE)
    assert not loading.has_policy("training.seed: 1 -> 2", schema.MAY_CHANGE)


def test_settings_that_may_differ_between_machines() -> None:
    others = keys_of("name", "corpus", "averaging", "decoding", "expect") | {"training.init_from"}
    augment = {f"corpus.augment.{name}" for name in schema.Augment.model_fields}
    assert keys_with(schema.LOCAL) == others - augment
    assert keys_with(schema.TRAINED) == augment
    values = Recipe().model_dump()
    kept = {name: values[name] for name in ("model", "training")} | {"corpus": {"augment": values["corpus"]["augment"]}}
    del kept["training"]["init_from"]
    assert schema.without(Recipe().model_dump(), schema.LOCAL) == kept


def test_settings_that_the_paper_does_not_report() -> None:
    training = "max_hours log_every validate_every validate_bleu checkpoint_every keep_checkpoints patience "
    training += "memory_tokens micro_batches seed precision"
    others = {"model.max_length", "decoding.split", "corpus.seed", "corpus.cleaning.max_tokens"}
    others |= {f"training.{name}" for name in training.split()} | {"corpus.cleaning.max_ratio"}
    assert keys_with(schema.UNPUBLISHED) == others | keys_of("name", "expect")


def test_settings_taken_from_the_model_to_start_from(read: Read, tmp_path: Path) -> None:
    """These are sizes, languages and tokenizer, but no training settings. The recipe's own settings have priority."""
    theirs = "model: {d_model: 48, norm: pre}\ntraining: {seed: 7}\ndecoding: {beam: 9}\n"
    stored = read(theirs + "corpus: {name: old, src: fr, tgt: zh, train_src: [a], train_tgt: [b]}")
    (tmp_path / "recipe.yaml").write_bytes(to_yaml(stored))
    for corpus, languages in (("name: mine", ("fr", "zh")), ("name: mine, tgt: ja", ("fr", "ja"))):
        found = read(f"corpus: {{{corpus}}}\nmodel: {{dropout: 0.3}}\ntraining: {{init_from: {tmp_path}}}")
        assert (found.model.d_model, found.model.norm, found.model.dropout) == (48, "pre", 0.3)
        assert (found.corpus.src, found.corpus.tgt) == languages
        assert found.corpus.tokenizer.file == str(tmp_path / "tokenizer.model")
        assert (found.corpus.train_src, found.training.seed, found.decoding.beam) == ([], 1, 4)
    named = read(f"corpus: {{name: multi30k-de-en}}\ntraining: {{init_from: {tmp_path}}}").corpus
    assert (named.src, named.tgt, named.rows) == ("de", "en", 29_000), "the languages are those of the named corpus"
    assert named.tokenizer.file == str(tmp_path / "tokenizer.model")


def test_items_of_a_list_on_the_command_line_may_be_in_quotes() -> None:
    for text, items in (
        ("""["a b.en", 'c,d.en', e.en]""", ["a b.en", "c,d.en", "e.en"]), ("[1, 2,]", ["1", "2"]), ("[]", []),
        ("""[a"b, "c"d, ""]""", ['a"b', '"c"d']),
    ):  # fmt: skip
        assert loading.override(f"corpus.train_src={text}") == {"corpus": {"train_src": items}}
