"""Imported before fetch children are forked: parses a little of everything, once.

Libraries load parts of themselves on first use: codecs, stop words, templates, character maps. A child may
run as a user who cannot read the installation, so all of it has to be in memory before. Starts no threads.
"""

import io

import docx
from markdown_it import MarkdownIt
from protego import Protego

from hive.ingest.connectors.port import Section, SourceDocument
from hive.ingest.connectors.sitemap import parse_sitemap
from hive.ingest.parsing.parsed import ParseFailure
from hive.ingest.parsing.reader import read
from hive.ingest.splitting import split

_PDF_OBJECTS = (
    b"<</Type/Catalog/Pages 2 0 R>>",
    b"<</Type/Pages/Kids[3 0 R]/Count 1>>",
    b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 99 99]/Contents 4 0 R/Resources<</Font<</F 5 0 R>>>>>>",
    b"<</Length 37>>stream\nBT /F 9 Tf 9 9 Td (Some text) Tj ET  \nendstream",
    b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica/Encoding/WinAnsiEncoding>>",
)
_WORDS = "There are some plain words in this paragraph of text, and they are here for the extraction only. "


def _pdf() -> bytes:
    data = bytearray(b"%PDF-1.4\n")
    places: list[int] = []
    for number, content in enumerate(_PDF_OBJECTS, start=1):
        places.append(len(data))
        data += b"%d 0 obj\n%b\nendobj\n" % (number, content)
    table = len(data)
    data += b"xref\n0 %d\n0000000000 65535 f \n" % (len(places) + 1)
    data += b"".join(b"%010d 00000 n \n" % place for place in places)
    data += b"trailer <</Root 1 0 R/Size %d>>\nstartxref\n%d\n%%%%EOF\n" % (len(places) + 1, table)
    return bytes(data)


def _word_document() -> bytes:
    document = docx.Document()
    document.add_heading("Heading", 1)
    document.add_paragraph("Text")
    document.add_table(1, 1).cell(0, 0).text = "Cell"
    stream = io.BytesIO()
    document.save(stream)
    return stream.getvalue()


def _samples() -> dict[str, bytes]:
    paragraphs = "".join(f"<p>{_WORDS * 4}</p>" for _ in range(8))
    menu = "".join(f"<li><a href='/{number}'>Link</a></li>" for number in range(40))
    return {
        "marked.html": b"<html><main><h1>Title</h1><table><tr><td>x</table></main></html>",
        "found.html": f"<body><div class='menu'><ul>{menu}</ul></div><div>{paragraphs}</div></body>".encode(),
        "poor.html": f"<body><div><ul>{menu * 20}</ul></div><span>{_WORDS}</span></body>".encode(),
        "page.md": b"---\ntitle: x\n---\n# A `b` [c](d)\n\n- text\n\n```\ncode\n```\n",
        "page.rst": b"Title\n=====\n\nText\n",
        "latin.txt": "Größe, déjà vu, mañana: Übermäßig".encode("cp1252"),
        "japanese.txt": "これは日本語の文章です。".encode("euc-jp") * 8,
        "page.pdf": _pdf(),
        "page.docx": _word_document(),
    }


def _use_everything() -> None:
    for name, data in _samples().items():
        try:
            parsed = read(data, name)
        except ParseFailure:
            continue  # a child that meets the same says so for its own document
        split(
            SourceDocument(source_id=name, title=parsed.title, link=name, sections=parsed.sections),
            chunk_characters=400,
            overlap=0,
        )
    long = Section(body=_WORDS * 20, markdown=True)
    split(SourceDocument(source_id="", title="", link="", sections=[long]), chunk_characters=400, overlap=0)
    MarkdownIt("commonmark").parseInline("*a* &amp; <b>")
    parse_sitemap(b"<urlset><url><loc>x</loc></url></urlset>")
    Protego.parse("User-agent: *\nDisallow: /x\nCrawl-delay: 1").can_fetch("http://a/", "hive")
    "bücher.example".encode("idna")


_use_everything()
