"""Check that every pattern of the package takes time linear in its text.

The test collects patterns from modules, their classes and tables of placeholder forms, and from calls of `re` and
`regex` in the source. Each pattern is tried on repetitions of its parts and of pairs of them, and on repetitions of a
part between a sample of the parts before it and a character that prevents a match. The functions that read documents
are tried, too.
"""

import ast
import collections
import contextlib
import functools
import importlib
import itertools
import re
import re._constants as op
import re._parser as parser
import sys
from collections.abc import Callable, Iterator
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import regex
from fake_models import capitals, translated, translated_file
from growth import seconds
from office_files import docx, odf

import nmt_cli
from nmt_cli.documents import html, markdown
from nmt_cli.documents.document import ReadOptions
from nmt_cli.documents.formats import FORMATS
from nmt_cli.documents.placeholders import Protection
from nmt_cli.documents.po import Catalog
from nmt_cli.documents.segment import Parts, plain_parts
from nmt_cli.documents.xml import INVALID
from nmt_cli.system.errors import DataError
from nmt_cli.translation.segmenter import sentences_of

ROOT = Path(nmt_cli.__file__).parent
SPOILERS = ("", "\n", "\0", "!")
LONGEST = 48_000
FLOOR = 0.02  # seconds of noise
GROWTH = 4 * 2.2  # allowed growth of the time for four times the text; a quadratic time grows 16-fold


class Found(NamedTuple):
    name: str
    pattern: Any  # of re or regex
    methods: tuple[str, ...]


# ---- Collect the patterns


def modules() -> dict[str, Any]:
    paths = (path.relative_to(ROOT.parent).with_suffix("") for path in sorted(ROOT.rglob("*.py")))
    names = (".".join(path.parts).removesuffix(".__init__") for path in paths if path.name != "__main__")
    return {name: importlib.import_module(name) for name in names}


def compiled(value: Any, depth: int = 0) -> Iterator[Any]:
    """Yield the patterns in a value: the value itself, items of a container, attributes of a class."""
    if isinstance(value, re.Pattern | regex.Pattern):
        yield value
    elif isinstance(value, tuple) and isinstance(getattr(value, "pattern", None), str):
        yield re.compile(value.pattern, re.DOTALL)
    elif depth < 3 and isinstance(value, dict):
        yield from itertools.chain.from_iterable(compiled(each, depth + 1) for each in value.values())
    elif depth < 3 and isinstance(value, list | tuple | set | frozenset):
        yield from itertools.chain.from_iterable(compiled(each, depth + 1) for each in value)
    elif depth < 3 and isinstance(value, type) and value.__module__.startswith("nmt_cli"):
        yield from itertools.chain.from_iterable(compiled(each, depth + 1) for each in vars(value).values())


class Names(dict[str, Any]):
    """A module's names. Any other name stands for a letter, for patterns that are built inside functions."""

    def __missing__(self, name: str) -> Any:
        return "a"


def called(module: Any, tree: ast.AST) -> Iterator[tuple[Any, str]]:
    """Yield the patterns that a module passes to functions of `re` and `regex`, each with the function's name."""
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args):
            continue
        if not (isinstance(node.func.value, ast.Name) and node.func.value.id in ("re", "regex")):
            continue
        if node.func.attr in ("escape", "Pattern"):
            continue
        names = Names({**vars(module), "__builtins__": {}, "str": str, "map": map})
        try:
            pattern = eval(compile(ast.Expression(node.args[0]), "pattern", "eval"), names)
        except (AttributeError, KeyError, NameError, TypeError):  # a name that only exists when the function runs
            continue
        library = sys.modules[node.func.value.id]
        if isinstance(pattern, str | bytes):
            yield library.compile(pattern, re.DOTALL), node.func.attr


