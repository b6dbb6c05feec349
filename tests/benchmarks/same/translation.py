"""Translations: every option of `nmt translate` in fp32 and int8, whole files, and `Translator` from Python."""

import json
from collections.abc import Callable
from functools import partial

from same.tree import FEW, INPUTS, LINES, MODEL, OTHER_MODEL, PAIRS, PREFIXES, TERMS, Tree

# Each option's arguments, and whether it gets the short list of lines, because it is slow or prints much.
OPTIONS: dict[str, tuple[list[object], bool]] = {
    "defaults": ([], False),
    "--beam 1": (["--beam", 1], False),
    "--beam 7": (["--beam", 7], False),
    "--alpha 0": (["--alpha", 0], False),
    "--alpha 1.7": (["--alpha", 1.7], False),
    "--extra-length 2": (["--extra-length", 2], False),
    "--split off": (["--split", "off"], True),
    "--no-copy-wordless": (["--no-copy-wordless"], True),
    "--prefix": (["--prefix", PREFIXES], False),
    "--prefix --beam 1": (["--prefix", PREFIXES, "--beam", 1], False),
    "--terms": (["--terms", TERMS], False),
    "--terms --beam 1": (["--terms", TERMS, "--beam", 1], False),
    "--terms --format jsonl": (["--terms", TERMS, "--format", "jsonl"], True),
    "--score-pairs": (["--score-pairs", PAIRS, "-i", INPUTS / "pair-sources"], False),
    "--score-pairs --alpha 0": (["--score-pairs", PAIRS, "-i", INPUTS / "pair-sources", "--alpha", 0], False),
    "--sample": (["--sample"], False),
    "--sample --seed 5": (["--sample", "--seed", 5], False),
    "--sample --temperature 0.5": (["--sample", "--temperature", 0.5], False),
    "--sample --top-k 3": (["--sample", "--top-k", 3], False),
    "--sample --top-p 0.8": (["--sample", "--top-p", 0.8], False),
    "--sample --n-best 3": (["--sample", "--n-best", 3, "--format", "jsonl"], True),
    "--n-best 4": (["--n-best", 4], False),
    "--format jsonl": (["--format", "jsonl"], False),
    "--format jsonl --n-best 3": (["--format", "jsonl", "--n-best", 3], True),
    "--alignments": (["--alignments"], True),
    "--alignments --format jsonl": (["--alignments", "--format", "jsonl", "--n-best", 2], True),
    "--markup html": (["--markup", "html"], True),
    "--markup html --no-protect": (["--markup", "html", "--no-protect"], True),
    "--protect": (["--protect"], True),
    "--protect --terms": (["--protect", "--terms", TERMS], True),
    "--workers 1": (["--workers", 1], True),
    "--workers 3": (["--workers", 3], True),
    "two models": (["--model", OTHER_MODEL], False),
}


def option(tree: Tree, precision: str, arguments: list[object], short: bool) -> object:
    named = [] if "-i" in arguments else ["-i", FEW if short else LINES]
    return tree.nmt("translate", "--model", MODEL, "--precision", precision, *named, *arguments).result


def from_stdin(tree: Tree) -> object:
    """Translate lines from a pipe: one is not UTF-8, and the last has no line feed."""
    data = b"The dog was tired.\nbroken \xff line\r\nWhy was she tired?"
    loose = tree.nmt("translate", "--model", MODEL, stdin=data)
    return {"loose": loose.result, "strict": tree.nmt("translate", "--model", MODEL, "--strict", stdin=data).code}


def to_file(tree: Tree) -> object:
    code = tree.nmt("translate", FEW, "--model", MODEL, "-o", "translated.txt").code
    return {"exit code": code, "file": (tree.folder / "translated.txt").read_bytes().decode()}


def model_from_environment(tree: Tree) -> object:
    line = "The dog was tired.\n"
    found = {"NMT_MODEL": tree.nmt("translate", stdin=line, env={"NMT_MODEL": str(MODEL)}).result}
    return found | {"nothing": tree.nmt("translate", stdin=line).code}


