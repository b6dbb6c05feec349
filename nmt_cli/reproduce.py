"""The reproduce command: prepare, train, average, translate and score in order, skipping what is done."""

import math
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from nmt_cli import artefact, recipe
from nmt_cli.console import duration, say, table, warn
from nmt_cli.corpus.prepare import PrepareOptions, prepare
from nmt_cli.corpus.store import Corpus
from nmt_cli.corpus.toy import pronoun_accuracy
from nmt_cli.errors import MissingError
from nmt_cli.scoring.metrics import corpus_bleu, corpus_chrf, score_lines
from nmt_cli.scoring.paper_bleu import LANGUAGES
from nmt_cli.training import checkpoints
from nmt_cli.training.average import average
from nmt_cli.training.estimate import dry_run
from nmt_cli.training.run import TRANSLATIONS, RunFiles, read_run, translations_id
from nmt_cli.training.train import train
from nmt_cli.translation.translator import Translator

# Makes the table of scores, lines of [what, expected, obtained], and a signature of how they were computed.
Rows = Callable[[recipe.Recipe, Corpus, dict[str, list[str]]], tuple[list[list[str]], str]]


def reproduce(
    settings: recipe.Recipe, text: recipe.Corpus, data: Path, run: Path, options: PrepareOptions, rows: Rows | None
) -> int:
    """Play a recipe from the raw `text` to its scores; under `accelerate launch` all train, the first does the rest."""
    start = time.monotonic()
    main = os.environ.get("RANK", "0") == "0"
    exists, name = artefact.present(data), str(text.name)
    by_user = exists and not (text.train_src or name in recipe.NAMED_CORPORA or name.startswith("hub:"))
    if main and not by_user:  # what exists is compared with the settings, by a dry run too
        say(f"1/5 prepare {data}")
        prepare(text, data, replace(options, dry_run=options.dry_run and not exists))
    if options.dry_run:
        return dry_run(settings, data)
    while not artefact.present(data):
        time.sleep(1)  # the launcher ends this process if the first one fails
    say(f"2/5 train {run}")
    code = train(settings, data, run)
    if code or not main:
        return code
    saved = checkpoints.regular(checkpoints.steps_in(run), settings.training.checkpoint_every)
    if len(saved) < settings.averaging.last:
        warn(f"training ended early: {len(saved)} checkpoints are averaged, not {settings.averaging.last}")
    if last := min(settings.averaging.last, len(saved)):
        model, steps = average(run, None if settings.averaging.best else last, None, data)
        say(f"3/5 average: {model} is the mean of the checkpoints of steps {', '.join(map(str, steps))}")
    files = read_run(run, data)
    hypotheses = _translate(files, run / "model")
    _score(files, hypotheses, rows)
    if settings.training.init_from:
        _compare(files, hypotheses, Path(settings.training.init_from))
    say(f"reproduced in {duration(time.monotonic() - start)}")
    return 0


def _translate(run: RunFiles, model: Path) -> dict[str, list[str]]:
    """Return a model's translations of the held-out text, from disk where this very model made them."""
    if run.model is None or run.corpus is None:
        raise MissingError(f"{run.directory} has no model yet: it has no checkpoints to average. Train longer")
    splits = ["dev", "test", *(["general"] if run.corpus.lines("general")[0] else [])]
    hypotheses = {split: lines for split in splits if (lines := run.translations(split)) is not None}
    if len(hypotheses) == len(splits):
        return hypotheses
    decoding = run.settings.decoding
    precision = "fp32" if run.settings.training.precision == "fp32" else "auto"
    artefact.make_directory(run.directory)
    with Translator(model, precision=precision) as translator:
        for split in splits:
            sources = run.corpus.lines(split)[0]
            say(f"4/5 translate {split}: {len(sources):,} lines, beam {decoding.beam}, alpha {decoding.alpha}")
            translations = translator.translate(sources, **recipe.to_plain(decoding))
            hypotheses[split] = [translation.text for translation in translations]
            artefact.replace_file(run.directory / f"{split}.hyp", "\n".join([*hypotheses[split], ""]).encode())
    stamp = artefact.json_bytes({"made_by": translations_id(run.model, decoding)})
    artefact.replace_file(run.directory / TRANSLATIONS, stamp)
    return hypotheses


