"""The doctor command: what a program can check in a run and finds wrong, most serious first."""

import itertools
import json
import math
import statistics
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from nmt_cli.corpus.readers import read_lines
from nmt_cli.scoring.metrics import corpus_bleu
from nmt_cli.storage import artefact
from nmt_cli.system.errors import MissingError, OutputError, printable
from nmt_cli.training.metrics import MIN_IMPROVEMENT, worse_than_expected
from nmt_cli.training.run import RunFiles, read_run
from nmt_cli.translation.segmenter import looping

WRONG, COSTLY = "wrong", "costly"  # the score means nothing, or it is lower than need be
FEW_STEPS, FEW_TOKENS = 100, 1000  # in all, and per step, whatever the corpus
STEEP = 0.1  # nats of dev loss in the last fifth of the steps: by Table 3 about 0.9 BLEU
LOOK = "look at them (nmt score --details): mostly too little training or unclean data"
CALMER = "a lower training.rate_factor, more training.warmup_steps, training.precision=fp32 or model.norm=pre"
MORE_STEPS = "train with more training.steps: the same run continues"
RECIPE = "if nothing else is found, compare the run's recipe.yaml with the recipe that it came from"
OWN_TEST_SET = "translate the test set and score against its own references: nmt score HYP --corpus DATA"


@dataclass(frozen=True)
class Finding:
    severity: str
    what: str
    where: Path
    do: str


@dataclass(frozen=True)
class Record:
    """A run, its last step, and its translations of the test set; no `bleu` without a reference of each line."""

    run: RunFiles
    step: int
    hypothesis: Path
    hypotheses: list[str]
    references: list[str]
    bleu: float | None


def gather(directory: Path, data: Path | None, hypothesis: Path | None, reference: Path | None) -> Record:
    for file in (hypothesis, reference):
        if file and not file.is_file():
            raise MissingError(f"there is no file {file}. Check the path")
    run, path = read_run(directory, data, any_corpus=True), hypothesis or directory / "test.hyp"
    step = max([r["step"] for r in run.steps + run.validations] + (run.model or {}).get("steps", []), default=0)
    corpus_references = run.corpus.lines("test")[1] if run.corpus else []
    hypotheses, references = read_lines(path), read_lines(reference) if reference else corpus_references
    paired = run.settings.corpus.format == "text" and len(hypotheses) == len(references) > 0
    language = run.corpus.manifest["tgt"] if run.corpus else run.settings.corpus.tgt
    moses = run.settings.corpus.moses
    bleu = corpus_bleu(hypotheses, references, language=language, tokenised=moses)[0] if paired else None
    return Record(run, step, path, hypotheses, references, bleu)


def _data(r: Record) -> Iterator[Finding]:
    settings, corpus = r.run.settings, r.run.corpus
    if not corpus:
        return
    if artefact.read_json(r.run.directory / "corpus.json").get("corpus") != corpus.identity:
        what = "the run was trained on another corpus; where the tokenizer differs, the same ids are other tokens"
        yield Finding(WRONG, what, corpus.directory, "name the run's own: --data DIR")
    report, usual = corpus.directory / "cleaning.json", settings.expect.pairs[:1]
    cleaning = artefact.read_json(report)
    says = [f"nmt prepare warned: {warning}" for warning in cleaning.get("warnings", [])]
    if cleaning["kept"] < 0.7 * cleaning["read"]:
        says.append(f"{1 - cleaning['kept'] / cleaning['read']:.0%} of the pairs were dropped")
    if usual and len(corpus.src) < 0.9 * usual[0]:
        says.append(f"{len(corpus.src):,} training pairs, not {usual[0]:,}")
    yield from (Finding(COSTLY, what, report, "see what nmt prepare dropped, and why") for what in says)


