"""Synthetic text in `prepare`: the lines that are translated, the cache, and the dropped translations."""

import contextlib
import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import texts
from lab import ENGLISH, GERMAN
from tiny_model import make_model

from nmt_cli.commands import teacher
from nmt_cli.corpus import filters, readers, synthetic
from nmt_cli.corpus.cleaning import CleaningStats
from nmt_cli.corpus.prepare import PrepareOptions, prepare
from nmt_cli.corpus.shards import prepare_shard
from nmt_cli.corpus.store import open_corpus
from nmt_cli.corpus.tokenizer import Tokenizer
from nmt_cli.recipe import explain as explained
from nmt_cli.recipe import loading, schema
from nmt_cli.storage import artefact
from nmt_cli.system.errors import BusyError, DataError, MissingError, OutputError, UsageError
from nmt_cli.system.shard import Shard

WORDS = dict(zip([*ENGLISH, *GERMAN], [*GERMAN, *ENGLISH], strict=True))


class Words:
    """A translator of number words, which records its calls."""

    calls: ClassVar[list[Any]] = []  # for each call, the model and the options, then each line
    fails_after: ClassVar[int | None] = None
    changes: ClassVar[dict[str, str]] = {}

    @classmethod
    def translate(cls, model: Path, lines: Iterable[str], beam: int, sampling: bool) -> Iterator[str]:
        cls.calls.append((model, beam, sampling))
        for number, line in enumerate(lines):
            if number == cls.fails_after:
                raise KeyboardInterrupt
            cls.calls.append(line)
            yield cls.changes.get(line, " ".join(WORDS.get(word, word) for word in line.split()))


OPTIONS = PrepareOptions(workers=1, translate=Words.translate)


