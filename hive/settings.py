"""Every setting, with its default, its unit in its name, and one line of why.

Read from ``config.toml``, then overridden by the environment (``HIVE_SECTION__KEY``). Frozen once read.
``hive.config_file`` renders this file as ``config.toml``; a check keeps the two equal.
"""

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, SecretStr, model_validator

from hive.addresses import HttpAddress, PostgresAddress, RedisAddress
from hive.section import Count, Positive, Section
from hive.topology import Pool, default_pools, default_providers, default_schedules


class Process(Section):
    """The process as a whole."""

    state_dir: Path = Field(
        default=Path(".hive"),
        description="Where identity, token, key and embedded stores live; one hive per folder.",
    )
    modules: tuple[str, ...] = Field(
        default=(), description="Python modules to import at start: your own tasks."
    )
    stores_wait_seconds: Positive = Field(
        default=60, description="How long a start waits for the stores (then exit 3)."
    )


class Postgres(Section):
    """The truth. Without a DSN, an embedded PostgreSQL is started under the state folder."""

    dsn: PostgresAddress = Field(
        default=SecretStr(""), description="postgresql://…; may be a transaction pooler."
    )
    direct_dsn: PostgresAddress = Field(
        default=SecretStr(""), description="For LISTEN and migrations, when dsn is a transaction pooler."
    )
    pool_size: Count = Field(default=16, description="Connections of one hive at the most, LISTEN aside.")
    call_seconds: Positive = Field(default=30, description="Deadline of one statement.")
    connection_age_seconds: Positive = Field(
        default=1800, description="A connection is replaced after this long."
    )
    schemas_per_connection: Count = Field(
        default=200,
        description="…or after this many tenants: a backend keeps 0.35 MB for each schema it saw.",
    )
    migrate_on_start: bool = Field(
        default=True, description="Whether `hive run` brings the schema up to date."
    )


class Redis(Section):
    """Fast and disposable. Without a URL, an embedded Valkey is started under the state folder."""

    enabled: bool = Field(
        default=True, description="false: every queue on the ledger, the leader lease in Postgres."
    )
    url: RedisAddress = Field(default=SecretStr(""), description="redis://… or unix://…")
    pool_size: Count = Field(
        default=16, description="Connections of one hive at the most, blocking readers aside."
    )
    call_seconds: Positive = Field(default=5, description="Deadline of one command, connecting included.")


class Embedded(Section):
    """The stores hive starts itself when it is given no addresses."""

    postgres_shared_buffers_mb: Count = Field(
        default=64, description="Small: it shares the container with hive."
    )
    valkey_max_memory_mb: Count = Field(default=256, description="Valkey refuses writes above this.")
    user: str = Field(
        default="daemon", description="Whom they run as where hive is root; not the fetch children's user."
    )


class Http(Section):
    """Health, metrics and the API."""

    host: str = Field(default="127.0.0.1", description="The image sets 0.0.0.0.")
    port: int = Field(
        default=8420, ge=0, le=65535, description="0 takes a free one; see <state_dir>/http.json."
    )


class Log(Section):
    """Structured events on standard error."""

    level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="Least level printed."
    )
    format: Literal["auto", "console", "json"] = Field(
        default="auto", description="auto: for people on a terminal, JSON elsewhere."
    )


class Leases(Section):
    """Short and renewed, so that a long job never runs twice because it is long."""

    delivery_seconds: Positive = Field(
        default=60, description="A job is taken over this long after its last renewal."
    )
    renew_seconds: Positive = Field(default=20, description="One call per pool renews all its deliveries.")
    doubt_margin_seconds: Positive = Field(
        default=10, description="Lease left when a handler whose store is away is in doubt."
    )
    sweep_seconds: Positive = Field(
        default=1, description="How often due, expired and orphaned messages are looked for."
    )
    leader_seconds: Positive = Field(
        default=120, description="A second hive leads this long after a leader's last renewal."
    )
    leader_renew_seconds: Positive = Field(
        default=15, description="Renewed by a coroutine of its own, on its own connection."
    )
    leader_margin_seconds: Positive = Field(
        default=10, description="A leader that cannot renew stops this long before the end."
    )

    @model_validator(mode="after")
    def _fit(self) -> Self:
        if self.renew_seconds * 2 > self.delivery_seconds:
            raise ValueError(
                "renew_seconds must be at most half of delivery_seconds, or one miss loses a lease"
            )
        if self.doubt_margin_seconds >= self.delivery_seconds:
            raise ValueError("doubt_margin_seconds must be below delivery_seconds")
        if self.leader_renew_seconds * 2 + self.leader_margin_seconds > self.leader_seconds:
            raise ValueError("leader_seconds must hold two leader_renew_seconds and leader_margin_seconds")
        return self


