"""Checks of scores and their signatures, of exports and imports, and of `nmt doctor`, `attend` and `report`."""

import json
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

from same import digests
from same.corpora import TREES
from same.tree import INPUTS, MODEL, TOY, Tree, read_lines

PROSE = {"compare_with", "what", "do", "description", "title", "versions"}  # fields of JSON that are not compared
NUMBERS = r"[-+]?\d+(?:[.,]\d+)*|\w+:[^\s|]+(?:\|\w+:[^\s|]+)+"  # in text: numbers, and signatures

REFERENCE = ["--reference", "test.tgt"]
SCORES: dict[str, list[object]] = {
    "defaults": REFERENCE,
    "two references": [*REFERENCE, "--reference", "other.tgt"],
    "every metric": [*REFERENCE, "--language", "de", *(word for name in ("bleu", "chrf", "chrf++", "ter", "paper-bleu",
                     "paper-bleu-quotes") for word in ("--metric", name))],
    "--no-intervals": [*REFERENCE, "--no-intervals"],
    "--lowercase": [*REFERENCE, "--lowercase"],
    "--language zh": [*REFERENCE, "--language", "zh"],
    **{f"--tokenize {name}": [*REFERENCE, "--tokenize", name, "--no-intervals"] for name in ("intl", "char", "none")},
    "--corpus --details": ["--corpus", TOY, "--details"],
    "--split dev": ["--corpus", TOY, "--split", "dev"],
    "--baseline": [*REFERENCE, "--baseline", "worse.hyp"],
    "--baseline, two metrics": [*REFERENCE, "--baseline", "worse.hyp", "--metric", "chrf", "--metric", "ter"],
    "--terms": [*REFERENCE, "--terms", INPUTS / "terms", "--source", "test.src"],
    "--segments": [*REFERENCE, "--segments", "segments.jsonl", "--metric", "bleu", "--metric", "chrf"],
    "--fail-under 10": [*REFERENCE, "--fail-under", 10],
    "--fail-under 99": [*REFERENCE, "--fail-under", 99],
    "--fail-if-worse": [*REFERENCE, "--baseline", "test.tgt", "--fail-if-worse"],
}  # fmt: skip


def make_files(tree: Tree) -> None:
    """Write sources, references, and hypotheses made from the references."""
    references = read_lines(tree.folder / TOY / "test.tgt")
    worse = [" ".join(line.split()[: 3 + i % 5]) for i, line in enumerate(references)]
    changed = [" ".join(["Der", *line.split()[1:-1], "nicht", "mehr!"]) for line in references]
    hypotheses = [(line, changed[i], worse[i], "" if i % 30 else line)[i % 4] for i, line in enumerate(references)]
    files = {
        "test.tgt": references,
        "worse.hyp": worse,
        "test.hyp": hypotheses,
        "other.tgt": references[1:] + references[:1],
    }
    files["test.src"] = read_lines(tree.folder / TOY / "test.src")
    files["lines8"] = files["test.src"][:8]
    for name, lines in files.items():
        (tree.folder / name).write_text("".join(f"{line}\n" for line in lines), "utf-8")


def score(tree: Tree, options: list[object]) -> object:
    """Return the exit code, the report as JSON, and the scores of segments if the options ask for them."""
    make_files(tree)
    done = tree.nmt("score", "test.hyp", *options, "--format", "json")
    found: dict[str, object] = {"exit code": done.code}
    if done.stdout:
        found["json"] = digests.without(json.loads(done.stdout), PROSE)
    segments = tree.folder / "segments.jsonl"
    if "--segments" in options:
        found["segments"] = segments.read_text("utf-8").split("\n")
    return found


def score_formats(tree: Tree) -> object:
    """Return the numbers and signatures in the text report and in the Markdown report, and the text report itself."""
    make_files(tree)
    command = [
        "score",
        "test.hyp",
        *REFERENCE,
        "--baseline",
        "worse.hyp",
        "--source",
        "test.src",
        "--details",
        "--format",
    ]
    texts = {name: tree.nmt(*command, name).stdout for name in ("text", "markdown")}
    return {name: re.findall(NUMBERS, text) for name, text in texts.items()} | {"words": texts["text"]}