DOCUMENTS = {
    "page.html": """<!DOCTYPE html><html lang="en"><head><title>The old dog</title><style>b {color: red}</style></head>
<body><h1>Why was she tired?</h1><p>The <b>dog</b> did <i>not <a href="/x?a=1&amp;b=2">cross</a></i> the street
because it was <em>too wide</em>.<br>Will I wait in the forest?</p><ul><li>The dog<li>the <code>cat</code></ul>
<p translate="no">The dog was tired.</p><p class="notranslate">Dogs</p><img alt="The dog" title="the street" src=x>
<script>if (a < b) { c("The dog") }</script><table><tr><td>The animal<td>3.14</table>
<p>{{ name }} was %s.</p></body></html>
""",
    "guide.md": """---
title: The old dog
---
# Why was she tired?

The **dog** did *not* [cross](http://example.org "the street") the `street`.
It was too wide.[^1]

- The dog was tired.
  1. Will I wait in the forest?
- [ ] the street

> The animal was tired.

| The dog | the street |
|---------|:----------:|
| old     | $x_1$      |

```python
print("The dog")
```

!!! note "The forest"
    The dog was tired.

[^1]: The street was wide. <kbd>Dog</kbd> https://example.org
""",
    "messages.po": r"""msgid ""
msgstr ""
"Content-Type: text/plain; charset=UTF-8\n"
"Language: de\n"
"Plural-Forms: nplurals=2; plural=(n != 1);\n"

#: a.c:1
#, c-format
msgid "The dog %s was tired."
msgstr ""

#, fuzzy
msgid "Why was she tired?"
msgstr "Warum?"

msgctxt "menu"
msgid "the street"
msgstr "die Straße"

#, python-brace-format
msgid "{count} dog"
msgid_plural "{count} dogs"
msgstr[0] ""
msgstr[1] ""
""",
}


def document(tree: Tree, name: str, *options: object) -> object:
    (tree.folder / name).write_text(DOCUMENTS[name], "utf-8")
    return tree.nmt("translate", name, "--model", MODEL, *options).result


PROGRAM = """
import json, sys
from nmt_cli import Sampling, Terms, Translator
model, other, terms, lines = sys.argv[1:]
texts = open(lines, encoding="utf-8", errors="surrogateescape", newline="\\n").read().split("\\n")[-150:]
def shown(results):
    return [[[each.text, each.score] for each in result.hypotheses] for result in results]
found = {}
with Translator(model, precision="fp32", workers=1) as translator:
    found["defaults"] = shown(translator.translate(texts))
    found["search"] = shown(translator.translate(texts, beam=3, alpha=1.0, extra_length=9, split=False, n_best=2))
    found["sampled"] = shown(translator.translate(texts, sampling=Sampling(temperature=0.7, top_k=9, seed=3), n_best=2))
    found["prefixes"] = shown(translator.translate(texts, prefixes=["Der"] * len(texts)))
    found["terms"] = shown(translator.translate(texts, terms=Terms.read(__import__("pathlib").Path(terms))))
    found["aligned"] = shown(translator.translate(texts, alignments=True, copy_wordless=False))
    found["scores"] = [each.score for each in translator.score(zip(texts[:50], texts[50:100]))]
    for name, wrong in {"text": lambda: translator.translate("a"), "beam": lambda: translator.translate(["a"], beam=0),
                        "n_best": lambda: translator.translate(["a"], beam=2, n_best=3),
                        "line": lambda: translator.translate([1])}.items():
        try:
            list(wrong())
        except Exception as error:
            found["error of " + name] = type(error).__name__
with Translator([model, other], precision="int8") as translator:
    found["two models"] = shown(translator.translate(texts))
json.dump(found, sys.stdout)
"""


def from_python(tree: Tree) -> object:
    done = tree.python("-c", PROGRAM, MODEL, OTHER_MODEL, TERMS, LINES)
    return {"exit code": done.code, "stderr": done.stderr[-300:]} if done.code else json.loads(done.stdout)


CHECKS: dict[str, Callable[[Tree], object]] = {
    f"{name}, {precision}": partial(option, precision=precision, arguments=arguments, short=short)
    for precision in ("fp32", "int8")
    for name, (arguments, short) in OPTIONS.items()
}
CHECKS |= {
    "--precision auto": partial(option, precision="auto", arguments=[], short=True),
    "--precision bf16": partial(option, precision="bf16", arguments=[], short=True),
    "standard input": from_stdin,
    "--output": to_file,
    "$NMT_MODEL": model_from_environment,
    "an HTML page": partial(document, name="page.html"),
    "a Markdown page": partial(document, name="guide.md"),
    "a gettext catalog": partial(document, name="messages.po"),
    "an HTML page, --no-protect --terms": lambda tree: document(tree, "page.html", "--no-protect", "--terms", TERMS),
    "a page as --format text": lambda tree: document(tree, "guide.md", "--format", "text"),
    "from Python": from_python,
}
