"""Rules for markdown-it-py that keep the syntax of Markdown dialects out of the translation.

CommonMark would join lines in this syntax to the text around them. These rules copy the lines, except titles in
them, which are read as Markdown. The syntax is documented by Pandoc, MyST, Docusaurus, VitePress, Python-Markdown with
PyMdown, kramdown, Hugo, Liquid and MDX. mdit-py-plugins supports part of the syntax, but its rules take quadratic time,
because they search the rest of the text at every marker.

The rules here take linear time. A search for the end of a region stops at a blank line or at the start of another
region, or else all text searched is copied. So no text is searched many times.
"""

import re

from markdown_it import MarkdownIt
from markdown_it.rules_block import StateBlock
from markdown_it.rules_inline import StateInline

# Front matter of static site generators in TOML, YAML or JSON, or a title block of Pandoc.
FRONT_MATTER = re.compile(
    r"(?:---[ \t]*\r?\n.*?\n(?:---|\.\.\.)|\+\+\+[ \t]*\r?\n.*?\n\+\+\+|\{[ \t]*\r?\n[ \t]*\".*?\n\})[ \t]*(?:\r?\n|\Z)"
    r"|(?:%[ \t][^\n]*+(?:\n[ \t]++[^\n]*+)*+(?:\n|\Z)){1,3}+",
    re.DOTALL,
)
_TAGS = [r"\{\{<", r">\}\}", r"\{\{%", r"%\}\}", r"\{\{", r"\}\}", r"\{%", r"%\}", r"\{\#", r"\#\}", r"<%", r"%>"]
_PAIRS = zip(_TAGS[::2], _TAGS[1::2], strict=True)
_TEMPLATE = "|".join(rf"{begin}(?:(?!{end})[^\n])*+{end}" for begin, end in _PAIRS)  # Hugo, Liquid, Jinja, ERB
_LINES = [  # lines without text to translate
    rf"(?:(?:{_TEMPLATE})[ \t]*+)++",
    r"\{(?:[:.#]|[ \t]++[.#][\w:-]|[ \t]*+[\w:-]++=)[^{}\n]*+\}",  # attributes
    r"\{(?:/\*.*\*/|[\w.]++(?:\([^(){}\n]*+\))?+)\}",  # comments and values of JSX
    r"(?i:\[\[?_?toc_?\]?\]|@\[toc\]|\$\{toc\})",
    r"\([\w:.-]++\)=|\+\+\+[ \t]++\{.*\}",  # MyST: a target, a block break
    r"<<<[ \t]++\S.*+|-++8<-++.*+|!include\s.*+|@import\s++[\"'].*+",  # included files
    r":::?[\w-]++:::?|/{3,}+(?:[ \t]++[\w-]++)?+",  # Microsoft Learn, PyMdown
    r"\\(?!begin\b)[a-zA-Z]++(?:\{[^{}\n]*+\}|\[[^\[\]\n]*+\])*+",  # TeX commands
    r"([:+/?%@!$;,.])\1\1++",
]
_LINE = re.compile(f"(?:{'|'.join(_LINES)})[ \t]*")
_CONTENTS = re.compile(r"toc[ \t]*+\n[ \t]*+\{:\s*+toc", re.IGNORECASE)  # a table of contents in kramdown
# First lines of directives: ":::note", ":::{note}", "::video[Title]", "/// note | Title", "```{note}"
_COLONS = re.compile(r"(?P<colons>:{3,}+)[ \t]*+[\w.:@/-]*+(?:\{(?P<name>[^{}\n]*+)\})?+[ \t]*+")
_LEAF = re.compile(r"::[\w-]++(?=[\[{])(?:\{[^{}\n]*+\})?+")
_HEADS = [_COLONS, _LEAF, re.compile(r"(?<!/)/{3,}+[ \t]++[\w-]++[ \t]*+\|[ \t]*+")]
_FENCE = re.compile(r"(?P<fence>`{3,}+|~{3,}+)[ \t]*+(?:\{(?P<name>[\w:-]++)\}[ \t]*+)?+")
_OPTION = re.compile(r":[\w-]++:(?:\s.*)?")  # ":class: wide"
_WORDS = r"[ \t]*+[\w-]++(?:[ \t]++[\w-]++)*+"
_INDENTED = [  # '!!! note "Title"' and '=== "Tab"'
    re.compile(rf'(?:!!!|\?\?\?\+?+)(?:{_WORDS})(?:[ \t]++"(?P<title>[^"\n]*+)")?+[ \t]*+'),
    re.compile(r'===[!+]?+[ \t]++"(?P<title>[^"\n]*+)"[ \t]*+'),
]
_FOOTNOTE, _DEFINITION = re.compile(r"\[\^[^\]\[\s]++\]:[ \t]*+"), re.compile(r":[ \t]++(?=\S)")
_ONE_LINE = re.compile(r"\*\[[^\]\[\n]++\]:[ \t]++|\|[ \t]++(?=[^|\n]++\Z)")  # an abbreviation, a verse
_MARKERS = {_FOOTNOTE: 4, _DEFINITION: 2, _ONE_LINE: 4}  # maps each marker to the indentation of its blocks, in columns
_NO_TITLE = re.compile(r"\A(?:(?=\S*[./])\S++|:++)\Z|=[\"']|:::\Z")  # a path or attributes, not a title
_OPTIONS_END, _BLANK = re.compile(r"\A---(?=[ \t]*\Z)"), re.compile(r"[ \t]*+")
_MODULE = re.compile(  # imports and exports in MDX
    r"import\b(?:[^'\"\n]*\bfrom)?[ \t]*(?:'[^'\n]*'|\"[^\"\n]*\");?[ \t]*|import[ \t]*\{[^}\n]*"
    r"|export[ \t]+(?:default[ \t]+)?(?:const|let|var|function|async|class)\b[^\n=\[{(;]*[=\[{(;].*"
    r"|export[ \t]+default[ \t]+(?:[({\[].*|[\w.]+(?:\(.*)?;?)|export[ \t]*[{*].*"
)
# Directives of MyST and Sphinx that contain text (_TEXT) or code (_CODE). Any other directive contains code if its
# fence consists of backticks or tildes, and text if its fence consists of colons.
_TEXT = """
admonition attention card caution danger deprecated details dropdown epigraph error grid grid-item grid-item-card hint
important margin note pull-quote seealso sidebar tab-item tab-set tip topic versionadded versionchanged warning
"""
_CODE = """
code code-block code-cell csv-table eval-rst include list-table literalinclude math mermaid raw sourcecode toctree
"""
_TEXT_NAMES, _CODE_NAMES = set(_TEXT.split()), set(_CODE.split())
_OPEN_FENCES = "open fences"  # key in the `env` that markdown-it passes to every rule
_EQUATION = re.compile(r"\$\$|\\\[|\\begin\{(?P<name>(?:equation|align|gather|multline|eqnarray|displaymath)\*?+)\}")
# The rest of the line after an equation: punctuation, "(label)", "{#label}" or "^label"
_LABEL = re.compile(r"[ \t]*+[.,;:]?+[ \t]*+(?:\([\w:.-]++\)|\{[^{}\n]*+\}|\^[\w-]++)?+[ \t]*+")
_TAG, _TAG_END = re.compile(r"\{\{[<%]|\{%"), re.compile(r"[>%]\}\}|%\}")
_LISTING = re.compile(r"\{\{<[ \t]*highlight\b|\{%-?[ \t]*(?:highlight|comment)\b")
_LISTING_END = re.compile(r"\{\{<[ \t]*/highlight[ \t]*>\}\}|\{%-?[ \t]*end(?:highlight|comment)[ \t]*-?%\}")
_GRID = re.compile(r"\+(?:[-=:]++\+)++[ \t]*+")
_FIRST = set("{[@$(+<-!:/\\?%;,.~`=*|")  # the characters that may begin a line to copy
_SPAN = re.compile(
    r"""\$\$(?:[^$\\]|\\.|\$(?!\$))++\$\$                       # formulas, with Pandoc's rule for dollars
    |\$(?![\s$])(?:[^$\\\s]|\\.|\s(?!\$))++\$(?!\d)
    |\\\((?P<round>(?:[^\\]|\\[^()])++)\\\)|\\\[(?P<square>(?:[^\\]|\\[^\[\]])++)\\\]
    |\{[A-Za-z][\w:+.-]*+\}(?P<ticks>`++)[^`]++(?P=ticks)(?!`)  # a role of MyST
    |(?P<lines>\{\{(?:[^{}]|\{(?!\{)|\}(?!\}))*+\}\}|\{%(?:[^{%]|\{(?!%)|%(?!\}))*+%\})  # a template over several lines
    |(?<=[\w-]:)\{[ \t]*+[.#][\w:-][^{}\n]*+\}                  # attributes of an icon
    |\[\^[^\]\[\s]++\]                                        # a reference to a footnote""",
    re.DOTALL | re.VERBOSE,
)
_TEX, _LONG_WORD = re.compile(r"[\\^_={}+<>|\d]"), re.compile(r"[^\W\d_]{3}")
# Attributes after an element or at the end of a block.
ATTRIBUTES = re.compile(r"\{(?::|[ \t]*+(?=[.#][\w:-]|[\w:-]++=))[^{}\n]*+\}")
_END_ATTRIBUTES = re.compile(rf"\s*+(?:{ATTRIBUTES.pattern}|\{{/\*.*\*/\}})\s*+")


