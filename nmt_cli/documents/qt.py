"""Qt Linguist's .ts files: translate untranslated messages, and mark them "unfinished" so that a person reviews them.

Sources: https://doc.qt.io/qt-6/linguist-ts-file-format.html; https://doc.qt.io/qt-6/i18n-plural-rules.html (plurals).
"""

from functools import partial

from nmt_cli.documents import plurals
from nmt_cli.documents.document import Document, ReadOptions
from nmt_cli.documents.messages import LINES, Found, Message, MessageFile
from nmt_cli.documents.po_header import locale_of
from nmt_cli.documents.xml_messages import Element, Escapes, InlineReader, elements, with_attribute

_READER = InlineReader(lambda name, tag: ("copy" if name == "byte" else "tag", ""), Escapes(lines=LINES))
_FLAGS = ("qt-format", "qt-plural-format")
# The elements that precede the translation of a message.
_BEFORE = ("source", "oldsource", "comment", "oldcomment", "extracomment", "translatorcomment")
_GONE = {"vanished", "obsolete"}  # values of `type` for messages that the program no longer has


def read(text: str, options: ReadOptions) -> Document:
    found = Found()
    every = elements(text, "TS", "Qt Linguist file")
    rule = plurals.parse(plurals.field_of(locale_of(options.language))) or plurals.GERMANIC
    root = every[0]
    found.target = root.get("language")
    if options.language and not found.target:
        tag = with_attribute(root.tag, "language", locale_of(options.language) or options.language)
        found.edits.append((root.start, root.inner, tag))
    for element in every:
        source = element.child("source")
        if element.name == "message" and source and not _is_done(text, element):
            found.messages.append(_message(text, element, source, rule.count))
    return MessageFile(text, found, options)


def _is_done(text: str, message: Element) -> bool:
    """Return whether a message has a translation or needs none."""
    translation = message.child("translation")
    if translation is None:
        return False
    if translation.get("type") in _GONE:
        return True
    forms = [each for each in translation.children if each.name in ("numerusform", "lengthvariant")]
    return any(each.content(text).strip() for each in forms or [translation])


def _message(text: str, element: Element, source: Element, forms: int) -> Message:
    translation = element.child("translation")
    last = [child for child in element.children if child.name in _BEFORE][-1]
    space = source.space_before(text)
    if translation:
        start, end, before = translation.start, translation.end, ""
    else:
        start, end, before = last.end, last.end, space
    spell = partial(_spelled, before, space, forms if element.get("numerus") == "yes" else 0)
    return Message(start, end, source.content(text), spell, _READER.cut, _FLAGS, is_new=True)


def _spelled(before: str, space: str, forms: int, text: str) -> str:
    """Return `before` and a <translation> element. Unless `forms` is 0, the element has this number of plural forms."""
    if forms:
        text = "".join(f"{space}    <numerusform>{text}</numerusform>" for _ in range(forms)) + space
    return f'{before}<translation type="unfinished">{text}</translation>'
