-- name: claim
-- moves: pending -> running
-- $1 queue, $2 owner, $3 limit, $4 lease in seconds. Of messages that share a resource only one is taken, and
-- none while another of them runs.
with line as materialized (
    select job.id, job.tenant, job.resource, job.lane, job.run_at
    from hive.job as job
    where job.queue = $1 and job.state = 'pending'
        and not exists (select from hive.paused_queue as paused where paused.queue = $1)
        and (job.expires_at is null or job.expires_at > statement_timestamp())
        and (job.resource is null or not exists (
            select from hive.job as other
            where other.state = 'running' and other.resource = job.resource
                and coalesce(other.tenant, '') = coalesce(job.tenant, '')
        ))
    order by job.lane, job.run_at, job.id
    limit $3
    for update of job skip locked
), taken as (
    select id from line where resource is null
    union all
    (select distinct on (coalesce(tenant, ''), resource) id from line where resource is not null
     order by coalesce(tenant, ''), resource, lane, run_at, id)
), claimed as (
    update hive.job as job
    set state = 'running', owner = $2, lease_until = statement_timestamp() + make_interval(secs => $4),
        fence = job.fence + 1, attempt = job.attempt + 1, started = false, started_at = null
    from taken
    where job.id = taken.id
    returning job.id, job.task, job.tenant, job.args, job.lane, job.fence, job.attempt, job.max_attempts, job.key,
        job.resource, job.cost, job.parent, job.trace, job.created_at, job.redelivered, job.run_at
)
select * from claimed order by lane, run_at, id;

-- name: renew
-- $1 ids, $2 fences, $3 owners, $4 lease in seconds; returns what is lost. A row that is locked is held by its own
-- handler's transaction (or by a claim that is about to commit): it is left alone, and lost only if it says so.
with asked as (
    select * from unnest($1::uuid[], $2::bigint[], $3::uuid[]) as asked(id, fence, owner)
), held as materialized (
    select id, fence, owner from hive.job
    where id = any($1::uuid[]) and state = 'running'
    order by id
    for update skip locked
), renewed as (
    update hive.job as job
    set lease_until = statement_timestamp() + make_interval(secs => $4)
    from held join asked using (id, fence, owner)
    where job.id = held.id
    returning job.id, job.fence
)
select id, fence from asked
where not exists (select from renewed where renewed.id = asked.id and renewed.fence = asked.fence)
    and not exists (
        select from hive.job as job
        where job.id = asked.id and job.state = 'running' and job.fence = asked.fence and job.owner = asked.owner
    );

-- name: mark_started
-- $1 ids, $2 fences, $3 owners
with held as materialized (
    select id, fence, owner from hive.job
    where id = any($1::uuid[]) and state = 'running'
    order by id
    for update skip locked
)
update hive.job as job
set started = true, started_at = statement_timestamp()
from held join unnest($1::uuid[], $2::bigint[], $3::uuid[]) as asked(id, fence, owner) using (id, fence, owner)
where job.id = held.id and not job.started;

-- name: progress
-- $1 id, $2 fence, $3 owner, $4 stage, $5 done, $6 total; returns whether the fence holds. A row locked by its own
-- handler's transaction is not written: waiting for it would wait for oneself.
with held as materialized (
    select id from hive.job
    where id = $1 and state = 'running' and fence = $2 and owner = $3
    for update skip locked
), noted as (
    update hive.job as job
    set stage = $4, done = $5, total = $6, child_crashes = 0, hive_crashes = 0
    from held
    where job.id = held.id
    returning job.id
)
select exists (select from noted)
    or exists (select from hive.job where id = $1 and state = 'running' and fence = $2 and owner = $3);

-- name: cancel_requested
-- $1 ids, $2 fences
select job.id, job.fence
from hive.job as job join unnest($1::uuid[], $2::bigint[]) as asked(id, fence) using (id, fence)
where job.state = 'running' and job.cancel_requested_at is not null;

-- name: hold
-- $1 id, $2 fence, $3 owner: locks the row of a delivery until the transaction ends.
select true from hive.job
where id = $1 and state = 'running' and fence = $2 and owner = $3
for update;