def add_rules(parser: MarkdownIt) -> None:
    parser.block.ruler.before("table", "syntax", _syntax, {"alt": ["paragraph", "reference", "blockquote", "list"]})
    parser.block.ruler.before("table", "module", _module)
    parser.inline.ruler.before("escape", "span", _span)


def end_attributes(source: str) -> int:
    """Return the offset of the attributes at the end of a block, or of the white space before them.

    Return the length of the block if it has none.
    """
    offset = source.rfind("{")
    while offset > 0 and source[offset - 1].isspace():
        offset -= 1
    return offset if offset >= 0 and _END_ATTRIBUTES.fullmatch(source, offset) else len(source)


def _span(state: StateInline, silent: bool) -> bool:
    """Match inline syntax to copy: a formula, role, footnote reference, icon attribute, or multiline template."""
    match = _SPAN.match(state.src, state.pos, state.posMax) if state.src[state.pos] in "$\\{[" else None
    if not match:
        return False
    bracketed = match["round"] or match["square"]
    if (bracketed and not _is_formula(bracketed)) or (match["lines"] and "\n" not in match["lines"]):
        return False
    if not silent:
        state.push("span", "", 0).meta |= {"span": match.span(), "label end": 0}
    state.pos = match.end()
    return True


def _is_formula(text: str) -> bool:
    """Return whether text in escaped brackets is a formula. Many authors also escape brackets around plain text."""
    return bool(_TEX.search(text)) or not _LONG_WORD.search(text)


