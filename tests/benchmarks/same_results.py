"""Compare the results of two source trees: weights, corpora, translations, scores, exports, answers, errors, options.

    python tests/benchmarks/same_results.py OLD_TREE NEW_TREE [--only NAME,...] [--corpora DIR] [--work DIR]

Both trees need a compiled engine. The old tree first makes the models that both trees use. Then every check measures
both trees at the same time and prints one line: equal, differs or skipped. Messages may change their words: a change is
printed as “words” and does not count as a difference. The exit code is 1 if a check differs.
"""

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from same import corpora, failures, scoring, serving, surface, training, translation
from same.compare import summary, words
from same.corpora import Skipped
from same.tree import Tree, make_inputs

GROUPS: dict[str, dict[str, Callable[[Tree], object]]] = {
    "options": surface.CHECKS,
    "weights": training.CHECKS,
    "corpora": corpora.CHECKS,
    "translations": translation.CHECKS,
    "scores": scoring.CHECKS,
    "serve": serving.CHECKS,
    "errors": failures.CHECKS,
}


def measure(check: Callable[[Tree], object], tree: Tree) -> object:
    """Return the measurement of a check, or the exception that it raised. Let Skipped pass."""
    try:
        return check(tree)
    except Skipped:
        raise
    except Exception as error:
        return {"the check broke": f"{type(error).__name__}: {str(error)[-400:]}"}


def compare(name: str, check: Callable[[Tree], object], trees: list[Tree], pool: ThreadPoolExecutor) -> str:
    """Run a check on both trees, print its line, and return its outcome."""
    begun = time.monotonic()
    try:
        old, new = pool.map(lambda tree: measure(check, tree), trees)
    except Skipped as reason:
        print(f"skipped  {name}: {reason}", flush=True)
        return "skipped"
    broken = [value for value in (old, new) if isinstance(value, dict) and "the check broke" in value]
    lines = summary(old, new) or [str(value) for value in broken[:1]]
    outcome = "differs" if lines else "equal"
    print(f"{outcome:<8} {name}  ({time.monotonic() - begun:.1f} s)", flush=True)
    for line in lines + words(old, new):
        print(f"         {line}", flush=True)
    return outcome


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("old", type=Path, help="old source tree")
    parser.add_argument("new", type=Path, help="new source tree")
    parser.add_argument("--only", help=f"groups to run, separated by commas: {', '.join(GROUPS)}")
    parser.add_argument("--match", default="", help="run only the checks whose names contain this text")
    default = os.environ.get("NMT_CORPORA")
    parser.add_argument(
        "--corpora", type=Path, default=default, help="directory with real text [default: $NMT_CORPORA]"
    )
    parser.add_argument("--work", type=Path, help="folder to keep; inputs in it are reused [default: temporary]")
    given = parser.parse_args()
    chosen = given.only.split(",") if given.only else list(GROUPS)
    if unknown := set(chosen) - set(GROUPS):
        parser.error(f"no group {', '.join(sorted(unknown))}; the groups are {', '.join(GROUPS)}")
    work = given.work or Path(tempfile.mkdtemp(prefix="same-results-"))
    try:
        outcomes = run_all(given, chosen, work.resolve())
    finally:
        if not given.work:
            shutil.rmtree(work, ignore_errors=True)
    counts = ", ".join(f"{outcomes.count(outcome)} {outcome}" for outcome in ("equal", "differs", "skipped"))
    print(f"{len(outcomes)} checks: {counts}")
    sys.exit("differs" in outcomes)


def run_all(given: argparse.Namespace, chosen: list[str], work: Path) -> list[str]:
    """Make the inputs, unless `--work` holds them, and run the chosen checks."""
    trees = [Tree(name, path.resolve(), work / name) for name, path in (("old", given.old), ("new", given.new))]
    begun = time.monotonic()
    if not (work / "inputs").exists():
        make_inputs(work / "inputs", trees[0], given.corpora)
        training.begin_run(Tree("inputs", trees[0].source, work / "inputs"))
    for tree in trees:
        shutil.rmtree(tree.folder, ignore_errors=True)
        tree.folder.mkdir()
    print(f"inputs made by the old tree  ({time.monotonic() - begun:.1f} s)", flush=True)
    outcomes = []
    with ThreadPoolExecutor(2) as pool:
        for group in chosen:
            for name, check in GROUPS[group].items():
                if given.match in name:
                    outcomes.append(compare(f"{group}: {name}", check, trees, pool))
    print(f"{time.monotonic() - begun:.0f} s in total")
    return outcomes


if __name__ == "__main__":
    main()
