"""Which of two texts of one document is the newer one.

A version is ``[revision, batch]``, kept as ``bigint[]`` and compared left to right:

- ``revision`` is the source's own number where it has one, else 0;
- ``batch`` is the id of the batch the text was stored in. Batches of one tenant are numbered in the order in
  which they were stored, whoever fetched them, so that two connectors that bring the same document can be
  compared. (The attempt's sequence cannot do that: it counts within one connector, and the connector that
  runs more often would win for ever.)

A write needs a version not below the stored one: the same batch may be written again, an older one never.
"""

from hive.ids import BatchId

Version = list[int]

_LARGEST = 2**63 - 1


def version_of(revision: int | None, batch: BatchId) -> Version:
    """The version of a document that came in ``batch``; a revision outside bigint's range is clamped."""
    return [max(0, min(revision or 0, _LARGEST)), batch]


def may_replace(candidate: Version, stored: Version) -> bool:
    """Whether a text of version ``candidate`` may be written over one of version ``stored``."""
    return candidate >= stored
