"""The average-checkpoints command: the mean of the last checkpoints' weights (section 6.1).

After fine-tuning: the best checkpoint, mixed with the model it started from so that it keeps more of what that knew
(Wortsman et al. 2022, "Robust fine-tuning of zero-shot models").
"""

from pathlib import Path

from torch import Tensor

from nmt_cli.corpus.store import Corpus
from nmt_cli.recipe import schema
from nmt_cli.system.console import counted, say, table, warn
from nmt_cli.system.errors import DataError, NmtError, OutputError
from nmt_cli.training import checkpoints
from nmt_cli.training.run import RunFiles, read_run, stored_recipe
from nmt_cli.training.validation import DevSet, validate
from nmt_cli.transformer.directory import TOKENIZER, WEIGHTS
from nmt_cli.transformer.hardware import choose_device, choose_dtype
from nmt_cli.transformer.model import Transformer
from nmt_cli.transformer.weights import load_into, load_model, read_tensors, save_model

Weights = dict[str, Tensor]
LINES = 500  # of each dev set, on which the share of the start is chosen
MOST_LOST = 0.5  # BLEU that a mixture may lose: on general text to the start, without that on dev to the best share


def mean_of(paths: list[Path]) -> Weights:
    """Return the mean of weight files, of each of which one tensor is in memory at a time."""
    sums: dict[str, Tensor] = {}
    for path in sorted(paths):  # so that the order they are named in does not matter
        for name, tensor in read_tensors(path):
            sums[name] = sums[name].add_(tensor) if name in sums else tensor.double()
    return {name: sums.pop(name).div_(len(paths)).float() for name in list(sums)}


def average(run: Path, last: int | None, out: Path | None, data: Path | None = None) -> tuple[Path, list[int]]:
    """Average a run's `last` checkpoints into `out`, by default `run/model`; return that directory and the steps.

    By the recipe also its best checkpoint, and mixed with the start; the shares are tried on the dev sets of `data`.
    """
    if out is not None and out.exists() and out.resolve() != (run / "model").resolve():
        raise OutputError(f"{out} exists already. Choose another --out")
    settings = stored_recipe(run)
    try:
        files: RunFiles | None = read_run(run, data)
    except NmtError as error:
        if data or settings.averaging.with_start:
            raise
        warn(str(error))
        files = None
    corpus = files.corpus if files else None
    while True:
        steps = _steps(run, settings, last)
        try:
            manifests = [checkpoints.check(run, step) for step in steps]
            tensors = mean_of([checkpoints.directory_of(run, step) / checkpoints.MODEL for step in steps])
            break
        except (NmtError, OSError):
            if all(checkpoints.directory_of(run, step).exists() for step in steps):
                raise  # else a run that goes on has removed one
    hashes = [manifest["files"][checkpoints.MODEL]["sha256"] for manifest in manifests]
    about = {key: value for key, value in manifests[-1].items() if key in ("corpus", "seen_tokens")}
    about |= {"steps": steps, "checkpoints": hashes}
    if shares := settings.averaging.with_start:
        begun = load_model(Path(str(settings.training.init_from)))
        about |= {"start": begun.manifest["files"][WEIGHTS]["sha256"], "tried": shares if corpus else []}
        there = (files and files.model) or {}
        same = all(there.get(key) == about[key] for key in ("checkpoints", "start", "tried"))
        if out is None and same:
            say(f"{run / 'model'} is made of these checkpoints already")
            return run / "model", steps
        start = begun.model.state_dict()
        about["with_start"] = _best_share(tensors, start, settings, corpus)
        tensors = mixture(tensors, start, about["with_start"])
    target = out or run / "model"
    save_model(target, tensors, settings, run / TOKENIZER, about)
    say(f"{target} is the mean of {counted(len(steps), 'checkpoint')}, of step {', '.join(map(str, steps))}")
    return target, steps


def _steps(run: Path, settings: schema.Recipe, last: int | None) -> list[int]:
    steps, count = checkpoints.steps_in(run), last or settings.averaging.last
    if settings.averaging.best and last is None and steps:
        best = checkpoints.read_state(run, steps[-1]).best_step
        if best in steps:
            return [best]
        if best:
            warn(f"{run}: the best checkpoint, of step {best}, is missing; the last one is taken")
        elif settings.training.init_from:
            advice = "Lower training.rate_factor, or give more text"
            warn(f"{run}: no checkpoint is better on dev than the start; the last one is taken. {advice}")
        else:
            warn(f"{run}: without validations there is no best checkpoint; the last one is taken")
        return steps[-1:]
    steps = checkpoints.regular(steps, settings.training.checkpoint_every)
    if 0 < len(steps) < count and last is None:
        advice = "More come with more training.steps or a lower training.checkpoint_every"
        there = f"only {counted(len(steps), 'checkpoint')} to average"
        warn(f"averaging.last is {count}, but the run has {there}. {advice}")
    elif len(steps) < count:
        there = f"{counted(len(steps), 'checkpoint')} ({', '.join(map(str, steps)) or 'none'})"
        raise DataError(f"{run} has {there}, not {count}. Train longer, or lower --last")
    return steps[-count:]


def mixture(end: Weights, start: Weights, share: float) -> Weights:
    """Return `share` of the start's weights and the rest of the end's."""
    return {name: tensor.lerp(start[name], share) for name, tensor in end.items()}


def _best_share(end: Weights, start: Weights, settings: schema.Recipe, corpus: Corpus | None) -> float:
    splits = [split for split in ("dev", "general") if corpus and corpus.lines(split)[0]]
    if not corpus or "dev" not in splits:
        warn("there is no dev set to choose averaging.with_start on: nothing of the start is mixed in")
        return 0.0
    model, device = Transformer(settings.model, len(start["embedding.weight"])), choose_device()
    dtype, sets = choose_dtype(settings.training.precision, device), [DevSet(corpus, settings, s) for s in splits]
    whole = settings.model_copy(update={"training": settings.training.model_copy(update={"validate_bleu": LINES})})
    scores = dict[float, list[float]]()
    shares = sorted({*settings.averaging.with_start, 1.0})
    lines = sum(min(LINES, len(each.lines)) for each in sets)
    say(f"translating {counted(lines, 'line')} of {' and '.join(splits)} with {len(shares)} mixtures")
    for share in shares:
        load_into(model, mixture(end, start, share), corpus.directory)
        model.to(device).eval()
        scores[share] = [validate(model, dtype, each, whole)["dev_bleu"] for each in sets]
    chosen = choose_share({s: scores[s] for s in settings.averaging.with_start}, scores[1.0])
    rows = [[f"{share:g}", *(f"{bleu:.2f}" for bleu in bleus)] for share, bleus in scores.items()]
    what = f"BLEU of the first {LINES} lines in {dtype} by the share of the start's weights".replace("torch.", "")
    table(f"{what}; {chosen:g} is taken", ["share", *splits], rows)
    return chosen


def choose_share(scores: dict[float, list[float]], start: list[float]) -> float:
    """Choose by BLEU on dev and general text, of each share and of the start alone.

    It is the best on dev that loses at most MOST_LOST on general text, or the one that loses least; without general
    text the largest share that costs at most MOST_LOST on dev.
    """
    if len(start) == 1:
        best = max(bleu for (bleu,) in scores.values())
        return max(share for share, (bleu,) in scores.items() if bleu >= best - MOST_LOST)
    return max(scores, key=lambda share: (min(0.0, scores[share][1] - start[1] + MOST_LOST), scores[share][0]))
