"""Laravel's PHP message catalogs: `return [...]` with strings and nested arrays, and no other code.

Source: https://laravel.com/docs/localization (arrays, :parameters, plurals with "|").
"""

import re
from functools import partial

from nmt_cli.documents.document import Document, ReadOptions
from nmt_cli.documents.messages import MOST_LEVELS, Found, Message, MessageFile, is_code, text_parts, wrong
from nmt_cli.documents.placeholders import Protection
from nmt_cli.documents.segment import Parts

_KIND = "PHP message catalog"
_SPACE = r"(?:\s++|//[^\n]*+|\#[^\n]*+|/\*(?:(?!\*/).)*+\*/)*+"
_BEGIN = re.compile(rf"<\?php{_SPACE}(?:declare\(strict_types=1\);{_SPACE})?+return\b{_SPACE}", re.DOTALL)
_FINISH = re.compile(rf"{_SPACE};{_SPACE}(?:\?>\s*+)?\Z", re.DOTALL)
_PHP_TOKEN = re.compile(
    rf"{_SPACE}(?:'(?P<single>(?:[^'\\]|\\.)*+)'|\"(?P<double>(?:[^\"\\$]|\\.|\$(?![\w{{]))*+)\""
    r"|(?P<open>\[|array\s*+\()|(?P<close>[\])])|(?P<mark>=>|,)|(?P<other>-?\d[\d.]*+|true|false|null))",
    re.DOTALL | re.IGNORECASE,
)
# \n, \u{e9}, \xe9 or \351
_ESCAPE = re.compile(r"\\(?:([nrtvef\\$\"])|u\{([0-9A-Fa-f]{1,6})\}|x([0-9A-Fa-f]{1,2})|([0-7]{1,3}))")
_SINGLE = re.compile(r"\\(['\\])")
_LETTERS = {"n": "\n", "r": "\r", "t": "\t", "v": "\v", "e": "\x1b", "f": "\f"}
# The marks in "{0} none|[1,*] :n dogs": {0}, | and [1,*]
_CHOICE = re.compile(r"(\||(?<![^|\s])(?:\{\d++\}|\[(?:\d++|\*),(?:\d++|\*)\]))")


def read(text: str, options: ReadOptions) -> Document:
    begin = _BEGIN.match(text)
    if not begin:
        raise wrong(text, 0, _KIND, "no “<?php return [...];”")
    found, stack, offset = Found(), list[str](), begin.end()
    last: Message | None = None  # the last string, which is a value unless => follows
    while (match := _PHP_TOKEN.match(text, offset)) and (stack or match["open"]):
        offset = match.end()
        if match["mark"] != "=>" and last:
            found.messages.append(last)
        last = None
        if match["open"]:
            stack.append("]" if match["open"] == "[" else ")")
            if len(stack) > MOST_LEVELS:
                raise wrong(text, match.start("open"), _KIND, f"arrays nested more than {MOST_LEVELS} levels deep")
        elif match["close"] and stack.pop() != match["close"]:
            raise wrong(text, match.start("close"), _KIND, "an unmatched bracket")
        elif match["single"] is not None or match["double"] is not None:
            last = _message(match)
        if not stack:
            break
    if stack or not _FINISH.match(text, offset) or offset == begin.end():
        raise wrong(text, offset, _KIND, "an expression other than an array of strings")
    found.messages = [message for message in found.messages if not is_code(message.text)]
    return MessageFile(text, found, options)


def _message(match: re.Match[str]) -> Message:
    quotes = "single" if match["single"] is not None else "double"
    source = match[quotes]
    text = _SINGLE.sub(r"\1", source) if quotes == "single" else _ESCAPE.sub(_character, source)
    return Message(*match.span(quotes), text, partial(_spelled, quotes), _cut, ("laravel-format",))


def _character(match: re.Match[str]) -> str:
    letter, code, byte, octal = match.groups()
    if letter:
        return _LETTERS.get(letter, letter)
    number = int(code or byte, 16) if code or byte else int(octal, 8)
    return chr(number) if number < 0xD800 or 0xDFFF < number < 0x110000 else match[0]


def _cut(text: str, protection: Protection | None) -> Parts:
    """Return the parts of a message. Cut each choice of a plural separately."""
    parts = Parts()
    for number, piece in enumerate(_CHOICE.split(text)):
        parts += [piece] if number % 2 else text_parts(piece, protection)
    return parts


def _spelled(quotes: str, text: str) -> str:
    if quotes == "single":
        return re.sub(r"(['\\])", r"\\\1", text)
    text = re.sub(r'(["\\$])', r"\\\1", text)
    return text.replace("\n", r"\n").replace("\t", r"\t").replace("\r", r"\r").replace("\x1b", r"\e")
