"""The reproduce command: prepare, train, average, translate and score in order, skipping what is done."""

import math
import os
import time
from dataclasses import replace
from pathlib import Path

from nmt_cli.corpus.prepare import PrepareOptions, prepare
from nmt_cli.corpus.toy import pronoun_accuracy
from nmt_cli.recipe import loading, schema
from nmt_cli.scoring.score import ScoreOptions, Scorer
from nmt_cli.storage import artefact
from nmt_cli.system.console import counted, duration, say, table, warn
from nmt_cli.system.errors import MissingError
from nmt_cli.training import checkpoints
from nmt_cli.training.average import average
from nmt_cli.training.estimate import dry_run
from nmt_cli.training.run import TRANSLATIONS, RunFiles, read_run, translations_id
from nmt_cli.training.train import train
from nmt_cli.translation.translator import Translator

TIMED_LINES, TIMES = 500, 3
WITHOUT = "-without"  # how the run and the corpus without synthetic text are called beside those with it


def reproduce(
    settings: schema.Recipe, text: schema.Corpus, data: Path, run: Path, options: PrepareOptions, score: Scorer
) -> int:
    """Play a recipe from the raw `text` to its scores; under `accelerate launch` all train, the first does the rest.

    A recipe with synthetic text is played a second time without it, and a table compares the models.
    """
    start = time.monotonic()
    code = _play(settings, text, data, run, options, score)
    if not code and settings.corpus.synthetic and not options.dry_run:
        plain, other_data, other_run = _without_synthetic(settings, data), *(_beside(place) for place in (data, run))
        say(f"the same without synthetic text: {other_run}")
        code = _play(plain, plain.corpus, other_data, other_run, options, score)
        if not code and os.environ.get("RANK", "0") == "0":
            _compare(read_run(run, data), read_run(other_run, other_data), score)
    if not code and not options.dry_run and os.environ.get("RANK", "0") == "0":
        say(f"reproduced in {duration(time.monotonic() - start)}")
    return code


def _play(
    settings: schema.Recipe, text: schema.Corpus, data: Path, run: Path, options: PrepareOptions, score: Scorer
) -> int:
    main = os.environ.get("RANK", "0") == "0"
    exists = artefact.present(data)
    if main and not (exists and not text.has_text):  # what exists is compared with the settings, by a dry run too
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
    if checkpoints.steps_in(run):
        say("3/5 average")
        average(run, None, None, data)
    files = read_run(run, data)
    hypotheses = _translate(files, run / "model")
    _score(files, hypotheses, score)
    return 0


def _beside(place: Path) -> Path:
    return place.with_name(place.name + WITHOUT)


def _without_synthetic(settings: schema.Recipe, data: Path) -> schema.Recipe:
    """Return the recipe that learns from the real pairs alone, with the same tokenizer."""
    tokenizer = settings.corpus.tokenizer.model_copy(update={"file": str(data / "tokenizer.model")})
    corpus = settings.corpus.model_copy(update={"synthetic": [], "real_pairs": True, "tokenizer": tokenizer})
    training = settings.training.model_copy(update={"teacher": None})
    changes = {"name": settings.name + WITHOUT, "corpus": corpus, "training": training, "expect": schema.Expect()}
    return settings.model_copy(update=changes)


def _compare(files: RunFiles, without: RunFiles, score: Scorer) -> None:
    """Show what synthetic text gave: scores, size and speed of the model, of the one without, and of the teacher."""
    entry, corpus = files.settings.corpus.synthetic[0], files.corpus
    assert corpus
    runs, models = {"with": files, "without": without}, {"with": files.directory, "without": without.directory}
    if entry.side == "src":  # the teacher translates the same way
        place = Path(str(entry.model))
        place = place if artefact.present(place) else place / "model"
        manifest, decoding = artefact.verify(place, "model", content=False), loading.load_stored(place / "recipe.yaml")
        settings = files.settings.model_copy(update={"decoding": decoding.decoding})
        teacher = replace(files, directory=files.directory / "teacher", settings=settings, model=manifest)
        name = f"teacher (scores by beam {decoding.decoding.beam})"
        runs, models = {name: teacher, **runs}, {name: place, **models}
    sources, beam = corpus.lines("test")[0], files.settings.decoding.beam
    if not sources:
        return say("There is no test set, so nothing is compared")
    columns = []
    for name, run in runs.items():
        place = models[name] if artefact.present(models[name]) else models[name] / "model"
        lines = _translate(run, place)["test"]
        options = ScoreOptions(corpus=corpus.directory, split="test", metrics=("bleu", "chrf"))
        figures = [each.shown() for each in score(options, lines).scores]
        megabytes = (place / "model.safetensors").stat().st_size / 1e6
        words, milliseconds = _speed(place, sources[:TIMED_LINES], files.settings.decoding)
        figures += [f"{megabytes:.2f}", f"{megabytes / 4:.2f}", f"{words:,.0f}", f"{milliseconds:.1f}"]
        columns.append(figures)
    names = ["test BLEU", "test chrF", "megabytes, float32", "megabytes, 8 bits"]
    names += [f"source words per second, one core, beam {beam}", f"a line alone, beam {beam}, ms"]
    rows = [list(row) for row in zip(names, *columns, strict=True)]
    table(f"{files.settings.name}: with and without synthetic text", ["", *runs], rows)


