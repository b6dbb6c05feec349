"""Every option of every command reaches the function that does the work."""

import functools
import inspect
import pkgutil
import sys
from pathlib import Path
from typing import Any

import pytest

from nmt_cli.commands import app, teacher
from nmt_cli.corpus import prepare
from nmt_cli.documents.kept import Kept
from nmt_cli.parsing.score import evaluate
from nmt_cli.recipe import loading
from nmt_cli.scoring.score import ScoreOptions
from nmt_cli.scoring.score import evaluate as text_scores
from nmt_cli.serving.server import ServeOptions
from nmt_cli.system.shard import Shard
from nmt_cli.translation.options import Sampling, SearchOptions
from nmt_cli.translation.translate import TranslateOptions

TEXT = {"train_src": ["a"], "train_tgt": ["b"], **{f"{split}_{side}": split + side for split, side in
        (("dev", "src"), ("dev", "tgt"), ("test", "src"), ("test", "tgt"))}}  # fmt: skip
CORPUS = {"name": "o", "src": "src", "tgt": "tgt", **TEXT, "config": "c", "limit": 5, "tokenizer": {"file": "t"}}
STEPS = loading.load(Path("recipes/toy.yaml"), ["training.steps=3"])
TOY, PARSING = (loading.load(Path(name)) for name in ("toy", "parsing"))
PrepareOptions = functools.partial(
    prepare.PrepareOptions, translate=teacher.translate, translate_units=teacher.translate_units
)
i, o, d, r, m, x = (Path(name) for name in "iodrmx")

