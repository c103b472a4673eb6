"""Markdown, reStructuredText, text, PDF, Word: structure kept, and every way of failing has its code."""

import io
import re
import zipfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import document_samples as samples
from hive.ingest.parsing import reader
from hive.ingest.parsing.cleaning import one_line, tidy
from hive.ingest.parsing.parsed import Parsed, ParseFailure
from hive.ingest.parsing.reader import format_of, read


def headings(parsed: Parsed) -> list[tuple[str, str]]:
    return [(section.heading, section.anchor) for section in parsed.sections]


def code_of(data: bytes, name: str) -> str:
    with pytest.raises(ParseFailure) as caught:
        read(data, name)
    assert caught.value.summary
    return caught.value.code


def test_markdown_sections_have_github_anchors() -> None:
    parsed = read(
        b"# The *Guide*\n\nIntro.\n\n## Set-up & Run `it`\n\nText\n\n```\n# no heading\n```\n\n"
        b"### Deep\nx\n\n## Deep\n\ny\n\nUnderlined\n---\nz\n\n## Own {#mine}\nw\n\n## Alone\n",
        "guide.md",
    )
    assert parsed.title == "The Guide"
    assert headings(parsed) == [
        ("", "the-guide"),
        ("Set-up & Run it", "set-up--run-it"),
        ("Set-up & Run it › Deep", "deep"),
        ("Deep", "deep-1"),
        ("Underlined", "underlined"),
        ("Own", "mine"),
        ("Alone", "alone"),
    ]
    assert "# no heading" in parsed.sections[1].body
    assert all(section.markdown for section in parsed.sections)


def test_markdown_front_matter_gives_the_title_and_comments_go() -> None:
    parsed = read(b'---\ntitle: "My: page"\ntags: [a]\n---\n<!-- draft -->\n# Heading\n\ntext\n', "x.md")
    assert parsed.title == "My: page"
    assert [section.body for section in parsed.sections] == ["text"]


def test_rst_levels_follow_the_order_of_styles() -> None:
    parsed = read(
        b"=====\nTitle\n=====\n\nintro\n\nPart\n----\n\na\n\nChapter\n~~~~~~~\n\nb\n\n"
        b"Part two\n--------\n\nc\n",
        "x.rst",
    )
    assert parsed.title == "Title"
    assert [heading for heading, _ in headings(parsed)] == ["", "Part", "Part › Chapter", "Part two"]
    assert [section.body for section in parsed.sections] == ["intro", "a", "b", "c"]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ("naïve café".encode(), "naïve café"),
        ("naïve café".encode("cp1252"), "naïve café"),
        ("naïve café".encode("utf-8-sig"), "naïve café"),
        ("naïve café".encode("utf-16"), "naïve café"),
        ("a wide text in every other byte".encode("utf-16-le"), "a wide text in every other byte"),
        ("Привет, как дела? Это русский текст. ".encode("koi8-r") * 10, "Это русский текст"),
        ("これは日本語の文章です。".encode("shift_jis") * 8, "これは日本語の文章です"),
        (b"mostly fine, one bad byte: \xff " + b"and more " * 60, "and more"),
        (b"text with a \x00 byte and an ibex\n", "text with a  byte and an ibex"),
    ],
)
def test_text_in_many_encodings(data: bytes, expected: str) -> None:
    body = read(data, "note.txt").sections[0].body
    assert expected in body
    assert "\x00" not in body


def test_declared_charsets_are_believed_only_if_they_fit() -> None:
    page = "<meta charset=iso-8859-1><main><p>café “x”</main>"
    assert "café “x”" in read(page.encode("cp1252"), "x.html").sections[0].body
    lying = '<meta charset="utf-8"><main><p>café</main>'
    assert "café" in read(lying.encode("cp1252"), "x.html").sections[0].body
    unknown = '<meta charset="klingon"><main><p>café</main>'
    assert "café" in read(unknown.encode(), "x.html").sections[0].body
    assert "café" in read("<main><p>café</main>".encode(), "x.html", charset="no-such-thing").sections[0].body
    assert (
        "Größe" in read("<main><p>Größe</main>".encode("cp850"), "x.html", charset="cp850").sections[0].body
    )


@pytest.mark.parametrize(
    "data",
    [
        bytes(range(256)) * 64,
        b"\x7fELF" + bytes(100),
        b"\x89PNG\r\n\x1a\n" + bytes(50),
        b"PK\x03\x04" + bytes(60),
    ],
)
@pytest.mark.parametrize("name", ["a.txt", "a.md", "a.html", "a.rst", "a.csv"])
def test_binary_under_a_text_name(data: bytes, name: str) -> None:
    assert code_of(data, name) == "binary"


