"""The command `nmt average-checkpoints`: average the weights of the last checkpoints (section 6.1 of "Attention Is All
You Need").

After fine-tuning, the command can also mix this average with the start, the model that training started from. The
mixture keeps more of the start's abilities (Wortsman et al. 2022, "Robust fine-tuning of zero-shot models").
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
LINES = 500  # each mixture translates at most this many lines of dev and of general text
MAX_BLEU_LOSS = 0.5  # in points; see `choose_share`


def mean_of(paths: list[Path]) -> Weights:
    """Return the mean of the weights in several files. Read one tensor at a time to save memory."""
    sums: dict[str, Tensor] = {}
    for path in sorted(paths):  # in a fixed order, because rounding depends on it
        for name, tensor in read_tensors(path):
            sums[name] = sums[name].add_(tensor) if name in sums else tensor.double()
    return {name: sums.pop(name).div_(len(paths)).float() for name in list(sums)}


def average(run: Path, last: int | None, out: Path | None, data: Path | None = None) -> tuple[Path, list[int]]:
    """Average the newest `last` checkpoints of a run into `out` (default: run/model). Return the path and the steps.

    If `last` is None, use averaging.last or, if averaging.best is set, only the best checkpoint. If
    averaging.with_start is set, mix in the start, in the share that `best_share` chooses. `data` is the corpus
    directory (default: as in `read_run`).
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
        steps = steps_to_average(run, settings, last)
        try:
            manifests = [checkpoints.check(run, step) for step in steps]
            tensors = mean_of([checkpoints.directory_of(run, step) / checkpoints.MODEL for step in steps])
            break
        except (NmtError, OSError):
            # If training has just removed a checkpoint, choose checkpoints again.
            if all(checkpoints.directory_of(run, step).exists() for step in steps):
                raise
    hashes = [each["files"][checkpoints.MODEL]["sha256"] for each in manifests]
    manifest = {key: value for key, value in manifests[-1].items() if key in ("corpus", "seen_tokens")}
    manifest |= {"steps": steps, "checkpoints": hashes}
    if shares := settings.averaging.with_start:
        started_from = load_model(Path(str(settings.training.init_from)))
        manifest |= {"start": started_from.manifest["files"][WEIGHTS]["sha256"], "tried": shares if corpus else []}
        present = (files and files.model) or {}
        same = all(present.get(key) == manifest[key] for key in ("checkpoints", "start", "tried"))
        if out is None and same:
            say(f"{run / 'model'} was already made from these checkpoints")
            return run / "model", steps
        start = started_from.model.state_dict()
        manifest["with_start"] = best_share(tensors, start, settings, corpus)
        tensors = mixture(tensors, start, manifest["with_start"])
    target = out or run / "model"
    save_model(target, tensors, settings, run / TOKENIZER, manifest)
    say(f"{target} is the mean of {counted(len(steps), 'checkpoint')} (step {', '.join(map(str, steps))})")
    return target, steps


def steps_to_average(run: Path, settings: schema.Recipe, last: int | None) -> list[int]:
    """Return the steps of the checkpoints to average. If averaging.best is set and `last` is None, return one step.

    Raise DataError if there are no checkpoints, or fewer than `last`.
    """
    steps, count = checkpoints.steps_in(run), last or settings.averaging.last
    if settings.averaging.best and last is None and steps:
        best = checkpoints.read_state(run, steps[-1]).best_step
        if best in steps:
            return [best]
        if best:
            warn(f"{run}: the best checkpoint, step {best}, is missing; using the last one")
        elif settings.training.init_from:
            advice = "Lower training.rate_factor, or train on more text"
            warn(f"{run}: no checkpoint is better on dev than the initial model; using the last one. {advice}")
        else:
            warn(f"{run}: without validations there is no best checkpoint; using the last one")
        return steps[-1:]
    steps = checkpoints.regular(steps, settings.training.checkpoint_every)
    if 0 < len(steps) < count and last is None:
        advice = "Raise training.steps or lower training.checkpoint_every for more"
        found = f"only {counted(len(steps), 'checkpoint')} to average"
        warn(f"averaging.last is {count}, but the run has {found}. {advice}")
    elif len(steps) < count:
        found = f"{counted(len(steps), 'checkpoint')} ({', '.join(map(str, steps)) or 'none'})"
        raise DataError(f"{run} has {found}, not {count}. Train longer, or lower --last")
    return steps[-count:]


def mixture(end: Weights, start: Weights, share: float) -> Weights:
    """Interpolate between weights. `share` is the share of `start`: 0 returns `end`, and 1 returns `start`."""
    return {name: tensor.lerp(start[name], share) for name, tensor in end.items()}


def best_share(end: Weights, start: Weights, settings: schema.Recipe, corpus: Corpus | None) -> float:
    """Translate dev and general text with each mixture. Return the share of the start that `choose_share` chooses.

    Without a corpus or its dev set, print a warning and return 0.
    """
    splits = [split for split in ("dev", "general") if corpus and corpus.lines(split)[0]]
    if not corpus or "dev" not in splits:
        warn("without a dev set, no share of averaging.with_start can be chosen, so the initial model is not mixed in")
        return 0.0
    model = Transformer(settings.model, len(start["embedding.weight"]))
    device = choose_device()
    dtype = choose_dtype(settings.training.precision, device)
    sets = [DevSet(corpus, settings, split) for split in splits]
    with_bleu = settings.model_copy(update={"training": settings.training.model_copy(update={"validate_bleu": LINES})})
    scores = dict[float, list[float]]()
    shares = sorted({*settings.averaging.with_start, 1.0})
    lines = sum(min(LINES, len(each.lines)) for each in sets)
    say(f"translating {counted(lines, 'line')} of {' and '.join(splits)} with {len(shares)} mixtures")
    for share in shares:
        load_into(model, mixture(end, start, share), corpus.directory)
        model.to(device).eval()
        scores[share] = [validate(model, dtype, each, with_bleu)["dev_bleu"] for each in sets]
    chosen = choose_share({s: scores[s] for s in settings.averaging.with_start}, scores[1.0])
    rows = [[f"{share:g}", *(f"{bleu:.2f}" for bleu in bleus)] for share, bleus in scores.items()]
    title = f"BLEU of the first {LINES} lines in {dtype}, by share of the initial weights".replace("torch.", "")
    table(f"{title}; chosen: {chosen:g}", ["share", *splits], rows)
    return chosen


def choose_share(scores: dict[float, list[float]], start: list[float]) -> float:
    """Choose the share of the start in the mixture.

    `scores` maps each share to its mixture's BLEU on dev and, if there is any, general text. `start` is the start's
    BLEU on the same sets. Return the best share on dev among those whose mixture is at most MAX_BLEU_LOSS below the
    start on general text. If all lose more, return the share that loses least. Without general text, return the
    largest share whose dev BLEU is at most MAX_BLEU_LOSS below the best.
    """
    if len(start) == 1:
        best = max(bleu for (bleu,) in scores.values())
        return max(share for share, (bleu,) in scores.items() if bleu >= best - MAX_BLEU_LOSS)
    return max(scores, key=lambda share: (min(0.0, scores[share][1] - start[1] + MAX_BLEU_LOSS), scores[share][0]))