CASES: list[tuple[str, str, list[Any]]] = [
    ("prepare --src a --tgt b --dev-src devsrc --valid-tgt devtgt --test-src testsrc --test-tgt testtgt --config c "
     "--tokenizer t --limit 5 --out o --mirror m --workers 4 --set corpus.seed=3 --overwrite --strict --dry-run",
     "corpus.prepare.prepare", [loading.from_plain({"corpus": {**CORPUS, "seed": 3}}, "").corpus, o,
                                PrepareOptions(mirror=m, workers=4, overwrite=True, dry_run=True, strict=True)]),
    ("prepare toy-en-de --stats --mirror m --workers 4", "corpus.filter_stats.show",
     [TOY.corpus, Path("data/toy-en-de"), PrepareOptions(mirror=m, workers=4)]),
    ("prepare hub:o/n --src en --tgt de --stats", "corpus.filter_stats.show",
     [loading.from_plain({"corpus": {"name": "hub:o/n", "src": "en", "tgt": "de"}}, "").corpus, Path("data/o-n"),
      PrepareOptions()]),
    ("prepare --src a --tgt b --out o --shard 2/3 --wait", "corpus.shards.prepare_shard",
     [loading.from_plain({"corpus": {"name": "o", "src": "src", "tgt": "tgt", "train_src": ["a"], "train_tgt": ["b"]}},
                         "").corpus, o, PrepareOptions(wait=True), Shard(2, 3)]),
    ("train recipes/toy.yaml --set training.steps=3 --data d --run r --tracker x", "training.train.train",
     [STEPS, d, r, "x"]),
    ("train recipes/toy.yaml --set training.steps=3 --data d --dry-run", "training.estimate.dry_run", [STEPS, d]),
    ("average-checkpoints r --last 2 --out o --data d", "training.average.average", [r, 2, o, d]),
    ("translate i --output o --model m --model x --precision bf16 --workers 4 --strict --beam 2 --alpha 0.5 "
     "--extra-length 9 --split off --prefix r --score-pairs d "
     "--format jsonl --n-best 3 --alignments", "translation.translate.translate",
     [TranslateOptions(i, o, (m, x), SearchOptions(2, 0.5, 9, False, 3, alignments=True), "bf16", "jsonl", True, r, d,
                       4), None]),
    ("translate i --format md --markup html --no-protect --n-best 2 --prefix r --alignments --score-pairs d",
     "documents.choose", ["md", i, "html", False, ["alignments", "prefix", "score_pairs", "n_best"],
                          {"line_length": 42}]),
    ("translate --input i --protect --line-length 30 --protect-pattern x", "documents.choose",
     [None, i, None, True, [], {"line_length": 30, "kept": Kept(pattern="x")}]),
    ("translate i --keep x", "documents.kept.kept", [x, None]),
    ("translate i --sample --temperature 0.7 --top-k 6 --top-p 0.8 --seed 5", "translation.translate.translate",
     [TranslateOptions(i, search=SearchOptions(sampling=Sampling(0.7, 6, 0.8, 5))), None]),
    ("translate i --keep x --protect-pattern y --line-length 9999", "documents.kept.kept", [x, "y"]),
    ("translate i --no-copy-wordless --case off --spelling auto --to fr --shortlist auto",
     "translation.translate.translate", [TranslateOptions(i, search=SearchOptions(
         copy_wordless=False, case="off", spelling="auto", target="fr", shortlist=True)), None]),
    ("translate i --copy-wordless --case auto --spelling off --shortlist off --split auto",
     "translation.translate.translate",
     [TranslateOptions(i, search=SearchOptions(copy_wordless=True, case="auto", spelling="off")), None]),
    ("shortlist m --src i --tgt o --best 3 --frequent 0", "training.shortlist.learn_shortlist", [m, i, o, 3, 0]),
    ("shortlist m --src i --tgt o", "training.shortlist.learn_shortlist", [m, i, o, 100, 500]),
    ("shortlist m --vmap x", "interop.vocabulary_map.import_vocabulary_map", [m, x]),
    ("serve m --keep x --cors= --protect", "serving.server.serve", [ServeOptions(models=(m,), keep=x, protect=True)]),
    ("translate i --terms x", "corpus.terms.Terms.read", [x]),
    ("translate i --sample --seed 0 --alpha 0 --top-k 0 --top-p 0", "translation.translate.translate",
     [TranslateOptions(i, search=SearchOptions(alpha=0.0, sampling=Sampling(seed=0, top_k=0, top_p=0.0))), None]),
    ("score i -r r --fail-under 0", "scoring.score.evaluate", [ScoreOptions(i, (r,), fail_under=0.0), None]),
    ("train recipes/toy.yaml --set training.seed=0 --set training.max_hours=0 --data d --run r", "training.train.train",
     [loading.load(Path("recipes/toy.yaml"), ["training.seed=0", "training.max_hours=0"]), d, r, None]),
    ("reproduce recipes/toy.yaml --set training.steps=3 --mirror m --data d --run r --workers 4 --dry-run",
     "reproduction.reproduce.reproduce",
     [STEPS, STEPS.corpus, d, r, PrepareOptions(mirror=m, workers=4, dry_run=True), text_scores]),
    ("score i --metric ter --metric bleu --tokenize intl --lowercase --language fr --details --segments o -r r -r x "
     "--format json --source d --test-set wmt14 --language-pair en-de --corpus m --split dev --baseline x "
     "--fail-under 7 --fail-if-worse --no-intervals --comet-python x --comet-model y --terms o",
     "scoring.score.evaluate",
     [ScoreOptions(hypothesis=i, references=(r, x), source=d, test_set="wmt14", language_pair="en-de", corpus=m,
                   split="dev", language="fr", metrics=("ter", "bleu"), tokenize="intl", lowercase=True, baseline=x,
                   fail_under=7.0, fail_if_worse=True, details=True, segments=o, format="json", comet_python=x,
                   comet_model="y", intervals=False, terms=o), None]),
    ("score i -r r --metric BLEU --metric chrF++", "scoring.score.evaluate",
     [ScoreOptions(i, (r,), metrics=("bleu", "chrf++")), None]),
    ("reproduce recipes/toy.yaml", "reproduction.reproduce.reproduce",
     [TOY, TOY.corpus, Path("data/toy-en-de"), Path("runs/toy"), PrepareOptions(), text_scores]),
    ("reproduce recipes/parsing.yaml --dry-run", "reproduction.reproduce.reproduce",
     [PARSING, PARSING.corpus, Path("data/wsj"), Path("runs/parsing"), PrepareOptions(dry_run=True), evaluate]),
    ("train recipes/toy.yaml --dry-run", "training.estimate.dry_run", [TOY, Path("data/toy-en-de")]),
    ("train toy --dry-run --set corpus.name=wmt14-en-de", "training.estimate.dry_run",
     [loading.load(Path("toy"), ["corpus.name=wmt14-en-de"]), Path("data/wmt14-en-de")]),
    ("train toy --data d --set name=n", "training.train.train",
     [loading.load(Path("toy"), ["name=n"]), d, Path("runs/n"), None]),
    ("reproduce toy --dry-run --set name=n", "reproduction.reproduce.reproduce",
     [loading.load(Path("toy"), ["name=n"]), TOY.corpus, Path("data/toy-en-de"), Path("runs/n"),
      PrepareOptions(dry_run=True), text_scores]),
    ("report r --compare x --compare m --out o --data d", "reporting.report.report", [r, [x, m], o, [d], evaluate]),
    ("doctor r --hypothesis i --reference x --data d --json", "reporting.doctor.doctor", [r, d, i, x, True]),
    ("attend a b --model m --translation x --output o --role cross --layer 2 --head 3", "reporting.attend.attend",
     [["a", "b"], m, o, "cross", 2, 3, "x"]),
    ("export m --to hf --out o --quantization int8 --lines i", "interop.export.export", [m, "hf", o, "int8", i]),
    ("import i --out o --src a --tgt b", "interop.importing.import_model", ["i", o, "a", "b"]),
    ("serve m", "serving.server.serve",
     [ServeOptions(models=(m,), host="127.0.0.1", port=5000, char_limit=100_000, batch_limit=1000, queue=5000,
                   timeout=60.0)]),
    ("serve m x --host h --port 7 --api-key-file i --workers 4 --precision bf16 --char-limit 5 --batch-limit 6 "
     "--queue 8 --timeout 9 --cors z --cors y --no-protect --allow-host w --allow-host v --connections 3 --idle 5 "
     "--memory 900 --no-pivot --zero-shot --database x --suggestions r",
     "serving.server.serve",
     [ServeOptions(models=(m, x), host="h", port=7, api_key_file=i, workers=4, precision="bf16", char_limit=5,
                   batch_limit=6, queue=8, timeout=9.0, cors=("z", "y"), protect=False, allow_host=("w", "v"),
                   connections=3, idle=5.0, memory=900, pivot=False, zero_shot=True, database="x",
                   suggestions=r)]),
    # Defaults
    ("train recipes/toy.yaml --data d", "training.train.train", [TOY, d, Path("runs/toy"), None]),
    ("average-checkpoints r", "training.average.average", [r, None, None, None]),
    ("translate", "translation.translate.translate",
     [TranslateOptions(None, None, (), SearchOptions(), "auto", "text", False, None, None, None), None]),
    ("score", "scoring.score.evaluate", [ScoreOptions(), None]),
    ("report r", "reporting.report.report", [r, (), None, (), evaluate]),
    ("doctor r", "reporting.doctor.doctor", [r, None, None, None, False]),
    ("attend a", "reporting.attend.attend", [["a"], None, Path("attention.html"), "encoder", None, None, None]),
    ("export m --to ctranslate2 --out o", "interop.export.export", [m, "ctranslate2", o, None, None]),
]  # fmt: skip


