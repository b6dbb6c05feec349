"""Implementation of `nmt doctor`: find the problems that lower a run's BLEU, and list the most serious first."""

import itertools
import json
import math
import statistics
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from nmt_cli.corpus.readers import read_lines
from nmt_cli.corpus.tokenizer import without_first_tokens
from nmt_cli.scoring.metrics import corpus_bleu
from nmt_cli.storage import artefact
from nmt_cli.system.console import counted
from nmt_cli.system.errors import MissingError, OutputError, printable
from nmt_cli.training.metrics_log import MIN_IMPROVEMENT, worse_than_expected
from nmt_cli.training.run import RunFiles, read_run
from nmt_cli.translation.segmenter import looping

WRONG = "wrong"  # the score is meaningless
COSTLY = "costly"  # the score is lower than necessary
MIN_STEPS = 100
MIN_TOKENS_PER_STEP = 1000
# A large change of the dev loss in the last fifth of the steps, in nats. In Table 3 of "Attention Is All You Need",
# this difference corresponds to about 0.9 BLEU.
STEEP = 0.1
LOOK = "look at them with nmt score --details; the usual causes are too little training and unclean data"
STABILIZE = "use a lower training.rate_factor, more training.warmup_steps, training.precision=fp32 or model.norm=pre"
MORE_STEPS = "raise training.steps and run nmt train again: it continues the run"
RECIPE = "if there is no other finding, compare the run's recipe.yaml with the original recipe"
OWN_TEST_SET = "translate the test set and score it against its own references: nmt score HYP --corpus DATA"


@dataclass(frozen=True)
class Finding:
    """A problem. `nmt doctor --json` prints these field names."""

    severity: str
    what: str
    where: Path  # the file or directory that shows the problem
    do: str  # the remedy


@dataclass(frozen=True)
class Evidence:
    """A run, its last step and its translations. `bleu` is None for trees, and if not every line has a reference."""

    run: RunFiles
    step: int
    hypothesis: Path
    hypotheses: list[str]
    references: list[str]
    bleu: float | None


def gather(directory: Path, data: Path | None, hypothesis: Path | None, reference: Path | None) -> Evidence:
    """Read a run, its corpus and its translations. By default, read the translations and references of the test set."""
    for file in (hypothesis, reference):
        if file and not file.is_file():
            raise MissingError(f"no file {file}. Check the path")
    run = read_run(directory, data, any_corpus=True)
    path = hypothesis or directory / "test.hyp"
    step = max([r["step"] for r in run.steps + run.validations] + (run.model or {}).get("steps", []), default=0)
    corpus_references = run.corpus.lines("test")[1] if run.corpus else []
    hypotheses = read_lines(path)
    references = read_lines(reference) if reference else corpus_references
    paired = run.settings.corpus.format == "text" and len(hypotheses) == len(references) > 0
    language = run.corpus.manifest["tgt"] if run.corpus else run.settings.corpus.tgt
    moses = run.settings.corpus.moses
    bleu = corpus_bleu(hypotheses, references, language=language, tokenized=moses)[0] if paired else None
    return Evidence(run, step, path, hypotheses, references, bleu)


def _data(r: Evidence) -> Iterator[Finding]:
    settings, corpus = r.run.settings, r.run.corpus
    if not corpus:
        return
    if artefact.read_json(r.run.directory / "corpus.json").get("corpus") != corpus.identity:
        what = "the run was trained on another corpus, in which token ids may stand for other tokens"
        yield Finding(WRONG, what, corpus.directory, "pass the run's own corpus: --data DIR")
    report = corpus.directory / "cleaning.json"
    expected = settings.expect.pairs[:1]
    cleaning = artefact.read_json(report)
    problems = [f"nmt prepare warned: {warning}" for warning in cleaning.get("warnings", [])]
    if cleaning["kept"] < 0.7 * cleaning["read"]:
        problems.append(f"{1 - cleaning['kept'] / cleaning['read']:.0%} of the pairs were dropped")
    if expected and len(corpus.src) < 0.9 * expected[0]:
        problems.append(f"{len(corpus.src):,} training pairs instead of {expected[0]:,}")
    for problem in problems:
        yield Finding(COSTLY, problem, report, "read the file: it lists the dropped pairs by reason")