class Crashes(Section):
    """How many deaths a job may cause before it counts as poison."""

    child_limit: Count = Field(default=3, description="Deaths of its child process since the last progress.")
    hive_limit: Count = Field(default=10, description="Deaths of hive itself while its handler ran.")


class Retention(Section):
    """How long ended work stays to be looked at."""

    completed_hours: Positive = Field(default=24, description="Completed and cancelled jobs.")
    failed_days: Positive = Field(default=30, description="Failed jobs and dead letters.")
    attempts_days: Positive = Field(
        default=30, description="Ended attempts; the newest of each connector always stays."
    )


class Shutdown(Section):
    """What happens at SIGTERM."""

    grace_seconds: Positive = Field(
        default=25, description="What can finish in this time finishes; the rest is handed back."
    )
    cancel_seconds: Positive = Field(default=5, description="How long a cancelled handler may take to end.")


class Services(Section):
    """How supervised services are restarted."""

    backoff_first_seconds: Positive = Field(
        default=0.2, description="Wait before the first restart; doubles after that."
    )
    backoff_max_seconds: Positive = Field(
        default=2,
        description="Longest wait between restarts; short, so that a crash loop uses up its budget.",
    )
    healthy_seconds: Positive = Field(
        default=60, description="After this long in good health the back-off starts anew."
    )
    restart_limit: Count = Field(default=20, description="A service that restarts more often than this …")
    restart_window_seconds: Positive = Field(default=60, description="… within this time is FATAL.")


class Watchdog(Section):
    """The heartbeat chain: beat, broker, pool and handler in one round."""

    period_seconds: Positive = Field(default=60, description="How often the heartbeat is scheduled and read.")
    misses: Count = Field(default=5, description="More misses than this in a row …")
    silence_seconds: Positive = Field(default=900, description="… and no success for this long restart beat.")
    heartbeat_seconds: Positive = Field(default=600, description="How long the heartbeat key lives.")


class Probes(Section):
    """Files and figures for whoever watches from outside."""

    touch_seconds: Positive = Field(
        default=15, description="How often a live service's liveness file is touched."
    )
    loop_sample_seconds: Positive = Field(
        default=0.1, description="How often the event loop's lag is measured."
    )
    loop_stall_seconds: Positive = Field(
        default=2, description="Stacks are dumped when the loop stands still this long."
    )


class Monitoring(Section):
    """When the monitoring ticks raise an alarm in the log."""

    queue_age_seconds: Positive = Field(
        default=900, description="The oldest claimable message of a queue waits this long."
    )
    process_silence_seconds: Positive = Field(
        default=60, description="A hive that did not stop was not seen for this long."
    )
    transaction_seconds: Positive = Field(
        default=300, description="A transaction is open this long: an old snapshot makes every claim slow."
    )


class Beat(Section):
    """The scheduler of periodic ticks."""

    tick_expires_seconds: Positive = Field(
        default=900, description="A tick nobody ran within this time is dropped."
    )
    tenants_reload_seconds: Positive = Field(
        default=60, description="How often the list of tenants is read again."
    )
    period_factor: Positive = Field(
        default=1, description="Multiplies every period: 10 makes a quiet hive, 0.1 a busy one."
    )


class Fetch(Section):
    """Children that run connectors and parsers, one attempt each."""

    memory_mb: Count = Field(
        default=1024, description="A child above this is ended and reported as out of memory."
    )
    stall_seconds: Positive = Field(
        default=300, description="A child that yields nothing for this long is ended."
    )
    wall_seconds: Positive = Field(
        default=21600,
        description="A child that runs this long is ended; its attempt goes on from its checkpoint.",
    )
    user: str = Field(default="nobody", description="Whom children run as where hive is root.")
    unprocessed_batches: Count = Field(
        default=8, description="A crawl waits while this many of its batches are unprocessed."
    )
    batch_documents: Count = Field(default=16, description="Documents in a batch.")
    batch_bytes: Count = Field(default=8 * 1024 * 1024, description="Size of a stored batch at the most.")


class Documents(Section):
    """How documents become chunks."""

    max_file_mb: Count = Field(default=50, description="A larger document is reported, not read.")
    chunk_characters: Count = Field(default=1200, description="Length of a chunk at the most.")
    chunk_overlap_characters: int = Field(
        default=0, ge=0, description="Text repeated between neighbouring chunks."
    )

    @model_validator(mode="after")
    def _fit(self) -> Self:
        if self.chunk_overlap_characters * 2 > self.chunk_characters:
            raise ValueError("chunk_overlap_characters must be at most half of chunk_characters")
        return self