def _syntax(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    offset = state.bMarks[start] + state.tShift[start]
    line = state.src[offset : state.eMarks[start]]
    if not line or state.is_code_block(start):
        return False
    if line[0] in _FIRST:
        after = _copied(state, start, end, line)
        if not after:
            return any(rule(state, start, end, line, silent) for rule in (_fence, _titled, _indented, _continued))
    else:
        after = start + 1 if _CONTENTS.match(state.src, offset) else 0
    if after and not silent:
        state.line = after
    return after > 0


def _copied(state: StateBlock, start: int, end: int, line: str) -> int:
    """Return the number of the first line after the copied lines, or 0 if no line is copied."""
    if match := _LISTING.match(line):
        return _end_of_listing(state, start, end, line[match.end() :], _LISTING_END)
    if (match := _COLONS.match(line)) and (match["name"] or "").strip() in _CODE_NAMES:
        return _end_of_listing(state, start, end, "", re.compile(rf"\A:{{{len(match['colons'])},}}[ \t]*\Z"))
    if match := _EQUATION.match(line):
        close = {"$$": "$$", "\\[": "\\]"}.get(match[0], f"\\end{{{match['name']}}}")
        rest = line[match.end() :]
        if match[0] == "\\[" and close in rest and not _is_formula(rest.partition(close)[0]):
            return 0
        return _end_of_paragraph(state, start, end, rest, re.compile(re.escape(close)), _EQUATION, _LABEL)
    if _LINE.fullmatch(line):
        return start + 1
    if match := _TAG.match(line):
        return _end_of_paragraph(state, start, end, line[match.end() :], _TAG_END, _TAG, _BLANK)
    if _GRID.fullmatch(line):
        after = start + 1
        while after < end and _line(state, after, start)[:1] in ("|", "+"):
            after += 1
        return after if after > start + 1 else 0
    return 0


def _line(state: StateBlock, number: int, start: int) -> str:
    """Return a line without its indentation, or "" if it is outside the block of line `start`."""
    if state.sCount[number] < min(state.blkIndent, state.sCount[start]):
        return ""
    return state.src[state.bMarks[number] + state.tShift[number] : state.eMarks[number]]


def _end_of_listing(state: StateBlock, number: int, end: int, rest: str, close: re.Pattern[str]) -> int:
    """Return the number of the line after the line in which `close` matches, or after the block if none matches.

    `rest` is the text of line `number` after the opening marker.
    """
    start = number
    while not close.search(rest):
        number += 1
        rest = _line(state, number, start) if number < end else ""
        if number >= end or not (rest or state.isEmpty(number)):
            return number
    return number + 1


def _end_of_paragraph(
    state: StateBlock,
    number: int,
    end: int,
    rest: str,
    close: re.Pattern[str],
    again: re.Pattern[str],
    label: re.Pattern[str],
) -> int:
    """Return the number of the line after the line that ends with `close` and `label`, or 0 if there is no such line.

    The search stops at the end of the paragraph, or where `again` matches the start of another region. `rest` is the
    text of line `number` after the opening marker.
    """
    start = number
    while True:
        if match := close.search(rest):
            return number + 1 if label.fullmatch(rest, match.end()) else 0
        number += 1
        if again.search(rest) or number >= end or not (rest := _line(state, number, start)):
            return 0


def _fence(state: StateBlock, start: int, end: int, line: str, silent: bool) -> bool:
    """Match an opening or closing fence of a directive with text. Only the opening fence names the directive."""
    match = _FENCE.match(line)
    if not match:
        return False
    fences: list[tuple[str, int]] = state.env.setdefault(_OPEN_FENCES, [])
    while not silent and fences and fences[-1][1] > state.level:  # the list item with the opening fence has ended
        fences.pop()
    rest = line[match.end() :]
    if match["name"] in _TEXT_NAMES and "`" not in rest:
        if not silent:
            fences.append((match["fence"], state.level))
            _add_title(state, start, match.end(), len(line))
            state.line = _after_options(state, start, end)
        return True
    if fences and not match["name"] and not rest.strip() and match["fence"].startswith(fences[-1][0]):
        if not silent:
            fences.pop()
            state.line = start + 1
        return True
    return False


def _titled(state: StateBlock, start: int, end: int, line: str, silent: bool) -> bool:
    match = next(filter(None, (pattern.match(line) for pattern in _HEADS)), None)
    if match and not silent:
        _add_title(state, start, match.end(), len(line))
        state.line = _after_options(state, start, end)
    return match is not None


def _add_title(state: StateBlock, start: int, begin: int, stop: int) -> None:
    """Add the title, from offset `begin` to `stop` in line `start`, as text.

    Leave out brackets around the title and attributes after it. Add nothing if the title is a path or attributes.
    """
    shift = state.bMarks[start] + state.tShift[start]
    title = state.src[shift + begin : shift + stop].rstrip()
    if title.endswith("}"):
        title = title[: title.rfind("{")].rstrip()
    if title.startswith("[") and title.endswith("]"):
        title, begin = title[1:-1], begin + 1
    if _NO_TITLE.search(title):
        return
    token = state.push("inline", "", 0)
    token.content, token.map, token.children = title.strip(), [start, start + 1], []
    token.meta["column"] = shift + begin - (state.src.rfind("\n", 0, shift) + 1)


def _after_options(state: StateBlock, start: int, end: int) -> int:
    """Return the number of the line after a directive's first line and the options that follow it."""
    number = start + 1
    if number < end and _line(state, number, start).rstrip() == "---":
        return _end_of_paragraph(state, number, end, "", _OPTIONS_END, _FENCE, _BLANK) or number
    while number < end and _OPTION.fullmatch(_line(state, number, start)):
        number += 1
    return number


def _indented(state: StateBlock, start: int, end: int, line: str, silent: bool) -> bool:
    """Match an admonition or a tab of MkDocs with its indented content."""
    match = next(filter(None, (pattern.fullmatch(line) for pattern in _INDENTED)), None)
    if not match:
        return False
    indent, after = state.blkIndent + 4, start + 1
    while after < end and (state.isEmpty(after) or state.sCount[after] >= indent):
        after += 1
    if all(map(state.isEmpty, range(start + 1, after))) and match["title"] is None:
        return False  # without content or title, this is an ordinary line of text
    if silent:
        return True
    if match["title"]:
        _add_title(state, start, *match.span("title"))
    state.push("syntax_open", "", 1)
    line_max, state.lineMax, state.blkIndent = state.lineMax, after, indent
    state.line = start + 1
    state.md.block.tokenize(state, start + 1, after)
    state.line, state.lineMax, state.blkIndent = after, line_max, indent - 4
    state.push("syntax_close", "", -1)
    return True


def _continued(state: StateBlock, start: int, end: int, line: str, silent: bool) -> bool:
    """Match text after a marker: a footnote or definition with its indented blocks, an abbreviation, or a verse."""
    match = next(filter(None, (pattern.match(line) for pattern in _MARKERS)), None)
    if not match or silent:
        return match is not None
    saved = state.bMarks[start], state.tShift[start], state.sCount[start], state.blkIndent, state.lineMax
    offset = state.bMarks[start] + state.tShift[start] + match.end()
    indent = state.sCount[start] + _MARKERS[match.re]
    state.push("syntax_open", "", 1)
    state.bMarks[start], state.tShift[start], state.blkIndent = offset, 0, indent
    state.sCount[start] = indent + (match.end() - 2 if match.re is _DEFINITION else 0)
    if match.re is _ONE_LINE:
        end = state.lineMax = start + 1
    state.line = start + 1
    state.md.block.tokenize(state, start, end)
    state.bMarks[start], state.tShift[start], state.sCount[start], state.blkIndent, state.lineMax = saved
    state.push("syntax_close", "", -1)
    return True


def _module(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    """Match imports and exports of MDX. They extend to the next blank line."""
    if state.level or silent or not state.src.startswith(("import", "export"), state.bMarks[start]):
        return False
    if not _MODULE.fullmatch(state.src, state.bMarks[start], state.eMarks[start]):
        return False
    while start < end and not state.isEmpty(start):
        start += 1
    state.line = start
    return True