def test_pdf_pages_and_title() -> None:
    parsed = read(samples.pdf(["first okapi", "second"], title="The Report"), "report.pdf")
    assert parsed.title == "The Report"
    assert [(section.body, section.anchor) for section in parsed.sections] == [
        ("first okapi", "page=1"),
        ("second", "page=2"),
    ]
    assert read(samples.pdf(["x"]), "report.pdf").title == "report.pdf"


def test_pdf_failures() -> None:
    assert code_of(b"%PDF-1.7 not really", "x.pdf") == "unparsable"
    assert code_of(b"plain text", "x.pdf") == "unparsable"
    assert code_of(samples.pdf(["x"])[:200], "x.pdf") == "unparsable"
    assert code_of(samples.pdf([""]), "x.pdf") == "empty"
    assert code_of(samples.encrypted_pdf("secret"), "x.pdf") == "encrypted"
    assert "okapi" in read(samples.encrypted_pdf(""), "x.pdf").sections[0].body


def test_word_documents() -> None:
    parsed = read(samples.word(), "handbook.docx")
    assert parsed.title == "Handbook"
    assert [(section.heading, section.body) for section in parsed.sections] == [
        ("", "Read this first."),
        ("Animals", "- An okapi\n\nname | legs\nsnake | none\n\nAfter the table."),
    ]
    assert read(samples.word(title="By property"), "x.docx").title == "By property"


def test_a_word_document_without_properties_has_its_own_title() -> None:
    """As many converters write them; python-docx makes up properties titled "Word Document"."""
    whole, bare = io.BytesIO(samples.word()), io.BytesIO()
    with zipfile.ZipFile(whole) as given, zipfile.ZipFile(bare, "w") as made:
        for part in given.infolist():
            if part.filename == "_rels/.rels":
                text = given.read(part).decode()
                made.writestr(part, re.sub(r"<Relationship [^>]*core-properties[^>]*/>", "", text))
            elif part.filename != "docProps/core.xml":
                made.writestr(part, given.read(part))
    assert read(bare.getvalue(), "x.docx").title == "Handbook"


def test_word_failures() -> None:
    assert code_of(b"PK not a zip", "x.docx") == "unparsable"
    assert code_of(samples.word()[:3000], "x.docx") == "unparsable"
    assert code_of(b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(600), "x.docx") == "encrypted"
    assert code_of(samples.word_bomb(), "x.docx") == "too_large"


def test_endless_parsing_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    def forever(*_: object, **__: object) -> Parsed:
        while True:
            try:
                sum(range(1000))
            except Exception:  # noqa: BLE001, S112 - as broad as parsers are
                continue

    monkeypatch.setattr(reader, "CPU_SECONDS", 0.1)
    monkeypatch.setattr(reader, "parse_pdf", forever)
    assert code_of(b"x", "x.pdf") == "timeout"


def test_memory_that_runs_out_is_one_documents_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def hungry(*_: object, **__: object) -> Parsed:
        raise MemoryError

    monkeypatch.setattr(reader, "parse_pdf", hungry)
    assert code_of(b"x", "x.pdf") == "too_large"


def test_formats_by_name_and_by_content_type() -> None:
    assert format_of("A.HTML") == "html"
    assert format_of("x.rst.txt") == "rst"
    assert format_of("x.zip") is None
    assert format_of("x", "text/html; charset=utf-8") == "html"
    assert format_of("x.md", "text/plain") == "markdown"
    assert format_of("x.pdf", "application/octet-stream") == "pdf"
    assert format_of("x.html", "image/png") is None


@settings(deadline=None, max_examples=60)
@given(st.binary(max_size=600), st.sampled_from(["a.html", "a.md", "a.txt", "a.rst", "a.pdf", "a.docx"]))
def test_any_bytes_parse_or_fail_cleanly(data: bytes, name: str) -> None:
    try:
        parsed = read(data, name)
    except ParseFailure:
        return
    for section in parsed.sections:
        for text in (section.body, section.heading, section.anchor, parsed.title):
            assert "\x00" not in text
            text.encode("utf-8")


@given(st.text())
def test_cleaning_is_stable_and_storable(text: str) -> None:
    once = tidy(text)
    assert tidy(once) == once
    once.encode("utf-8")
    assert "\n" not in one_line(text)
    assert len(one_line(text)) <= 120