@functools.cache
def found() -> list[Found]:
    sources = {path: path.read_text() for path in sorted(ROOT.rglob("*.py"))}
    methods, seen, patterns = {"match", "fullmatch", "search", "finditer", "findall", "sub", "split"}, set[Any](), []
    uses = collections.defaultdict[str, set[str]](set)
    for name, method in re.findall(rf"\b(\w+)\.({'|'.join(methods)})\(", "\n".join(sources.values())):
        uses[name].add(method)

    def add(name: str, pattern: Any, methods: set[str]) -> None:
        anchored = tuple(sorted(methods)) if methods and methods <= {"match", "fullmatch"} else ("finditer",)
        if (pattern, anchored) not in seen:
            seen.add((pattern, anchored))
            patterns.append(Found(f"{name} {pattern.pattern!r:.60}", pattern, anchored))

    for name, module in modules().items():
        for attribute, value in vars(module).items():
            for pattern in compiled(value):
                add(f"{name}.{attribute}", pattern, uses[attribute] if isinstance(value, re.Pattern) else set())
        path = Path(module.__file__)
        if path in sources:
            for pattern, method in called(module, ast.parse(sources[path])):
                if method != "compile" or pattern.pattern not in {each.pattern.pattern for each in patterns}:
                    add(f"{name} re.{method}", pattern, {method} & methods)
    return patterns


# ---- Make texts from their parts


def members(items: list[Any]) -> list[str]:
    """Return characters of a character class."""
    kinds = {op.CATEGORY_WORD: "a0_", op.CATEGORY_DIGIT: "0", op.CATEGORY_SPACE: " \n", op.CATEGORY_NOT_SPACE: "a-"}
    kinds |= {op.CATEGORY_NOT_WORD: " -", op.CATEGORY_NOT_DIGIT: "a "}
    chosen, negated = list[str](), False
    for kind, value in items:
        if kind is op.NEGATE:
            negated = True
        elif kind is op.LITERAL:
            chosen.append(chr(value))
        elif kind is op.RANGE:
            chosen += [chr(value[0]), chr(value[1])]
        elif kind is op.CATEGORY:
            chosen += kinds.get(value, "a")
    if negated:
        inside = re.compile(f"[{re.escape(''.join(chosen))}]") if chosen else re.compile(r"(?!)")
        return [each for each in "a0 -.<[{(%&'\"" if not inside.match(each)][:8] or ["\u2603"]
    return list(dict.fromkeys(chosen))[:14]


class Samples(NamedTuple):
    pumps: dict[str, None]  # samples of every part
    begun: dict[tuple[str, str], None]  # a sample of the text before a part, and a sample of the part


def samples(node: Any, groups: dict[int, str], parts: Samples, before: str) -> list[str]:
    """Return sample texts for a sequence in a parsed pattern, the simplest first, and record its parts."""
    whole = [""]
    for kind, value in node:
        start = before + whole[0]
        if kind is op.LITERAL:
            own = [chr(value)]
        elif kind is op.NOT_LITERAL:
            own = [each for each in "a -" if each != chr(value)]
        elif kind is op.ANY:
            own = ["a", " "]
        elif kind is op.IN:
            own = members(value)
        elif kind is op.BRANCH:
            own = [each for branch in value[1] for each in samples(branch, groups, parts, start)[:2]]
        elif kind is op.SUBPATTERN:
            own = samples(value[3], groups, parts, start)
            if value[0]:
                groups[value[0]] = own[0]
        elif kind is op.ATOMIC_GROUP:
            own = samples(value, groups, parts, start)
        elif kind in (op.MAX_REPEAT, op.MIN_REPEAT, op.POSSESSIVE_REPEAT):
            inner = samples(value[2], groups, parts, start)
            own = [each * max(value[0], 1) for each in inner] + ([""] if not value[0] else [])
        elif kind in (op.ASSERT, op.ASSERT_NOT):
            samples(value[1], groups, parts, start)
            own = [""]
        elif kind is op.GROUPREF:
            own = [groups.get(value, "a")]
        else:  # an anchor
            own = [""]
        for each in own:
            if each:
                parts.pumps.setdefault(each[:40])
                parts.begun.setdefault((start[-60:], each[:40]))
        whole = [whole[0] + own[0], *(each + own[0] for each in whole[1:3]), *(whole[0] + each for each in own[1:3])]
    return list(dict.fromkeys(whole))


