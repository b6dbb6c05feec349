"""A small run for tests, with hostile text and an untrained model."""

import json
from pathlib import Path

import torch

from nmt_cli.corpus.prepare import PrepareOptions, prepare
from nmt_cli.corpus.store import open_corpus
from nmt_cli.recipe import loading
from nmt_cli.storage import artefact
from nmt_cli.training.metrics_log import MetricsLog
from nmt_cli.training.run import translations_id
from nmt_cli.transformer.model import Transformer
from nmt_cli.transformer.weights import save_model

HOSTILE = [
    "<script>window.hacked = 1</script>",
    '<img src=x onerror="window.hacked = 1"> \'quoted\' "twice"',
    "\u202eright to left\u202c and \u2066isolated\u2069",
    "</script><script>window.hacked = 1</script><!--",
    "a &amp; b & c &lt; d",
    "javascript:window.hacked=1 http://example.invalid/x.png",
]
SAMPLES = ["<b onmouseover=alert(1)>eins</b>", "zwei \u202e drei"]


def records(steps: int, every: int = 10) -> list[dict]:
    """Return records like those of training: metrics every `every` steps, and a validation after ten such records."""
    lines = []
    for step in range(every, steps + 1, every):
        nll = 1.5 + 3.5 / (1 + step / 20) ** 2
        rates = {"rate": step * 1e-5, "gradient_norm": 1.0, "tgt_tokens_per_second": 1000.0}
        lines.append({"step": step, "epoch": step / 100, "nll": nll, **rates, "seconds": step / 2, "skipped": 0})
        if step % (10 * every) == 0:
            validation = {"dev_nll": nll, "dev_perplexity": 2.0, "dev_bleu": 12.5, "samples": SAMPLES}
            lines.append({"step": step, "seconds": step / 2, **validation})
    return lines


def make_run(directory: Path, *changes: str) -> tuple[Path, Path]:
    """Make a run and its corpus in `directory`, with changes to the recipe; return their paths."""
    text = directory / "text"
    text.mkdir(parents=True)
    for split, count in (("train", 40), ("dev", 2), ("test", 6)):
        for side in ("en", "de"):
            longer = " und" * (split + side == "trainde")
            lines = [f"{HOSTILE[i % len(HOSTILE)]} {split} {side} it {i}{longer}" for i in range(count)]
            (text / f"{split}.{side}").write_text("".join(f"{line}\n" for line in [*lines, "same"]))
    files = {
        f"{split}_{side}": str(text / f"{split}.{lang}")
        for split in ("dev", "test")
        for side, lang in (("src", "en"), ("tgt", "de"))
    }
    values = {
        "name": "small",
        "corpus": {"name": "own", "train_src": [str(text / "train.en")], "train_tgt": [str(text / "train.de")], **files,
                   "tokenizer": {"vocabulary_size": 340}, "cleaning": {"check_script": False}},
        "model": {"num_layers": 2, "d_model": 16, "d_ff": 32, "num_heads": 2, "d_k": 8, "d_v": 8, "max_length": 256},
        "training": {"steps": 200}, "decoding": {"beam": 1, "extra_length": 3}, "expect": {"bleu": [10, 20]},
    }  # fmt: skip
    for change in changes:
        values = loading.merge(values, loading.override(change))
    settings = loading.from_plain(values, "small")
    data = prepare(settings.corpus, directory / "data", PrepareOptions(workers=1))
    run = directory / "runs" / settings.name
    corpus = open_corpus(data)
    run.mkdir(parents=True)
    (run / "recipe.yaml").write_bytes(loading.to_yaml(settings))
    (run / "corpus.json").write_bytes(artefact.json_bytes({"corpus": corpus.identity}))
    metrics = MetricsLog(run / "metrics.jsonl", 0)
    for record in records(200):
        metrics.write(record)
    metrics.file.close()
    torch.manual_seed(1)
    model = Transformer(settings.model, int(corpus.manifest["vocabulary_size"]))
    manifest = {"steps": [100, 200], "checkpoints": ["a" * 64, "b" * 64], "corpus": corpus.identity}
    save_model(run / "model", model.state_dict(), settings, corpus.tokenizer_file, manifest)
    made_by = translations_id(artefact.read_json(run / "model" / "manifest.json"), settings.decoding)
    (run / "translations.json").write_bytes(artefact.json_bytes({"made_by": made_by}))
    (run / "test.hyp").write_text("".join(f"{line}\n" for line in [*HOSTILE, "same"]))
    return run, data


def page_data(page: str) -> dict:
    """Return the JSON data of a page's script."""
    return json.loads(page.partition('id="data">')[2].partition("</script>")[0])
