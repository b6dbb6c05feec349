"""SubRip subtitles (.srt): translate the text of cues. Tags such as `<i>` and `{\\an8}` are copied."""

import re
from itertools import pairwise

from nmt_cli.documents.document import ReadOptions
from nmt_cli.documents.encodings import decoded
from nmt_cli.documents.subtitles import Cue, Subtitles, Syntax
from nmt_cli.system.errors import DataError

_CLOCK = r"(\d{1,4}):(\d{1,2}):(\d{1,2})[,.](\d{1,4})"
_TIMES = re.compile(rf"[ \t]*{_CLOCK}[ \t]*-->[ \t]*{_CLOCK}")
# A line break, a tag, or a block such as {\an8}
_TOKEN = re.compile(
    r"(?P<break>(?<!\r)\r*+\n)|<(?P<open>[A-Za-z]++)[^<>\n]*+>|</(?P<close>[A-Za-z]++)[ \t]*+>|\{\\[^{}\n]*\}"
)
_NUMBER = re.compile(r"[ \t\ufeff]*\d+[ \t]*\r*\n?")


def read(data: bytes, options: ReadOptions) -> Subtitles:
    text, encoding = decoded(data, options.source_language)
    lines = re.split(r"(?<=\n)", text)
    starts = [index for index, line in enumerate(lines) if _TIMES.match(line)]
    if not starts and text.strip():
        raise DataError("no line has times such as 00:00:01,000 --> 00:00:02,500, so this is not a SubRip file")
    pieces = list[str | Cue](["".join(lines[: starts[0] + 1 if starts else None])])
    for start, following in pairwise([*starts, None]):
        assert start is not None
        # If the line before the times of the next cue is a number, the line belongs to the next cue.
        stop = len(lines) if following is None else following - bool(_NUMBER.fullmatch(lines[following - 1]))
        stop = max(stop, start + 1)
        last = stop
        while last > start + 1 and not lines[last - 1].strip():
            last -= 1
        body = "".join(lines[start + 1 : last])
        shown = body.rstrip("\r\n")
        pieces.append(Cue(shown, _seconds(lines[start])))
        pieces.append(body[len(shown) :] + "".join(lines[last : len(lines) if following is None else following + 1]))
    new_line = "\r\n" if "\r\n" in text else "\n"
    return Subtitles(pieces, Syntax(_TOKEN, new_line), options, encoding)


def _seconds(line: str) -> tuple[float, float]:
    match = _TIMES.match(line)
    assert match
    hours, minutes, seconds, fraction, *end = match.groups()
    return clock(hours, minutes, seconds, fraction), clock(*end)


def clock(hours: str | None, minutes: str, seconds: str, fraction: str) -> float:
    """Return a time in seconds. `fraction` holds the digits after the decimal separator."""
    return 3600 * int(hours or 0) + 60 * int(minutes) + int(seconds) + float(f"0.{fraction}")
