"""The stages of `nmt reproduce`: prepare, train, average, translate, score. Finished stages are skipped."""

import os
import time
from dataclasses import replace
from pathlib import Path

from nmt_cli.corpus.prepare import PrepareOptions, prepare
from nmt_cli.recipe import schema
from nmt_cli.reproduction.held_out import translate_held_out
from nmt_cli.reproduction.score_table import show_scores
from nmt_cli.reproduction.synthetic_gain import compare_models
from nmt_cli.scoring.score import Scorer
from nmt_cli.storage import artefact
from nmt_cli.system.console import duration, say
from nmt_cli.training import checkpoints
from nmt_cli.training.average import average
from nmt_cli.training.estimate import dry_run
from nmt_cli.training.run import read_run
from nmt_cli.training.train import train

BASELINE_SUFFIX = "-without"  # of the names of the run and the corpus without synthetic text


def reproduce(
    settings: schema.Recipe, text: schema.Corpus, data: Path, run: Path, options: PrepareOptions, score: Scorer
) -> int:
    """Run a recipe from raw text to scores, and return the exit code.

    `text` is the corpus section to prepare. It differs from `settings.corpus` if the corpus consists of trees.
    Under `accelerate launch`, every process trains, and the first process runs the other stages. If the recipe has
    synthetic text, run the recipe again without this text, and print a table that compares the models.
    """
    start = time.monotonic()
    first_process = os.environ.get("RANK", "0") == "0"
    code = run_stages(settings, text, data, run, options, score)
    if not code and settings.corpus.synthetic and not options.dry_run:
        baseline = without_synthetic(settings, data)
        baseline_data = data.with_name(data.name + BASELINE_SUFFIX)
        baseline_run = run.with_name(run.name + BASELINE_SUFFIX)
        say(f"repeating all stages without synthetic text in {baseline_run}")
        code = run_stages(baseline, baseline.corpus, baseline_data, baseline_run, options, score)
        if not code and first_process:
            compare_models(read_run(run, data), read_run(baseline_run, baseline_data), score)
    if not code and not options.dry_run and first_process:
        say(f"reproduced in {duration(time.monotonic() - start)}")
    return code


def run_stages(
    settings: schema.Recipe, text: schema.Corpus, data: Path, run: Path, options: PrepareOptions, score: Scorer
) -> int:
    first_process = os.environ.get("RANK", "0") == "0"
    exists = artefact.present(data)
    if first_process and (text.has_text or not exists):  # if the corpus exists, `prepare` compares it with `text`
        say(f"1/5 prepare {data}")
        prepare(text, data, replace(options, dry_run=options.dry_run and not exists))
    if options.dry_run:
        return dry_run(settings, data)
    while not artefact.present(data):
        time.sleep(1)  # if the first process fails, the launcher ends this process
    say(f"2/5 train {run}")
    code = train(settings, data, run)
    if code or not first_process:
        return code
    if checkpoints.steps_in(run):
        say("3/5 average")
        average(run, None, None, data)
    files = read_run(run, data)
    show_scores(files, translate_held_out(files, run / "model"), score)
    return 0


def without_synthetic(settings: schema.Recipe, data: Path) -> schema.Recipe:
    """Return a recipe that trains on the real pairs alone, with the tokenizer of the corpus in `data`."""
    tokenizer = settings.corpus.tokenizer.model_copy(update={"file": str(data / "tokenizer.model")})
    corpus = settings.corpus.model_copy(update={"synthetic": [], "real_pairs": True, "tokenizer": tokenizer})
    training = settings.training.model_copy(update={"teacher": None})
    changes = {
        "name": settings.name + BASELINE_SUFFIX,
        "corpus": corpus,
        "training": training,
        "expect": schema.Expect(),
    }
    return settings.model_copy(update=changes)
