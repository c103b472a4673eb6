"""What a parser gives back, and how it says that it cannot."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from hive.ingest.connectors.port import Section

# Rises whenever the same bytes would be parsed into different sections. Connectors store it in their
# source_state, so that a new release reads everything once more, although nothing changed at the source.
PARSING_VERSION = 1

MAX_TEXT_CHARACTERS = 20_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Parsed:
    """A document's title and its sections, in reading order."""

    title: str
    sections: Sequence[Section]
    metadata: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def empty(self) -> bool:
        """Whether there is no text at all."""
        return not any(section.body.strip() for section in self.sections)


class ParseFailure(Exception):
    """This document cannot be read. ``code``: too_large, binary, empty, unparsable, encrypted, timeout."""

    def __init__(self, code: str, summary: str) -> None:
        super().__init__(summary)
        self.code = code
        self.summary = summary