def score_model(tree: Tree) -> object:
    """Translate with a model and score."""
    done = tree.nmt("score", "--model", MODEL, "--corpus", TOY, "--format", "json", "--no-intervals")
    return digests.without(json.loads(done.stdout), PROSE) if not done.code else {"exit code": done.code}


def score_brackets(tree: Tree) -> object:
    """Score parses, some of them wrong."""
    labels = "S NP DT NN /NP VP VBD NP DT NN /NP /VP . /S"
    (tree.folder / "gold.mrg").write_text("\n".join(TREES) + "\n")
    parses = [labels, labels.replace("NP DT", "PP DT"), "S /S"] * 5
    (tree.folder / "parses").write_text("".join(f"{line}\n" for line in parses))
    done = tree.nmt("score", "parses", "--reference", "gold.mrg", "--metric", "brackets", "--format", "json")
    return {"exit code": done.code, "json": digests.without(json.loads(done.stdout or "{}"), PROSE)}


def file_digests(folder: Path) -> dict[str, object]:
    """Return digests of an exported directory's files, except its descriptions, whose version numbers may differ."""
    descriptions = {"README.md", "manifest.json", "recipe.yaml"}
    found: dict[str, object] = {}
    for file in sorted(folder.rglob("*")):
        if file.suffix == ".safetensors":
            found[file.name] = digests.tensors(file)
        elif file.is_file() and file.name not in descriptions:
            found[file.name] = digests.sha256(file.read_bytes())
    return found


def exported(tree: Tree, out: str, *options: object) -> object:
    make_files(tree)
    done = tree.nmt("export", MODEL, *options, "--out", f"exports/{out}", "--lines", "lines8")
    if done.code:
        raise RuntimeError(f"export exited with status {done.code}: {done.stderr[-300:]}")
    return {"files": file_digests(tree.folder / "exports" / out), "words": done.stderr[-500:]}


def hf_and_back(tree: Tree) -> object:
    """Export to transformers, import the export, and translate with it."""
    there = exported(tree, "hf", "--to", "hf")
    return {"there": there, "back": imported(tree, Path("exports/hf"), "back")}


def imported(tree: Tree, source: Path, name: str) -> object:
    tree.must("import", source, "--out", f"models/{name}")
    translated = tree.nmt("translate", "--model", f"models/{name}", "-i", INPUTS / "few", "--format", "jsonl")
    return {"model": digests.model(tree.folder / f"models/{name}"), **translated.result}  # fmt: skip


def doctor(tree: Tree) -> object:
    done = tree.nmt("doctor", INPUTS / "runs/toy", "--data", TOY, "--json")
    return digests.without(json.loads(done.stdout), PROSE)


def page_data(page: Path) -> object:
    """Return the JSON data that is embedded in a page for its script."""
    return json.loads(page.read_text("utf-8").partition('id="data">')[2].partition("</script>")[0])


def attention(tree: Tree) -> object:
    done = tree.nmt("attend", "--model", MODEL, "The dog was tired.", "Why was she tired?", "-o", "attention.html")
    return {"exit code": done.code, "data": page_data(tree.folder / "attention.html")}


def report(tree: Tree) -> object:
    done = tree.nmt("report", INPUTS / "runs/toy", "--data", TOY, "--out", "report.html")
    page = (tree.folder / "report.html").read_text("utf-8")
    numbers = re.findall(r"(?<![\w.])\d+\.\d+", page)  # no whole numbers: styles and prose contain them, too
    return {"exit code": done.code, "numbers": sorted(set(numbers))}


CHECKS: dict[str, Callable[[Tree], object]] = {
    **{name: partial(score, options=options) for name, options in SCORES.items()},
    "text and markdown": score_formats,
    "--model": score_model,
    "--metric brackets": score_brackets,
    "export to transformers, and back": hf_and_back,
    "import of Marian's files, post-norm": lambda tree: imported(tree, INPUTS / "marian/post", "post"),
    "import of Marian's files, pre-norm": lambda tree: imported(tree, INPUTS / "marian/pre", "pre"),
    **{f"export to CTranslate2, {kind}": (lambda tree, kind=kind: exported(
        tree, f"ct2-{kind}", "--to", "ctranslate2", "--quantization", kind))
        for kind in ("float32", "bfloat16", "int8")},
    "doctor --json": doctor,
    "attend": attention,
    "report": report,
}  # fmt: skip
