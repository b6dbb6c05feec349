"""Resource files of .NET (.resx): translate the strings in <data><value>.

Sources: https://learn.microsoft.com/en-us/dotnet/core/extensions/work-with-resx-files-programmatically;
https://learn.microsoft.com/en-us/globalization/localization/localization-comments ({Locked} in comments).
"""

from nmt_cli.documents.document import Document, ReadOptions
from nmt_cli.documents.messages import LINES, Found, Message, MessageFile, is_code
from nmt_cli.documents.xml_messages import Escapes, InlineReader, elements

_READER = InlineReader(lambda name, tag: ("tag", ""), Escapes(lines=LINES))


def read(text: str, options: ReadOptions) -> Document:
    found = Found()
    for element in elements(text, "root", ".resx file"):
        name, value, comment = element.get("name"), element.child("value"), element.child("comment")
        if element.name != "data" or element.get("type") or element.get("mimetype") or name.startswith((">>", "$")):
            continue
        is_locked = comment is not None and "{Locked}" in comment.content(text)
        if value and not value.is_empty and not is_locked and not is_code(value.content(text)):
            message = Message(value.inner, value.close, value.content(text), cut=_READER.cut, flags=("csharp-format",))
            found.messages.append(message)
    return MessageFile(text, found, options)
