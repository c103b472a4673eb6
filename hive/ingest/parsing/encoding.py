"""Bytes become text: which encoding, and whether it is text at all."""

import codecs
import re

from charset_normalizer import from_bytes

from hive.ingest.parsing.parsed import ParseFailure

_BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),  # before UTF-16, whose mark it begins with
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_MAGIC = (
    b"\x7fELF",
    b"\x89PNG",
    b"\xff\xd8\xff",
    b"GIF8",
    b"PK\x03\x04",
    b"PK\x05\x06",
    b"\x1f\x8b",
    b"BZh",
    b"\xfd7zXZ",
    b"\x28\xb5\x2f\xfd",
    b"7z\xbc\xaf",
    b"Rar!\x1a",
    b"%PDF-",
    b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1",
    b"\xca\xfe\xba\xbe",
    b"\xfe\xed\xfa",
    b"\xcf\xfa\xed\xfe",
    b"SQLite format 3\x00",
    b"OggS",
    b"ID3",
    b"\x00asm",
    b"wOF",
)
# The labels that browsers read as a wider encoding than they name (WHATWG Encoding Standard, section 4.2).
_WIDER = {
    "iso8859-1": "cp1252",
    "ascii": "cp1252",
    "iso8859-9": "cp1254",
    "iso8859-11": "cp874",
    "gb2312": "gb18030",
    "gbk": "gb18030",
    "euc_kr": "cp949",
    "shift_jis": "cp932",
}
_CONTROL = bytes(value for value in (*range(0x20), 0x7F) if value not in b"\t\n\r\f\x08\x1b")
_META_CHARSET = re.compile(
    rb"""<meta[^>]{0,300}?charset\s*=\s*["']?\s*([a-zA-Z0-9_:.\-]{2,40})""", re.IGNORECASE
)
_XML_ENCODING = re.compile(rb"""^\s*<\?xml[^>]{0,100}?encoding\s*=\s*["']([a-zA-Z0-9_:.\-]{2,40})["']""")
_SAMPLE_BYTES = 64 * 1024


def refuse_binary(data: bytes) -> None:
    """Raise ``ParseFailure("binary")`` for what only has a text file's name.

    A few NUL bytes in a text are dropped later; a share of control characters that no text has, or a known
    file signature, is not text.
    """
    if any(data.startswith(mark) for mark, _ in _BYTE_ORDER_MARKS):
        return
    if data.startswith(_MAGIC):
        raise ParseFailure("binary", "the file's content is binary, not text")
    sample = data[:_SAMPLE_BYTES]
    if not sample or wide_encoding(sample):
        return
    control = len(sample) - len(sample.translate(None, _CONTROL))
    # Random bytes are 11 % control characters and not UTF-8; machine code has far more of them.
    limit = 0.3 if _is_utf8(sample, partial=len(data) > len(sample)) else 0.03
    if control > 8 and control / len(sample) > limit:
        raise ParseFailure("binary", "the file's content is binary, not text")


def wide_encoding(sample: bytes) -> str | None:
    """UTF-16 without a byte order mark: every other byte of mostly Latin text is NUL."""
    if len(sample) < 16:
        return None
    half = len(sample) // 2
    even, odd = sample[0::2].count(0), sample[1::2].count(0)
    if odd > 0.7 * half and even < 0.05 * half:
        return "utf-16-le"
    if even > 0.7 * half and odd < 0.05 * half:
        return "utf-16-be"
    return None


def decode(data: bytes, *, declared: str | None = None, markup: bool = False) -> str:
    """``data`` as text. Never raises: what no encoding explains becomes U+FFFD.

    The order: byte order mark; ``declared`` (of the HTTP header); for ``markup`` the document's own
    declaration; UTF-8; a guess; Windows-1252.
    """
    for mark, name in _BYTE_ORDER_MARKS:
        if data.startswith(mark):
            return data.decode(name, errors="replace")
    candidates = [declared] if declared else []
    if markup:
        head = data[:4096]
        for pattern in (_XML_ENCODING, _META_CHARSET):
            if match := pattern.search(head):
                label = match.group(1).decode("ascii")
                if not label.lower().startswith(
                    ("utf-16", "utf-32", "ucs")
                ):  # it could not have been read as ASCII
                    candidates.append(label)
    for label in candidates:
        text = _strict(data, _known(label))
        if text is not None:
            return text
    text = _strict(data, "utf-8")
    if text is not None:
        return text
    if wide := wide_encoding(data[:_SAMPLE_BYTES]):
        return data.decode(wide, errors="replace")
    names = [_known(label) for label in candidates]
    return _guessed(data, [name for name in names if name and name != "utf-8"])


def _guessed(data: bytes, declared: list[str]) -> str:
    # Mostly valid UTF-8 with a broken byte or two: keep the text, mark the bytes.
    lenient = data.decode("utf-8", errors="replace")
    if lenient.count("\ufffd") * 200 < len(lenient):
        return lenient
    best = from_bytes(data[:_SAMPLE_BYTES], steps=5, chunk_size=512).best()
    # A guess that no language speaks for, or that means the same letters, is worth less than the commonest.
    guessed = best is not None and best.coherence >= 0.1 and "cp1252" not in best.could_be_from_charset
    for name in (*declared, best.encoding if best is not None and guessed else "cp1252"):
        text = data.decode(name, errors="replace")
        if text.count("\ufffd") * 20 <= len(text):
            return text
    return data.decode("cp1252", errors="replace")


def _known(label: str | None) -> str | None:
    """Python's name for the label, if it has one that decodes bytes to text."""
    if not label:
        return None
    try:
        name = codecs.lookup(label.strip()).name
        b"".decode(name)  # LookupError for rot13 and other codecs that are not encodings
    except (LookupError, ValueError, OSError):
        return None
    return _WIDER.get(name, name)


def _strict(data: bytes, name: str | None) -> str | None:
    if name is None:
        return None
    try:
        return data.decode(name)
    except (UnicodeError, ValueError):
        return None


def _is_utf8(sample: bytes, *, partial: bool) -> bool:
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        decoder.decode(sample, final=not partial)
    except UnicodeDecodeError:
        return False
    return True
