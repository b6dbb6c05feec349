"""The command line selects a corpus section; the section selects the source of its text."""

from pathlib import Path
from typing import Any

import pytest
import texts

from nmt_cli.corpus import catalog
from nmt_cli.corpus.hub import HubSource
from nmt_cli.corpus.multi30k import Multi30kSource
from nmt_cli.corpus.sources import choose, source_of
from nmt_cli.corpus.toy import ToySource
from nmt_cli.corpus.user_files import UserFilesSource
from nmt_cli.recipe import schema
from nmt_cli.system.errors import MissingError, UsageError


@pytest.mark.parametrize(
    ("name", "typed", "chosen"),
    [
        (None, {}, {"name": "toy-en-de", "src": "en", "tgt": "de"}),
        ("multi30k-de-en", {"limit": 5}, {"name": "multi30k-de-en", "src": "de", "limit": 5}),
        ("hub:a/b@v1", {"src": ["en"], "tgt": ["cs"]}, {"name": "hub:a/b@v1", "src": "en", "tgt": "cs"}),
        (None, {"src": ["a/news.en.gz"], "tgt": ["b.txt"]}, {"name": "out", "src": "en", "tgt": "tgt"}),
        (None, {"src": ["x.fr.txt"], "tgt": ["x.zh-CN"], "tokenizer": Path("m")}, {"src": "fr", "tgt": "zh"}),
        (None, {"src": ["a.pt.txt.gz", "b.es"], "tgt": ["a.sr_Latn", "b.cs"]}, {"src": "pt", "tgt": "sr"}),
        (None, {"src": ["a.raw"], "tgt": ["a.clean"]}, {"src": "src", "tgt": "tgt"}),
        *(
            (None, {"src": ["a.en"], "tgt": [f"a.{suffix}"]}, {"src": "en", "tgt": "tgt"})
            for suffix in ["bak", "bpe", "hyp", "new", "old", "out", "raw", "ref", "src", "tgt", "tmp", "tok", "trg"]
        ),
        (None, {"src": ["a.xx"], "tgt": ["a.hsb"]}, {"src": "src", "tgt": "hsb"}),
        *(
            (name, {"src": ["english"], "tgt": ["german"]}, {"src": "english", "tgt": "german"})  # columns
            for name in ("a.jsonl", "a.parquet", "hub:a/b")
        ),
        (None, {"src": ["in.de/a"], "tgt": ["b.text"]}, {"train_src": ["in.de/a"], "src": "src", "tgt": "tgt"}),
        ("toy", {"limit": 5}, {"name": "toy-en-de", "limit": 5}),  # a recipe
        ("recipes/toy.yaml", {"config": "x"}, {"name": "toy-en-de", "config": "x"}),
    ],
)
def test_arguments_select_the_corpus(name: str | None, typed: dict[str, object], chosen: dict[str, object]) -> None:
    section = choose(name, {"dev_src": None, **typed}, Path("data/out"), ["corpus.seed=3"])
    assert {key: getattr(section, key) for key in chosen} == chosen
    assert section.seed == 3
    assert section.tokenizer.file == ("m" if "tokenizer" in typed else None)


def test_set_overrides_options_and_options_override_recipes(tmp_path: Path) -> None:
    for file in ("mine.yml", "plain"):
        (tmp_path / file).write_text("corpus: {name: toy-en-de, limit: 70, rows: 80, seed: 90}")
        section = choose(str(tmp_path / file), {"limit": 7}, None, ["corpus.rows=8", "training.steps=3"])
        assert (section.name, section.limit, section.rows, section.seed) == ("toy-en-de", 7, 8, 90)
    assert choose(None, {"limit": 7}, None, ["corpus.limit=8"]).limit == 8
    typed = {"src": ["a.en"], "tgt": ["a.de"]}
    assert choose(None, typed, None, []).name == "mine"
    assert choose(None, typed, Path("data/news.v1.2"), []).name == "news.v1.2"
    assert choose(None, typed, None, ["corpus.src=fr"]).src == "fr"
    for name in ("none.yaml", "none.yml"):
        with pytest.raises(MissingError, match=name):
            choose(name, {}, None, [])
    with pytest.raises(UsageError, match=r"corpus\.limit must be greater than or equal to 1, not '0'"):
        choose(None, {"limit": 0}, None, [])


USER_FILES_ONLY: list[dict[str, object]] = [
    {"hold_out": 5},
    {"general_src": "a", "general_tgt": "b"},
    {"mix_src": ["a"], "mix_tgt": ["b"]},
]


