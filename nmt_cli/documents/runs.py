"""Read the paragraphs of Office Open XML. A paragraph consists of runs, and each run has text and a format.

Microsoft Word may begin a new run anywhere, even in the middle of a word, so this module joins neighboring runs of the
same format. Text in the most common format of a paragraph gets no tags. Text in any other format gets a pair of tags.

While a paragraph is translated, `\\1...\\2` encloses markup between runs, and `\\3N\\2` begins text in format number N.
"""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from nmt_cli.documents.document import ReadOptions
from nmt_cli.documents.items import Item
from nmt_cli.documents.markup import Reader, rewritten
from nmt_cli.documents.segment import Parts, SegmentBuilder
from nmt_cli.documents.xml import Spelling

_MARKED = re.compile(r"\x01([^\x01\x02]*+)\x02|\x03(\d+)\x02")
_FIELD = re.compile(r"fldCharType=[\"'](begin|separate|end)[\"']")
_SIMPLE_LINK = re.compile(r"<\S+\s[^<>]*?\binstr=[\"']\s*HYPERLINK\b")
_INSTRUCTION = re.compile(r"<w:instrText\b[^<>]*>\s*(\w*)")
# Properties that do not change how a run looks: its language, and marks of the spelling checker.
_INVISIBLE = re.compile(
    r"<w:(?:lang|noProof)\b[^<>]*/>|\s(?:lang|altLang|dirty|err|noProof|smtClean|bmk)=(?:\"[^\"]*\"|'[^']*')"
)
_EMPTY = re.compile(r"<(?:\w+:)?rPr\s*(?:/>|>\s*</(?:\w+:)?rPr>)")
_WRAPS = {"w:hyperlink", "w:ins", "w:moveTo", "w:smartTag", "w:customXml", "w:bdo", "w:dir", "w:sdt"}
_DROPPED = {"w:proofErr", "w:lastRenderedPageBreak", "x:rPh", "x:phoneticPr"}
_BREAKS = {"w:br", "w:cr", "w:tab", "w:ptab", "a:br"}
# Elements that may be inside a word
_JOINS = """
bookmarkStart bookmarkEnd commentRangeStart commentRangeEnd commentReference footnoteReference endnoteReference
noBreakHyphen softHyphen permStart permEnd moveFromRangeStart moveFromRangeEnd moveToRangeStart moveToRangeEnd del
moveFrom annotationRef footnoteRef endnoteRef
"""
_JOINING = {f"w:{name}" for name in _JOINS.split()}
_PAIRS = {"w:bookmarkStart": "open", "w:bookmarkEnd": "close"}
_PAIRS |= {"w:commentRangeStart": "open", "w:commentRangeEnd": "close"}
_LINE_ENDS = re.compile(r"((?:_x000[Dd]_)?\r?\n|&#1[03];|&#x[AaDd];|\t)")  # line ends and tabs in a cell of Excel
_ID = re.compile(r"\s(?:\w+:)?id=[\"']([^\"']*)[\"']")


class RunNames(NamedTuple):
    run: str
    properties: str
    text: str


_NAMES = {
    "w:p": RunNames("w:r", "w:rPr", "w:t"),
    "a:p": RunNames("a:r", "a:rPr", "a:t"),
    "x:si": RunNames("x:r", "x:rPr", "x:t"),
    "x:is": RunNames("x:r", "x:rPr", "x:t"),
    "x:text": RunNames("x:r", "x:rPr", "x:t"),
}


_DIRECT = "direct"  # the format of text outside runs


