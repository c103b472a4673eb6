"""Small documents in the formats that hive reads, made on the spot."""

import io
import zipfile
from collections.abc import Sequence

import docx
from pypdf import PdfReader, PdfWriter


def pdf(pages: Sequence[str], title: str = "") -> bytes:
    """A PDF with one line of text per page."""
    kids = " ".join(f"{3 + 2 * number} 0 R" for number in range(len(pages)))
    font = 3 + 2 * len(pages)
    objects = ["<</Type/Catalog/Pages 2 0 R>>", f"<</Type/Pages/Kids[{kids}]/Count {len(pages)}>>"]
    for number, text in enumerate(pages):
        content = f"BT /F 12 Tf 40 700 Td ({text}) Tj ET"
        objects.append(
            "<</Type/Page/Parent 2 0 R/MediaBox[0 0 600 800]"
            f"/Contents {4 + 2 * number} 0 R/Resources<</Font<</F {font} 0 R>>>>>>"
        )
        objects.append(f"<</Length {len(content)}>>stream\n{content}\nendstream")
    objects.append("<</Type/Font/Subtype/Type1/BaseFont/Helvetica/Encoding/WinAnsiEncoding>>")
    objects.append(f"<</Title({title})>>")
    data = bytearray(b"%PDF-1.4\n")
    places: list[int] = []
    for number, content in enumerate(objects, start=1):
        places.append(len(data))
        data += f"{number} 0 obj\n{content}\nendobj\n".encode("latin-1")
    table = len(data)
    data += f"xref\n0 {len(places) + 1}\n0000000000 65535 f \n".encode()
    data += b"".join(b"%010d 00000 n \n" % place for place in places)
    trailer = f"<</Root 1 0 R/Info {len(objects)} 0 R/Size {len(places) + 1}>>"
    data += f"trailer {trailer}\nstartxref\n{table}\n%%EOF\n".encode()
    return bytes(data)


def encrypted_pdf(user_password: str) -> bytes:
    """A PDF that opens with ``user_password`` (everybody may open it if that is empty)."""
    writer = PdfWriter(clone_from=PdfReader(io.BytesIO(pdf(["a secret okapi"]))))
    writer.encrypt(user_password=user_password, owner_password="owner", algorithm="AES-256")
    stream = io.BytesIO()
    writer.write(stream)
    return stream.getvalue()


def word(*, title: str = "") -> bytes:
    """A Word document with two headings, a list and a table."""
    document = docx.Document()
    document.core_properties.title = title
    document.add_heading("Handbook", 1)
    document.add_paragraph("Read this first.")
    document.add_heading("Animals", 2)
    document.add_paragraph("An okapi", style="List Bullet")
    table = document.add_table(2, 2)
    for row, cells in enumerate((("name", "legs"), ("snake", "none"))):
        for column, text in enumerate(cells):
            table.cell(row, column).text = text
    document.add_paragraph("After the table.")
    stream = io.BytesIO()
    document.save(stream)
    return stream.getvalue()


def word_bomb() -> bytes:
    """A few kilobytes that unpack to 300 MB of XML."""
    stream = io.BytesIO()
    with (
        zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("word/document.xml", "w") as part,
    ):
        for _ in range(300):
            part.write(b"<w:p/>" * (1024 * 1024 // 6))
    return stream.getvalue()
