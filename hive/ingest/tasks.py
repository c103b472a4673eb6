"""The tasks of ingestion. Importing this module registers them."""

from typing import Final

from hive.backoff import NEVER, Retry
from hive.context import Context
from hive.errors import TenantMissing
from hive.ids import AttemptId, BatchId, TenantId
from hive.ingest.fetch_job import FetchJob
from hive.ingest.index.postgres import PostgresIndex
from hive.ingest.indexing_tick import IndexingTick
from hive.ingest.process_job import ProcessJob
from hive.ingest.reconciliation import drop_ended
from hive.ingest.services import IngestServices
from hive.tasks import task

# What a batch holds was read from its source once, and an embedder may be away or overrun for hours: giving
# up would lose it for this attempt. About seven hours in all, and a person can still replay it after that.
PATIENCE: Final = Retry(delays_seconds=(2, 5, 10, 20, 40, *([60] * 400)))


# A store that was away for a moment costs a try, and so does a source: soon at first, then for some minutes.
PERSISTENCE: Final = Retry(delays_seconds=(2, 10, 30, 60, 120))


@task(queue="connector_fetching", retry=PERSISTENCE)
async def fetch_connector(context: Context, attempt: int) -> None:
    """Read a source, and store what it yields batch by batch."""
    services = context.service(IngestServices)
    await FetchJob(context, services, _tenant(context), AttemptId(attempt)).run()


@task(queue="document_processing", retry=PATIENCE, on_lease_doubt="continue")
async def process_batch(context: Context, attempt: int, batch: int) -> None:
    """Embed one batch and put it into the index. All its effects are in its own transaction."""
    services = context.service(IngestServices)
    await ProcessJob(context, services, AttemptId(attempt), BatchId(batch)).run()


@task(queue="coordination", retry=NEVER, work_gated=True)
async def check_for_indexing(context: Context) -> None:
    """Start the connectors that are due, and put attempts right whose jobs were given up."""
    services = context.service(IngestServices)
    await IndexingTick(services.database, services.attempts).run_once(_tenant(context), client=context.client)


@task(queue="attempt_cleanup", retry=NEVER)
async def check_for_attempt_cleanup(context: Context) -> None:
    """Drop old attempts; build the vector index of a tenant that has outgrown exact search."""
    services = context.service(IngestServices)
    tenant = _tenant(context)
    await drop_ended(services.database, tenant, keep_days=services.settings.retention.attempts_days)
    if isinstance(services.index, PostgresIndex):
        async with services.database.transaction(tenant) as connection:
            await services.index.ensure_vector_index(connection)


def _tenant(context: Context) -> TenantId:
    if context.tenant is None:
        raise TenantMissing("ingestion runs for a tenant, and none was given")
    return context.tenant