@pytest.fixture(autouse=True)
def words() -> None:
    Words.calls, Words.fails_after, Words.changes = [], None, {}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Models by their languages. They are never run: `Words` translates."""
    directory = tmp_path_factory.mktemp("models")
    return {
        sides: make_model(directory / sides, f"corpus.src={sides[:2]}", f"corpus.tgt={sides[2:]}")
        for sides in ("ende", "deen")
    }


Make = Callable[..., schema.Recipe]


@pytest.fixture
def corpus_of(tiny_recipe: Make, models: dict[str, Path]) -> Callable[..., schema.Corpus]:
    def of(real_pairs: bool = True, **entry: Any) -> schema.Corpus:
        values = tiny_recipe().model_dump()
        model = models["ende" if entry.get("side", "src") == "src" else "deen"]
        values["corpus"] |= {"real_pairs": real_pairs, "synthetic": [{"model": str(model), **entry}]}
        return loading.from_plain(values, "test").corpus

    return of


def pairs_of(directory: Path) -> list[tuple[str, str]]:
    corpus = open_corpus(directory)
    tokenizer = Tokenizer(corpus.tokenizer_file)
    sides = []
    for side in (corpus.src, corpus.tgt):
        lines = [side.gather(np.array([i]))[0].tolist()[:-1] for i in range(len(side))]
        sides.append([" ".join(tokenizer.tokens(ids)) for ids in lines])
    return [
        tuple(text.replace(" ", "").replace("▁", " ").strip() for text in pair) for pair in zip(*sides, strict=True)
    ]


def dropped(directory: Path) -> dict[str, int]:
    reasons = json.loads((directory / "cleaning.json").read_text())["dropped"]
    return {reason: about["pairs"] for reason, about in reasons.items() if about["pairs"]}


def test_a_teacher_translates_the_training_text(
    corpus_of: Any, tmp_path: Path, numbers_text: Path, models: dict[str, Path]
) -> None:
    """Distillation: the teacher translates each source of the training pairs once. Real targets are left out."""
    Words.changes = {line: "eins" * len(line) for line in (numbers_text / "train.en").read_text().split("\n")[:2]}
    out = prepare(corpus_of(real_pairs=False, beam=7), tmp_path / "data", OPTIONS)
    sources = (numbers_text / "train.en").read_text().split("\n")[:-1]
    assert Words.calls == [(models["ende"], 7, False), *dict.fromkeys(sources)]
    expected = [(line, " ".join(WORDS[word] for word in line.split())) for line in sources[2:]]
    assert pairs_of(out) == expected
    assert dropped(out) == {synthetic.OUTLYING: 2}


def test_the_limit_of_a_corpus_applies_to_the_text_that_is_translated(corpus_of: Any, tmp_path: Path) -> None:
    prepare(corpus_of(real_pairs=False).model_copy(update={"limit": 30}), tmp_path / "data", OPTIONS)
    assert len(Words.calls) == 1 + 30


def test_back_translations_are_tagged_and_added(corpus_of: Any, tmp_path: Path, models: dict[str, Path]) -> None:
    """A reverse model translates real targets. Lines of dev and test are not used."""
    dev = Path(str(corpus_of().dev_tgt)).read_text().split("\n")
    mono = ["null eins zwei drei vier fünf sechs", dev[0], "", "neun null neun null acht", "neun null neun null acht"]
    (tmp_path / "mono.de").write_text("".join(f"{line}\n" for line in mono))
    settings = corpus_of(side="tgt", files=[str(tmp_path / "mono.de")], tag="bt", sampling=True)
    out = prepare(settings, tmp_path / "data", OPTIONS)
    assert Words.calls[0] == (models["deen"], 4, True)
    pairs, real = pairs_of(out), pairs_of(prepare(recipe_without(settings), tmp_path / "plain", OPTIONS))
    assert [pair[1] for pair in pairs[: len(real)]] == [pair[1] for pair in real]
    assert pairs[len(real) :] == [
        (">>bt<< zero one two three four five six", mono[0]),
        (">>bt<< nine zero nine zero eight", mono[3]),
    ]
    tokenizer = Tokenizer(out / "tokenizer.model")
    assert tokenizer.tokens(tokenizer.encode([f"{synthetic.token('bt')} one"])[0])[0] == "▁>>bt<<"
    assert dropped(out) == {"in dev or test": 1, "empty side": 1, "duplicate pair": 1}


def test_each_entry_has_its_languages_if_the_corpus_has_several_targets(tmp_path: Path) -> None:
    """Lines for a model with several targets begin with its token, pairs with the corpus's token and the tag."""
    words = {code: [f"{code}{word}" for word in ENGLISH] for code in ("de", "fr")}
    text = [" ".join(ENGLISH[i // k % 10] for k in (1, 10, 3, 7)) for i in range(60)]

    def to(code: str, line: str) -> str:
        return " ".join(words[code][ENGLISH.index(word)] for word in line.split())

    for code, lines in (("de", text[:40]), ("fr", text[40:])):
        (tmp_path / f"{code}.tsv").write_text("".join(f"{line}\t{to(code, line)}\n" for line in lines))
    (tmp_path / "mono.fr").write_text(f"{to('fr', text[0])}\n")
    both = [{"files": [str(tmp_path / f"{code}.tsv")], "tgt": code} for code in ("de", "fr")]
    many = make_model(tmp_path / "many", "corpus.sources=[]")
    recipe = loading.load_stored(many / "recipe.yaml")
    stored = loading.from_plain(recipe.model_dump() | {"corpus": {"name": "x", "src": "en", "sources": both}}, "x")
    restamp(many, {"recipe.yaml": loading.to_yaml(stored)})
    back = make_model(tmp_path / "back", "corpus.src=fr", "corpus.tgt=en")
    entries = [
        {"model": str(many), "src": "en", "tgt": "de"},
        {
            "model": str(back),
            "side": "tgt",
            "src": "en",
            "tgt": "fr",
            "tag": "bt",
            "files": [str(tmp_path / "mono.fr")],
        },
    ]
    values = {"name": "own", "sources": both, "tokenizer": {"vocabulary_size": 300}, "cleaning": {"max_ratio": None}}
    section = loading.from_plain({"corpus": {**values, "synthetic": entries}}, "test").corpus
    Words.changes = {f">>de<< {line}": f"lehrer {to('de', line)}" for line in text[:40]}
    Words.changes |= {to("fr", text[0]): text[0]}
    pairs = pairs_of(prepare(section, tmp_path / "data", OPTIONS))
    assert Words.calls[:2] == [(many, 4, False), f">>de<< {text[0]}"]
    assert Words.calls[41:] == [(back, 4, False), to("fr", text[0])]
    assert [src.partition(" ")[0] for src, _ in pairs] == [">>de<<"] * 40 + [">>fr<<"] * 20 + [">>de<<"] * 40 + [
        ">>fr<<"
    ]
    assert pairs[60] == (f">>de<< {text[0]}", f"lehrer {to('de', text[0])}")
    assert pairs[100] == (f">>fr<< >>bt<< {text[0]}", to("fr", text[0]))
    for change, message in (
        ({"tgt": None}, "corpus.synthetic needs the languages src and tgt"),
        ({"tgt": "es"}, "en to fr, but corpus.synthetic with side=src requires en to es"),
    ):
        wrong = {**values, "synthetic": [{**entries[0], **change}]}
        with pytest.raises((UsageError, DataError), match=message):
            prepare(texts.corpus(wrong), tmp_path / "other", OPTIONS)


def restamp(model: Path, files: dict[str, bytes]) -> None:
    """Replace files of a model and their hashes in its manifest."""
    manifest = artefact.read_json(model / artefact.MANIFEST)
    for name, data in files.items():
        (model / name).write_bytes(data)
        manifest["files"][name] = {"bytes": len(data), "sha256": artefact.sha256(model / name)}
    (model / artefact.MANIFEST).write_bytes(artefact.json_bytes(manifest))


def test_overlong_and_invalid_lines_are_counted(corpus_of: Any, tmp_path: Path) -> None:
    lines = [b"one two three", b"one " * (readers.MAX_LINE_BYTES // 4 + 1), b"two \xff"]
    (tmp_path / "mono.en").write_bytes(b"\n".join(lines))
    out = prepare(corpus_of(files=[str(tmp_path / "mono.en")]), tmp_path / "data", OPTIONS)
    assert dropped(out) == {"line over the byte limit": 1, "not UTF-8": 1}


def test_files_are_tokenized_if_the_corpus_is(corpus_of: Any, tmp_path: Path) -> None:
    pytest.importorskip("sacremoses")
    (tmp_path / "mono.en").write_text("One, two (three).\n")
    settings = corpus_of(files=[str(tmp_path / "mono.en")]).model_copy(update={"moses": True})
    prepare(settings, tmp_path / "data", OPTIONS)
    assert Words.calls[1:] == ["one , two ( three ) ."]


def recipe_without(corpus: schema.Corpus) -> schema.Corpus:
    return corpus.model_copy(update={"synthetic": []})


def test_empty_looping_and_outlying_translations_are_dropped_and_counted(corpus_of: Any, tmp_path: Path) -> None:
    lines = [" ".join(ENGLISH[(i * k) % 10] for k in range(2, 8)) + f" {ENGLISH[i % 10]}" * (i % 3) for i in range(60)]
    lines = list(dict.fromkeys(lines))
    (tmp_path / "mono.en").write_text("".join(f"{line}\n" for line in lines))
    Words.changes = {lines[3]: "", lines[5]: "eins zwei " * 4, lines[7]: "eins", lines[9]: "acht " * 3 + "neun " * 40}
    settings = corpus_of(real_pairs=False, files=[str(tmp_path / "mono.en")])
    out = prepare(settings, tmp_path / "data", OPTIONS)
    assert dropped(out) == {"empty side": 1, synthetic.LOOPING: 2, synthetic.OUTLYING: 1}
    kept = [line for i, line in enumerate(lines) if i not in (3, 5, 7, 9)]
    assert [src for src, _ in pairs_of(out)] == kept
    about = json.loads((out / "cleaning.json").read_text())
    assert (about["read"], about["kept"]) == (len(lines), len(kept))
    assert about["dropped"][synthetic.LOOPING]["examples"][0] == [lines[5], Words.changes[lines[5]].strip()]


def test_translations_are_cached_and_resumed(corpus_of: Any, tmp_path: Path, monkeypatch: Any) -> None:
    """No line is translated twice, neither by another preparation nor after an interrupt."""
    monkeypatch.setattr(synthetic, "FLUSH_LINES", 10)
    settings = corpus_of()
    Words.fails_after = 137
    with pytest.raises(KeyboardInterrupt):
        prepare(settings, tmp_path / "data", OPTIONS)
    assert not (tmp_path / "data").exists()
    (part,) = (tmp_path / "synthetic").glob("*/translations.part")
    kept = part.read_bytes().count(b"\n")
    assert kept == 137
    with part.open("ab") as file:
        file.write(b"half a li")  # nmt was killed while it wrote the last line
    Words.calls, Words.fails_after = [], None
    whole = pairs_of(prepare(settings, tmp_path / "data", OPTIONS))
    assert len(Words.calls) == 1 + 500 - kept
    assert len(translations := part.with_name("translations").read_text().splitlines()) == 500
    assert not any("half a li" in line for line in translations)
    Words.calls = []
    assert pairs_of(prepare(settings, tmp_path / "again", OPTIONS)) == whole
    assert prepare(settings, tmp_path / "again", OPTIONS)
    assert Words.calls == []
    for number, others in enumerate(({"beam": 2}, {"sampling": True})):
        Words.calls = []
        prepare(corpus_of(**others), tmp_path / f"other-{number}", OPTIONS)
        assert len(Words.calls) == 1 + 500


def test_at_most_100_translations_are_lost_if_nmt_is_killed(corpus_of: Any, tmp_path: Path) -> None:
    """A kill loses the translations that are not in the file yet."""
    lost = list[int]()

    def translate(*given: Any) -> Iterator[str]:
        (part,) = tmp_path.glob("cache/*/translations.part")
        for number, line in enumerate(Words.translate(*given)):
            lost.append(number - part.read_bytes().count(b"\n"))
            yield line

    mono = texts.write(tmp_path / "mono.en", [f"one {i}" for i in range(350)])
    (tmp_path / "work").mkdir()
    inputs = synthetic.Inputs(corpus_of(files=[str(mono)]), tmp_path / "work", tmp_path / "cache", [], list)
    synthetic.make(inputs, translate)
    assert len(lost) == 350
    assert max(lost) <= 100


def test_translations_are_synced_before_they_count_as_complete(
    corpus_of: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced, sync = list[str](), artefact.sync
    monkeypatch.setattr(artefact, "sync", lambda path: sync(path) or synced.append(path.name))
    (tmp_path / "mono.en").write_text("one two three\nfour five six\n")
    prepare(corpus_of(files=[str(tmp_path / "mono.en")]), tmp_path / "data", OPTIONS)
    assert "translations.part" in synced
    assert [path.name for path in (tmp_path / "synthetic").glob("*/trans*")] == ["translations"]


def test_another_model_or_text_is_noticed(corpus_of: Any, tmp_path: Path, models: dict[str, Path]) -> None:
    (tmp_path / "mono.en").write_text("one two three\nfour five six\n")
    settings = corpus_of(files=[str(tmp_path / "mono.en")])
    out = prepare(settings, tmp_path / "data", OPTIONS)
    (tmp_path / "mono.en").write_text("one two three\nfour five seven\n")
    with pytest.raises(OutputError, match=r"mono\.en is a different file"):
        prepare(settings, out, OPTIONS)
    (tmp_path / "mono.en").write_text("one two three\nfour five six\n")
    manifest = models["ende"] / artefact.MANIFEST
    before = manifest.read_bytes()
    with contextlib.ExitStack() as stack:
        stack.callback(manifest.write_bytes, before)
        manifest.write_bytes(before.replace(b'"steps"', b'"STEPS"'))
        with pytest.raises(OutputError, match=r"manifest\.json is a different file"):
            prepare(settings, out, OPTIONS)


def test_wrong_or_missing_models_are_refused(
    corpus_of: Any, tiny_recipe: Make, tmp_path: Path, models: dict[str, Path]
) -> None:
    with pytest.raises(DataError, match=r"translates de to en, but corpus\.synthetic with side=src requires en to de"):
        prepare(corpus_of(model=str(models["deen"])), tmp_path / "data", OPTIONS)
    with pytest.raises(MissingError, match=r"no model in nowhere for corpus\.synthetic"):
        prepare(corpus_of(model="nowhere"), tmp_path / "data", OPTIONS)
    with pytest.raises(ValueError, match=r"requires PrepareOptions\.translate"):
        prepare(corpus_of(), tmp_path / "data", PrepareOptions(workers=1))
    values = tiny_recipe().model_dump()
    values["corpus"]["synthetic"] = [{"side": "src"}]
    with pytest.raises(UsageError, match=r"corpus\.synthetic needs a model\. Set"):
        loading.from_plain(values, "test")
    values["training"]["teacher"] = "runs/teacher/model"
    assert loading.from_plain(values, "test").corpus.synthetic[0].model == "runs/teacher/model"
    with pytest.raises(UsageError, match=r"real_pairs=no requires corpus\.synthetic"):
        tiny_recipe("corpus.real_pairs=no")
    changed = loading.merge(values, loading.override("corpus.synthetic.files=[a.de,b.de]"))
    assert changed["corpus"]["synthetic"] == [{"side": "src", "files": ["a.de", "b.de"]}]
    assert not (tmp_path / "data").exists()


def test_a_recipe_with_synthetic_text_survives_storing_and_explaining(
    corpus_of: Any, tmp_path: Path, tiny_recipe: Make
) -> None:
    settings = tiny_recipe().model_copy(update={"corpus": corpus_of(side="tgt", tag="bt")})
    (tmp_path / "stored.yaml").write_bytes(loading.to_yaml(settings))
    assert loading.load_stored(tmp_path / "stored.yaml") == settings
    (tmp_path / "shown.yaml").write_text("\n".join(explained.explain(settings)))
    assert loading.load(tmp_path / "shown.yaml") == settings


LOOPS = [
    ("a a a a", True),
    ("a a a", False),
    ("x a a a a y", True),
    ("xa a a a y", False),
    ("a a a ay", False),
    ("a b a b a b a b", True),
    ("a b a b a b a", False),
    ("x " + "a b c d e f " * 4, True),
    ("x " + "a b c d e f " * 3 + "a b c d e x", False),
    ("a b c d e f g " * 4, False),
]


def written(tmp_path: Path, pairs: list[tuple[str, str]], **entry: Any) -> tuple[list[tuple[str, ...]], CleaningStats]:
    """Return the pairs written for these lines and translations, and statistics of the dropped ones."""
    for name, lines in zip(("real", "made"), zip(*pairs, strict=True), strict=True):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines))
    sides, stats = (tmp_path / "src", tmp_path / "tgt"), CleaningStats()
    synthetic.write_pairs(schema.Synthetic(**entry), tmp_path / "real", tmp_path / "made", sides, stats)
    return list(zip(*(side.read_text().split("\n")[:-1] for side in sides), strict=True)), stats


def test_a_loop_is_up_to_six_words_four_times_unless_the_source_loops(tmp_path: Path) -> None:
    for line, loops in LOOPS:
        assert filters.loops(line.strip()) == loops, line
    pairs = [(f"plain {i} " + "z" * len(line), line.strip()) for i, (line, _) in enumerate(LOOPS)]
    kept, stats = written(tmp_path, [*pairs, ("b b b b", "c c c c")])
    assert kept == [*(pair for pair, (_, loops) in zip(pairs, LOOPS, strict=True) if not loops), ("b b b b", "c c c c")]
    assert (stats.read, stats.dropped) == (4, {synthetic.LOOPING: 4})


@pytest.mark.parametrize("side", ["src", "tgt"])
def test_translations_of_outlying_length_are_dropped(tmp_path: Path, side: str) -> None:
    """If most are as long as their source, ratios from e^-0.5 to e^0.5 are kept. Ten is added to both lengths first."""
    text, lengths = "t" * 90, [90] * 8 + [155, 154, 51, 50, 0]
    pairs = [(f"{text[:-2]}{i:02}", "m" * length) for i, length in enumerate(lengths)]
    kept, stats = written(tmp_path, pairs, side=side, tag="bt")
    expected = [pairs[i] for i in (*range(8), 9, 10)]
    assert kept == [(">>bt<< " + (a if side == "src" else b), b if side == "src" else a) for a, b in expected]
    turned = slice(None, None, 1 if side == "src" else -1)
    assert stats == CleaningStats(
        3,
        Counter({synthetic.OUTLYING: 2, synthetic.EMPTY: 1}),
        {
            synthetic.OUTLYING: [pairs[i][turned] for i in (8, 11)],
            synthetic.EMPTY: [pairs[12][turned]],
        },
    )
    # The median absolute deviation of the log ratio is 0.19967, so the limit is 5 x 1.4826 x 0.19967: a factor of 4.39.
    for length, stays in ((4383, True), (4384, False)):
        lengths = [990] * 3 + [1211] * 2 + [809] * 2 + [length]
        kept, _ = written(tmp_path, [("t" * 990, "m" * each) for each in lengths])
        assert [len(made) for _, made in kept] == lengths[: None if stays else -1]


@pytest.mark.parametrize("side", ["src", "tgt"])
def test_real_lines_are_repaired_and_compared_with_held_out_lines_of_their_side(tmp_path: Path, side: str) -> None:
    held_out = [("known &amp; src", "known &amp; tgt")]
    lines = ["a &lt; b ", "known & src", "known  &amp; tgt", "a < b", "", "last"]
    parts, others = [[line.encode() for line in some] for some in (lines[:3], lines[3:])], [b"other"] * 3
    chunks = [readers.Chunk(*((some, others) if side == "src" else (others, some))) for some in parts]
    texts.write(tmp_path / "one", lines[:2])
    texts.write(tmp_path / "two", lines[2:])
    files = [str(tmp_path / "one"), str(tmp_path / "two")]
    other = {"src": "known & tgt", "tgt": "known & src"}[side]
    for entry in (schema.Synthetic(side=side), schema.Synthetic(side=side, files=files)):
        stats = CleaningStats()
        inputs = synthetic.Inputs(schema.Corpus(), tmp_path, tmp_path, held_out, lambda: chunks)
        synthetic.select_lines(entry, inputs, tmp_path / "real", stats)
        assert (tmp_path / "real").read_text() == f"a < b\n{other}\nlast\n"
        reasons = {synthetic.HELD_OUT: f"known & {side}", synthetic.DUPLICATE: "a < b", synthetic.EMPTY: ""}
        assert stats == CleaningStats(
            3,
            Counter(dict.fromkeys(reasons, 1)),
            {reason: [(line, "") if side == "src" else ("", line)] for reason, line in reasons.items()},
        )


def test_each_entry_adds_its_pairs_in_order(corpus_of: Any, tmp_path: Path, models: dict[str, Path]) -> None:
    (tmp_path / "mono.de").write_text("acht neun null\n")
    (tmp_path / "mono.en").write_text("one two three\n")
    settings = corpus_of(files=[str(tmp_path / "mono.en")])
    back = schema.Synthetic(side="tgt", files=[str(tmp_path / "mono.de")], model=str(models["deen"]), tag="bt", beam=3)
    settings = settings.model_copy(update={"synthetic": [*settings.synthetic, back]})
    assert synthetic.files_of(settings) == [
        *(tmp_path / name for name in ("mono.en", "mono.de")),
        *(models[name] / artefact.MANIFEST for name in ("ende", "deen")),
    ]
    out = prepare(settings, tmp_path / "data", OPTIONS)
    assert pairs_of(out)[-2:] == [("one two three", "eins zwei drei"), (">>bt<< eight nine zero", "acht neun null")]
    first, second = (models["ende"], 4, False), (models["deen"], 3, False)
    assert Words.calls == [first, "one two three", second, "acht neun null"]
    recorded = [source["name"] for source in open_corpus(out).manifest["sources"]]
    assert recorded[-4:] == ["mono.en", "mono.de", artefact.MANIFEST, artefact.MANIFEST]


def test_the_cache_key_is_the_content_of_model_and_text(
    corpus_of: Any, tmp_path: Path, models: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    copies = {name: shutil.copytree(models["ende"], tmp_path / name) for name in ("copy", "run/model")}
    manifest = copies["copy"] / artefact.MANIFEST
    another = artefact.read_json(manifest) | {"created": "later"}
    translated = []
    for name, directory, text in (
        ("first", models["ende"], "one two three"),
        ("same", copies["copy"], "one two three"),
        ("same of a run", tmp_path / "run", "one two three"),
        ("of the same length", copies["copy"], "one two seven"),
        ("another model", copies["copy"], "one two three"),
    ):
        if name == "another model":
            manifest.write_bytes(artefact.json_bytes(another))
        (tmp_path / "mono.en").write_text(f"{text}\n")
        Words.calls = []
        prepare(corpus_of(files=[str(tmp_path / "mono.en")], model=str(directory)), tmp_path / "data" / name, OPTIONS)
        translated.append(len(Words.calls) == 2)
    assert translated == [True, False, False, True, True]
    assert "1 translations by " in capsys.readouterr().err


def test_a_model_without_languages_is_accepted(corpus_of: Any, tmp_path: Path) -> None:
    model = make_model(tmp_path / "imported", "corpus.src=src", "corpus.tgt=tgt")
    for side in ("src", "tgt"):
        settings = corpus_of(side=side, model=str(model))
        synthetic.target_token(settings.synthetic[0], settings)
    turned = make_model(tmp_path / "turned", "corpus.src=tgt", "corpus.tgt=src")
    settings = corpus_of(side="tgt", model=str(turned))
    with pytest.raises(DataError, match=r"translates tgt to src, but .* with side=tgt requires de to en$"):
        synthetic.target_token(settings.synthetic[0], settings)


def test_progress_resumes_after_an_interrupt(corpus_of: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = list[Any]()

    class Progress(contextlib.nullcontext[Any]):
        def __init__(self, *about: Any) -> None:
            super().__init__(self)
            shown.append([*about[1:], 0])

        def advance(self, count: int) -> None:
            shown[-1][-1] += count

    monkeypatch.setattr(synthetic, "Progress", Progress)
    (tmp_path / "mono.en").write_text("".join(f"{line}\n" for line in ENGLISH))
    settings, Words.fails_after = corpus_of(files=[str(tmp_path / "mono.en")]), 4
    with pytest.raises(KeyboardInterrupt):
        prepare(settings, tmp_path / "data", OPTIONS)
    Words.fails_after = None
    prepare(settings, tmp_path / "data", OPTIONS)
    assert shown == [[10, "lines", 4], [10, "lines", 10]]


def test_many_machines_translate_for_one_corpus(corpus_of: Any, tmp_path: Path, models: dict[str, Path]) -> None:
    """Workers translate units. `prepare` takes their results, translates the rest, and makes the same corpus.

    Sampled translations do not depend on the units, either.
    """
    lines = [" ".join(ENGLISH[int(digit)] for digit in f"{i:03}{i * 7:04}") for i in range(260)]
    (tmp_path / "mono.en").write_text("".join(f"{line}\n" for line in lines))
    settings = corpus_of(files=[str(tmp_path / "mono.en")], sampling=True)
    settings.tokenizer.file = str(models["ende"] / "tokenizer.model")
    options = PrepareOptions(workers=1, translate=teacher.translate, translate_units=teacher.translate_units)
    one = prepare(settings, tmp_path / "one/data", options)
    with pytest.raises(BusyError, match=r"synthetic text is not joined yet\. Run nmt prepare with --shard 1/2, then"):
        prepare_shard(settings, tmp_path / "many/data", options, Shard(2, 2))
    (cache,) = (tmp_path / "many/synthetic").iterdir()
    sidecar, *others = sorted(cache.rglob("units/000/*.json"))
    assert others
    sidecar.unlink()
    assert not (cache / "translations").exists()
    untouched = PrepareOptions(workers=1, translate_units=teacher.translate_units)
    many = prepare(settings, tmp_path / "many/data", untouched)
    for name in ("train.src.ids", "train.tgt.ids", "tokenizer.model", "cleaning.json"):
        assert (one / name).read_bytes() == (many / name).read_bytes()
    assert [path.name for path in cache.iterdir() if not path.name.startswith(".")] == ["translations"]
    assert not [path for path in (tmp_path / "many").iterdir() if path.name.startswith(".tmp")]


def test_shards_translate_and_prepare_one_corpus(corpus_of: Any, tmp_path: Path, models: dict[str, Path]) -> None:
    (tmp_path / "mono.en").write_text("".join(f"{ENGLISH[i % 10]} {ENGLISH[i // 10]}\n" for i in range(100)))
    settings = corpus_of(files=[str(tmp_path / "mono.en")])
    options = PrepareOptions(workers=1, translate=teacher.translate, translate_units=teacher.translate_units)
    one = prepare(settings, tmp_path / "one/data", options)
    many = tmp_path / "many/data"
    for number in (2, 1, 2, 1, 2, 1):
        with contextlib.suppress(BusyError):
            prepare_shard(settings, many, options, Shard(number, 2))
    for name in ("train.src.ids", "train.tgt.ids", "tokenizer.model", "cleaning.json"):
        assert (one / name).read_bytes() == (many / name).read_bytes()
    (cache,) = (tmp_path / "many/synthetic").iterdir()
    assert [path.name for path in cache.iterdir() if not path.name.startswith(".")] == ["translations"]


def test_a_model_with_several_targets_gets_the_token_of_the_language_it_translates_to(tmp_path: Path) -> None:
    """Each entry has a cache of its own, even if the entries translate the same lines."""
    many = make_model(tmp_path / "many", "corpus.sources=[]")
    pairs = [("en", "de"), ("en", "fr"), ("de", "en")]
    both = [{"files": ["a.tsv"], "src": src, "tgt": tgt} for src, tgt in pairs]
    recipe = loading.load_stored(many / "recipe.yaml").model_dump()
    stored = loading.from_plain(recipe | {"corpus": {"name": "x", "sources": both}}, "x")
    restamp(many, {"recipe.yaml": loading.to_yaml(stored)})
    mono = str(texts.write(tmp_path / "mono", ["one two", "three"]))
    entry = {"model": str(many), "files": [mono], "src": "en"}
    entries = [
        {**entry, "tgt": "de"},
        {**entry, "tgt": "fr"},
        {**entry, "tgt": "de", "side": "tgt"},
        {**entry, "tgt": "de", "tag": "again"},
    ]
    section = texts.corpus({"name": "own", "sources": both, "synthetic": entries})
    (tmp_path / "work").mkdir()
    inputs = synthetic.Inputs(section, tmp_path / "work", tmp_path / "cache", [], list)
    files, _ = synthetic.make(inputs, Words.translate)
    call = (many, 4, False)
    expected = [(call, f">>{code}<< one two", f">>{code}<< three") for code in ("de", "fr", "en")]
    assert Words.calls == [each for calls in expected for each in calls], (
        "the last entry finds the translations of the first"
    )
    assert [Path(src).read_text().split("\n")[1] for src, _ in files] == [
        ">>de<< three", ">>fr<< three", ">>de<< >>en<< drei", ">>de<< >>again<< three",
    ]  # fmt: skip


def test_empty_translations_do_not_affect_the_usual_length(tmp_path: Path) -> None:
    pairs = [("t" * 90 + str(i), "m" * 90 if i < 4 else "") for i in range(10)]
    kept, stats = written(tmp_path, pairs)
    assert kept == pairs[:4]
    assert stats.dropped == {synthetic.EMPTY: 6}


def test_a_share_that_is_already_translated_is_left_out(
    corpus_of: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of two entries, the second one still has to be translated."""
    for name, line in (("a", "one two"), ("b", "three")):
        texts.write(tmp_path / name, [line])
    settings = corpus_of(files=[str(tmp_path / "a")])
    more = schema.Synthetic(files=[str(tmp_path / "b")], model=settings.synthetic[0].model)
    settings = settings.model_copy(update={"synthetic": [*settings.synthetic, more]})
    calls = list[Any]()
    (work := tmp_path / "work").mkdir()

    def share() -> list[Path]:
        inputs = synthetic.Inputs(settings, work, tmp_path / "cache", [], list)
        return synthetic.translate_share(inputs, lambda *given: calls.append(given[1:]), Shard(2, 3))

    files = share()
    directories = [file.parent for file in files]
    assert calls == [(directory, 4, False, (2, 3)) for directory in directories]
    assert [(directory / synthetic.TEXT).read_text() for directory in directories] == ["one two\n", "three\n"]
    files[0].write_text("eins zwei\n")
    calls.clear()
    assert share() == files
    assert calls == [(directories[1], 4, False, (2, 3))]
    assert f"{directories[0]} already contains" in capsys.readouterr().err


def test_synthetic_text_without_usable_pairs_is_refused_with_the_reasons(corpus_of: Any, tmp_path: Path) -> None:
    """Shards refuse it, too."""
    texts.write(tmp_path / "mono", ["one two", "three", "", "three"])
    Words.changes = {"one two": "", "three": ""}
    settings = corpus_of(real_pairs=False, files=[str(tmp_path / "mono")])
    message = "no usable pairs: 4 read; 3 empty side, 1 duplicate pair"
    with pytest.raises(DataError, match=message):
        prepare(settings, tmp_path / "one", OPTIONS)
    with pytest.raises(DataError, match=message):
        prepare_shard(settings, tmp_path / "many", OPTIONS, Shard(1, 1))
