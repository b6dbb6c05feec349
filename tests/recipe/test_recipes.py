"""The package's own recipes: each loads, builds, takes a step, and expects the paper's figures."""

import json
import re
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import nmt_cli
from nmt_cli.commands import app as cli
from nmt_cli.commands import recipes as recipe_commands
from nmt_cli.corpus.store import open_corpus
from nmt_cli.recipe import files, loading, schema
from nmt_cli.reporting import paper
from nmt_cli.system.errors import MissingError, OutputError
from nmt_cli.training.accelerator import make_accelerator
from nmt_cli.training.trainer import Trainer, start_trainer
from nmt_cli.transformer.hardware import choose_device, choose_dtype
from nmt_cli.transformer.model import Transformer

ROOT = Path(__file__).parents[2]
PATHS = [path.relative_to(ROOT) for path in sorted((ROOT / "recipes").rglob("*.yaml"))]
PATHS.remove(FINETUNE := Path("recipes/finetune.yaml"))  # it takes its sizes from a model
TABLE_3 = [path for path in PATHS if path.parent.name == "table3"]


@pytest.mark.parametrize("path", PATHS, ids=str)
def test_a_recipe_builds_the_parameters_it_expects(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # recipes and their bases are found in the package
    settings = loading.load(path)
    vocabulary = settings.corpus.tokenizer.vocabulary_size
    with torch.device("meta"):
        built = sum(p.numel() for p in Transformer(settings.model, vocabulary).parameters())
    assert built == settings.expect.parameters
    assert settings.expect.source


ROWS = """base\na-h1 num_heads=1 d_k=512 d_v=512\na-h4 num_heads=4 d_k=128 d_v=128\na-h16 num_heads=16 d_k=32 d_v=32
a-h32 num_heads=32 d_k=16 d_v=16\nb-dk16 d_k=16\nb-dk32 d_k=32\nc-n2 num_layers=2\nc-n4 num_layers=4\nc-n8 num_layers=8
c-d256 d_model=256 d_k=32 d_v=32\nc-d1024 d_model=1024 d_k=128 d_v=128\nc-ff1024 d_ff=1024\nc-ff4096 d_ff=4096
d-drop0 dropout=0.0\nd-drop2 dropout=0.2\nd-smooth0 label_smoothing=0.0\nd-smooth2 label_smoothing=0.2
e-learned positions=learned\nbig d_model=1024 d_ff=4096 num_heads=16 dropout=0.3 steps=300000"""


def test_every_row_of_table_3_is_a_recipe_with_its_figures() -> None:
    base = loading.load(ROOT / "recipes" / "base.yaml")
    changed = {name: set(changes.split()) for name, _, changes in (row.partition(" ") for row in ROWS.split("\n"))}
    table = (ROOT / "recipes" / "README.md").read_text().split("## Table 3")[1]
    rows = {name: (float(x), float(y)) for name, x, y in re.findall(r"(?m)^\| `(.+)` .* (\S+) \| (\S+) \|$", table)}
    assert len({loading.load(ROOT / path).name for path in PATHS}) == len(PATHS), "two recipes share a run"
    for path in TABLE_3:
        settings = loading.load(ROOT / path)
        assert settings.averaging.last == 1
        assert (settings.corpus, settings.decoding) == (base.corpus, base.decoding)
        assert paper.table_3(settings) == settings, "two rows are the same"
        lines = loading.differences(base.model_dump(), settings.model_dump())
        learned = (line for line in lines if line.startswith(("model.", "training.")) and paper.matters(line))
        assert {re.sub(r"\w+\.(\w+): .* -> ", r"\1=", line) for line in learned} == changed.pop(path.stem), path
        expect = settings.expect
        perplexity, bleu = rows.pop(f"table3/{path.stem}")
        assert (expect.dev_perplexity, expect.paper_dev_bleu) == ([perplexity], bleu), path
        assert (expect.dev_steps, expect.bleu, expect.paper_bleu) == ([settings.training.steps], [], None), path
    assert not rows
    assert not changed
    for name in ("base", "big"):  # averaging is not compared
        assert paper.table_3(loading.load(ROOT / "recipes" / f"{name}.yaml")).name == f"table3-{name}"
    assert paper.table_3(loading.from_plain({"model": {"d_ff": 100}}, "test")) is None


def _different() -> list[Path]:
    """Return one recipe of each kind of step. Rates of dropout and smoothing do not change the kind."""
    kinds: dict[str, Path] = {}
    for path in PATHS:
        settings = loading.load(ROOT / path)
        model = {**vars(settings.model), "dropout": settings.model.dropout > 0}
        kinds.setdefault(str((model, settings.training.label_smoothing > 0)), path)
    return list(kinds.values())


@pytest.mark.parametrize("path", _different(), ids=str)
def test_one_step_of_every_recipe(
    path: Path, numbers_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Trainer, "check_memory", lambda self: None)  # the step is enough
    settings = loading.load(ROOT / path, ["training.tokens_per_step=16", "training.micro_batches=1"])
    accelerator = make_accelerator(settings, tmp_path)
    run = start_trainer(settings, open_corpus(numbers_corpus), accelerator, tmp_path, 0)
    before = run.transformer.embedding.weight.detach().clone()
    batch = run.step_batch(0)
    nll, norm = run.take_step(1, batch)
    assert 0 < norm < float("inf")
    assert 3 < nll / batch.tgt_tokens < 12  # log of 320 tokens is 5.8, and weights are random
    assert not torch.equal(before, run.transformer.embedding.weight)
    if run.metrics is not None:
        run.metrics.file.close()


def test_recipes_are_listed_shown_and_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    listed = dict(files.listed())
    assert {f"recipes/{name}.yaml" for name in listed} == {str(path) for path in [*PATHS, FINETUNE]}
    assert (below := ["/" in name for name in listed]) == sorted(below), "recipes in subdirectories are not last"
    assert all(20 < len(about) <= 118 and about.endswith(".") for about in listed.values())
    for name in (Path("toy"), Path("recipes/table3/a-h1.yaml")):  # the second has a base, which its copy must find
        settings = loading.load(name)
        recipe_commands.show(name)
        shown = capsys.readouterr().out
        (tmp_path / "shown.yaml").write_text(shown)
        assert loading.load(tmp_path / "shown.yaml") == settings
        assert "# steps of linear warm-up" in shown
        recipe_commands.copy(name)
        assert loading.load(Path(f"{settings.name}.yaml")) == settings
        recipe_commands.show(name, ["training.steps=7"], "json")
        schema = json.loads(capsys.readouterr().out)
        assert schema["examples"][0]["training"]["steps"] == 7
        assert schema["$defs"]["Training"]["properties"]["steps"]["minimum"] == 1
    (tmp_path / "own.yaml").write_text("base: low.yaml  # own\n")
    recipe_commands.copy(Path("own.yaml"), tmp_path / "copied.yaml")
    assert (tmp_path / "copied.yaml").read_bytes() == (tmp_path / "own.yaml").read_bytes()
    (tmp_path / "low.yaml").write_text("training: {steps: 8}\n")
    recipe_commands.copy(Path("own.yaml"), tmp_path / "below" / "own.yaml")
    assert (tmp_path / "below" / "own.yaml").read_text() == "base: ../low.yaml  # own\n"
    recipe_commands.copy(tmp_path / "a-h1.yaml", tmp_path / "again.yaml")
    assert loading.load(tmp_path / "again.yaml").model == settings.model
    for short in ("base.yaml", "table3/base.yaml", "recipes/toy", "toy"):  # not the copy of toy.yaml in this directory
        assert files.find(Path(short)).is_relative_to(files.HOME)
    recipe_commands.show(Path("finetune"))
    assert capsys.readouterr().out.startswith("# Model sizes, tokenizer and languages are taken from the model in")
    recipe_commands.show(Path("finetune"), format="json")
    assert json.loads(capsys.readouterr().out)["examples"][0]["training"]["init_from"] == "models/opus-en-de"
    for words in (["show", "toy"], ["copy", "toy", "new.yaml"], []):
        done = CliRunner().invoke(cli.app, ["recipes", *words])
        assert (done.exit_code, "backtranslate        Back-translation: " in done.output) == (0, not words), (
            "listed once"
        )
    for taken in (tmp_path / "a-h1.yaml", tmp_path):
        with pytest.raises(OutputError):
            recipe_commands.copy(name, path=taken)
    with pytest.raises(MissingError, match=r"no recipe nowhere\. .* `nmt recipes` lists"):
        recipe_commands.copy(Path("nowhere"))


# Each recipe's differences from the defaults. Its expected and measured figures hold for these settings.
OWN_SETTINGS = """
# backtranslate corpus: name=multi30k-en-de
  synthetic=[{'side':'tgt','files':['mono.de'],'src':None,'tgt':None,'model':'runs/reverse/model','tag':'bt','beam':4,'sampling':False,'weight':None}]
  rows=29000 limit=14500 tokenizer.words=True
  model: num_layers=3 d_model=256 d_ff=1024 num_heads=4 dropout=0.3 max_length=512 training:
  steps=3000 tokens_per_step=4096 micro_batches=2 warmup_steps=800 cooldown_steps=1500 validate_every=300
  validate_bleu=1014 checkpoint_every=60 teacher=runs/reverse/model expect: parameters=7568384
# base-en-fr corpus: name=wmt14-en-fr config=fr-en tgt=fr rows=40836715 tokenizer.vocabulary_size=32000 training:
  validate_every=2000 expect: pairs=[30000000,40836715] parameters=60485632 paper_bleu=38.1
# base corpus: name=wmt14-en-de config=de-en rows=4508785 tokenizer.vocabulary_size=37000 training:
  validate_every=2000 expect: pairs=[4000000,4508785] parameters=63045632 dev_steps=[100000] dev_perplexity=[4.92]
  bleu=[26.2,27.0] paper_bleu=27.3
# big-en-fr corpus: name=wmt14-en-fr config=fr-en tgt=fr rows=40836715 tokenizer.vocabulary_size=32000 model:
  d_model=1024 d_ff=4096 num_heads=16 training: steps=300000 validate_every=2000 checkpoint_every=600
  keep_checkpoints=20 averaging: last=20 expect: pairs=[30000000,40836715] parameters=209051648 bleu=[39.5,41.0]
  paper_bleu=41.8
# big corpus: name=wmt14-en-de config=de-en rows=4508785 tokenizer.vocabulary_size=37000 model: d_model=1024
  d_ff=4096 num_heads=16 dropout=0.3 training: steps=300000 validate_every=2000 checkpoint_every=600
  keep_checkpoints=20 averaging: last=20 expect: pairs=[4000000,4508785] parameters=214171648 dev_steps=[300000]
  dev_perplexity=[4.33] bleu=[27.3,28.1] paper_bleu=28.4
# finetune corpus: name=mine train_src=['mine.en'] train_tgt=['mine.de'] hold_out=500 training: steps=10000
  tokens_per_step=2000 micro_batches=2 warmup_steps=100 rate_factor=0.05 log_every=20 validate_every=100
  validate_bleu=300 checkpoint_every=100 keep_checkpoints=2 patience=4 init_from=models/opus-en-de averaging: last=1
  best=True with_start=[0.0,0.1,0.2,0.3,0.4,0.45,0.5,0.55,0.6]
# iwslt14-de-en corpus: name=iwslt14-de-en src=de tgt=en train_src=['iwslt14.tokenized.de-en/tmp/train.de']
  train_tgt=['iwslt14.tokenized.de-en/tmp/train.en'] dev_src=iwslt14.tokenized.de-en/tmp/valid.de
  dev_tgt=iwslt14.tokenized.de-en/tmp/valid.en test_src=iwslt14.tokenized.de-en/tmp/test.de
  test_tgt=iwslt14.tokenized.de-en/tmp/test.en tokenizer.vocabulary_size=10000 cleaning.unescape=False
  cleaning.drop_copies=False cleaning.drop_duplicates=False model: d_ff=1024 num_heads=4 d_k=128 d_v=128 dropout=0.3
  training: steps=50000 tokens_per_step=4096 micro_batches=4 rate_factor=0.716 checkpoint_every=1000
  keep_checkpoints=10 averaging: last=10 decoding: beam=5 expect: pairs=[150000,160239] parameters=36626432
# multi30k-tiny-en-fr corpus: name=multi30k-en-fr tgt=fr moses=True rows=29000 tokenizer.vocabulary_size=9700 model:
  num_layers=4 d_model=128 d_ff=256 num_heads=4 d_k=32 d_v=32 dropout=0.3 max_length=512 training: steps=8000
  tokens_per_step=8192 micro_batches=2 warmup_steps=2000 rate_factor=2.53 validate_every=50 validate_bleu=100
  checkpoint_every=50 keep_checkpoints=10 patience=10 averaging: last=10 decoding: beam=5 expect:
  pairs=[28900,29000] parameters=2560512
# multi30k-tiny corpus: name=multi30k-en-de moses=True rows=29000 tokenizer.vocabulary_size=9700 model: num_layers=4
  d_model=128 d_ff=256 num_heads=4 d_k=32 d_v=32 dropout=0.3 max_length=512 training: steps=8000
  tokens_per_step=8192 micro_batches=2 warmup_steps=2000 rate_factor=2.53 validate_every=50 validate_bleu=100
  checkpoint_every=50 keep_checkpoints=10 patience=10 averaging: last=10 decoding: beam=5 expect:
  pairs=[28900,29000] parameters=2560512 bleu=[40.5,41.7]
# multi30k corpus: name=multi30k-en-de rows=29000 tokenizer.words=True augment.no_stop=0.1
  model: num_layers=3 d_model=256 d_ff=1024 num_heads=4 dropout=0.3
  max_length=512 training: steps=3000 tokens_per_step=4096 micro_batches=2 warmup_steps=800 cooldown_steps=1500
  validate_every=300 validate_bleu=1014 checkpoint_every=60 expect: pairs=[28900,29000] parameters=7568384
  dev_steps=[300,600,1200,1800,3000] dev_perplexity=[67.6,18.9,7.84,5.94,5.08] dev_bleu=[6.2,22.6,34.1,38.0,40.3]
  bleu=[38.3,40.3]
# parsing corpus: name=wsj format=trees tgt=labels train_src=['wsj/02-21.mrg'] train_tgt=['wsj/02-21.mrg']
  dev_src=wsj/22.mrg dev_tgt=wsj/22.mrg test_src=wsj/23.mrg test_tgt=wsj/23.mrg tokenizer.vocabulary_size=16000
  cleaning.unescape=False cleaning.max_tokens=512 cleaning.max_ratio=None cleaning.drop_copies=False
  cleaning.drop_duplicates=False cleaning.check_script=False model: num_layers=4 d_model=1024 d_k=128 d_v=128
  dropout=0.2 training: steps=50000 warmup_steps=16000 rate_factor=5.0 validate_bleu=0 decoding: beam=21 alpha=0.3
  extra_length=300 split=False expect: parameters=100335616 paper_f1=91.3
# student corpus: name=multi30k-en-de
  synthetic=[{'side':'src','files':[],'src':None,'tgt':None,'model':'runs/multi30k/model','tag':'','beam':8,'sampling':False,'weight':None}]
  rows=29000 tokenizer.words=True
  model: num_layers=3 encoder_layers=6 decoder_layers=2 d_model=128 d_ff=512 num_heads=4 d_k=32 d_v=32 norm=pre
  max_length=512 training: steps=2400 tokens_per_step=4096 micro_batches=2 warmup_steps=200 rate_factor=0.5
  cooldown_steps=1200 validate_every=300 validate_bleu=1014 checkpoint_every=60 teacher=runs/multi30k/model
  decoding: beam=1 expect: pairs=[50000,57900] parameters=2738176 dev_steps=[300,600,1200,1800,2400]
  dev_perplexity=[21.9,11.0,7.91,7.15,6.9] dev_bleu=[22.8,31.9,35.3,37.1,37.8] bleu=[37.3,39.3]
# toy corpus: tokenizer.vocabulary_size=1000 model: num_layers=2 d_model=128 d_ff=512 num_heads=4 d_k=32 d_v=32
  dropout=0.0 norm=pre max_length=256 training: steps=900 tokens_per_step=1500 micro_batches=2 warmup_steps=80
  rate_factor=0.5 cooldown_steps=820 validate_every=300 validate_bleu=200 checkpoint_every=30 keep_checkpoints=3
  averaging: last=3 expect: pairs=[20000,20000] parameters=1051136 dev_steps=[600,900] dev_perplexity=[1.2,1.17]
  dev_bleu=[95.1,97.5] bleu=[95.0,100.0]
"""


def test_every_recipe_has_the_settings_of_its_figures() -> None:
    default, found = schema.Recipe().model_dump(), dict[str, list[str]]()
    for path in sorted((ROOT / "recipes").glob("*.yaml")):
        words, section = found.setdefault(path.stem, []), ""
        for line in loading.differences(default, loading.load(path, start=False).model_dump()):
            key, value = line.partition(": ")[0], line.partition(" -> ")[2].replace(" ", "")
            if key not in ("name", "expect.source"):
                words += [f"{key.partition('.')[0]}:"] if key.partition(".")[0] != section else []
                section = key.partition(".")[0]
                words.append(f"{key.partition('.')[2]}={value}")
    expected = [block.split() for block in OWN_SETTINGS.split("# ")[1:]]
    assert found == {name: words for name, *words in expected}


def test_env_shows_versions_and_hardware(capsys: pytest.CaptureFixture[str]) -> None:
    cli.env(as_json=True)
    shown = json.loads(capsys.readouterr().out)
    assert (shown["nmt"], shown["torch"]) == (nmt_cli.__version__, torch.__version__)
    assert shown["training precision"] == str(choose_dtype("auto", choose_device())).removeprefix("torch.")
    assert int(shown["translation workers"]) >= 1
    cli.env()
    assert f"torch                  {torch.__version__}\n" in capsys.readouterr().out