def _speed(model: Path, lines: list[str], decoding: schema.Decoding) -> tuple[float, float]:
    """Return words per second of all lines, and the milliseconds of a line alone, in one process.

    Each is the least of several times, since other work of the machine only adds to them.
    """
    options, few = decoding.model_dump(), lines[:20]
    with Translator(model, workers=1) as translator:

        def seconds(texts: list[str]) -> float:
            start = time.perf_counter()
            list(translator.translate(texts, **options))
            return time.perf_counter() - start

        whole = min(seconds(lines) for _ in range(TIMES))
        alone = sum(min(seconds([line]) for _ in range(TIMES)) for line in few)
    return sum(len(line.split()) for line in lines) / whole, 1000 * alone / len(few)


def _translate(run: RunFiles, model: Path) -> dict[str, list[str]]:
    """Return a model's translations of the held-out text, from disk where this very model made them."""
    if run.model is None or run.corpus is None:
        raise MissingError(f"{run.directory} has no model yet: it has no checkpoints to average. Train longer")
    splits = [split for split in ("dev", "test", "general") if run.corpus.lines(split)[0]]
    hypotheses = {split: lines for split in splits if (lines := run.translations(split)) is not None}
    if len(hypotheses) == len(splits):
        return hypotheses
    decoding = run.settings.decoding
    precision = "fp32" if run.settings.training.precision == "fp32" else "auto"
    with Translator(model, precision=precision) as translator:
        for split in splits:
            sources = run.corpus.lines(split)[0]
            say(f"4/5 translate {split}: {counted(len(sources), 'line')}, beam {decoding.beam}, alpha {decoding.alpha}")
            translations = translator.translate(sources, **decoding.model_dump())
            hypotheses[split] = [translation.text for translation in translations]
            artefact.replace_file(run.directory / f"{split}.hyp", "\n".join([*hypotheses[split], ""]).encode())
    stamp = artefact.json_bytes({"made_by": translations_id(run.model, decoding)})
    artefact.replace_file(run.directory / TRANSLATIONS, stamp)
    return hypotheses


def _score(run: RunFiles, hypotheses: dict[str, list[str]], score: Scorer) -> None:
    """Show what the recipe expects and what came, after fine-tuning beside what the model it began from gives."""
    settings, corpus, expect, sides = run.settings, run.corpus, run.settings.expect, {"obtained": hypotheses}
    assert corpus
    if settings.training.init_from:
        start = Path(settings.training.init_from)
        model = artefact.verify(start if artefact.present(start) else start / "model", "model", content=False)
        before = replace(run, directory=run.directory / "start", model=model)
        sides = {"before": _translate(before, start), **sides}
    rows, signatures, generated = list[list[str]](), dict[str, str](), corpus.manifest.get("generated")
    if validation := run.validation:
        step, perplexity = validation["step"], validation["dev_perplexity"]
        known = {step: f"{figure:g}" for step, figure in zip(expect.dev_steps, expect.dev_perplexity, strict=False)}
        label, blank = f"dev perplexity after step {step:,}", [""] * (len(sides) - 1)
        rows.append([label, known.get(step, ""), *blank, f"{perplexity or math.inf:.2f}"])
    nearest = "paper-bleu-quotes" if corpus.manifest["tgt"] == "de" else "paper-bleu"  # to what the paper counts
    published = {"dev": expect.paper_dev_bleu, "test": expect.paper_bleu or expect.paper_f1}
    for split in hypotheses:
        options = ScoreOptions(corpus=corpus.directory, split=split, metrics=("bleu", "chrf") if generated else ())
        scored = [score(options, lines[split]) for lines in sides.values()]
        for warning in scored[-1].warnings if split == "test" else ():
            warn(warning)
        reports = [each.scores for each in scored]
        band, paper = expect.bleu if split == "test" else [], published.get(split)
        first, last = reports[0][0], reports[-1][0]
        if last.score < first.score:
            fell = f"{split} {last.name} fell from {first.score:.2f} to {last.score:.2f}"
            warn(f"{fell}: here the model it began from is better. Lower training.rate_factor, or give more text")
        for each in zip(*reports, strict=True):
            expected = f"{band[0]:g} to {band[1]:g}" if band and each[0].metric == "bleu" else ""
            if paper and each[0].metric in ("brackets", nearest):
                expected = f"{paper:g} (the paper)"
            rows.append([f"{split} {each[0].name}", expected, *(one.shown() for one in each)])
            if split != "general":  # so the counts are of test, where there is one
                signatures[each[0].name] = f"{each[-1].signature} {each[-1].verbose}"
        if band and (bleu := reports[-1][0].score) < band[0]:
            warn(f"test BLEU {bleu:.2f} is below {band[0]:g}, the least expected. nmt doctor {run.directory} says why")
    sources, references = corpus.lines("test")
    translations = hypotheses.get("test", [])
    if generated and settings.corpus.src == "en":
        right, total = pronoun_accuracy(sources, translations, references)
        rows.append(["pronouns of antecedents never seen together", "", f"{right} of {total}"])
    say("5/5 score", *(f"{name}: {text}" for name, text in signatures.items()))
    if not sources:
        say("There is no test set, so no test score. Name one by corpus.test_src and test_tgt, or set corpus.hold_out")
    note = " (generated text: not comparable with anything)" if generated else ""
    table(f"{settings.name}: {corpus.manifest['name']}{note}", ["", "expected", *sides], rows)
    samples = list(zip(sources, references, translations, strict=True))
    for source, reference, translation in samples[:: max(1, -(-len(samples) // 5))]:
        say(f"  source      {source}", f"  reference   {reference}", f"  translation {translation}", "")
