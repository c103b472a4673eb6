"""Text that any store accepts, and headings put in order."""

import re
from collections.abc import Sequence

from hive.ingest.connectors.port import Section

SEPARATOR = " › "
MAX_HEADING_CHARACTERS = 120
MAX_TITLE_CHARACTERS = 300

# NUL (Postgres refuses it), other control characters but tab and line feed, lone surrogates (not encodable).
# Zero-width space, word joiner, soft hyphen and byte order mark only split words that people search for.
_UNWANTED = re.compile("[\x00-\x08\x0b-\x1f\x7f\x80-\x84\x86-\x9f\ud800-\udfff\u00ad\u200b\u2060\ufeff]")
_SPACES_BEFORE_LINE_END = re.compile(r"[ \t]+\n")
_BLANK_LINES = re.compile(r"\n{3,}")


def clean(text: str) -> str:
    """Drop what cannot be stored or seen; line ends become ``\\n``."""
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    text = (
        text.replace("\x0b", "\n")
        .replace("\x0c", "\n")
        .replace("\x85", "\n")
        .replace("\u2028", "\n")
        .replace("\u2029", "\n")
    )
    return _UNWANTED.sub("", text)


def tidy(text: str) -> str:
    """``clean``, without spaces at line ends, runs of blank lines, or space around the whole."""
    return _BLANK_LINES.sub("\n\n", _SPACES_BEFORE_LINE_END.sub("\n", clean(text))).strip()


def one_line(text: str, limit: int = MAX_HEADING_CHARACTERS) -> str:
    """``text`` on one line, cut at a word's end when longer than ``limit``."""
    line = " ".join(clean(text).split())
    if len(line) <= limit:
        return line
    cut = line.rfind(" ", limit // 2, limit - 1)
    return line[: cut if cut > 0 else limit - 1].rstrip() + "…"


def site_free_title(title: str, heading: str) -> str:
    """The page's title without the site's name ("Task Groups — Some site"), if ``heading`` shows its end.

    A first heading of one word ("Overview") says too little by itself: then the whole title stays.
    """
    title, heading = one_line(title, MAX_TITLE_CHARACTERS), one_line(heading, MAX_TITLE_CHARACTERS)
    if not title or not heading:
        return title or heading
    if heading.casefold() in title.casefold() and len(heading.split()) > 1:
        return heading
    return title


def under_title(sections: Sequence[Section], title: str, first_heading: str) -> list[Section]:
    """Drop the first step of each heading path where it repeats the title, which is indexed beside it."""
    drop = {one_line(title).casefold(), one_line(first_heading).casefold()} - {""}
    result: list[Section] = []
    for section in sections:
        first, _, rest = section.heading.partition(SEPARATOR)
        heading = rest if first.casefold() in drop else section.heading
        result.append(
            Section(body=section.body, heading=heading, anchor=section.anchor, markdown=section.markdown)
        )
    return result
