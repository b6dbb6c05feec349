"""Print a table that compares the models trained with and without synthetic text, and the teacher."""

import time
from dataclasses import dataclass, replace
from pathlib import Path

from nmt_cli.recipe import loading, schema
from nmt_cli.reproduction.held_out import translate_held_out
from nmt_cli.scoring.score import ScoreOptions, Scorer
from nmt_cli.storage import artefact
from nmt_cli.system.console import say, table
from nmt_cli.training.run import RunFiles
from nmt_cli.translation.translator import Translator

TIMED_LINES = 500
REPEATS = 3


@dataclass(frozen=True)
class _Candidate:
    """A column of the table.

    `run` contains the decoding settings of the model, and the directory for its translations.
    """

    name: str
    run: RunFiles
    model: Path


def compare_models(run: RunFiles, baseline: RunFiles, score: Scorer) -> None:
    """Print a table of the scores, sizes and speeds of both runs' models.

    If the synthetic text was distilled and the test set has one language pair, add the teacher. Print no table if there
    is no test set.
    """
    assert run.corpus
    candidates = [_Candidate("with", run, run.directory / "model")]
    candidates.append(_Candidate("without", baseline, baseline.directory / "model"))
    synthetic = run.settings.corpus.synthetic[0]
    one_pair = not run.corpus.lines_by_pair("test")
    if synthetic.side == "src" and one_pair:  # the text was distilled, and `synthetic.model` is the teacher
        candidates.insert(0, _teacher(run, Path(str(synthetic.model))))
    sources = run.corpus.lines("test")[0]
    beam = run.settings.decoding.beam
    if not sources:
        return say("There is no test set, so the models are not compared")
    columns = []
    for candidate in candidates:
        lines = translate_held_out(candidate.run, candidate.model)["test"]
        options = ScoreOptions(corpus=run.corpus.directory, split="test", metrics=("bleu", "chrf"))
        scores = [each.shown() for each in score(options, lines).scores]
        megabytes = (candidate.model / "model.safetensors").stat().st_size / 1e6
        words, milliseconds = measure_speed(candidate.model, sources[:TIMED_LINES], run.settings.decoding)
        columns.append([*scores, f"{megabytes:.2f}", f"{megabytes / 4:.2f}", f"{words:,.0f}", f"{milliseconds:.1f}"])
    labels = ["test BLEU", "test chrF", "megabytes, float32", "megabytes, 8 bits"]
    labels += [f"source words per second, one core, beam {beam}", f"milliseconds for a single line, beam {beam}"]
    rows = [list(row) for row in zip(labels, *columns, strict=True)]
    title = f"{run.settings.name}: with and without synthetic text"
    table(title, ["", *(candidate.name for candidate in candidates)], rows)


def _teacher(run: RunFiles, model: Path) -> _Candidate:
    """Return the model that translated the training text. It is scored with its own decoding settings."""
    model = model if artefact.present(model) else model / "model"
    manifest = artefact.verify(model, "model", content=False)
    decoding = loading.load_stored(model / "recipe.yaml").decoding
    settings = run.settings.model_copy(update={"decoding": decoding})
    files = replace(run, directory=run.directory / "teacher", settings=settings, model=manifest)
    return _Candidate(f"teacher (scored with beam {decoding.beam})", files, model)


def measure_speed(model: Path, lines: list[str], decoding: schema.Decoding) -> tuple[float, float]:
    """Return the source words per second for all lines together, and the mean milliseconds for a line translated alone.

    One worker translates. The second figure uses the first 20 lines.

    Each time is the shortest of several runs, because other work on the machine can only make a run longer.
    """
    options = decoding.model_dump(exclude={"target_prefix"})
    single_lines = lines[:20]
    with Translator(model, workers=1) as translator:

        def seconds(texts: list[str]) -> float:
            start = time.perf_counter()
            list(translator.translate(texts, **options))
            return time.perf_counter() - start

        total = min(seconds(lines) for _ in range(REPEATS))
        alone = sum(min(seconds([line]) for _ in range(REPEATS)) for line in single_lines)
    return sum(len(line.split()) for line in lines) / total, 1000 * alone / len(single_lines)