class FilesConnector(Section):
    """The `files` connector."""

    roots: tuple[Path, ...] = Field(
        default=(), description="Folders it may read below; the state folder is always refused."
    )


class WebConnector(Section):
    """The `web` connector."""

    user_agent: str = Field(
        default="hive-crawler", description="Sent with every request and looked up in robots.txt."
    )
    request_seconds: Positive = Field(default=30, description="Deadline of one request, body included.")
    pause_seconds: float = Field(
        default=0.0, ge=0, description="Wait between two requests; robots.txt may ask for more."
    )
    max_pages: Count = Field(
        default=1000, description="Pages of one crawl, unless the connector says otherwise."
    )
    max_depth: Count = Field(
        default=10, description="Links followed from the start page, unless the connector says otherwise."
    )


class Connectors(Section):
    """Where documents come from."""

    files: FilesConnector = Field(default_factory=FilesConnector)
    web: WebConnector = Field(default_factory=WebConnector)


class Embedding(Section):
    """The model server. Without a URL, hive starts its own."""

    url: HttpAddress = Field(default="", description="An OpenAI-compatible server: http://host:port/v1")
    api_key: SecretStr = Field(default=SecretStr(""), description="Sent as a bearer token to that server.")
    model: str = Field(default="wordllama-256", description="The model's name, as the server knows it.")
    dimension: int = Field(
        default=256, ge=1, le=4000, description="Length of its vectors; must fit the index."
    )
    batch_texts: Count = Field(default=64, description="Texts in one request.")
    request_seconds: Positive = Field(default=60, description="Deadline of one request.")


class Search(Section):
    """How documents are found."""

    language: str = Field(default="english", description="Postgres text search configuration of new indexes.")


class Secrets(Section):
    """The key that connectors' credentials are sealed with."""

    key: SecretStr = Field(
        default=SecretStr(""),
        description="32 bytes, base64; without it a key file is made in the state folder.",
    )


class Settings(Section):
    """All of it."""

    process: Process = Field(default_factory=Process)
    postgres: Postgres = Field(default_factory=Postgres)
    redis: Redis = Field(default_factory=Redis)
    embedded: Embedded = Field(default_factory=Embedded)
    http: Http = Field(default_factory=Http)
    log: Log = Field(default_factory=Log)
    leases: Leases = Field(default_factory=Leases)
    crashes: Crashes = Field(default_factory=Crashes)
    retention: Retention = Field(default_factory=Retention)
    shutdown: Shutdown = Field(default_factory=Shutdown)
    services: Services = Field(default_factory=Services)
    watchdog: Watchdog = Field(default_factory=Watchdog)
    probes: Probes = Field(default_factory=Probes)
    monitoring: Monitoring = Field(default_factory=Monitoring)
    beat: Beat = Field(default_factory=Beat)
    schedules: dict[str, float] = Field(
        default_factory=default_schedules, description="Seconds between ticks of each periodic task; 0: off."
    )
    pools: dict[str, Pool] = Field(
        default_factory=default_pools, description="Each queue belongs to exactly one pool."
    )
    limits: dict[str, Count] = Field(
        default_factory=dict[str, int],
        description="queue = most messages waiting in it; one more is refused. Unlimited unless named.",
    )
    providers: dict[str, Count] = Field(
        default_factory=default_providers,
        description="provider = most calls of one hive to it at once, for each account; else the default.",
    )
    fetch: Fetch = Field(default_factory=Fetch)
    documents: Documents = Field(default_factory=Documents)
    connectors: Connectors = Field(default_factory=Connectors)
    embedding: Embedding = Field(default_factory=Embedding)
    search: Search = Field(default_factory=Search)
    secrets: Secrets = Field(default_factory=Secrets)

    @model_validator(mode="after")
    def _fit(self) -> Self:
        owners: dict[str, str] = {}
        for name, pool in self.pools.items():
            for queue in (*pool.ledger, *pool.stream):
                if queue in owners:
                    raise ValueError(
                        f"queue {queue!r} stands in pool {owners[queue]!r} and again in {name!r}"
                    )
                owners[queue] = name
        for queue in self.limits:
            if queue not in owners:
                raise ValueError(f"limits.{queue}: no pool has a queue of that name")
        for name, seconds in self.schedules.items():
            if seconds < 0:
                raise ValueError(f"schedules.{name} is negative; 0 switches it off")
        return self