class RunReader(Reader):
    paragraphs = frozenset(_NAMES)

    def __init__(self, data: bytes, name: str, options: ReadOptions) -> None:
        super().__init__(data, name, options)
        self._found = dict[int, Parts]()  # the parts of each paragraph, by the index of its first token

    def paragraph(self, begin: int, end: int) -> Parts:
        # A paragraph that contains only nested paragraphs is read twice. Without this cache, the time would double at
        # each level.
        if begin not in self._found:
            self._found[begin] = self._paragraph(begin, end)
        return self._found[begin]

    def _paragraph(self, begin: int, end: int) -> Parts:
        content = _Content(self, begin, end)
        if not any(item.kind == "text" and item.source.strip() for item in content.items):
            return [self.markup.sources[begin], *self.walk(begin + 1, end)]
        [(base, _)] = content.sizes.most_common(1)
        numbers = {each: number for number, each in enumerate(content.formats)}

        def add(builder: SegmentBuilder, item: Item, spelling: Spelling) -> None:
            once = "hlinkClick" in item.name  # the format makes the text a link
            if item.name != base:
                builder.add_tag(item.name, [f"\3{numbers[item.name]}\2"], once=once)
            builder.add_source(item.source, spelling.unescape)
            if item.name != base:
                builder.add_tag(item.name, [f"\3{numbers[base]}\2"], close=True, once=once)

        items = _with_formats_of_wraps(_merged(content.items), base, numbers)
        inside = self.segments(items, add, "\1{}\2")
        write = partial(self._written, begin, list(content.formats.values()), numbers[base])
        return [rewritten(inside, self.markup.source(begin, end), write)]

    def _written(self, begin: int, formats: list[tuple[str, str]], base: int, marked: str) -> str:
        """Return the markup of a paragraph.

        `formats` lists the tags before and after the text of each format, and `base` is the number of the most common
        format. `marked` is the translation with the control characters described at the top of the module.
        """
        written, number, text, end = self.markup.sources[begin], base, "", 0
        last = base  # the format of `text`

        def run() -> str:
            before, after = formats[last]
            return self.in_language(before) + text + after if text else ""

        for match in _MARKED.finditer(marked):
            if between := marked[end : match.start()]:
                if number != last:
                    written += run()
                    text, last = "", number
                text += between
            end = match.end()
            if match[2]:
                number = int(match[2])
            elif match[1]:
                written += run() + match[1]
                text = ""
        if number != last:
            written += run()
            text, last = "", number
        text += marked[end:]
        return written + run() + self.markup.sources[self.markup.ends[begin]]

    def in_language(self, source: str) -> str:
        """Set the language in markup to the target language. Derived classes implement this."""
        return source


