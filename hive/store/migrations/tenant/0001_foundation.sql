-- One tenant's own schema. Run with search_path set to the tenant's schema and hive_ext, so no name is qualified.
-- No types are created here (text with a CHECK instead): a statement cached under one schema must run under another.

create table connector (
    id          bigint generated always as identity primary key,
    kind        text not null,                      -- files, web, or a plug-in's name
    config      jsonb not null,                     -- never a secret
    created_at  timestamptz not null default now()
);

create table credential (
    id          bigint generated always as identity primary key,
    sealed      bytea not null,                     -- encrypted with the key from the environment or the key file
    created_at  timestamptz not null default now()
);

-- What people call "a connector": a connector with its credential, under a name of its own.
create table connector_credential_pair (
    id               bigint generated always as identity primary key,
    name             text not null unique,
    connector        bigint not null references connector,
    credential       bigint references credential,
    state            text not null default 'active' check (state in ('active', 'paused', 'removing')),
    refresh_seconds  integer not null default 600 check (refresh_seconds >= 0),  -- 0: only when asked
    run_requested_at timestamptz,                   -- somebody asked for a run now
    created_at       timestamptz not null default now()
);

create table search_settings (
    id           bigint generated always as identity primary key,
    model        text not null,
    dimension    integer not null check (dimension between 1 and 4000),
    language     text not null default 'english',
    state        text not null default 'present' check (state in ('future', 'present', 'past')),
    created_at   timestamptz not null default now()
);
create unique index search_settings_present on search_settings (state) where state = 'present';

-- One run of a connector over one time window. The row *is* the claim on the connector.
create table index_attempt (
    id               bigint generated always as identity primary key,
    pair             bigint not null references connector_credential_pair on delete cascade,
    search_settings  bigint not null references search_settings,
    sequence         bigint not null,               -- 1, 2, 3 … within the pair: newer attempts win over older
    kind             text not null default 'full' check (kind in ('full', 'single')),
    status           text not null default 'not_started' check (status in
        ('not_started', 'in_progress', 'completed', 'completed_with_errors', 'failed', 'cancelled', 'interrupted')),
    job              uuid,                           -- its fetch job
    fetch_outcome    text check (fetch_outcome in ('complete', 'failed', 'interrupted')), -- null: not at its end
    checkpoint       jsonb,                          -- where the connector goes on; committed with the batch before it
    unchanged        bigint not null default 0,      -- documents seen and skipped by the connector; part of the checkpoint
    next_batch       integer not null default 0,
    cancel_requested_at timestamptz,
    error            text,
    created_at       timestamptz not null default now(),
    started_at       timestamptz,
    progressed_at    timestamptz,
    finished_at      timestamptz,
    unique (pair, sequence),
    constraint terminal_is_finished check (
        (status in ('completed', 'completed_with_errors', 'failed', 'cancelled', 'interrupted')) = (finished_at is not null))
);
create unique index index_attempt_active on index_attempt (pair, search_settings)
    where status in ('not_started', 'in_progress') and kind = 'full';
create index index_attempt_newest on index_attempt (pair, id desc);

-- 16 documents or so, parsed and split, stored until one job has embedded and indexed them. Counts are derived from here.
create table index_batch (
    id             bigint generated always as identity primary key,
    attempt        bigint not null references index_attempt on delete cascade,
    number         integer not null,
    status         text not null default 'stored' check (status in ('stored', 'done', 'failed')),
    job            uuid,                             -- its process job
    documents      integer not null,
    documents_new  integer,                          -- set when done: new or changed ones
    chunks         integer,
    payload        bytea,                            -- compressed documents with their chunks; null once done
    error          text,
    created_at     timestamptz not null default now(),
    finished_at    timestamptz,
    unique (attempt, number),
    constraint done_is_counted
        check ((status = 'done') = (documents_new is not null) and (status <> 'done' or payload is null)),
    constraint failed_has_cause check (status <> 'failed' or error is not null)
);
alter table index_batch alter column payload set storage external;  -- it is compressed already
create index index_batch_open on index_batch (attempt) where status = 'stored';

create table index_error (
    id           bigint generated always as identity primary key,
    attempt      bigint not null references index_attempt on delete cascade,
    document_id  text,                               -- the source's own id, null when it concerns no single document
    link         text,
    code         text not null,
    summary      text not null,
    created_at   timestamptz not null default now()
);
create index index_error_attempt on index_error (attempt, id);

create table document (
    id             bigint generated always as identity primary key,
    source_id      text not null unique,             -- unique in the tenant: "files:/path", "https://…"
    title          text not null,
    link           text not null,
    content_hash   bytea not null,                   -- SHA-256 over what is indexed: title, link, chunks, metadata
    version        bigint[] not null,                -- compared left to right; see hive.ingest.versions
    metadata       jsonb not null default '{}',
    chunk_count    integer not null,
    updated_at     timestamptz not null default now()
);

-- Which connector brought which document, and what that connector wants to remember of it.
create table document_source (
    pair          bigint not null references connector_credential_pair on delete cascade,
    document      bigint not null references document on delete cascade,
    source_state  jsonb not null default '{}',       -- the connector's own: mtime and size, or ETag and links
    seen_attempt  bigint,
    primary key (pair, document)
);
create index document_source_document on document_source (document);

-- No vector index here: exact search is fast below 10,000 chunks; the index is built once a tenant has more.
create table chunk (
    document    bigint not null references document on delete cascade,
    ordinal     integer not null,
    heading     text not null default '',            -- the path of headings above it: "Deploying › Graceful shutdown"
    anchor      text not null default '',
    body        text not null,
    terms       tsvector not null,
    embedding   vector not null,
    primary key (document, ordinal)
);
create index chunk_terms on chunk using gin (terms);
