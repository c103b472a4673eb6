-- name: cancel
-- moves: scheduled -> cancelled, pending -> cancelled, retrying -> cancelled
-- $1 ids, $2 tenant or null for any. What runs is flagged; a publish that marked it to run again is forgotten.
with found as materialized (
    select id, state from hive.job
    where id = any($1::uuid[]) and state in ('scheduled', 'pending', 'retrying', 'running')
        and ($2::text is null or tenant = $2)
    order by id
    for update
), moved as (
    update hive.job as job
    set state = 'cancelled', finished_at = statement_timestamp(), error_summary = 'cancelled while it waited'
    from found
    where job.id = found.id and found.state <> 'running'
), flagged as (
    update hive.job as job
    set cancel_requested_at = coalesce(job.cancel_requested_at, statement_timestamp()), rerun = false
    from found
    where job.id = found.id and found.state = 'running'
)
select count(*) from found;

-- name: queues
-- Every queue with something that waits or runs; a probe of an index for each.
with recursive waiting(queue) as (
    (select queue from hive.job where state in ('scheduled', 'pending', 'retrying') order by queue limit 1)
    union all
    select next.queue from waiting cross join lateral (
        select job.queue from hive.job as job
        where job.state in ('scheduled', 'pending', 'retrying') and job.queue > waiting.queue
        order by job.queue
        limit 1
    ) as next
)
select queue from waiting union select queue from hive.job where state = 'running';

-- name: flag_where
-- $1 queues, $2 tenant ('' for system work), $3 task (null for any): what runs and is not flagged yet.
with found as materialized (
    select id from hive.job
    where state = 'running' and queue = any($1::text[]) and cancel_requested_at is null
        and ($2::text is null or coalesce(tenant, '') = $2) and ($3::text is null or task = $3)
    order by id
    for update
), flagged as (
    update hive.job as job set cancel_requested_at = statement_timestamp(), rerun = false
    from found
    where job.id = found.id and job.state = 'running'
    returning job.id
)
select count(*) from flagged;

-- name: of_line
-- The first half of `cancel_found`, said for each state that waits: $1 queue, $2 lane, $3 tenant, $4 and $5 run_at and
-- id of the last row of the batch before, $6 limit. Rows that were dealt with are never walked again.
select id, run_at, coalesce(tenant, '') as line from hive.job
where state = 'pending' and queue = $1 and lane = $2 and coalesce(tenant, '') = $3 and (run_at, id) > ($4, $5)
order by run_at, id
limit $6
for update

-- name: of_queue
-- As `of_line`, but of all tenants from $3 on.
select id, run_at, coalesce(tenant, '') as line from hive.job
where state = 'pending' and queue = $1 and lane = $2 and (coalesce(tenant, ''), run_at, id) > ($3, $4, $5)
order by coalesce(tenant, ''), run_at, id
limit $6
for update

-- name: of_task
-- As `of_line`, but in all three states at once: $1 queue, $2 task, $3 tenant or null for any, $4 to $6 as above.
select id, run_at, coalesce(tenant, '') as line from hive.job
where state in ('scheduled', 'pending', 'retrying') and queue = $1 and task = $2
    and ($3::text is null or coalesce(tenant, '') = $3) and run_at >= $4 and (run_at, id) > ($4, $5)
order by run_at, id
limit $6
for update

-- name: cancel_found
-- moves: scheduled -> cancelled, pending -> cancelled, retrying -> cancelled
-- The second half, after `with found as materialized (…)`: how many were cancelled, and where to go on.
, moved as (
    update hive.job as job
    set state = 'cancelled', finished_at = statement_timestamp(), error_summary = 'cancelled while it waited'
    from found
    where job.id = found.id and job.state in ('scheduled', 'pending', 'retrying')
    returning job.id
), last as (
    select line, run_at, id from found order by line desc, run_at desc, id desc limit 1
)
select (select count(*) from moved) as touched, (select line from last) as last_line,
    (select run_at from last) as last_run_at, (select id from last) as last_id;

-- name: pause
-- $1 queue
insert into hive.paused_queue (queue) values ($1) on conflict do nothing;

-- name: resume
-- $1 queue
with gone as (delete from hive.paused_queue where queue = $1 returning queue)
select pg_notify('hive_queue_' || queue, '') from gone;

-- name: paused
select queue from hive.paused_queue;

-- name: replayable
-- $1 ids: locks them, and names for each another live holder of its key.
select dead.id, dead.tenant, dead.task, dead.key, (
    select live.id from hive.job as live
    where coalesce(live.tenant, '') = coalesce(dead.tenant, '') and live.task = dead.task and live.key = dead.key
        and live.key is not null and live.state in ('scheduled', 'pending', 'retrying', 'running')
) as holder
from hive.job as dead
where dead.id = any($1::uuid[]) and dead.state in ('failed', 'cancelled')
order by dead.id
for update of dead;

-- name: replay
-- moves: failed -> pending, cancelled -> pending
-- $1 ids
with moved as (
    update hive.job
    set state = 'pending', run_at = statement_timestamp(), expires_at = null, attempt = 0, child_crashes = 0,
        hive_crashes = 0, started = false, rerun = false, redelivered = false, cancel_requested_at = null,
        stage = null, done = null, total = null, error_kind = null, error_code = null, error_summary = null,
        started_at = null, finished_at = null
    where id = any($1::uuid[]) and state in ('failed', 'cancelled')
    returning queue
), woken as (
    select pg_notify('hive_queue_' || queue, '') from (select distinct queue from moved) as woken
)
select count(*), (select count(*) from woken) from moved;

-- name: purge
-- $1 ids
with gone as (delete from hive.job where id = any($1::uuid[]) and state = 'failed' returning id)
select count(*) from gone;
