"""The reproduce command: prepare, train, average, translate and score in order, skipping what is done."""

import math
import os
import time
from dataclasses import dataclass
from pathlib import Path

from nmt_cli import artefact, recipe
from nmt_cli.console import duration, say, table, warn
from nmt_cli.corpus.prepare import PrepareOptions, prepare
from nmt_cli.corpus.store import Corpus, open_corpus
from nmt_cli.corpus.tokenizer import Tokenizer
from nmt_cli.corpus.toy import pronoun_accuracy
from nmt_cli.parsing.brackets import SIGNATURE, corpus_brackets
from nmt_cli.reporting.report import report
from nmt_cli.scoring.paper_bleu import LANGUAGES, paper_bleu
from nmt_cli.scoring.metrics import corpus_bleu, corpus_chrf


@dataclass(frozen=True)
class ReproduceOptions:
    """Where a reproduction reads and writes."""

    data: Path
    run: Path
    mirror: Path | None = None
    workers: int | None = None
    dry_run: bool = False


def reproduce(settings: recipe.Recipe, options: ReproduceOptions) -> int:
    """Play a recipe from raw text to a score beside the expected one, and return the exit code.

    Killed or stopped anywhere, the same command goes on from there. Under `accelerate launch` all processes train and
    the first one does the rest.
    """
    start = time.monotonic()
    main = int(os.environ.get("RANK", "0")) == 0
    if options.dry_run:
        return _dry_run(settings, options, main)
    if main:
        _prepare(settings, options)
    else:
        _wait_for(options.data / artefact.MANIFEST)
    code = _train(settings, options)
    if code or not main:
        return code
    corpus = open_corpus(options.data)
    _average(settings, options.run)
    hypotheses = _translate(settings, corpus, options.run)
    _score(settings, corpus, options.run, hypotheses)
    page = report(options.run, data=options.data)
    say(f"{page} shows all of it. {duration(time.monotonic() - start)} in all")
    return 0


def _dry_run(settings: recipe.Recipe, options: ReproduceOptions, main: bool) -> int:
    """Show what preparing and training would take; nothing is downloaded or kept."""
    from nmt_cli.training.estimate import dry_run

    if main and artefact.present(options.data):
        say(f"{options.data} is prepared already")
    elif main:
        prepare(settings.corpus, options.data, PrepareOptions(options.mirror, options.workers, dry_run=True))
    return dry_run(settings, options.data)


def _prepare(settings: recipe.Recipe, options: ReproduceOptions) -> None:
    own = settings.corpus.name not in recipe.NAMED_CORPORA and not settings.corpus.train_src
    if own and artefact.present(options.data):
        return  # the user prepared it; the recipe only names it
    say(f"1/5 prepare {options.data}")
    prepare(settings.corpus, options.data, PrepareOptions(mirror=options.mirror, workers=options.workers))


def _wait_for(path: Path) -> None:
    """Wait until another process has committed `path`; the launcher ends this one if that process fails."""
    while not path.exists():
        time.sleep(1)


def _train(settings: recipe.Recipe, options: ReproduceOptions) -> int:
    from nmt_cli.training.train import TrainOptions, train

    say(f"2/5 train {options.run}")
    return train(settings, TrainOptions(options.data, options.run))


def _average(settings: recipe.Recipe, run: Path) -> None:
    from nmt_cli.training import checkpoints
    from nmt_cli.training.average import average

    have = checkpoints.regular(checkpoints.steps_in(run), settings.training.checkpoint_every)
    last = min(settings.averaging.last, len(have))
    if last < settings.averaging.last:
        warn(f"training ended early: {last} checkpoints are averaged, not {settings.averaging.last}")
    if not last:
        return
    model, steps = average(run, last, None)
    say(
        f"3/5 average-checkpoints: {model} is the mean of {len(steps)} checkpoints, steps {steps[0]:,} to {steps[-1]:,}"
    )


def _translate(settings: recipe.Recipe, corpus: Corpus, run: Path) -> dict[str, list[str]]:
    """Return the translations of dev and test; those of this very model on disk are not made again."""
    from nmt_cli.corpus.store import read_lines
    from nmt_cli.transformer.cache import for_inference
    from nmt_cli.transformer.hardware import choose_dtype, inference_device
    from nmt_cli.transformer.weights import WEIGHTS, load_model
    from nmt_cli.translation.lines import translate_lines
    from nmt_cli.translation.search import SearchSettings

    device = inference_device()
    loaded = load_model(run / "model", device)
    made_by = artefact.digest([loaded.manifest["files"][WEIGHTS]["sha256"], recipe.to_plain(settings.decoding)])
    stamp = run / "translations.json"
    known = artefact.read_json(stamp).get("made_by") if stamp.exists() else None
    decoding = settings.decoding
    search = SearchSettings(decoding.beam, decoding.alpha, decoding.extra_length)
    dtype = choose_dtype("fp32" if settings.training.precision == "fp32" else "auto", device)
    hypotheses = {}
    for split in ("dev", "test"):
        file, sources = run / f"{split}.hyp", corpus.lines(split)[0]
        if known == made_by and file.exists():
            hypotheses[split] = read_lines(file)
            continue
        say(f"4/5 translate {split}: {len(sources):,} lines, beam {decoding.beam}, alpha {decoding.alpha}")
        tokenizer = Tokenizer(loaded.tokenizer_file)
        lines = translate_lines([for_inference(loaded.model, dtype)], dtype, tokenizer, sources, search)
        hypotheses[split] = lines
        artefact.replace_file(file, "".join(f"{line}\n" for line in lines).encode())
    artefact.replace_file(stamp, artefact.json_bytes({"made_by": made_by}))
    return hypotheses


