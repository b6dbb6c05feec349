"""XLIFF 1.2, 2.0 and 2.1: translate segments without a finished target, and mark them for review.

Sources: https://docs.oasis-open.org/xliff/v1.2/os/xliff-core.html (inline elements in section 2.3, target, state);
https://docs.oasis-open.org/xliff/xliff-core/v2.1/os/xliff-core-v2.1-os.html (segment, state, inline codes).
"""

import re
from functools import partial

from nmt_cli.documents.document import Document, ReadOptions
from nmt_cli.documents.messages import LINES, Found, Message, MessageFile, wrong
from nmt_cli.documents.po_header import locale_of
from nmt_cli.documents.xml_messages import Element, Escapes, InlineReader, attributes, elements, with_attribute

_UNDONE = {"new", "needs-translation"}  # states of targets that do not contain a translation yet
_STATE = {"state": "needs-review-translation", "state-qualifier": "mt-suggestion"}  # attributes in XLIFF 1.2
_STATE_2 = {"state": "translated"}  # attributes in XLIFF 2.x: translated, but not reviewed
# Inline elements that are copied with their content.
_COPIED = {"x", "ph", "it", "cp", "sub", "sm", "em", "bin-source"}
_PAIRS = {"bpt": "open", "ept": "close", "bx": "open", "ex": "close", "sc": "open", "ec": "close"}
_TAG = re.compile(r"<[^<>]*>")
_CODE = re.compile(r"(START|CLOSE)_(.+)")  # the id of a paired <x> in Angular: START_LINK or CLOSE_LINK


def _role(name: str, tag: str) -> tuple[str, str]:
    """Return the kind and the label of an inline element, as InlineReader expects them."""
    values = {key: value for key, value, _, _ in attributes(tag)}
    if name in _PAIRS:
        return _PAIRS[name], f"pair {values.get('startRef') or values.get('rid') or values.get('id', '')}"
    if name == "x" and (match := _CODE.fullmatch(values.get("id", ""))):
        return ("open" if match[1] == "START" else "close"), f"code {match[2]}"
    if name in _COPIED or (name == "mrk" and (values.get("mtype") == "protected" or values.get("translate") == "no")):
        return "copy", ""
    return ("block" if name == "mrk" and values.get("mtype") == "seg" else "tag"), ""


# Line ends and tabs divide a message if its white space is preserved. Otherwise, only empty lines do.
_FLOWING = InlineReader(_role, Escapes(lines=re.compile(r"(\n(?:[ \t\r]*+\n)++[ \t]*+)")))
_PRESERVED = InlineReader(_role, Escapes(lines=LINES))


def read(text: str, options: ReadOptions) -> Document:
    found = Found()
    kind = "XLIFF file"
    every = elements(text, "xliff", kind)
    version = every[0].get("version")
    if not version.startswith(("1.", "2.")):
        raise wrong(text, every[0].start, kind, "a version other than 1.2, 2.0 and 2.1")
    is_version_2 = version.startswith("2.")
    for element in every:
        if element.name == ("xliff" if is_version_2 else "file") and options.language:
            name = "trgLang" if is_version_2 else "target-language"
            found.target = found.target or element.get(name)
            if not element.get(name):
                language = locale_of(options.language).replace("_", "-") or options.language
                found.edits.append((element.start, element.inner, with_attribute(element.tag, name, language)))
        if element.name == ("segment" if is_version_2 else "trans-unit") and not element.has("translate", "no"):
            _add(found, text, element, is_version_2=is_version_2)
    return MessageFile(text, found, options)


def _add(found: Found, source: str, unit: Element, *, is_version_2: bool) -> None:
    """Add a message for a unit (version 1) or segment (version 2) that has text and no finished target."""
    original, target = unit.child("source"), unit.child("target")
    if not original or not original.content(source).strip() or _is_done(source, unit, original, target):
        return
    divided = unit.child("seg-source")
    text = (divided or original).content(source)
    if is_version_2:
        found.edits.append((unit.start, unit.inner, _with_attributes(unit.tag, _STATE_2)))
    prefix = original.tag.removeprefix("<").partition("source")[0]  # the namespace prefix and its colon, if any
    tag = target.tag if target else f"<{prefix}target>"
    if not is_version_2:
        tag = _with_attributes(tag, _STATE)
    if tag.endswith("/>"):
        tag = f"{tag[:-2].rstrip()}>"
    space = original.space_before(source)
    before = space if space.isspace() and not target else ""
    begin, end = (target.start, target.end) if target else ((divided or original).end,) * 2
    reader = _PRESERVED if original.has("xml:space", "preserve") else _FLOWING
    spell = partial(_spelled, f"{before}{tag}", f"</{prefix}target>")
    found.messages.append(Message(begin, end, text, spell, cut=reader.cut, is_new=True))


def _spelled(before: str, after: str, text: str) -> str:
    return f"{before}{text}{after}"


def _with_attributes(tag: str, values: dict[str, str]) -> str:
    for name, value in values.items():
        tag = with_attribute(tag, name, value)
    return tag


def _is_done(source: str, unit: Element, original: Element, target: Element | None) -> bool:
    if unit.get("approved") == "yes":
        return True
    if not target or not _TAG.sub("", target.content(source)).strip():
        return False  # only white space, or markup without text
    copied = original.content(source) == target.content(source)
    return target.get("state") not in _UNDONE and not (copied and unit.get("state") == "initial")
