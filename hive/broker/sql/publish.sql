-- name: publish_unkeyed
-- moves: new -> scheduled | pending
-- $16 whether to wake the queues. Rows of one batch get run_at a microsecond apart, so that a line keeps the order of its batch. A row that
-- exists already is the same publish said twice: left alone.
with given as (
    select * from unnest(
        $1::uuid[], $2::text[], $3::text[], $4::text[], $5::text[], $6::smallint[], $7::text[], $8::text[],
        $9::text[], $10::integer[], $11::float8[], $12::float8[], $13::smallint[], $14::uuid[], $15::text[]
    ) with ordinality as given(
        id, queue, tenant, task, args, lane, key, while_running, resource, cost, delay_seconds, expires_seconds,
        max_attempts, parent, trace, position
    )
), put as (
    insert into hive.job (
        id, queue, tenant, task, args, lane, key, while_running, resource, cost, state, run_at, expires_at,
        max_attempts, parent, trace, created_at
    )
    select id, queue, tenant, task, args::jsonb, lane, key, while_running, resource, cost,
        case when delay_seconds > 0 then 'scheduled' else 'pending' end,
        statement_timestamp() + make_interval(secs => delay_seconds) + position * interval '1 microsecond',
        statement_timestamp() + make_interval(secs => expires_seconds),
        max_attempts, parent, trace, statement_timestamp()
    from given
    on conflict do nothing
    returning queue, state
)
select pg_notify('hive_queue_' || queue, '') from (select distinct queue from put where state = 'pending' and $16::boolean) as woken;

-- name: publish_keyed
-- moves: new -> scheduled | pending
-- For a batch with at least one key; $16 as above. One statement decides between a new row, the one that waits, and marking the
-- one that runs. Keys are taken in sorted order, so that two publishers cannot wait for each other.
with given as (
    select * from unnest(
        $1::uuid[], $2::text[], $3::text[], $4::text[], $5::text[], $6::smallint[], $7::text[], $8::text[],
        $9::text[], $10::integer[], $11::float8[], $12::float8[], $13::smallint[], $14::uuid[], $15::text[]
    ) with ordinality as given(
        id, queue, tenant, task, args, lane, key, while_running, resource, cost, delay_seconds, expires_seconds,
        max_attempts, parent, trace, position
    )
), put as (
    insert into hive.job as job (
        id, queue, tenant, task, args, lane, key, while_running, resource, cost, state, run_at, expires_at,
        max_attempts, parent, trace, created_at
    )
    select id, queue, tenant, task, args::jsonb, lane, key, while_running, resource, cost,
        case when delay_seconds > 0 then 'scheduled' else 'pending' end,
        statement_timestamp() + make_interval(secs => delay_seconds) + position * interval '1 microsecond',
        statement_timestamp() + make_interval(secs => expires_seconds),
        max_attempts, parent, trace, statement_timestamp()
    from given
    where not exists (select from hive.job as known where known.id = given.id)
    order by tenant, task, key
    on conflict (coalesce(tenant, ''), task, key)
        where key is not null and state in ('scheduled', 'pending', 'retrying', 'running')
    do update set rerun = job.rerun or (job.state = 'running' and excluded.while_running = 'rerun')
    returning job.id, job.tenant, job.task, job.key, job.queue, job.state
), woken as (
    select pg_notify('hive_queue_' || queue, '')
    from (select distinct queue from put where state = 'pending' and $16::boolean) as woken
)
select id, tenant, task, key, (select count(*) from woken) from put;
