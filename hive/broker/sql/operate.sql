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

-- name: cancellable
-- $1 queue, $2 tenant, $3 task (null for any), $4 limit: what waits, and what runs and is not flagged yet.
select id from hive.job
where ($1::text is null or queue = $1) and ($2::text is null or tenant = $2) and ($3::text is null or task = $3)
    and (state in ('scheduled', 'pending', 'retrying') or (state = 'running' and cancel_requested_at is null))
limit $4;

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

-- name: prune_completed
-- $1 hours, $2 limit
with old as materialized (
    select id from hive.job
    where state in ('completed', 'cancelled')
        and finished_at < statement_timestamp() - make_interval(secs => $1::float8 * 3600)
    order by finished_at
    limit $2
    for update skip locked
), gone as (delete from hive.job as job using old where job.id = old.id returning job.id)
select count(*) from gone;

-- name: prune_failed
-- $1 days, $2 limit
with old as materialized (
    select id from hive.job
    where state = 'failed' and finished_at < statement_timestamp() - make_interval(secs => $1::float8 * 86400)
    order by finished_at
    limit $2
    for update skip locked
), gone as (delete from hive.job as job using old where job.id = old.id returning job.id)
select count(*) from gone;

-- name: prune_dead_letters
-- $1 days, $2 limit
with old as materialized (
    select id from hive.dead_letter
    where died_at < statement_timestamp() - make_interval(secs => $1::float8 * 86400)
    limit $2
    for update skip locked
), gone as (delete from hive.dead_letter as letter using old where letter.id = old.id returning letter.id)
select count(*) from gone;
