"""SubStation Alpha subtitles (.ass, .ssa): translate dialogue lines. Override blocks such as `{\\i1}` are copied."""

import re

from nmt_cli.documents.document import ReadOptions
from nmt_cli.documents.encodings import decoded
from nmt_cli.documents.srt import clock
from nmt_cli.documents.subtitles import Cue, Subtitles, Syntax
from nmt_cli.system.errors import DataError

_TIME = re.compile(r"\s*(\d{1,4}):(\d{1,2}):(\d{1,2})[.:](\d{1,4})\s*")
# A line break, {\i1}, {\i0}, or any other override block
_TOKEN = re.compile(
    r"(?P<break>\\[Nnh])|\{\\(?P<open>[ibus])[1-9]\d{0,2}\}|\{\\(?P<close>[ibus])0\}|\{[^{}]*\}", re.ASCII
)
_DRAWING = re.compile(r"\\p[1-9]")  # matches an override block that starts a drawing
# The fields of a dialogue line, unless a Format line lists others
_FIELDS: tuple[str, ...] = "layer", "start", "end", "style", "name", "marginl", "marginr", "marginv", "effect", "text"


def read(data: bytes, options: ReadOptions) -> Subtitles:
    text, encoding = decoded(data, options.source_language)
    if "[events]" not in text.lower():
        raise DataError("the file has no [Events] section, so it is not a SubStation Alpha file. Check its format")
    pieces, fields, in_events = list[str | Cue](), _FIELDS, False
    for line in re.split(r"(?<=\n)", text):
        kind, _, rest = line.partition(":")
        kind = kind.strip().lower()
        if line.lstrip("\ufeff \t").startswith("["):
            in_events = line.strip().lower() == "[events]"
        elif in_events and kind == "format":
            fields = tuple(each.strip().lower() for each in rest.split(","))
        values = rest.split(",", len(fields) - 1)
        shown = values[-1].rstrip("\r\n")
        if not in_events or kind != "dialogue" or len(values) < len(fields) or _is_drawing(shown):
            pieces.append(line)
            continue
        event = dict(zip(fields, values, strict=True))
        times = [_TIME.fullmatch(event.get(name, "")) for name in ("start", "end")]
        start, end = (clock(*time.groups()) if time else 0.0 for time in times)
        cue = Cue(shown, (start, end), (event.get("style"), event.get("name")), wraps="\\N" in shown)
        pieces += [line[: len(line) - len(values[-1])], cue, values[-1][len(shown) :]]
    return Subtitles(pieces, Syntax(_TOKEN, "\\N"), options, encoding)


def _is_drawing(text: str) -> bool:
    """Return whether a dialogue line contains a vector drawing, not text."""
    return any(_DRAWING.search(match[0]) for match in _TOKEN.finditer(text) if match[0].startswith("{"))