def _training(r: Record) -> Iterator[Finding]:
    training, directory, averaged = r.run.settings.training, r.run.directory, (r.run.model or {}).get("steps", [])
    log, last = directory / "metrics.jsonl", r.run.settings.averaging.last
    row_of_table_3 = last == 1 and r.run.settings.expect.paper_dev_bleu  # the paper did not average there either
    meant = row_of_table_3 or r.run.settings.averaging.best
    if averaged and not meant and (len(averaged) < max(2, last) or averaged[-1] < 0.9 * r.step):
        what = f"averaged over {len(averaged)} of the checkpoints, the last of step {averaged[-1]:,} of {r.step:,}"
        do = f"nmt average-checkpoints {directory}, then translate and score"
        yield Finding(COSTLY, what, directory / "model", do)
    losses = [record["dev_nll"] or math.inf for record in r.run.validations]
    patience = training.patience or len(losses)
    before, least = losses[:-patience], (1 - MIN_IMPROVEMENT) ** patience
    patient = before and min(losses) >= min(before) * least
    if 0 < r.step < 0.9 * training.steps and not patient:
        do = "the same command again continues the run"
        yield Finding(COSTLY, f"{r.step:,} of {training.steps:,} steps", log, do)
    elif not patient and r.run.steps and ((epochs := r.run.steps[-1]["epoch"]) < 1 or r.step < FEW_STEPS):
        yield Finding(COSTLY, f"{r.step:,} steps, which are {epochs:.2g} epochs, are too few", log, MORE_STEPS)
    counted = [record["tgt_tokens_per_step"] for record in r.run.steps if record.get("tgt_tokens_per_step")]
    if counted and (tokens := statistics.fmean(counted)) < max(FEW_TOKENS, 0.7 * training.tokens_per_step):
        what = f"a step has {tokens:,.0f} target tokens; training.tokens_per_step is {training.tokens_per_step:,}"
        yield Finding(COSTLY, what, log, f"a new run with more training.tokens_per_step, {FEW_TOKENS:,} or far more")


