-- name: complete
-- moves: running -> completed | pending
-- What `settle` does to those that went well, which are nearly all: with a quarter of its columns it costs half as
-- much on both sides. $1 ids, $2 fences, $3 owner.
with held as materialized (
    select id, fence, owner, state from hive.job
    where id = any($1::uuid[])
    order by id
    for update skip locked
), moved as (
    -- By an array and not by a join: planned while the table is empty, a join walks all of it for each row.
    update hive.job as job
    set state = case when job.rerun then 'pending' else 'completed' end,
        owner = null, lease_until = null, started = false, rerun = false, redelivered = false,
        cancel_requested_at = null, error_kind = null, error_code = null, error_summary = null,
        run_at = case when job.rerun then statement_timestamp() else job.run_at end,
        expires_at = case when job.rerun then null else job.expires_at end,
        attempt = case when job.rerun then 0 else job.attempt end,
        child_crashes = case when job.rerun then 0 else job.child_crashes end,
        hive_crashes = case when job.rerun then 0 else job.hive_crashes end,
        finished_at = case when job.rerun then null else statement_timestamp() end
    where job.id = any(array(
        select held.id from held join unnest($1::uuid[], $2::bigint[]) as asked(id, fence) using (id, fence)
        where held.state = 'running' and held.owner = $3
    ))
    returning job.id, job.fence, job.state, job.queue, job.resource
), woken as (
    -- Who gives a resource back lets the next one have it.
    select pg_notify('hive_queue_' || queue, '')
    from (select distinct queue from moved where state = 'pending' or resource is not null) as woken
)
select id, fence, case state when 'pending' then 'rerun' else 'accepted' end as verdict, (select count(*) from woken)
from moved;

-- name: settle
-- moves: running -> completed | failed | cancelled | retrying | pending
-- $1 ids, $2 fences, $3 owners, $4 outcomes (completed, failed, cancelled, retrying, throttled, crashed, released), $5
-- delays in seconds, $6 error kinds, $7 codes, $8 summaries, $9 exits, $10 signals, $11 peak memory, $12 the child crash
-- limit. Returns a row for each delivery whose fence and owner still hold; the others changed nothing.
with asked as (
    select * from unnest(
        $1::uuid[], $2::bigint[], $3::uuid[], $4::text[], $5::float8[], $6::text[], $7::text[], $8::text[],
        $9::text[], $10::integer[], $11::bigint[]
    ) as asked(
        id, fence, owner, outcome, delay_seconds, error_kind, error_code, error_summary, exit, exit_signal,
        peak_memory_bytes
    )
), held as materialized (
    -- The state is looked at below: asked for here, the planner walks all that runs instead of the keys.
    select id, fence, owner, state, queue, resource, attempt, max_attempts, child_crashes, rerun, started, started_at,
        cancel_requested_at is not null as to_be_cancelled
    from hive.job
    where id = any($1::uuid[])
    order by id
    for update skip locked
), decided as materialized (
    select held.*, asked.outcome, asked.delay_seconds, asked.error_kind, asked.error_code, asked.error_summary,
        asked.exit, asked.exit_signal, asked.peak_memory_bytes,
        case
            when asked.outcome = 'crashed' and held.child_crashes + 1 >= $12::integer then 'failed'
            when asked.outcome in ('released', 'crashed', 'throttled', 'retrying') and held.to_be_cancelled
                then 'cancelled'
            when asked.outcome = 'released' then 'pending'
            when asked.outcome in ('crashed', 'throttled') then 'retrying'
            when asked.outcome = 'retrying' and held.attempt < held.max_attempts then 'retrying'
            when held.rerun then 'pending'
            when asked.outcome = 'retrying' then 'failed'
            else asked.outcome
        end as next
    from held join asked using (id, fence, owner)
    where held.state = 'running'
), moved as (
    update hive.job as job
    set state = decided.next,
        owner = null,
        lease_until = null,
        started = false,
        rerun = false,
        redelivered = false,
        cancel_requested_at = null,
        run_at = case
            when decided.next = 'retrying'
                then statement_timestamp() + make_interval(secs => decided.delay_seconds)
            when decided.next = 'pending' and decided.outcome <> 'released' then statement_timestamp()
            else job.run_at
        end,
        expires_at = case
            when decided.next = 'pending' and decided.outcome <> 'released' then null else job.expires_at
        end,
        attempt = case
            when decided.outcome in ('released', 'crashed', 'throttled') and decided.next in ('pending', 'retrying')
                then job.attempt - 1
            when decided.next = 'pending' then 0
            else job.attempt
        end,
        child_crashes = case
            when decided.outcome = 'crashed' then job.child_crashes + 1
            when decided.next = 'pending' and decided.outcome <> 'released' then 0
            else job.child_crashes
        end,
        hive_crashes = case
            when decided.next = 'pending' and decided.outcome <> 'released' then 0
            else job.hive_crashes
        end,
        error_kind = case
            when decided.next = 'failed' and decided.outcome = 'crashed' then 'poison'
            when decided.next = 'failed' and decided.outcome = 'retrying' then 'exhausted'
            when decided.next in ('failed', 'retrying') then decided.error_kind
        end,
        error_code = case when decided.next in ('failed', 'retrying') then decided.error_code end,
        error_summary = case
            when decided.next in ('failed', 'retrying', 'cancelled') then decided.error_summary
        end,
        finished_at = case
            when decided.next in ('completed', 'failed', 'cancelled') then statement_timestamp()
        end
    from decided
    where job.id = decided.id
        and job.id = any($1::uuid[])  -- so that not even a plan made for an empty table walks all of a full one
    returning job.id
), noted as (
    insert into hive.job_attempt (
        job, fence, attempt, owner, outcome, error_kind, error_code, error_summary, exit, exit_signal,
        peak_memory_bytes, started_at
    )
    select id, fence, attempt, owner, outcome, error_kind, error_code, error_summary, exit, exit_signal,
        peak_memory_bytes, started_at
    from decided
    -- What was throttled has no row for each time it came in vain: its cause stands in its own.
    where outcome not in ('completed', 'throttled') and (outcome <> 'released' or started)
    on conflict do nothing
), woken as (
    select pg_notify('hive_queue_' || queue, '')
    from (select distinct queue from decided where next = 'pending' or resource is not null) as woken
)
select id, fence, (select count(*) from woken),
    case
        when outcome = 'crashed' and next = 'failed' then 'poisoned'
        when outcome <> 'released' and next = 'pending' then 'rerun'
        else 'accepted'
    end as verdict
from decided;

-- name: reject
-- moves: running -> failed
-- $1 ids, $2 fences, $3 owner, $4 why each could not be read.
update hive.job as job
set state = 'failed', owner = null, lease_until = null, started = false, rerun = false, redelivered = false,
    cancel_requested_at = null, finished_at = statement_timestamp(), error_kind = 'unparsable',
    error_code = 'unparsable', error_summary = asked.reason
from unnest($1::uuid[], $2::bigint[], $4::text[]) as asked(id, fence, reason)
where job.id = asked.id and job.state = 'running' and job.fence = asked.fence and job.owner = $3;