@pytest.mark.parametrize(
    ("name", "typed", "message"),
    [
        ("hub:a/b", {}, "requires language codes"),
        ("hub:../../etc", {"src": ["en"], "tgt": ["de"]}, "hub:OWNER/NAME"),
        ("multi30k-en-da", {}, "Known corpora are .*multi30k-en-de"),
        ("recipes/toy.yaml", {"src": ["a"], "tgt": ["b"]}, "cannot be combined with the files"),
        (None, {"src": ["a"]}, "Pass both --src FILE and --tgt FILE"),
        (None, {"tgt": ["a"]}, "Pass both --src FILE and --tgt FILE"),
        ("hub:a/b", {"src": ["en"]}, "Pass both --src FILE and --tgt FILE"),
        ("hub:a", {"src": ["en"], "tgt": ["de"]}, "hub:OWNER/NAME"),
        ("hub:a/b@", {"src": ["en"], "tgt": ["de"]}, "hub:OWNER/NAME"),
        *((None, settings, "mix_src, general_src and hold_out require") for settings in USER_FILES_ONLY),
        (None, {"src": ["a"], "tgt": ["b"], "name": "toy-en-de"}, "another corpus.name"),
        (
            None,
            {"src": ["a"], "tgt": ["b"], "dev_src": "c"},
            "corpus.dev_src and corpus.dev_tgt must name the same number of files",
        ),
        (None, {"src": ["a"], "tgt": ["b"], "test_tgt": "d"}, "corpus.test_src and corpus.test_tgt must"),
    ],
)
def test_conflicting_arguments_are_refused(name: str | None, typed: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        source_of(choose(name, typed, None, []))


def test_each_corpus_has_its_source_and_origin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_ENDPOINT", raising=False)
    hub = "https://huggingface.co/datasets"
    for name, kind, origin in (
        ("toy-en-de", ToySource, "generated"),
        ("toy-de-en", ToySource, "generated"),
        ("multi30k-cs-en", Multi30kSource, catalog.MULTI30K_URL),
        ("wmt14-de-en", HubSource, f"{hub}/wmt/wmt14"),
        ("wmt14-en-fr", HubSource, f"{hub}/wmt/wmt14"),
        ("hub:some.one/of_it@refs/pr/1", HubSource, f"{hub}/some.one/of_it"),
    ):
        section = schema.Corpus(name=name)
        source = source_of(section)
        assert (type(source), source.origin, source.local_files()) == (kind, origin, [])
        assert source_of(section, tmp_path).origin == ("generated" if kind is ToySource else str(tmp_path))
        with pytest.raises(MissingError, match=r"--mirror none is not a directory"):
            source_of(section, Path("none"))
    with pytest.raises(UsageError, match="unknown corpus ''"):
        source_of(schema.Corpus(name=None))  # as in imported models
    own = source_of(schema.Corpus(name="own", train_src=["a"], train_tgt=["b"]))
    assert (type(own), own.origin) == (UserFilesSource, "local files")
    monkeypatch.setenv("HF_ENDPOINT", "http://near")
    assert source_of(schema.Corpus(name="hub:a/b")).origin == "http://near/datasets/a/b"


def test_sizes_are_measured_for_local_files_and_looked_up_for_known_corpora(tmp_path: Path) -> None:
    packed = ["b.gz", "b.bz2", "b.xz", "b.zst"]
    for name, size in (("a", 100), *((name, 10) for name in packed), ("c", 7), ("d", 5)):
        (tmp_path / name).write_bytes(bytes(size))

    def own(*names: str, **more: Any) -> schema.Corpus:
        paths = [str(tmp_path / name) for name in names]
        return texts.corpus({"name": "own", "train_src": paths[:1], "train_tgt": paths[1:2], **more})

    dev = {"dev_src": str(tmp_path / "c"), "dev_tgt": str(tmp_path / "d")}
    for section, text_bytes, rows in (
        *((own("a", name), 130, None) for name in packed),
        (own("a", "b.gz", rows=6, **dev), 142, 6),
        (own("a", "none", rows=6), None, 6),
    ):
        assert source_of(section).size() == catalog.Size(0, text_bytes, rows)
    for name, known in (
        ("toy-de-en", (0, 2_200_000, 20_000)),
        ("multi30k-fr-en", (1_300_000, 4_000_000, 29_000)),
        ("wmt14-de-en", (818_467_512, 1_358_406_800, 4_508_785)),
        ("wmt14-en-fr", (7_777_527_744, 14_752_522_252, 40_836_715)),
        ("hub:a/b", (None, None, 3)),
        ("hub:wmt/wmt14", (None, None, 3)),  # without a configuration
    ):
        assert source_of(texts.corpus({"name": name, "rows": 3})).size() == catalog.Size(*known)
    assert source_of(texts.corpus({"name": "hub:wmt/wmt14", "config": "fr-en"})).size().pairs == 40_836_715


def test_pairs_are_counted_only_if_that_is_quick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    section = texts.own(tmp_path / "in", [("a", "b")] * 9)
    assert source_of(section).count_pairs() == 9
    size = sum(Path(file).stat().st_size for file in (*section.train_src, *section.train_tgt))
    for most, count in ((size, 9), (size - 1, None)):
        monkeypatch.setattr("nmt_cli.corpus.raw_text.MOST_COUNTED", most)
        assert source_of(section).count_pairs() == count
    trees = section.model_copy(update={"format": "trees", "train_src": ["none"]})
    named = [schema.Corpus(name=name) for name in ("multi30k-en-de", "wmt14-en-de")]
    assert [source_of(each).count_pairs() for each in (trees, *named)] == [None] * 3


def test_advice_on_preparing_text_is_given_only_for_files_not_named_like_recipes(tmp_path: Path) -> None:
    for name, advised in (("mine.yaml", False), ("mine.yml", False), ("news.en", True)):
        (tmp_path / name).write_text("corpus: {limit: 0}")
        with pytest.raises(UsageError, match=r"corpus\.limit must be") as caught:
            choose(str(tmp_path / name), {}, None, [])
        advice = f". To prepare your own text, run nmt prepare --src {tmp_path / name} --tgt FILE"
        assert str(caught.value).endswith(advice) == advised
