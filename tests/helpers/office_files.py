"""Builds small office documents and books, and reads their members."""

import io
import zipfile
from collections.abc import Mapping

W = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
R = 'xmlns:r="http://schemas.openxmlformats.org/officeDocument/2006/relationships"'
A = 'xmlns:a="http://schemas.openxmlformats.org/drawingml/2006/main"'
P = 'xmlns:p="http://schemas.openxmlformats.org/presentationml/2006/main"'
X = 'xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"'
C = 'xmlns:c="http://schemas.openxmlformats.org/drawingml/2006/chart"'
WP = 'xmlns:wp="http://schemas.openxmlformats.org/drawingml/2006/wordprocessingDrawing"'
HEAD = '<?xml version="1.0" encoding="UTF-8" standalone="yes"?>\r\n'
_TYPE = "application/vnd.openxmlformats-officedocument."
_TYPES = {
    "word/document.xml": "wordprocessingml.document.main",
    "word/styles.xml": "wordprocessingml.styles",
    "word/header1.xml": "wordprocessingml.header",
    "word/footnotes.xml": "wordprocessingml.footnotes",
    "ppt/presentation.xml": "presentationml.presentation.main",
    "ppt/slides/slide1.xml": "presentationml.slide",
    "ppt/slideMasters/slideMaster1.xml": "presentationml.slideMaster",
    "ppt/slideLayouts/slideLayout1.xml": "presentationml.slideLayout",
    "ppt/notesSlides/notesSlide1.xml": "presentationml.notesSlide",
    "ppt/charts/chart1.xml": "drawingml.chart",
    "xl/workbook.xml": "spreadsheetml.sheet.main",
    "xl/sharedStrings.xml": "spreadsheetml.sharedStrings",
    "xl/worksheets/sheet1.xml": "spreadsheetml.worksheet",
    "xl/comments1.xml": "spreadsheetml.comments",
    "xl/tables/table1.xml": "spreadsheetml.table",
}
_CORE = "application/vnd.openxmlformats-package.core-properties"


def zipped(members: Mapping[str, str | bytes], *, stored: tuple[str, ...] = ("mimetype",)) -> bytes:
    """Return a zip file. The members named in `stored` are not compressed."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            info = zipfile.ZipInfo(name, (2024, 5, 6, 7, 8, 10))
            info.compress_type = zipfile.ZIP_STORED if name in stored else zipfile.ZIP_DEFLATED
            archive.writestr(info, content)
    return out.getvalue()


def ooxml(members: Mapping[str, str | bytes]) -> bytes:
    """Return an Office Open XML file, with the content types of its members."""
    kinds = {name: f"{_TYPE}{_TYPES[name]}+xml" for name in members if name in _TYPES}
    kinds |= {"docProps/core.xml": f"{_CORE}+xml"} if "docProps/core.xml" in members else {}
    overrides = "".join(f'<Override PartName="/{name}" ContentType="{kind}"/>' for name, kind in kinds.items())
    types = f'{HEAD}<Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types">{overrides}</Types>'
    return zipped({"[Content_Types].xml": types, **members})


def docx(body: str, **others: str | bytes) -> bytes:
    """Return a Word file with this body. `others` are members in word/, such as header1."""
    document = f"{HEAD}<w:document {W} {R} {A} {WP}><w:body>{body}</w:body></w:document>"
    return ooxml({"word/document.xml": document, **{f"word/{name}.xml": text for name, text in others.items()}})


def member(data: bytes, name: str, encoding: str = "utf-8") -> str:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return archive.read(name).decode(encoding)


def body(data: bytes) -> str:
    """Return the body of a Word file."""
    return member(data, "word/document.xml").split("<w:body>")[1].split("</w:body>")[0]


def run(text: str, properties: str = "") -> str:
    """Return a run of Word."""
    own = f"<w:rPr>{properties}</w:rPr>" if properties else ""
    return f'<w:r>{own}<w:t xml:space="preserve">{text}</w:t></w:r>'


def paragraph(*runs: str) -> str:
    return f"<w:p>{''.join(runs)}</w:p>"


_ODF = "office text table draw presentation style meta"
ODF_NAMES = " ".join(f'xmlns:{name}="urn:oasis:names:tc:opendocument:xmlns:{name}:1.0"' for name in _ODF.split())
ODF_NAMES += (
    ' xmlns:svg="urn:oasis:names:tc:opendocument:xmlns:svg-compatible:1.0" xmlns:dc="http://purl.org/dc/elements/1.1/"'
)
ODF_STYLES = """
<style:style style:name="T1" style:family="text"><style:text-properties officeooo:rsid="1"/></style:style>
<style:style style:name="T2" style:family="text"><style:text-properties fo:font-weight="bold"/></style:style>"""
ODF_DEFAULTS = """
<style:default-style style:family="paragraph"><style:text-properties fo:language="en" fo:country="US"/>
</style:default-style>"""


def odf(text: str) -> bytes:
    """Return an OpenDocument file with this text."""

    def content(inside: str) -> str:
        return f'<?xml version="1.0" encoding="UTF-8"?>\n<office:document {ODF_NAMES}>{inside}</office:document>'

    return zipped(
        {
            "mimetype": "application/vnd.oasis.opendocument.text",
            "META-INF/manifest.xml": "<manifest/>",
            "content.xml": content(ODF_STYLES + text),
            "styles.xml": content(f"{ODF_DEFAULTS}<style:header><text:p>A header</text:p></style:header>"),
            "meta.xml": content(
                "<dc:title>A name</dc:title><dc:creator>A Person</dc:creator><dc:language>en-US</dc:language>"
            ),
            "Object 1/content.xml": content("<text:p>A chart</text:p>"),
            "Pictures/a.png": bytes(99),
        }
    )
