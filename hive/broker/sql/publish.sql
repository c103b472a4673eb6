-- name: publish_unkeyed
-- moves: new -> scheduled | pending
-- $1 ids and $2 arguments; $3 to $15 the other columns, and $16 to $28 the same once more: where all of a batch have
-- the same in a column, that stands there, and the array is empty. $29 the queues to wake. Rows of one batch get
-- run_at a microsecond apart, so that a line keeps the order of its batch. A row that exists already is the same
-- publish said twice: left alone.
with given as (
    select id, args, position, coalesce(queue, $16) as queue, coalesce(tenant, $17) as tenant,
        coalesce(task, $18) as task, coalesce(lane, $19) as lane, coalesce(key, $20) as key,
        coalesce(while_running, $21) as while_running, coalesce(resource, $22) as resource,
        coalesce(cost, $23) as cost, coalesce(delay_seconds, $24) as delay_seconds,
        coalesce(expires_seconds, $25) as expires_seconds, coalesce(max_attempts, $26) as max_attempts,
        coalesce(parent, $27) as parent, coalesce(trace, $28) as trace
    from unnest(
        $1::uuid[], $2::text[], $3::text[], $4::text[], $5::text[], $6::smallint[], $7::text[], $8::text[],
        $9::text[], $10::integer[], $11::float8[], $12::float8[], $13::smallint[], $14::uuid[], $15::text[]
    ) with ordinality as given(
        id, args, queue, tenant, task, lane, key, while_running, resource, cost, delay_seconds, expires_seconds,
        max_attempts, parent, trace, position
    )
), put as (
    insert into hive.job (
        id, queue, tenant, task, args, lane, key, while_running, resource, cost, state, run_at, expires_at,
        max_attempts, parent, trace, created_at
    )
    select id, queue, tenant, task, args::jsonb, lane, key, while_running, resource, cost,
        case when delay_seconds > 0 then 'scheduled' else 'pending' end,
        statement_timestamp() + make_interval(secs => delay_seconds + 0.000001::float8 * position),
        statement_timestamp() + make_interval(secs => expires_seconds),
        max_attempts, parent, trace, statement_timestamp()
    from given
    on conflict do nothing
)
select pg_notify('hive_queue_' || queue, '') from unnest($29::text[]) as woken(queue);

-- name: publish_keyed
-- moves: new -> scheduled | pending
-- For a batch with at least one key; the arguments as above. One statement decides between a new row, the one that
-- waits, and marking the one that runs. Keys are taken in sorted order, so that two publishers cannot wait for each
-- other.
with given as (
    select id, args, position, coalesce(queue, $16) as queue, coalesce(tenant, $17) as tenant,
        coalesce(task, $18) as task, coalesce(lane, $19) as lane, coalesce(key, $20) as key,
        coalesce(while_running, $21) as while_running, coalesce(resource, $22) as resource,
        coalesce(cost, $23) as cost, coalesce(delay_seconds, $24) as delay_seconds,
        coalesce(expires_seconds, $25) as expires_seconds, coalesce(max_attempts, $26) as max_attempts,
        coalesce(parent, $27) as parent, coalesce(trace, $28) as trace
    from unnest(
        $1::uuid[], $2::text[], $3::text[], $4::text[], $5::text[], $6::smallint[], $7::text[], $8::text[],
        $9::text[], $10::integer[], $11::float8[], $12::float8[], $13::smallint[], $14::uuid[], $15::text[]
    ) with ordinality as given(
        id, args, queue, tenant, task, lane, key, while_running, resource, cost, delay_seconds, expires_seconds,
        max_attempts, parent, trace, position
    )
), put as (
    insert into hive.job as job (
        id, queue, tenant, task, args, lane, key, while_running, resource, cost, state, run_at, expires_at,
        max_attempts, parent, trace, created_at
    )
    select id, queue, tenant, task, args::jsonb, lane, key, while_running, resource, cost,
        case when delay_seconds > 0 then 'scheduled' else 'pending' end,
        statement_timestamp() + make_interval(secs => delay_seconds + 0.000001::float8 * position),
        statement_timestamp() + make_interval(secs => expires_seconds),
        max_attempts, parent, trace, statement_timestamp()
    from given
    where id <> all(array(select id from hive.job where id = any($1::uuid[])))
    order by tenant, task, key
    on conflict (coalesce(tenant, ''), task, key)
        where key is not null and state in ('scheduled', 'pending', 'retrying', 'running')
    do update set rerun = job.rerun or (job.state = 'running' and excluded.while_running = 'rerun')
    returning job.id, job.tenant, job.task, job.key, job.queue, job.state
), woken as (
    select pg_notify('hive_queue_' || queue, '')
    from (select distinct queue from put where state = 'pending' and queue = any($29::text[])) as woken
)
select id, tenant, task, key, (select count(*) from woken) from put;
