"""The table at the end of `nmt reproduce`: obtained scores beside expected scores."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from nmt_cli.corpus.toy import pronoun_accuracy
from nmt_cli.reproduction.held_out import translate_held_out
from nmt_cli.scoring.metrics import Score
from nmt_cli.scoring.score import ScoreOptions, Scorer
from nmt_cli.storage import artefact
from nmt_cli.system.console import say, table, warn
from nmt_cli.training.run import RunFiles

SAMPLES = 5


def show_scores(run: RunFiles, hypotheses: dict[str, list[str]], score: Scorer) -> None:
    """Print the scores of the translations beside the expected scores, and then a few samples.

    After fine-tuning, another column shows the scores of the model that training started from.
    """
    assert run.corpus
    systems = {"obtained": hypotheses}
    if run.settings.training.init_from:
        systems = {"before": _translations_before(run, Path(run.settings.training.init_from)), **systems}
    rows = list[list[str]]()
    if run.validation:
        rows.append(_perplexity_row(run, blanks=len(systems) - 1))
    signatures = dict[str, str]()
    generated = run.corpus.manifest.get("generated")
    for split in hypotheses:
        options = ScoreOptions(corpus=run.corpus.directory, split=split, metrics=("bleu", "chrf") if generated else ())
        reports = [score(options, lines[split]) for lines in systems.values()]
        for warning in reports[-1].warnings if split == "test" else ():
            warn(warning)
        scores = [report.scores for report in reports]
        _warn_of_low_scores(run, split, scores)
        for by_system in zip(*scores, strict=True):
            name = by_system[0].name
            expected = _expected(run, split, by_system[0].metric)
            rows.append([f"{split} {name}", expected, *(each.shown() for each in by_system)])
            if split != "general":  # dev comes before test, so the signatures of test replace those of dev
                signatures[name] = f"{by_system[-1].signature} {by_system[-1].verbose}"
        for by_pair in zip(*(report.pairs for report in reports), strict=True):
            for scores_of_pair in zip(*(each.scores for each in by_pair), strict=True):
                label = f"{split} {by_pair[0].pair} {scores_of_pair[0].name}"
                rows.append([label, "", *(each.shown() for each in scores_of_pair)])
    sources, references = run.corpus.lines("test")
    translations = hypotheses.get("test", [])
    if generated and run.settings.corpus.src == "en":
        right, total = pronoun_accuracy(sources, translations, references)
        rows.append(["correct pronouns (noun pairs unseen in training)", "", f"{right} of {total}"])
    say("5/5 score", *(f"{name}: {text}" for name, text in signatures.items()))
    if not sources:
        say("There is no test set to score. Set corpus.test_src and corpus.test_tgt, or corpus.hold_out")
    note = " (generated text, not comparable with other corpora)" if generated else ""
    table(f"{run.settings.name}: {run.corpus.manifest['name']}{note}", ["", "expected", *systems], rows)
    samples = list(zip(sources, references, translations, strict=True))
    for source, reference, translation in samples[:: max(1, math.ceil(len(samples) / SAMPLES))]:
        say(f"  source      {source}", f"  reference   {reference}", f"  translation {translation}", "")


def _translations_before(run: RunFiles, start: Path) -> dict[str, list[str]]:
    """Return the translations by the model that fine-tuning started from."""
    model = artefact.verify(start if artefact.present(start) else start / "model", "model", content=False)
    return translate_held_out(replace(run, directory=run.directory / "start", model=model), start)


def _perplexity_row(run: RunFiles, blanks: int) -> list[str]:
    expect = run.settings.expect
    step = run.validation["step"]
    perplexity = run.validation["dev_perplexity"] or math.inf
    expected = dict(zip(expect.dev_steps, expect.dev_perplexity, strict=False)).get(step)
    shown = "" if expected is None else f"{expected:g}"
    return [f"dev perplexity after step {step:,}", shown, *[""] * blanks, f"{perplexity:.2f}"]


def _warn_of_low_scores(run: RunFiles, split: str, scores: Sequence[Sequence[Score]]) -> None:
    """Warn if fine-tuning lowered the first metric. Warn if the first metric is below `expect.bleu` on the test set."""
    before, after = scores[0][0], scores[-1][0]
    if after.score < before.score:
        fell = f"{split} {after.name} fell from {before.score:.2f} to {after.score:.2f}"
        advice = "Lower training.rate_factor, or train on more text"
        warn(f"{fell} in fine-tuning. {advice}")
    expected = run.settings.expect.bleu if split == "test" else []
    if expected and after.score < expected[0]:
        low = f"test BLEU {after.score:.2f} is below the expected {expected[0]:g}"
        warn(f"{low}. Find the cause with nmt doctor {run.directory}")


def _expected(run: RunFiles, split: str, metric: str) -> str:
    """Return the paper's score for a metric, or else the expected range. Return "" if the recipe has neither."""
    expect = run.settings.expect
    assert run.corpus
    closest_to_paper = "paper-bleu-quotes" if run.corpus.manifest["tgt"] == "de" else "paper-bleu"
    published = {"dev": expect.paper_dev_bleu, "test": expect.paper_bleu or expect.paper_f1}.get(split)
    if published and metric in ("brackets", closest_to_paper):
        return f"{published:g} (the paper)"
    if split == "test" and expect.bleu and metric == "bleu":
        return f"{expect.bleu[0]:g} to {expect.bleu[1]:g}"
    return ""