def _loss(r: Record) -> Iterator[Finding]:
    log, crash = r.run.directory / "metrics.jsonl", r.run.directory / "crash.json"
    losses = [record["nll"] for record in r.run.steps if record.get("nll") is not None]
    skipped = max((record.get("skipped") or 0 for record in r.run.steps), default=0)
    if crash.is_file() and artefact.read_json(crash).get("step") not in range(r.step):  # and was not resumed
        yield Finding(WRONG, "training gave up: numbers were not finite", crash, CALMER)
    elif skipped > max(3, r.step // 1000):
        yield Finding(COSTLY, f"{skipped:,} steps were skipped: numbers were not finite", log, CALMER)
    if len(losses) < 6:
        return
    training, end = r.run.settings.training, statistics.fmean(losses[-3:])
    if end > min(losses) + 1:
        yield Finding(WRONG, f"training diverged: its loss was {min(losses):.2f}, and is {end:.2f}", log, CALMER)
    elif training.init_from or r.step <= max(training.warmup_steps, FEW_STEPS):
        return  # starts from a trained model, or has hardly begun
    elif end > max(2, losses[0] / 2, losses[len(losses) // 2] - 0.1):
        yield Finding(WRONG, f"training never took off: the loss stays at {end:.2f}", log, CALMER)


def _dev(r: Record) -> Iterator[Finding]:
    """The last validation beside what the recipe expects by then; and whether the dev loss has come to rest."""
    log = r.run.directory / "metrics.jsonl"
    validations = [record for record in r.run.validations if record["dev_nll"] is not None]
    if not validations:
        return
    step, loss = validations[-1]["step"], validations[-1]["dev_nll"]
    if worse := worse_than_expected(r.run.settings.expect, step, validations[-1]):
        yield Finding(COSTLY, worse, log, RECIPE)
    earlier = [record["dev_nll"] for record in validations if record["step"] <= 0.8 * step]
    if earlier and r.step >= 0.9 * r.run.settings.training.steps and earlier[-1] - loss > STEEP:
        what = f"the dev loss still fell at the end, from {earlier[-1]:.2f} to {loss:.2f}"
        yield Finding(COSTLY, what, log, MORE_STEPS)
    elif earlier and loss - min(earlier) > STEEP:
        what = f"the dev loss rose from {min(earlier):.2f} to {loss:.2f}"
        yield Finding(COSTLY, what, log, "more model.dropout, fewer training.steps or a lower training.rate_factor")


def _output(r: Record) -> Iterator[Finding]:
    directory, corpus, count = r.run.directory, r.run.corpus, len(r.hypotheses)
    stamped = r.hypothesis == directory / "test.hyp" and (directory / "translations.json").is_file()
    if r.hypotheses and stamped and r.run.translations("test") is None:
        what = "another model or other decoding settings made these"
        yield Finding(WRONG, what, r.hypothesis, "nmt reproduce again")
    if r.hypotheses and r.references and count != len(r.references):
        what = f"{count:,} translations and {len(r.references):,} references"
        yield Finding(WRONG, what, r.hypothesis, OWN_TEST_SET)
    if r.bleu is None:
        return
    sources, references = corpus.lines("test") if corpus else ([""] * count, [])
    triples = list(itertools.zip_longest(r.hypotheses, r.references, sources[:count], fillvalue=""))

    def loops(line: str) -> bool:
        words = line.split()
        return looping([words.index(word) for word in words])

    for what, lines in (
        ("are empty", [bool(ref.strip()) and not hyp.strip() for hyp, ref, _ in triples]),
        ("are copies of their source", [hyp == src != ref and " " in src for hyp, ref, src in triples]),
        ("repeat themselves", [loops(hyp) and not loops(ref) for hyp, ref, _ in triples]),
    ):
        if sum(lines) > max(1, 0.005 * count):
            severity = WRONG if sum(lines) > count / 2 else COSTLY
            yield Finding(severity, f"{sum(lines):,} of {count:,} translations {what}", r.hypothesis, LOOK)
    words, usual = (sum(len(line.split()) for line in lines) for lines in (r.hypotheses, r.references))
    if not 0.95 <= (ratio := words / max(1, usual)) <= 1.05:
        what = f"the translations have {ratio:.2f} times the words of their references"
        yield Finding(COSTLY, what, r.hypothesis, "see the other findings first; decoding.alpha moves the length")
    band = r.run.settings.expect.bleu if r.references == references else []
    best = max((v.get("dev_bleu") or 0 for v in r.run.validations), default=0)
    if best > 4 * r.bleu + 5:
        what = f"{r.bleu:.2f} BLEU on test, {best:.2f} on dev: are these translations of this test set?"
        yield Finding(WRONG, what, r.hypothesis, OWN_TEST_SET)
    elif band and r.bleu < band[0]:
        what = f"{r.bleu:.2f} BLEU on test; the recipe expects {band[0]:g} to {band[1]:g}"
        yield Finding(COSTLY, what, r.hypothesis, RECIPE)


def examine(record: Record) -> list[Finding]:
    """Return all findings, the most serious first."""
    findings = [finding for check in (_data, _training, _loss, _dev, _output) for finding in check(record)]
    return sorted(findings, key=lambda finding: finding.severity != WRONG)


def doctor(run: Path, data: Path | None, hypothesis: Path | None, reference: Path | None, as_json: bool) -> None:
    record = gather(run, data, hypothesis, reference)
    files, findings = record.run, examine(record)
    checked = {"data": files.corpus, "loss": files.steps, "averaging": files.model, "output": record.bleu is not None}
    unchecked = [what for what, there in checked.items() if not there]
    if as_json:
        head = {"run": str(run), "steps": record.step, "bleu": record.bleu, "findings": [*map(asdict, findings)]}
        text = json.dumps({**head, "unchecked": unchecked}, indent=1, ensure_ascii=False, default=str)
    else:
        score = "" if record.bleu is None else f"; {record.bleu:.2f} BLEU on test by sacreBLEU"
        lines = [f"{printable(run)}: {record.step:,} of {files.settings.training.steps:,} steps{score}"]
        for number, finding in enumerate(findings, 1):
            rows = f"{number}. {finding.severity}: {finding.what}", f"   in {finding.where}", f"   fix: {finding.do}"
            lines += ["", *(printable(row, 1000) for row in rows)]
        costs = "What these usually cost in BLEU: recipes/README.md, “What usually costs BLEU”."
        lines += ["", costs if findings else "Nothing was found that is known to cost BLEU."]
        lines += [f"Not checked, for there is nothing yet: {', '.join(unchecked)}."] if unchecked else []
        text = "\n".join(lines)
    if sys.stdout is None:
        raise OutputError("stdout is closed, and the findings have nowhere to go. Open it")
    encoding = sys.stdout.encoding or "utf-8"
    print(text.encode(encoding, "backslashreplace").decode(encoding))
