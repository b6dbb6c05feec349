"""Score parses: the report of `nmt score --metric brackets`."""

import contextlib
from dataclasses import replace
from typing import Any

from nmt_cli.corpus.near_duplicates import LABELS
from nmt_cli.parsing.brackets import SIGNATURE, compare, corpus_brackets
from nmt_cli.parsing.trees import bracketed, read_trees
from nmt_cli.scoring.metrics import Score
from nmt_cli.scoring.score import Hypotheses, ScoreOptions, finish, read_inputs
from nmt_cli.scoring.score_report import Report
from nmt_cli.storage import artefact
from nmt_cli.system.errors import DataError, UsageError

COMPARE_WITH = "F1 by evalb with COLLINS.prm on the same trees. 'Attention Is All You Need' reports 91.3 (trained on "
COMPARE_WITH += (
    "the WSJ only) and 92.7 (semi-supervised) for section 23 of the WSJ. If an output is not a tree, or if its number "
    "of words differs from the gold tree, it misses all gold brackets"
)


def wanted(options: ScoreOptions) -> bool:
    """Return whether --metric names brackets. Without --metric, return whether --corpus contains trees."""
    if options.metrics or options.corpus is None or not artefact.present(options.corpus):
        return "brackets" in options.metrics
    return artefact.read_json(options.corpus / artefact.MANIFEST).get("tgt") == LABELS


def evaluate(options: ScoreOptions, hypotheses: Hypotheses = None) -> Report:
    """Score trees, as `scoring.score.evaluate` scores text."""
    if set(options.metrics) - {"brackets"} or options.baseline or len(options.references) > 1:
        raise UsageError("--metric brackets takes one --reference, no --baseline and no other --metric")
    if options.robust:
        raise UsageError("--robust damages text, not trees. Leave out the option")
    report = read_inputs(options, hypotheses, _linearize)
    lines, gold = report.hypotheses.lines, report.references[0].lines
    counts = corpus_brackets(lines, gold)
    precision, recall, f1 = counts.scores()
    complete = 100 * counts.complete / counts.sentences
    details = {"precision": precision, "recall": recall, "complete_match": complete, **counts._asdict()}
    verbose = ", ".join(f"{name.replace('_', ' ')}={round(value, 2)}" for name, value in details.items())
    report.scores.append(Score("brackets", "bracket F1", f1, SIGNATURE, details, COMPARE_WITH, verbose))
    words = report.source.lines if report.source else [""] * len(gold)

    def segment_details(i: int) -> dict[str, Any]:
        tree = None
        # There is no tree if the words are unknown, or if the labels do not form a tree over them.
        with contextlib.suppress(ValueError):
            tree = bracketed(words[i].split(" ") if words[i] else [], lines[i].split())
        return {"brackets": compare(lines[i], gold[i])._asdict(), "tree": tree}

    finish(report, options, segment_details)
    return report


def _linearize(report: Report) -> None:
    """Convert a bracketed reference to lines of labels, as `nmt prepare` does.

    If the report has no source, use the words of this reference as the source.
    """
    report.language = "trees"
    gold = report.references[0]
    if "".join(report.hypotheses.lines).lstrip().startswith("("):
        raise DataError(
            f"{report.hypotheses.name} contains bracketed trees. Pass lines of labels, as nmt translate writes them"
        )
    if "".join(gold.lines).lstrip().startswith("("):
        sentences = list(read_trees((line.encode() for line in gold.lines), gold.name))
        report.references = [replace(gold, lines=[" ".join(labels) for _, labels in sentences])]
        report.source = report.source or replace(gold, lines=[" ".join(words) for words, _ in sentences])