@pytest.mark.parametrize(("words", "function", "arguments"), CASES)
def test_every_option_arrives(monkeypatch: pytest.MonkeyPatch, words: str, function: str, arguments: list[Any]) -> None:
    signature = inspect.signature(pkgutil.resolve_name(f"nmt_cli.{function}"))

    def work(*given: Any, **named: Any) -> None:
        assert [*signature.bind(*given, **named).arguments.values()] == arguments
        raise LookupError

    monkeypatch.setattr(app.artefact, "present", lambda data: data == d)  # the corpus that train looks for
    monkeypatch.setattr(f"nmt_cli.{function}", work)
    monkeypatch.setattr(sys, "argv", ["nmt", *words.split()])
    with pytest.raises(LookupError):
        app.run()


@pytest.mark.parametrize(
    ("words", "function"),
    [
        ("train toy --data d", "training.train.train"),
        ("train toy --dry-run", "training.estimate.dry_run"),
        ("reproduce toy --data d", "reproduction.reproduce.reproduce"),
        ("translate", "translation.translate.translate"),
        ("translate i --check o", "translation.sharded.check"),
        ("translate i --join o", "translation.sharded.join"),
        ("score", "scoring.score.print_report"),
        ("attend a", "reporting.attend.attend"),
        ("export m --to hf --out o", "interop.export.export"),
        ("shortlist m --src i --tgt o", "training.shortlist.learn_shortlist"),
        ("shortlist m --vmap x", "interop.vocabulary_map.import_vocabulary_map"),
        ("serve m", "serving.server.serve"),
    ],
)
def test_the_exit_code_is_that_of_the_function(monkeypatch: pytest.MonkeyPatch, words: str, function: str) -> None:
    monkeypatch.setattr(app.artefact, "present", lambda data: data == d)
    monkeypatch.setattr("nmt_cli.scoring.score.evaluate", lambda *_: None)
    monkeypatch.setattr(sys, "argv", ["nmt", *words.split()])
    for code in (0, 7):
        if code or not words.startswith("reproduce"):  # which would write a report
            monkeypatch.setattr(f"nmt_cli.{function}", lambda *_, code=code, **__: code)
            assert app.run() == code