def parts_of(pattern: Any) -> Samples:
    source = pattern.pattern if isinstance(pattern.pattern, str) else pattern.pattern.decode("latin-1")
    if isinstance(pattern, regex.Pattern):
        source = re.sub(r"\\p\{Nd\}", r"\\d", re.sub(r"\\p\{L[^}]*\}", "a-z", source))
        source = re.sub(r"\\p\{[^}]*\}", r"\\w", source)
    parts = Samples({}, {})
    flags = (pattern.flags & (re.VERBOSE | re.IGNORECASE)) if isinstance(pattern, re.Pattern) else 0
    parts.pumps.update(dict.fromkeys(samples(parser.parse(source, flags), {}, parts, "")))
    parts.pumps.pop("", None)
    return parts


class Pump(NamedTuple):
    before: str
    unit: str
    after: str

    def text(self, length: int) -> str:
        return self.before + self.unit * (length // len(self.unit)) + self.after


def pumps_of(pattern: Any, max_pumps: int = 400) -> list[Pump]:
    parts = parts_of(pattern)
    starts = dict.fromkeys(start for start, _ in parts.begun if start)
    units = [*parts.pumps, *map("".join, itertools.pairwise(parts.pumps)), *starts]
    alone = [Pump("", unit, "") for unit in units]
    begun = [Pump(start, unit, spoiler) for start, unit in parts.begun for spoiler in SPOILERS]
    pumps = list(dict.fromkeys(itertools.chain(*itertools.zip_longest(alone, begun, fillvalue=alone[0]))))
    step = -(-len(pumps) // max_pumps)
    return pumps[::step]


# ---- Measure


def grown(run: Callable[[str], Any], pump: Pump, first: int, longest: int = LONGEST) -> str:
    """Describe the first time that grows too fast, or return ""."""
    length, before = first, seconds(run, pump.text(first), 2)
    while 4 * length <= longest:
        length *= 4
        took = seconds(run, pump.text(length))
        if took > FLOOR and took > GROWTH * before + FLOOR:  # measure again: the machine may have been slow
            took, before = seconds(run, pump.text(length), 2), seconds(run, pump.text(length // 4), 3)
            if took > GROWTH * before + FLOOR:
                return f"{pump}: {length // 4} characters {before:.3f} s, {length} {took:.3f} s"
        before = took
    return ""


def worst(run: Callable[[str], Any], pumps: list[Pump], length: int, count: int) -> list[Pump]:
    """Return the `count` pumps whose texts of this length take longest."""
    return sorted(pumps, key=lambda pump: seconds(run, pump.text(length)))[-count:]


def runs(each: Found) -> Callable[[str], Any]:
    binary = isinstance(each.pattern.pattern, bytes)

    def run(text: str) -> None:
        data = text.encode("latin-1", "replace") if binary else text
        for method in each.methods:
            result = getattr(each.pattern, method)(data)
            if method == "finditer":
                for _ in result:
                    pass

    return run


def test_all_kinds_of_patterns_are_found() -> None:
    names = {each.name.split()[0] for each in found()}
    assert len(found()) > 100
    assert {
        "nmt_cli.documents.html",
        "nmt_cli.documents.html.TOKEN",
        "nmt_cli.storage.artefact.TEMPORARY",
    } <= names
    assert any(isinstance(each.pattern, regex.Pattern) for each in found())
    assert any(isinstance(each.pattern.pattern, bytes) for each in found())


@pytest.mark.parametrize("pattern", [r"a*a*b", r"\[[^\]]+\]", r"a.*?b", r"\s+$", r"<ab[^<>]*>.*?</ab>"])
def test_a_quadratic_pattern_is_noticed(pattern: str) -> None:
    each = Found("", re.compile(pattern), ("finditer",))
    slowest_first = reversed(worst(runs(each), pumps_of(each.pattern), 200, 4))
    assert any(grown(runs(each), pump, 200, 12_800) for pump in slowest_first)


def test_every_pattern_is_linear() -> None:
    slow = list[str]()
    for each in found():
        for pump in worst(runs(each), pumps_of(each.pattern), 300, 2):
            if wrong := grown(runs(each), pump, 750):
                slow.append(f"{each.name}: {wrong}")
                break
    assert not slow, "\n".join(slow)


# ---- Functions that read texts


def message(text: str) -> Parts:
    quoted = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "\\r")
    quoted = quoted.encode("utf-8", "replace").decode()
    return Catalog(f'msgid ""\nmsgstr ""\n\nmsgid "{quoted}"\nmsgstr ""\n', Protection(strict=True)).parts


def file_of(kind: str, before: str, after: str) -> Callable[[str], Any]:
    """Return a function that puts a text between `before` and `after` and reads the result as a file."""
    form = FORMATS[kind]

    def run(text: str) -> Any:
        source = f"{before}{text}{after}"
        return form.read(source.encode("utf-8", "replace") if form.binary else source, ReadOptions(language="ru"))

    return run


def office(kind: str, build: Callable[[str], bytes]) -> Callable[[str], Any]:
    """Return a function that translates two office files, one with a text and one with the text as markup."""

    def read(text: str) -> None:
        text = INVALID.sub("", text)
        for inside in (escape(text), text):
            with contextlib.suppress(DataError):
                translated_file(kind, build(inside), capitals, ReadOptions(language="ru"))

    return read


def subtitles(kind: str, head: str) -> Callable[[str], Any]:
    """Return a function that translates subtitles made of a head and a text."""
    return lambda text: translated_file(kind, f"{head}{text}".encode("utf-8", "replace"), capitals)


FUNCTIONS: dict[str, Callable[[str], Any]] = {
    "JSON": file_of("json", '{"a": "', '", "b_one": "c", "b_other": "d"}'),
    "JSON's syntax": file_of("json", "", ""),
    "YAML": file_of("yaml", "en:\n  a: ", "\n"),
    "XLIFF": file_of(
        "xliff", '<xliff version="1.2"><file><trans-unit><source>', "</source></trans-unit></file></xliff>"
    ),
    "XLIFF's syntax": file_of("xliff", '<xliff version="1.2">', ""),
    "Android": file_of("android", '<resources><string name="a">', "</string></resources>"),
    "Apple": file_of("strings", '"a" = "', '";'),
    "properties": file_of("properties", "a = ", "\n"),
    "Laravel": file_of("laravel", "<?php return ['a' => '", "'];"),
    "ICU": file_of("arb", '{"a": "{n, plural, other {', '}}"}'),
    "html": lambda text: html.parse(text, Protection()),
    "Markdown": lambda text: markdown.parse(text, Protection()),
    "gettext": message,
    "line": lambda text: plain_parts(text, Protection()),
    "strings": lambda text: plain_parts(text, Protection(strict=True)),
    "sentences": sentences_of,
    "SubRip": subtitles("srt", "1\n00:00:01,000 --> 00:00:02,000\n"),
    "WebVTT": subtitles("vtt", "WEBVTT\n\n00:01.000 --> 00:02.000\n"),
    "SubStation Alpha": subtitles("ass", "[Events]\nDialogue: 0,0:00:01.00,0:00:03.00,Default,,0,0,0,,"),
    "Word": office("docx", lambda text: docx(f"<w:p><w:r><w:t>{text}</w:t></w:r></w:p>")),
    "OpenDocument": office("odt", lambda text: odf(f"<text:p>{text}</text:p>")),
    "placement": lambda text: translated(html.parse(text, Protection())),
}


# These try every fourth text. "line" and "strings" try all texts, with the code that reads the texts of all formats.
FEW_TEXTS = FUNCTIONS.keys() - {"line", "strings", "sentences", "html"}


@functools.cache
def document_pumps() -> list[Pump]:
    """Return some of the pumps of the patterns that read documents: short ones, and others of any length."""
    patterns = [each.pattern for each in found() if "documents" in each.name or "segments" in each.name]
    pumps = list(dict.fromkeys(itertools.chain.from_iterable(map(pumps_of, patterns))))
    short = [pump for pump in pumps if not pump.before and len(pump.unit) <= 2]
    return [*short[::16], *pumps[:: len(pumps) // 30]]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_that_read_texts_are_linear(name: str) -> None:
    run = FUNCTIONS[name]

    def beyond(pump: Pump) -> float:
        """Return by how many seconds a text takes longer than four times its first quarter does."""
        return seconds(run, pump.text(1600)) - 4 * seconds(run, pump.text(400))

    pumps = document_pumps()[:: 4 if name in FEW_TEXTS else 1]
    suspects = sorted(pumps, key=beyond)[-3:]
    assert not [wrong for pump in suspects if (wrong := grown(run, pump, 1600, 25_600))]
