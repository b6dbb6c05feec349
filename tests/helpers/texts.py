"""Made-up parallel text for tests: enough like language to train a tokenizer on."""

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from nmt_cli.corpus import bitext
from nmt_cli.corpus.prepare import PrepareOptions, prepare
from nmt_cli.recipe import loading, schema

ROOT = Path(__file__).parents[2]
EN = "the a small big old green house tree dog bird sees finds likes sleeps near under and is with this".split()  # noqa: SIM905
DE = "das ein kleine große alte grüne haus baum hund vogel sieht findet mag schläft bei unter und ist mit dies".split()  # noqa: SIM905


def pairs(count: int, seed: int = 0) -> list[tuple[str, str]]:
    """Return distinct pairs, translated word by word."""
    rng = random.Random(seed)
    made: dict[str, str] = {}
    while len(made) < count:
        words = [rng.randrange(len(EN)) for _ in range(rng.randint(3, 14))]
        number = rng.randrange(10_000)
        made[" ".join([EN[i] for i in words] + [str(number)])] = " ".join([DE[i] for i in words] + [str(number)])
    return list(made.items())


# A tree of this grammar depends on all words together, not on each alone: "saw" is a noun or a verb, "of" and "that"
# attach to the noun before them, "with" to the verb of its clause. Labels end before an underscore.
GRAMMAR = """S: NP VP ._; NP: DT NN|DT NN|PRP|DT JJ NN|NP_1 PP_of|NP_1 SBAR_who; NP_1: DT NN|DT JJ NN|PRP;
    PP_of: IN_of NP_of; NP_of: DT NN|DT NN|PRP|NP_1 PP_of; SBAR_who: IN_that VP_1; VP_1: VBD NP_of;
    VP: VBD|VBD NP|VBD NP|VBD NP PP_with|VBP SBAR_say; PP_with: IN_with NP; SBAR_say: IN_that S_1; S_1: NP VP;
    IN_of: of; IN_that: that; IN_with: with; ._: .; DT: the|a|every; PRP: he|she|they; JJ: small|old|green;
    NN: saw|dog|bird|house|tree|duck; VBD: saw|liked|found|duck; VBP: say|think|know"""


def trees(count: int, seed: int) -> list[str]:
    """Return bracketed trees of different sentences of 4 to 11 words."""
    rules = {name.strip(): right.split("|") for name, _, right in (rule.partition(":") for rule in GRAMMAR.split(";"))}
    draw, made = random.Random(seed), dict[str, str]()

    def grow(symbol: str) -> tuple[str, str]:
        if symbol not in rules:
            return symbol, symbol
        words, grown = zip(*(grow(part) for part in draw.choice(rules[symbol]).split()), strict=True)
        return " ".join(words), f"({symbol.partition('_')[0]} {' '.join(grown)})"

    while len(made) < count:
        words, tree = grow("S")
        if 4 <= len(words.split()) <= 11:
            made[words] = f"( {tree} )"
    return list(made.values())


def write(path: Path, lines: Iterable[str | bytes]) -> Path:
    """Write lines, each ended by a line feed."""
    path.write_bytes(b"".join((line if isinstance(line, bytes) else line.encode()) + b"\n" for line in lines))
    return path


def own(folder: Path, text: list[tuple[Any, Any]], **more: Any) -> schema.Corpus:
    """Write training pairs and return the corpus section that names them, with the settings `more` added."""
    folder.mkdir(exist_ok=True)
    plain: dict[str, Any] = {
        "name": "own",
        "train_src": [str(write(folder / "train.en", (src for src, _ in text)))],
        "train_tgt": [str(write(folder / "train.de", (tgt for _, tgt in text)))],
        "tokenizer": {"vocabulary_size": "400"},
    }
    return corpus({**plain, **more})


def corpus(plain: dict[str, Any]) -> schema.Corpus:
    """Return a corpus section made of plain values."""
    return loading.from_plain({"corpus": plain}, "test").corpus


def run(section: schema.Corpus, out: Path, **options: Any) -> Path:
    """Prepare a corpus in this process; return its directory."""
    return prepare(section, out, PrepareOptions(**{"workers": 1, **options}))


def python(*words: object, timeout: float = 100, **env: str) -> "subprocess.CompletedProcess[str]":
    """Run another Python process, which can import the test helpers and the package."""
    env = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests' / 'helpers'}", **env}
    return subprocess.run([sys.executable, *map(str, words)], env=env, capture_output=True, text=True, timeout=timeout)


COMMANDS = """
import json, sys
from nmt_cli import __main__

codes = []
for words in json.loads(sys.argv[1]):
    sys.argv = ["nmt", *words]
    codes.append(__main__._exit_code(__main__._command))
print()
print(codes)
"""


def commands(*lines: list[Any], **env: str) -> tuple[list[int], str]:
    """Run nmt commands in one other process, which imports libraries only once; return the exit codes and stderr."""
    done = python("-c", COMMANDS, json.dumps([[*map(str, words)] for words in lines]), timeout=280, **env)
    assert "Traceback" not in done.stderr, done.stderr
    return json.loads(done.stdout.split("\n")[-2]), done.stderr


def bitext_section(*entries: dict[str, Any], **more: Any) -> schema.Corpus:
    """Return a corpus section from English to German with these entries of corpus.sources."""
    return corpus({"name": "own", "src": "en", "tgt": "de", "sources": list(entries), **more})


def bitext_rows(path: Path, data: bytes, **entry: Any) -> list[tuple[bytes | None, bytes | None, float | None]]:
    """Write a file and return the source, the target and the score of each pair read from it."""
    path.write_bytes(data)
    chunks = list(bitext.read_source(bitext_section({"files": [str(path)], **entry}), 0, {}))
    return [row for chunk in chunks for row in zip(chunk.src, chunk.tgt, chunk.scores, strict=True)]
