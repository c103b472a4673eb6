-- name: promote
-- moves: scheduled -> pending, retrying -> pending
-- $1 queues, $2 limit
with due as materialized (
    select id from hive.job
    where queue = any($1::text[]) and state in ('scheduled', 'retrying') and run_at <= statement_timestamp()
    order by run_at
    limit $2
    for update skip locked
), moved as (
    update hive.job as job set state = 'pending' where job.id = any(array(select id from due)) returning job.queue
), woken as (
    select pg_notify('hive_queue_' || queue, '') from (select distinct queue from moved) as woken
)
select count(*) as due, (select count(*) from woken) from moved;

-- name: expire
-- moves: scheduled -> failed, pending -> failed, retrying -> failed
-- $1 queues, $2 limit
with late as materialized (
    select id from hive.job
    where queue = any($1::text[]) and state in ('scheduled', 'pending', 'retrying')
        and expires_at <= statement_timestamp()
    order by expires_at
    limit $2
    for update skip locked
), moved as (
    update hive.job as job
    set state = 'failed', finished_at = statement_timestamp(), error_kind = 'expired', error_code = 'expired',
        error_summary = 'it waited longer than its message allowed'
    where job.id = any(array(select id from late))
    returning job.id
)
select count(*) as failed from moved;

-- name: lost_by_lease
-- The first half of `abandon`: $1 queues, $2 limit. What is locked has a living handler in its transaction.
select job.id, job.queue, job.fence, job.owner, job.attempt, job.started, job.started_at, job.hive_crashes,
    job.cancel_requested_at is not null as to_be_cancelled,
    job.lease_until >= statement_timestamp() as orphaned
from hive.job as job
where job.state = 'running' and job.queue = any($1::text[])
    and (job.lease_until < statement_timestamp() or exists (
        select from hive.process where process.id = job.owner and process.stopped_at is not null
    ))
order by job.id
limit $2
for update of job skip locked

-- name: lost_by_owner
-- The first half of `abandon`: $1 the dead process, $2 limit.
select id, queue, fence, owner, attempt, started, started_at, hive_crashes,
    cancel_requested_at is not null as to_be_cancelled, true as orphaned
from hive.job
where state = 'running' and owner = $1
order by id
limit $2
for update skip locked

-- name: abandon
-- moves: running -> pending | failed | cancelled
-- The second half, after `with lost as materialized (…)`; $3 the limit of hive's own crashes. Hive's death is
-- charged only to what had started, and never as an attempt. The place in line is kept.
, decided as materialized (
    select lost.*,
        case
            when started and hive_crashes + 1 >= $3::integer then 'failed'
            when to_be_cancelled then 'cancelled'
            else 'pending'
        end as next
    from lost
), moved as (
    update hive.job as job
    set state = decided.next,
        owner = null,
        lease_until = null,
        started = false,
        rerun = false,
        redelivered = true,
        cancel_requested_at = null,
        attempt = case when decided.next = 'pending' then job.attempt - 1 else job.attempt end,
        hive_crashes = case when decided.started then job.hive_crashes + 1 else job.hive_crashes end,
        error_kind = case when decided.next = 'failed' then 'poison' end,
        error_code = case when decided.next = 'failed' then 'hive_died' end,
        error_summary = case decided.next
            when 'failed' then 'hive died ' || (job.hive_crashes + 1) || ' times while it ran'
            when 'cancelled' then 'cancelled; its process died'
        end,
        finished_at = case when decided.next in ('failed', 'cancelled') then statement_timestamp() end
    from decided
    where job.id = decided.id
        and job.id = any(array(select id from lost))  -- so that no plan walks the whole table for each row
    returning job.id
), noted as (
    insert into hive.job_attempt (job, fence, attempt, owner, outcome, error_code, error_summary, started_at)
    select id, fence, attempt, owner, 'crashed', 'hive_died', 'its process died or lost its lease', started_at
    from decided
    where started
    on conflict do nothing
), woken as (
    select pg_notify('hive_queue_' || queue, '')
    from (select distinct queue from decided where next = 'pending') as woken
)
select count(*) filter (where not orphaned) as expired, count(*) filter (where orphaned) as orphaned,
    count(*) filter (where next = 'failed') as failed, (select count(*) from woken)
from decided;
