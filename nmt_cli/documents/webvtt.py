"""WebVTT subtitles (.vtt): translate the text of cues. Notes, styles, regions and cue settings are copied unchanged.

Source: https://www.w3.org/TR/webvtt1/ (2019).
"""

import re

from nmt_cli.documents.document import ReadOptions
from nmt_cli.documents.encodings import decoded
from nmt_cli.documents.html import Spelling
from nmt_cli.documents.srt import clock
from nmt_cli.documents.subtitles import Cue, Subtitles, Syntax
from nmt_cli.system.errors import DataError

_CLOCK = r"(?:(\d{2,4}):)?(\d{1,2}):(\d{1,2})[.,](\d{1,4})"  # some tools write a comma, as in SubRip
_TIMES = re.compile(rf"[ \t]*{_CLOCK}[ \t]*-->[ \t]*{_CLOCK}")
# A line break, a tag, or a time such as <00:01.000>
_TOKEN = re.compile(r"(?P<break>\r?\n|\r)|<(?P<open>[a-z]++)[^<>]*+>|</(?P<close>[a-z]++)[^<>]*+>|<[0-9:.]++>")
_LINE_END = re.compile(r"(?<=\n)|(?<=\r)(?!\n)")


def read(data: bytes, options: ReadOptions) -> Subtitles:
    text, encoding = decoded(data, options.source_language)
    if not re.match(r"WEBVTT(?=[ \t\r\n]|\Z)", text):
        raise DataError("the file does not begin with WEBVTT, so it is not a WebVTT file")
    lines = _LINE_END.split(text)
    pieces, copied, index = list[str | Cue](), "", 0
    while index < len(lines):
        line = lines[index]
        copied += line
        index += 1
        if not (match := _TIMES.match(line)):
            continue
        stop = index
        while stop < len(lines) and lines[stop].strip("\r\n") and "-->" not in lines[stop]:
            stop += 1
        body = "".join(lines[index:stop])
        shown = body.rstrip("\r\n")
        times = match.groups()
        pieces += [copied, Cue(shown, (clock(*times[:4]), clock(*times[4:])))]
        copied, index = body[len(shown) :], stop
    new_line = "\r\n" if "\r\n" in text else "\n"
    return Subtitles([*pieces, copied], Syntax(_TOKEN, new_line, Spelling), options, encoding)