def _score(settings: recipe.Recipe, corpus: Corpus, run: Path, hypotheses: dict[str, list[str]]) -> None:
    """Print what was expected and what came out."""
    expect = settings.expect
    source, references = corpus.lines("test")
    if settings.corpus.tgt == recipe.TREES:
        rows, signature = _bracket_rows(expect, corpus, hypotheses), f"brackets by {SIGNATURE}"
    else:
        rows, signature = _bleu_rows(settings, corpus, run, hypotheses)
    note = " (generated text: not comparable with anything)" if corpus.manifest.get("generated") else ""
    say("5/5 score")
    say(signature)
    table(f"{settings.name}: {corpus.manifest['name']}{note}", ["", "expected", "obtained"], rows)
    picks = [i * len(source) // 5 for i in range(5)] if source else []
    for i in picks:
        say(f"  source      {source[i]}\n  reference   {references[i]}\n  translation {hypotheses['test'][i]}\n")


def _bracket_rows(expect: recipe.Expect, corpus: Corpus, hypotheses: dict[str, list[str]]) -> list[list[str]]:
    """Return what was expected of parsing and what came out."""
    rows: list[list[str]] = []
    for split in ("dev", "test"):
        gold = corpus.lines(split)[1]
        if not gold:
            continue
        counts = corpus_brackets(hypotheses[split], gold)
        paper = f"{expect.paper_f1:g} (the paper)" if expect.paper_f1 and split == "test" else ""
        rows.append([f"{split} F1 of labelled brackets", paper, f"{counts.f1:.2f}"])
        rows.append([f"{split} precision, recall", "", f"{counts.precision:.2f}, {counts.recall:.2f}"])
        failed = f"{counts.unparsable + counts.wrong_length:,} of {counts.sentences:,}"
        rows.append([f"{split} outputs that are no tree", "", failed])
    return rows


def _bleu_rows(
    settings: recipe.Recipe, corpus: Corpus, run: Path, hypotheses: dict[str, list[str]]
) -> tuple[list[list[str]], str]:
    """Return what was expected of translation and what came out, and sacreBLEU's signature."""
    from nmt_cli.training import metrics

    rows: list[list[str]] = []
    signature = ""
    expect = settings.expect
    source, references = corpus.lines("test")
    validations = [r for r in metrics.read(run / "metrics.jsonl") if "dev_perplexity" in r]
    if validations:
        step, perplexity = validations[-1]["step"], validations[-1]["dev_perplexity"]
        known = dict(zip(expect.dev_steps, expect.dev_perplexity, strict=False)).get(step)
        rows.append(
            [f"dev perplexity after update {step:,}", f"{known:g}" if known else "", f"{perplexity or math.inf:.2f}"]
        )
    for split, paper in (("dev", expect.paper_dev_bleu), ("test", expect.paper_bleu)):
        lines = corpus.lines(split)[1]
        if not lines:
            continue
        bleu, signature = corpus_bleu(hypotheses[split], lines)
        band = expect.bleu if split == "test" else []
        rows.append([f"{split} BLEU (sacreBLEU)", f"{band[0]:g} to {band[1]:g}" if band else "", f"{bleu:.2f}"])
        if band and bleu < band[0]:
            warn(f"test BLEU {bleu:.2f} is less than {band[0]:g}, the least expected. nmt doctor {run} says why")
        if not corpus.manifest.get("generated") and settings.corpus.tgt in LANGUAGES:
            ours = paper_bleu(hypotheses[split], lines, language=settings.corpus.tgt)
            title = f"{split} BLEU as in the paper (tokenised, compounds split)"
            rows.append([title, f"{paper:g} (the paper)" if paper else "", f"{ours.score:.2f}"])
    if references:
        rows.append(["test chrF2", "", f"{corpus_chrf(hypotheses['test'], references)[0]:.2f}"])
    if corpus.manifest.get("generated") and settings.corpus.src == "en":
        right, total = pronoun_accuracy(source, hypotheses["test"], references)
        rows.append(["pronouns of antecedents never seen together", "", f"{right} of {total}"])
    return rows, f"sacreBLEU {signature}"
