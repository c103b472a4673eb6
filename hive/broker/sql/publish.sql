-- name: given
-- The first half of both queries below: $1 ids; $2 to $15 the other columns, and $16 to $29 the same once more: where
-- all of a batch have the same in a column, that stands there, and the array is empty. Unnested one by one as they are
-- read: `from unnest($1, $2, …)` writes all of them down first.
select id, position, coalesce(args::jsonb, (select $16::text::jsonb)) as args, coalesce(queue, $17) as queue,
    coalesce(task, $18) as task, coalesce(tenant, $19) as tenant, coalesce(lane, $20) as lane,
    coalesce(key, $21) as key, coalesce(while_running, $22) as while_running, coalesce(resource, $23) as resource,
    coalesce(cost, $24) as cost, coalesce(delay_seconds, $25) as delay_seconds,
    coalesce(expires_seconds, $26) as expires_seconds, coalesce(max_attempts, $27) as max_attempts,
    coalesce(parent, $28) as parent, coalesce(trace, $29) as trace
from (
    select unnest($1::uuid[]) as id, generate_series(1, cardinality($1::uuid[])) as position,
        unnest($2::text[]) as args, unnest($3::text[]) as queue, unnest($4::text[]) as task,
        unnest($5::text[]) as tenant, unnest($6::smallint[]) as lane, unnest($7::text[]) as key,
        unnest($8::text[]) as while_running, unnest($9::text[]) as resource, unnest($10::integer[]) as cost,
        unnest($11::float8[]) as delay_seconds, unnest($12::float8[]) as expires_seconds,
        unnest($13::smallint[]) as max_attempts, unnest($14::uuid[]) as parent, unnest($15::text[]) as trace
) as each

-- name: publish_unkeyed
-- moves: new -> scheduled | pending
-- The second half, after `with given as (…)`; $30 the queues to wake. Rows of one batch get run_at a microsecond apart,
-- so that a line keeps the order of its batch. A row that exists already is the same publish said twice: left alone.
, put as (
    insert into hive.job (
        id, queue, tenant, task, args, lane, key, while_running, resource, cost, state, run_at, expires_at,
        max_attempts, parent, trace, created_at
    )
    select id, queue, tenant, task, args, lane, key, while_running, resource, cost,
        case when delay_seconds > 0 then 'scheduled' else 'pending' end,
        statement_timestamp() + make_interval(secs => delay_seconds + 0.000001::float8 * position),
        statement_timestamp() + make_interval(secs => expires_seconds),
        max_attempts, parent, trace, statement_timestamp()
    from given
    on conflict do nothing
)
select pg_notify('hive_queue_' || queue, '') from unnest($30::text[]) as woken(queue);

-- name: publish_keyed
-- moves: new -> scheduled | pending
-- As above, for a batch with at least one key. One statement decides between a new row, the one that waits, and
-- marking the one that runs. Keys are taken in sorted order, so that two publishers cannot wait for each other.
, put as (
    insert into hive.job as job (
        id, queue, tenant, task, args, lane, key, while_running, resource, cost, state, run_at, expires_at,
        max_attempts, parent, trace, created_at
    )
    select id, queue, tenant, task, args, lane, key, while_running, resource, cost,
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
    from (select distinct queue from put where state = 'pending' and queue = any($30::text[])) as woken
)
select id, tenant, task, key, (select count(*) from woken) from put;
