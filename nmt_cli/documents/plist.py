"""Apple's .stringsdict files: property lists with plurals.

Source: https://developer.apple.com/documentation/xcode/localizing-strings-that-contain-plurals.
"""

import re

from nmt_cli.documents.document import Document, ReadOptions
from nmt_cli.documents.messages import LINES, Found, Message, MessageFile, Plural, PluralGroup
from nmt_cli.documents.plural_categories import CATEGORIES
from nmt_cli.documents.xml_messages import Escapes, InlineReader, elements

_READER = InlineReader(lambda name, tag: ("tag", ""), Escapes(lines=LINES))
_FLAGS = ("objc-format",)
_FORMAT = "NSStringLocalizedFormatKey"
_WIDTH = re.compile(r"\d+")  # keys of variants for screen widths (NSStringVariableWidthRuleType)


def read(text: str, options: ReadOptions) -> Document:
    found = Found()
    for element in elements(text, "plist", "property list of messages"):
        if element.name == "dict":
            items = list[Plural]()
            for key, value in zip(element.children[::2], element.children[1::2], strict=False):
                name = key.content(text).strip()
                if key.name != "key" or value.name != "string" or value.is_empty or not _is_text(name):
                    continue
                message = Message(value.inner, value.close, value.content(text), cut=_READER.cut, flags=_FLAGS)
                found.messages.append(message)
                if name in CATEGORIES:
                    start = text.index(name, key.inner)
                    items.append(Plural(name, (start, start + len(name)), key.start, value.end, message))
            if items:
                found.groups.append(PluralGroup(items, element.children[0].space_before(text)))
    return MessageFile(text, found, options)


def _is_text(key: str) -> bool:
    return key in CATEGORIES or key == _FORMAT or bool(_WIDTH.fullmatch(key))