def _compare(run: RunFiles, after: dict[str, list[str]], start: Path) -> None:
    """Translate with the model that training started from too, into run/start, and show BLEU before and after."""
    model = artefact.verify(start if artefact.present(start) else start / "model", "model", content=False)
    before, rows = _translate(replace(run, directory=run.directory / "start", model=model), start), list[list[str]]()
    for split, lines in after.items():
        if run.corpus and (references := run.corpus.lines(split)[1]):
            old, new = (corpus_bleu(side, references)[0] for side in (before[split], lines))
            rows.append([split, f"{old:.2f}", f"{new:.2f}", f"{new - old:+.2f}"])
    table(f"sacreBLEU, fine-tuning {start}", ["", "before", "after", "change"], rows)


def _score(run: RunFiles, hypotheses: dict[str, list[str]], rows: Rows | None) -> None:
    settings, corpus, expect = run.settings, run.corpus, run.settings.expect
    assert corpus
    lines, signature = rows(settings, corpus, hypotheses) if rows else _bleu_rows(run, corpus, hypotheses)
    if run.validations:
        step, perplexity = run.validations[-1]["step"], run.validations[-1]["dev_perplexity"]
        known = {step: f"{figure:g}" for step, figure in zip(expect.dev_steps, expect.dev_perplexity, strict=False)}
        lines.insert(0, [f"dev perplexity after step {step:,}", known.get(step, ""), f"{perplexity or math.inf:.2f}"])
    generated = " (generated text: not comparable with anything)" if corpus.manifest.get("generated") else ""
    say(f"5/5 score\n{signature}")
    table(f"{settings.name}: {corpus.manifest['name']}{generated}", ["", "expected", "obtained"], lines)
    samples = list(zip(*corpus.lines("test"), hypotheses["test"], strict=True))
    for source, reference, translation in samples[:: max(1, -(-len(samples) // 5))]:
        say(f"  source      {source}\n  reference   {reference}\n  translation {translation}\n")


def _bleu_rows(run: RunFiles, corpus: Corpus, hypotheses: dict[str, list[str]]) -> tuple[list[list[str]], str]:
    settings, expect, generated = run.settings.corpus, run.settings.expect, corpus.manifest.get("generated")
    rows, signature = [], ""
    for split, band, paper in (("dev", [], expect.paper_dev_bleu), ("test", expect.bleu, expect.paper_bleu)):
        lines, references = hypotheses[split], corpus.lines(split)[1]
        if not references:
            continue
        bleu, signature = corpus_bleu(lines, references)
        rows.append([f"{split} BLEU (sacreBLEU)", f"{band[0]:g} to {band[1]:g}" if band else "", f"{bleu:.2f}"])
        if band and bleu < band[0]:
            warn(f"test BLEU {bleu:.2f} is below {band[0]:g}, the least expected. nmt doctor {run.directory} says why")
        if settings.tgt in LANGUAGES and not generated:
            kinds = {"paper-bleu": ""}
            if settings.tgt == "de":  # the paper's reference had its quotation marks in ASCII
                kinds = {"paper-bleu": ", quotes kept", "paper-bleu-quotes": ", quotes in ASCII"}
            for metric, quotes in kinds.items():
                score, _ = score_lines(metric, lines, [references], language=settings.tgt)
                published = f"{paper:g} (the paper)" if paper and quotes == [*kinds.values()][-1] else ""
                rows.append([f"{split} BLEU as in the paper{quotes}", published, f"{score.score:.2f}"])
        if split == "test":
            rows.append(["test chrF2", "", f"{corpus_chrf(lines, references)[0]:.2f}"])
            if generated and settings.src == "en":
                right, total = pronoun_accuracy(corpus.lines(split)[0], lines, references)
                rows.append(["pronouns of antecedents never seen together", "", f"{right} of {total}"])
    return rows, f"sacreBLEU {signature}"
