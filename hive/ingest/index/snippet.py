"""The lines of a chunk that show why it was found: plain text, cut between words."""

import re
from typing import Final

LONGEST: Final = 240
_WORD: Final = re.compile(r"\w+")
# Word forms share their beginnings: "parse", "parser" and "parsing" agree in "pars".
_STEM: Final = 5


def snippet(body: str, query: str, *, longest: int = LONGEST) -> str:
    """The part of ``body`` with the most different words of ``query``, on one line.

    Not HTML: characters such as ``<`` stand for themselves, and whoever shows it escapes it.
    """
    text = " ".join(body.split())
    if len(text) <= longest:
        return text
    wanted = {word[:_STEM] for word in _WORD.findall(query.lower()) if len(word) > 2}
    hits = [
        (match.start(), word[:_STEM])
        for match in _WORD.finditer(text.lower())
        if (word := match.group())[:_STEM] in wanted
    ]
    start = _best_start(hits, longest - 40)
    # Begin a little before the first match, at the beginning of a word.
    begin = 0 if start < 40 else text.find(" ", max(0, min(start - 40, len(text) - longest))) + 1
    end = len(text) if begin + longest >= len(text) else text.rfind(" ", begin, begin + longest)
    end = begin + longest if end <= begin else end
    return ("… " if begin else "") + text[begin:end] + (" …" if end < len(text) else "")


def _best_start(hits: list[tuple[int, str]], width: int) -> int:
    """Where the window of ``width`` characters with the most different words begins; the first of equals."""
    best, most = 0, 0
    for at, (start, _) in enumerate(hits):
        words = {word for place, word in hits[at : at + 50] if place < start + width}
        if len(words) > most:
            best, most = start, len(words)
    return best