def _training(r: Evidence) -> Iterator[Finding]:
    training = r.run.settings.training
    directory = r.run.directory
    averaged = (r.run.model or {}).get("steps", [])
    log = directory / "metrics.jsonl"
    last = r.run.settings.averaging.last
    row_of_table_3 = last == 1 and r.run.settings.expect.paper_dev_bleu  # not averaged in the paper
    intended = row_of_table_3 or r.run.settings.averaging.best
    if averaged and not intended and (len(averaged) < max(2, last) or averaged[-1] < 0.9 * r.step):
        checkpoints = counted(len(averaged), "checkpoint")
        what = f"{checkpoints} averaged, the last from step {averaged[-1]:,} of {r.step:,}"
        do = f"run nmt average-checkpoints {directory}, then translate and score again"
        yield Finding(COSTLY, what, directory / "model", do)
    losses = [record["dev_nll"] or math.inf for record in r.run.validations]
    patience = training.patience or len(losses)
    before, least = losses[:-patience], (1 - MIN_IMPROVEMENT) ** patience
    stopped_early = before and min(losses) >= min(before) * least  # the last `patience` validations improved too little
    if 0 < r.step < 0.9 * training.steps and not stopped_early:
        do = "run the same command again to continue"
        yield Finding(COSTLY, f"{r.step:,} of {training.steps:,} steps", log, do)
    elif not stopped_early and r.run.steps and ((epochs := r.run.steps[-1]["epoch"]) < 1 or r.step < MIN_STEPS):
        yield Finding(COSTLY, f"{r.step:,} steps ({epochs:.2g} epochs) are too few", log, MORE_STEPS)
    token_counts = [record["tgt_tokens_per_step"] for record in r.run.steps if record.get("tgt_tokens_per_step")]
    enough = max(MIN_TOKENS_PER_STEP, 0.7 * training.tokens_per_step)
    if token_counts and (tokens := statistics.fmean(token_counts)) < enough:
        what = (
            f"a step has {tokens:,.0f} target tokens on average; "
            f"training.tokens_per_step is {training.tokens_per_step:,}"
        )
        do = f"start a new run with training.tokens_per_step of at least {MIN_TOKENS_PER_STEP:,}, preferably far more"
        yield Finding(COSTLY, what, log, do)