class _Content:
    """The items of a paragraph. The name of a text item is its format."""

    def __init__(self, reader: RunReader, begin: int, end: int) -> None:
        self.items = list[Item]()
        self.formats = dict[str, tuple[str, str]]()  # for each format, the tags before and after its text
        self.sizes = Counter[str]()  # the number of characters in each format
        self._reader = reader
        self._markup = reader.markup
        self._names = _NAMES[self._markup.names[begin]]
        self._fields = self._complete_fields(begin, end)
        index = begin + 1
        while index < end - 1:
            index = self._add(index)

    def _add(self, index: int) -> int:
        """Add the item that begins with this token. Return the index of the token to read next."""
        markup, name = self._markup, self._markup.names[index]
        kind, stop = markup.tokens[index].kind, markup.end(index)
        if index in self._fields:
            return self._field(index, *self._fields[index])
        if kind == "text" or name in _DROPPED:  # drop the element, or skip white space between elements
            return stop
        if kind == "end":
            if name == "w:sdtContent":
                name, stop = "w:sdt", self._next("w:sdt", index, len(markup.names)) + 1
            self.items.append(Item(markup.source(index, stop), "close", name))
        elif kind == "start" and name == self._names.run:
            self._run(index, stop)
        elif kind == "start" and name == self._names.text:
            self._text(index, stop, _DIRECT, "", "")
        elif kind == "start" and (name in _WRAPS or self._is_simple_link(index)):
            first = index + 1
            if name == "w:sdt":
                first = min(self._next("w:sdtContent", index, stop) + 1, stop)
            self.items.append(Item(markup.source(index, first), "open" if first < stop else "mark", name))
            return first
        elif name in _BREAKS:
            self.items.append(Item(markup.source(index, stop), "break"))
        elif name in _PAIRS:
            match = _ID.search(markup.sources[index])
            self.items.append(Item(markup.sources[index], _PAIRS[name], f"{name[:5]}{match[1] if match else ''}"))
        else:
            self.items.append(Item(kind="mark", parts=self._reader.walk(index, stop), joins=name in _JOINING))
        return stop

    def _is_simple_link(self, index: int) -> bool:
        """Return whether an element is a link, written as a simple field."""
        is_field = self._markup.names[index] == "w:fldSimple"
        return is_field and bool(_SIMPLE_LINK.match(self._markup.sources[index]))

    def _next(self, name: str, index: int, end: int) -> int:
        """Return the index of the next tag with this name, or `end`."""
        while index < end and self._markup.names[index] != name:
            index += 1
        return index

    def _run(self, begin: int, end: int) -> None:
        markup = self._markup
        first = begin + 1 + (markup.tokens[begin + 1].kind == "text")  # white space of an indented file
        index = markup.end(first) if markup.names[first] == self._names.properties else first
        tag = markup.own(self._names.run)
        properties = markup.source(first, index)
        before, after = f"<{tag}>{properties}", f"</{tag}>"
        while index < end - 1:
            name, stop = markup.names[index], markup.end(index)
            if name == self._names.text:
                self._text(index, stop, _EMPTY.sub("", _INVISIBLE.sub("", properties)), before, after)
            elif name in _BREAKS:
                self.items.append(Item(before + markup.source(index, stop) + after, "break"))
            elif name not in _DROPPED and markup.tokens[index].kind != "text":
                parts = [before, *self._reader.walk(index, stop), after]
                self.items.append(Item(kind="mark", parts=parts, joins=name in _JOINING))
            index = stop

    def _text(self, begin: int, end: int, name: str, before: str, after: str) -> None:
        """Add the text of an element, in the format `name`. `before` and `after` are the tags of its run."""
        source = self._markup.source(begin + 1, end - 1)
        if not source:
            return
        if "<" in source:  # a comment or a CDATA section
            self.items.append(Item(before + self._markup.source(begin, end) + after, "mark"))
            return
        tag = self._markup.own(self._names.text)
        space = "" if self._names.text == "a:t" else ' xml:space="preserve"'
        self.formats.setdefault(name, (f"{before}<{tag}{space}>", f"</{tag}>{after}"))
        self.sizes[name] += len(source)
        for number, piece in enumerate(_LINE_ENDS.split(source) if self._names.text == "x:t" else [source]):
            self.items.append(Item(f"\2{piece}\1", "break") if number % 2 else Item(piece, name=name))

    def _field(self, begin: int, separator: int | None, end: int) -> int:
        """Add a field, such as a link or a page number, and return the index of the token to read next.

        The arguments are the indices of its first run, its separator run, if any, and its last run. The text of a link
        is translated. Any other field is copied.
        """
        markup, stop = self._markup, self._markup.end(end)
        instruction = _INSTRUCTION.search(markup.source(begin, separator or end))
        if not separator or not instruction or instruction[1] != "HYPERLINK":
            self.items.append(Item(markup.source(begin, stop), "mark"))
            return stop
        first = markup.end(separator)
        self.items.append(Item(markup.source(begin, first), "open", "field"))
        while first < end:
            first = self._add(first)
        self.items.append(Item(markup.source(end, stop), "close", "field"))
        return stop

    def _complete_fields(self, begin: int, end: int) -> dict[int, tuple[int | None, int]]:
        """Map the first run of each complete field to its separator run, or None, and its last run, all as indices."""
        markup, found = self._markup, dict[int, tuple[int | None, int]]()
        opened, depth = list[tuple[int, int, int | None]](), 0  # `opened`: first run, its depth, separator run
        run, level = begin, 0  # the most recent run and its depth
        for index in range(begin + 1, end - 1):
            kind, name = markup.tokens[index].kind, markup.names[index]
            depth += (kind == "start") - (kind == "end")
            if name == "w:r" and kind == "start":
                run, level = index, depth
            if name != "w:fldChar" or kind == "end" or not (match := _FIELD.search(markup.sources[index])):
                continue
            if match[1] == "begin":
                opened.append((run, level, None))
            elif opened and match[1] == "separate":
                opened[-1] = (*opened[-1][:2], run)
            elif opened and opened[-1][1] == level:
                start, _, separator = opened.pop()
                found[start] = separator, run
            else:
                opened.clear()
        return found


def _merged(items: list[Item]) -> list[Item]:
    """Merge neighboring text items of the same format."""
    merged = list[Item]()
    for item in items:
        if merged and item.kind == merged[-1].kind == "text" and item.name == merged[-1].name:
            merged[-1] = Item(merged[-1].source + item.source, name=item.name)
        else:
            merged.append(item)
    return merged


def _with_formats_of_wraps(items: list[Item], base: str, numbers: Mapping[str, int]) -> list[Item]:
    """If all text between two tags, such as those of a link, has the same format, let the tags set the format."""
    items, opened = list(items), list[int]()
    for end, item in enumerate(items):
        if item.kind == "open":
            opened.append(end)
        if item.kind != "close" or not opened or items[begin := opened.pop()].name != item.name:
            continue
        inside = items[begin + 1 : end]
        [name, *others] = dict.fromkeys(each.name for each in inside if each.kind == "text") or [base]
        if name == base or others or any(each.kind in ("open", "close") for each in inside):
            continue
        items[begin + 1 : end] = [replace(each, name=base) if each.kind == "text" else each for each in inside]
        for index, number in (begin, numbers[name]), (end, numbers[base]):
            items[index] = replace(items[index], parts=[f"{items[index].source}\2\3{number}"])
    return items
