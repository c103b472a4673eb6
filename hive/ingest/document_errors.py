"""Documents that could not be indexed: rows that people read, one per document and cause."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from hive.context import Stores
from hive.ids import AttemptId, TenantId
from hive.ingest.cleaning import clean
from hive.ingest.fetching import DocumentFailed, ParsedDocument
from hive.store.connection import Connection

LONGEST_SUMMARY = 500
LONGEST_LINK = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentError:
    """One document that was left out of an attempt, and why."""

    document: str | None
    link: str | None
    code: str
    summary: str
    created_at: datetime


def failure(document: ParsedDocument, code: str, summary: str) -> DocumentFailed:
    """A failure of ``document``."""
    return DocumentFailed(source_id=document.source_id, link=document.link, code=code, summary=summary)


async def record(connection: Connection, attempt: AttemptId, failures: Sequence[DocumentFailed]) -> None:
    """Write ``failures`` down."""
    if not failures:
        return
    await connection.execute(
        "insert into index_error (attempt, document_id, link, code, summary) "
        "select $1, * from unnest($2::text[], $3::text[], $4::text[], $5::text[])",
        attempt,
        [clean(entry.source_id, LONGEST_LINK) for entry in failures],
        [clean(entry.link, LONGEST_LINK) for entry in failures],
        [clean(entry.code, 80) for entry in failures],
        [clean(entry.summary, LONGEST_SUMMARY) for entry in failures],
    )


async def of_attempt(
    stores: Stores, tenant: TenantId, attempt: AttemptId, *, limit: int = 100
) -> Sequence[DocumentError]:
    """The attempt's document errors in the order they were met."""
    async with stores.transaction(tenant) as connection:
        rows = await connection.fetch(
            "select document_id, link, code, summary, created_at from index_error "
            "where attempt = $1 order by id limit $2",
            attempt,
            limit,
        )
    return [
        DocumentError(
            document=row["document_id"],
            link=row["link"],
            code=row["code"],
            summary=row["summary"],
            created_at=row["created_at"],
        )
        for row in rows
    ]