def _loss(r: Evidence) -> Iterator[Finding]:
    log, crash = r.run.directory / "metrics.jsonl", r.run.directory / "crash.json"
    losses = [record["nll"] for record in r.run.steps if record.get("nll") is not None]
    skipped = max((record.get("skipped") or 0 for record in r.run.steps), default=0)
    # If training has passed the step of the crash, the crash no longer matters.
    if crash.is_file() and artefact.read_json(crash).get("step") not in range(r.step):
        yield Finding(WRONG, "training gave up: values were not finite", crash, STABILIZE)
    elif skipped > max(3, r.step // 1000):
        yield Finding(COSTLY, f"{skipped:,} steps were skipped: values were not finite", log, STABILIZE)
    if len(losses) < 6:
        return
    training, end = r.run.settings.training, statistics.fmean(losses[-3:])
    if end > min(losses) + 1:
        yield Finding(WRONG, f"training diverged: the loss rose from {min(losses):.2f} to {end:.2f}", log, STABILIZE)
    elif training.init_from or r.step <= max(training.warmup_steps, MIN_STEPS):
        return  # training started from another model, or has only begun
    elif end > max(2, losses[0] / 2, losses[len(losses) // 2] - 0.1):
        yield Finding(WRONG, f"training never took off: the loss stays at {end:.2f}", log, STABILIZE)


def _dev(r: Evidence) -> Iterator[Finding]:
    """Compare the last validation with the expected one, and check that the dev loss has leveled off."""
    log = r.run.directory / "metrics.jsonl"
    validations = [record for record in r.run.validations if record["dev_nll"] is not None]
    if not validations:
        return
    step, loss = validations[-1]["step"], validations[-1]["dev_nll"]
    if worse := worse_than_expected(r.run.settings.expect, step, validations[-1]):
        yield Finding(COSTLY, worse, log, RECIPE)
    earlier = [record["dev_nll"] for record in validations if record["step"] <= 0.8 * step]
    if earlier and r.step >= 0.9 * r.run.settings.training.steps and earlier[-1] - loss > STEEP:
        what = f"the dev loss was still falling at the end, from {earlier[-1]:.2f} to {loss:.2f}"
        yield Finding(COSTLY, what, log, MORE_STEPS)
    elif earlier and loss - min(earlier) > STEEP:
        what = f"the dev loss rose from {min(earlier):.2f} to {loss:.2f}"
        yield Finding(COSTLY, what, log, "use more model.dropout, fewer training.steps or a lower training.rate_factor")


def _output(r: Evidence) -> Iterator[Finding]:
    directory, corpus, count = r.run.directory, r.run.corpus, len(r.hypotheses)
    stamped = r.hypothesis == directory / "test.hyp" and (directory / "translations.json").is_file()
    if r.hypotheses and stamped and r.run.translations("test") is None:
        what = "the translations are from another model or other decoding settings"
        yield Finding(WRONG, what, r.hypothesis, "run nmt reproduce again")
    if r.hypotheses and r.references and count != len(r.references):
        what = f"there are {count:,} translations, but {len(r.references):,} references"
        yield Finding(WRONG, what, r.hypothesis, OWN_TEST_SET)
    if r.bleu is None:
        return
    sources, references = corpus.lines("test") if corpus else ([""] * count, [])
    texts = map(without_first_tokens, sources[:count])
    triples = list(itertools.zip_longest(r.hypotheses, r.references, texts, fillvalue=""))

    def repeats(line: str) -> bool:
        words = line.split()
        return looping([words.index(word) for word in words])

    for what, lines in (
        ("are empty", [bool(ref.strip()) and not hyp.strip() for hyp, ref, _ in triples]),
        ("are copies of their source", [hyp == src != ref and " " in src for hyp, ref, src in triples]),
        ("repeat themselves", [repeats(hyp) and not repeats(ref) for hyp, ref, _ in triples]),
    ):
        if sum(lines) > max(1, 0.005 * count):
            severity = WRONG if sum(lines) > count / 2 else COSTLY
            yield Finding(severity, f"{sum(lines):,} of {count:,} translations {what}", r.hypothesis, LOOK)
    words, expected = (sum(len(line.split()) for line in lines) for lines in (r.hypotheses, r.references))
    if not 0.95 <= (ratio := words / max(1, expected)) <= 1.05:
        what = f"the translations have {ratio:.2f} times as many words as the references"
        yield Finding(COSTLY, what, r.hypothesis, "look at the other findings first; decoding.alpha changes the length")
    band = r.run.settings.expect.bleu if r.references == references else []
    best = max((v.get("dev_bleu") or 0 for v in r.run.validations), default=0)
    if best > 4 * r.bleu + 5:
        what = f"{r.bleu:.2f} BLEU on test but {best:.2f} on dev: these may be translations of another test set"
        yield Finding(WRONG, what, r.hypothesis, OWN_TEST_SET)
    elif band and r.bleu < band[0]:
        what = f"{r.bleu:.2f} BLEU on test; the recipe expects {band[0]:g} to {band[1]:g}"
        yield Finding(COSTLY, what, r.hypothesis, RECIPE)


def examine(evidence: Evidence) -> list[Finding]:
    """Return all findings, the most serious first."""
    findings = [finding for check in (_data, _training, _loss, _dev, _output) for finding in check(evidence)]
    return sorted(findings, key=lambda finding: finding.severity != WRONG)


def doctor(run: Path, data: Path | None, hypothesis: Path | None, reference: Path | None, as_json: bool) -> None:
    evidence = gather(run, data, hypothesis, reference)
    files = evidence.run
    findings = examine(evidence)
    checked = {"data": files.corpus, "loss": files.steps, "averaging": files.model, "output": evidence.bleu is not None}
    unchecked = [what for what, there in checked.items() if not there]
    if as_json:
        head = {"run": str(run), "steps": evidence.step, "bleu": evidence.bleu, "findings": [*map(asdict, findings)]}
        text = json.dumps({**head, "unchecked": unchecked}, indent=1, ensure_ascii=False, default=str)
    else:
        score = "" if evidence.bleu is None else f"; {evidence.bleu:.2f} BLEU on test by sacreBLEU"
        lines = [f"{printable(run)}: {evidence.step:,} of {files.settings.training.steps:,} steps{score}"]
        for number, finding in enumerate(findings, 1):
            rows = f"{number}. {finding.severity}: {finding.what}", f"   in {finding.where}", f"   fix: {finding.do}"
            lines += ["", *(printable(row, 1000) for row in rows)]
        costs = "See “What usually costs BLEU” in recipes/README.md for the usual cost of each problem."
        lines += ["", costs if findings else "No problem found that is known to lower BLEU."]
        lines += [f"Not checked, because the run does not have them yet: {', '.join(unchecked)}."] if unchecked else []
        text = "\n".join(lines)
    if sys.stdout is None:
        raise OutputError("stdout is closed, so the findings cannot be printed. Redirect it to a file")
    encoding = sys.stdout.encoding or "utf-8"
    print(text.encode(encoding, "backslashreplace").decode(encoding))
