-- The shared schema: tenants, processes, jobs. Everything is created in one transaction.
create schema if not exists hive;
create schema if not exists hive_ext;
create extension if not exists vector schema hive_ext;

create table hive.tenant (
    id           text primary key check (id ~ '^[a-z0-9][a-z0-9_]{0,47}$'),
    schema_name  text not null unique,
    weight       integer not null default 1 check (weight between 1 and 1000),
    state        text not null default 'active' check (state in ('active', 'suspended', 'deleting')),
    timezone     text not null default 'UTC',
    created_at   timestamptz not null default now()
);

-- One row for each boot of each hive. `instance` is the locked state folder's own id: a new boot of the same
-- instance proves that every earlier boot of it is dead.
create table hive.process (
    id            uuid primary key,
    instance      uuid not null,
    host          text not null,
    pid           integer not null,
    slots         jsonb not null default '{}',
    started_at    timestamptz not null default now(),
    last_seen_at  timestamptz not null default now(),
    stopped_at    timestamptz
);
create index process_instance on hive.process (instance) where stopped_at is null;

-- One row, the number of the newest leadership. A leader's write carries its term and is refused below this.
create table hive.leader_term (
    only_row   boolean primary key default true check (only_row),
    term       bigint not null,
    process    uuid,
    taken_at   timestamptz not null default now(),
    lease_until timestamptz  -- used only where Redis is switched off
);
insert into hive.leader_term (term) values (0);

create table hive.job (
    id                   uuid primary key,
    tenant               text,                  -- null: system work
    queue                text not null,
    lane                 smallint not null default 1 check (lane between 0 and 2),
    task                 text not null,
    args                 jsonb not null,
    key                  text,
    resource             text,
    cost                 integer not null default 1 check (cost between 1 and 1000000),
    state                text not null
        check (state in ('scheduled', 'pending', 'running', 'retrying', 'completed', 'failed', 'cancelled')),
    run_at               timestamptz not null default now(),
    expires_at           timestamptz,
    attempt              smallint not null default 0,     -- runs begun
    max_attempts         smallint not null default 4,
    child_crashes        smallint not null default 0,     -- deaths of its child since the last progress
    hive_crashes         smallint not null default 0,     -- deaths of hive since the last progress
    started              boolean not null default false,  -- the handler of the present claim was entered
    fence                bigint not null default 0,
    owner                uuid,
    lease_until          timestamptz,
    rerun                boolean not null default false,  -- a publish with its key came while it ran
    redelivered          boolean not null default false,  -- an earlier claim ended without an outcome
    while_running        text not null default 'rerun' check (while_running in ('rerun', 'drop')),
    cancel_requested_at  timestamptz,
    stage                text,
    done                 bigint,
    total                bigint,
    error_kind           text,
    error_code           text,
    error_summary        text,
    parent               uuid,
    trace                text,
    created_at           timestamptz not null default now(),
    started_at           timestamptz,
    finished_at          timestamptz,
    constraint running_has_owner check ((state = 'running') = (owner is not null and lease_until is not null)),
    constraint terminal_is_finished
        check ((state in ('completed', 'failed', 'cancelled')) = (finished_at is not null)),
    constraint failed_has_cause check (state <> 'failed' or (error_kind is not null and error_summary is not null))
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 5000,
        autovacuum_vacuum_cost_delay = 0, autovacuum_analyze_scale_factor = 0.02);

-- Columns that change at every renewal (lease_until, fence, stage, done) stand in no index.
-- One line for each queue, lane and tenant ('' is system work), walked in its order. The state stands in front of
-- them, so that what is due later is found as fast and a claim never meets it.
create index job_line on hive.job (queue, state, lane, coalesce(tenant, ''), run_at, id)
    where state in ('scheduled', 'pending', 'retrying');
create index job_task on hive.job (queue, task, state, run_at) where state in ('scheduled', 'pending', 'retrying');
create index job_future on hive.job (queue, run_at) where state in ('scheduled', 'retrying');
create index job_running on hive.job (queue, coalesce(tenant, '')) where state = 'running';
create index job_expiring on hive.job (queue, expires_at)
    where expires_at is not null and state in ('scheduled', 'pending', 'retrying');
-- A key has one live holder: a publish finds it in the same statement, whether it waits or runs, and no
-- move of the holder (a retry, a hand-back) can meet a second one.
create unique index job_key on hive.job (coalesce(tenant, ''), task, key)
    where key is not null and state in ('scheduled', 'pending', 'retrying', 'running');
create unique index job_resource on hive.job (coalesce(tenant, ''), resource)
    where resource is not null and state = 'running';
create index job_finished on hive.job (finished_at) where state in ('completed', 'cancelled');
create index job_failed on hive.job (finished_at) where state = 'failed';

-- Queues of the ledger that an operator holds back: nothing of them is handed out.
create table hive.paused_queue (
    queue  text primary key,
    since  timestamptz not null default now()
);

-- One row for each failed, crashed or repeated run.
create table hive.job_attempt (
    job                uuid not null references hive.job on delete cascade,
    fence              bigint not null,
    attempt            smallint not null,
    owner              uuid,
    outcome            text not null,  -- retrying, failed, cancelled, crashed, released
    error_kind         text,
    error_code         text,
    error_summary      text,
    exit               text,
    exit_signal        integer,
    peak_memory_bytes  bigint,
    started_at         timestamptz,
    ended_at           timestamptz not null default now(),
    primary key (job, fence)
);

-- Stream messages that were given up; written before they are acknowledged. A ledger's dead letters are its failed jobs.
create table hive.dead_letter (
    id             uuid primary key,
    tenant         text,
    queue          text not null,
    task           text not null,
    args           jsonb,           -- null: could not be read
    raw            bytea,           -- what could not be read, at most 64 KiB
    message        jsonb,           -- the rest of the wire format without its args, for a replay
    lane           smallint not null default 1,
    key            text,
    error_kind     text not null,
    error_code     text not null,
    error_summary  text not null,
    attempts       integer not null,
    died_at        timestamptz not null default now()
);
create index dead_letter_newest on hive.dead_letter (queue, died_at desc);
create index dead_letter_age on hive.dead_letter (died_at);

-- Stream messages sent inside a transaction; relayed after its commit by any process, then deleted.
create table hive.outbox (
    id          uuid primary key,
    queue       text not null,
    message     jsonb not null,
    created_at  timestamptz not null default now()
);

-- The fences of a stream queue are numbers below `reserved`, handed to Redis in blocks: they rise even across a
-- wiped Redis, which asks for the next block.
create table hive.stream_fence (
    queue     text primary key,
    reserved  bigint not null
);

-- Exactly-once fires of cron schedules: the row and its job commit together under the leader's term.
create table hive.schedule_fire (
    schedule  text not null,
    tenant    text not null default '',
    fire_at   timestamptz not null,
    term      bigint not null,
    job       uuid,
    primary key (schedule, tenant, fire_at)
);

-- When the heartbeat chain (beat, broker, pool, handler) last came round; used only where Redis is switched off.
create table hive.heartbeat (
    only_row  boolean primary key default true check (only_row),
    at        timestamptz not null
);

create table hive.api_token (
    id          uuid primary key,
    name        text not null,
    digest      bytea not null unique,  -- SHA-256 of the token; the token itself is shown once and never stored
    role        text not null check (role in ('viewer', 'editor', 'admin')),
    tenant      text references hive.tenant on delete cascade,  -- null: every tenant
    created_at  timestamptz not null default now(),
    revoked_at  timestamptz
);
