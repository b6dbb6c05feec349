"""A source tree, its commands in subprocesses, and the inputs that both trees share."""

import os
import random
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

TIMEOUT = 600  # seconds per command
NOT_INHERITED = ("NMT_", "OMP_", "HF_", "ACCELERATE_")  # prefixes of variables that would change results


@dataclass(frozen=True)
class Finished:
    """A command that ended."""

    code: int
    stdout: str
    stderr: str

    @property
    def result(self) -> dict[str, object]:
        """The exit code and the lines on stdout; after a failure, also the last line of stderr."""
        result: dict[str, object] = {"exit code": self.code, "stdout": self.stdout.split("\n")}
        if self.code:
            result["stderr"] = self.stderr.strip().split("\n")[-1]
        return result


@dataclass(frozen=True)
class Tree:
    """A source tree and the folder in which its commands run. Both trees reach the inputs as `../inputs`."""

    name: str
    source: Path
    folder: Path

    def environment(self, changes: Mapping[str, str]) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(NOT_INHERITED)}
        fixed = {"PYTHONPATH": str(self.source), "COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb", "TZ": "UTC"}
        return {**kept, **fixed, "HF_HUB_OFFLINE": "1", "HF_HOME": str(self.folder / "hub"), **changes}

    def python(
        self, *arguments: object, stdin: str | bytes = b"", env: Mapping[str, str] | None = None, at: str = "."
    ) -> Finished:
        """Run Python with this tree on its path; `at` is a folder below the tree's own."""
        folder = self.folder / at
        folder.mkdir(parents=True, exist_ok=True)
        done = subprocess.run(
            [sys.executable, *map(str, arguments)],
            input=stdin.encode("utf-8", "surrogateescape") if isinstance(stdin, str) else stdin,
            env=self.environment(env or {}),
            cwd=folder,
            capture_output=True,
            timeout=TIMEOUT,
            check=False,
        )
        return Finished(done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace"))

    def nmt(self, *arguments: object, stdin: str | bytes = b"", env: Mapping[str, str] | None = None) -> Finished:
        return self.python("-m", "nmt_cli", *arguments, stdin=stdin, env=env)

    def must(self, *arguments: object) -> Finished:
        """Run `nmt`; raise RuntimeError if it fails."""
        done = self.nmt(*arguments)
        if done.code:
            raise RuntimeError(
                f"{self.name}: nmt {' '.join(map(str, arguments))} ended with {done.code}\n{done.stderr}"
            )
        return done

    def recipe(self, name: str) -> Path:
        return self.source / "recipes" / f"{name}.yaml"


def settings(*changes: str) -> list[str]:
    """Return the options that change these settings of a recipe."""
    return [word for change in changes for word in ("--set", change)]


INPUTS = Path("../inputs")
MODEL, OTHER_MODEL, REVERSE_MODEL = INPUTS / "runs/toy/model", INPUTS / "other", INPUTS / "runs/reverse/model"
TOY, TOY_REVERSE = INPUTS / "data/toy-en-de", INPUTS / "data/toy-de-en"
LINES, FEW, PREFIXES, PAIRS, TERMS = (INPUTS / name for name in ("lines", "few", "prefixes", "pairs", "terms"))
CORPORA = INPUTS / "corpora"  # a link to --corpora
SHORT = ["training.cooldown_steps=220", "training.validate_bleu=50"]


def make_inputs(folder: Path, old: Tree, corpora: Path | None) -> None:
    """Write the texts, and let the old tree prepare the toy corpora and train the models that both trees use."""
    maker = Tree("inputs", old.source, folder)
    folder.mkdir(parents=True)
    if corpora:
        (folder / "corpora").symlink_to(corpora.resolve())
    shutil.copytree(old.source / "tests/data/marian", folder / "marian")
    for name, run, steps, tokens in (("toy-en-de", "runs/toy", 300, 1000), ("toy-de-en", "runs/reverse", 60, 900)):
        data = f"data/{name}"
        sizes = settings(f"corpus.tokenizer.vocabulary_size={tokens}")
        changes = settings(f"corpus.name={name}", f"training.steps={steps}", *SHORT)
        maker.must("prepare", name, "--out", data, "-q", *sizes)
        maker.must("train", maker.recipe("toy"), "--data", data, "--run-dir", run, "-q", *changes, *sizes)
        maker.must("average-checkpoints", run, "--data", data, "--last", 2)
    maker.must("average-checkpoints", "runs/toy", "--data", "data/toy-en-de", "--last", 1, "--out", "other")
    write_texts(folder)


NASTY = [
    "", " ", "\t", "   \u00a0  ", "\u200b", "3.14", "12:30 - 13:45", "...", "?!", "\u20ac 5", "- - -", "\u2028", "a",
    "I", ".a.", "The dog \U0001f600 was tired.", "\U0001f468\u200d\U0001f469\u200d\U0001f467",
    "\U0001f1e9\U0001f1ea \U0001f600!", "<b>The dog</b> was tired.", "<b>The <i>old</b> dog</i>", "<br/>",
    "</p>", "a < b & c > d", "&lt;b&gt; &amp; &#39;",
    "<a href=\"http://example.org/?a=1&b=2\">The dog</a> did not cross the street.", "<!-- a comment --> The dog",
    "Mail me@example.org, or see https://example.org/a_(b)?c=d#e.", "%s of %d dogs were {tired} and %(wide)s, $HOME.",
    "{{ name }} was tired {count, plural, one {# dog} other {# dogs}}", "`code` and **bold** and [link](target)",
    "\u6771\u4eac\u306f\u65e5\u672c\u306e\u9996\u90fd\u3067\u3059\u3002",
    "\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440", "\u0645\u0631\u062d\u0628\u0627",
    "e\u0301 \u00e9 \u1e9e \u00df \u0130 \ufb01", "\u202eright to left\u202c", "\ufeffThe dog", "A\u00adB",
    ">>de<< The dog was tired.", "<unk> </s> <s> <pad>", "\u2581The\u2581dog", "THE DOG WAS TIRED.",
    "the dog was tired", "The  dog   was    tired .", "Why?Why?Why?",
    "Dr. Smith was tired. So was Mr. Jones! Was he? Yes...", "The dog\rwas tired.", "The dog\u000bwas\ftired.",
    "\u0000", "\u001b[31mred\u001b[0m", "x" * 3000, "ha " * 700, "The dog was tired. " * 60, "why " * 300 + "?",
    "a.b." * 200,
]  # fmt: skip


TERM_LINES = [
    "dog\tKöter|Hund",
    "street\tGasse\tany",
    "animal\tBiest|Vieh",
    "tired\tmüde\tany",
    "the forest\tden Wald|der Wald",
]


def write_texts(folder: Path) -> None:
    """Write 2,000 lines (toy text, shuffled words, pairs of sentences, nasty lines) and the files that options name."""
    toy = [line for split in ("dev", "test") for line in read_lines(folder / f"data/toy-en-de/{split}.src")]
    target = [line for split in ("dev", "test") for line in read_lines(folder / f"data/toy-en-de/{split}.tgt")]
    draw = random.Random(1)
    words = sorted({word for line in toy for word in line.split()})
    lines = toy + [f"{draw.choice(toy)} {draw.choice(toy)}" for _ in range(500)]
    lines += [" ".join(draw.choices(words, k=draw.randint(1, 30))) for _ in range(300)]
    lines += [draw.choice(NASTY[15:48]) + " " + draw.choice(toy) for _ in range(200 - len(NASTY))] + NASTY
    draw.shuffle(lines)
    few = [*NASTY, *lines[:150]]
    prefixes = [" ".join(draw.choice(target).split()[: draw.randrange(4)]) for _ in lines]
    texts = {
        "lines": lines,
        "few": few,
        "prefixes": prefixes,
        "pairs": target + [draw.choice(target) for _ in range(1000)],
        "pair-sources": toy + [draw.choice(toy) for _ in range(1000)],
        "terms": TERM_LINES,
    }
    for name, content in texts.items():
        (folder / name).write_bytes("".join(f"{line}\n" for line in content).encode("utf-8", "surrogateescape"))


def read_lines(file: Path) -> list[str]:
    return file.read_text("utf-8").removesuffix("\n").split("\n")
