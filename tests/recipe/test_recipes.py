"""The package's recipes: models have the expected size, training takes a step, Table 3 has the published figures."""

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
from nmt_cli.recipe import files, loading
from nmt_cli.reporting import paper
from nmt_cli.system.errors import MissingError, OutputError
from nmt_cli.training.accelerator import make_accelerator
from nmt_cli.training.trainer import Trainer, start_trainer
from nmt_cli.transformer.hardware import choose_device, choose_dtype
from nmt_cli.transformer.model import Transformer

ROOT = Path(__file__).parents[2]
PATHS = [path.relative_to(ROOT) for path in sorted((ROOT / "recipes").rglob("*.yaml"))]
PATHS.remove(FINETUNE := Path("recipes/finetune.yaml"))  # it takes the sizes of the model that it fine-tunes
TABLE_3 = [path for path in PATHS if path.parent.name == "table3"]


@pytest.mark.parametrize("path", PATHS, ids=str)
def test_a_recipe_builds_the_parameters_it_expects(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # in any directory, recipes and their bases are found in the package
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
    assert len({loading.load(ROOT / path).name for path in PATHS}) == len(PATHS), "two recipes have the same name"
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
    for name in ("base", "big"):  # table_3 ignores averaging
        assert paper.table_3(loading.load(ROOT / "recipes" / f"{name}.yaml")).name == f"table3-{name}"
    assert paper.table_3(loading.from_plain({"model": {"d_ff": 100}}, "test")) is None


SIZES = {"num_layers", "encoder_layers", "decoder_layers", "d_model", "d_ff", "num_heads", "d_k", "d_v", "max_length"}


def _different() -> list[Path]:
    """Return the smallest recipe of each kind of step. Sizes and rates do not change the kind."""
    kinds, loaded = dict[str, Path](), {path: loading.load(ROOT / path) for path in PATHS}
    for path in sorted(PATHS, key=lambda path: loaded[path].expect.parameters or 0):
        settings = loaded[path]
        model = {**settings.model.model_dump(exclude=SIZES), "dropout": settings.model.dropout > 0}
        kinds.setdefault(str((model, settings.training.label_smoothing > 0)), path)
    return list(kinds.values())


@pytest.mark.parametrize("path", _different(), ids=str)
def test_a_recipe_of_each_kind_takes_a_step(
    path: Path, numbers_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Trainer, "check_memory", lambda self: None)  # not needed, as the step is small
    small = ["training.tokens_per_step=16", "training.micro_batches=1"]
    small += ["model.num_layers=2", "model.d_model=64", "model.d_ff=128"]
    settings = loading.load(ROOT / path, small)
    accelerator = make_accelerator(settings, tmp_path)
    run = start_trainer(settings, open_corpus(numbers_corpus), accelerator, tmp_path, 0)
    before = run.transformer.embedding.weight.detach().clone()
    batch = run.step_batch(0)
    nll, norm = run.take_step(1, batch)
    assert 0 < norm < float("inf")
    assert 3 < nll / batch.tgt_tokens < 12  # with random weights about ln 320 = 5.8, for 320 tokens
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
    assert capsys.readouterr().out.startswith("# Training takes model sizes, tokenizer and languages from the model in")
    recipe_commands.show(Path("finetune"), format="json")
    assert json.loads(capsys.readouterr().out)["examples"][0]["training"]["init_from"] == "models/opus-en-de"
    for words in (["show", "toy"], ["copy", "toy", "new.yaml"], []):
        done = CliRunner().invoke(cli.app, ["recipes", *words])
        assert (done.exit_code, "backtranslate        Back-translation: " in done.output) == (0, not words), (
            "only `nmt recipes` alone lists them"
        )
    for taken in (tmp_path / "a-h1.yaml", tmp_path):
        with pytest.raises(OutputError):
            recipe_commands.copy(name, path=taken)
    with pytest.raises(MissingError, match=r"no recipe nowhere\. .* `nmt recipes` lists"):
        recipe_commands.copy(Path("nowhere"))


def test_env_shows_versions_and_hardware(capsys: pytest.CaptureFixture[str]) -> None:
    cli.env(as_json=True)
    shown = json.loads(capsys.readouterr().out)
    assert (shown["nmt"], shown["torch"]) == (nmt_cli.__version__, torch.__version__)
    assert shown["training precision"] == str(choose_dtype("auto", choose_device())).removeprefix("torch.")
    assert int(shown["translation workers"]) >= 1
    cli.env()
    assert f"torch                  {torch.__version__}\n" in capsys.readouterr().out
