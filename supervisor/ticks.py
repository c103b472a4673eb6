"""The supervisor's own periodic tasks; importing this module registers them.

They find in ``context.service``: ``Heartbeat``, ``Events`` and the ``Monitoring`` settings.
"""

from hive.backoff import NEVER
from hive.broker.port import Depth
from hive.context import Context
from hive.events import Events, QueueMeasured
from hive.logger import get_logger
from hive.settings import Monitoring
from hive.store.heartbeat import Heartbeat
from hive.tasks import task

log = get_logger(__name__)

GONE_DAYS = 7
"""How long the rows of ended processes are kept."""


@task(queue="coordination", scope="system", retry=NEVER, soft_seconds=30)
async def heartbeat(context: Context) -> None:
    """Prove that beat, broker and pool work: this handler runs only if all three do."""
    await context.service(Heartbeat).mark()


@task(queue="monitoring", scope="system", retry=NEVER, soft_seconds=60)
async def monitor_queues(context: Context) -> None:
    """Count every queue for the metrics, and raise an alarm where the oldest message waits too long."""
    events = context.service(Events)
    limit = context.service(Monitoring).queue_age_seconds
    for queue, broker in context.client.routes.items():
        depth = await broker.depth(queue)
        events.publish(
            QueueMeasured(
                queue=queue,
                waiting=depth.waiting,
                delayed=depth.delayed,
                running=depth.running,
                oldest_seconds=depth.oldest_seconds,
            )
        )
        _alarm(depth, limit)


def _alarm(depth: Depth, limit_seconds: float) -> None:
    if depth.oldest_seconds is None or depth.oldest_seconds <= limit_seconds:
        return
    log.error(
        "queue.waits_too_long",
        queue=depth.queue,
        oldest_seconds=round(depth.oldest_seconds),
        waiting=depth.waiting,
        running=depth.running,
        # With none running nobody serves the queue; with some running its pool is too small or too slow.
        consumer="busy" if depth.running else "none",
    )


@task(queue="coordination", scope="system", retry=NEVER, soft_seconds=60)
async def monitor_processes(context: Context) -> None:
    """Name the processes that fell silent and the transactions that stay open; forget processes long gone."""
    limits = context.service(Monitoring)
    async with context.connection() as connection:
        silent = await connection.fetch(
            """
            select id, host, pid, extract(epoch from now() - last_seen_at)::float8 as seconds
            from hive.process
            where stopped_at is null and last_seen_at < now() - make_interval(secs => $1)
            order by last_seen_at desc
            limit 20
            """,
            limits.process_silence_seconds,
        )
        # Any transaction that holds a snapshot keeps dead rows alive: claims walk over them and grow slow.
        open_transactions = await connection.fetch(
            """
            select pid, state, extract(epoch from now() - xact_start)::float8 as seconds
            from pg_stat_activity
            where datname = current_database() and pid <> pg_backend_pid()
              and (backend_xmin is not null or backend_xid is not null or state like 'idle in transaction%')
              and xact_start < now() - make_interval(secs => $1)
            order by xact_start
            limit 20
            """,
            limits.transaction_seconds,
        )
        await connection.execute(
            "delete from hive.process where last_seen_at < now() - make_interval(days => $1)", GONE_DAYS
        )
    for row in silent:
        log.warning(
            "process.silent",
            process=str(row["id"]),
            host=row["host"],
            pid=row["pid"],
            silent_seconds=round(row["seconds"]),
        )
    for row in open_transactions:
        log.error(
            "postgres.transaction_open",
            backend=row["pid"],
            state=row["state"],
            open_seconds=round(row["seconds"]),
        )
