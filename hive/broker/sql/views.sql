-- name: depth
-- $1 queue, $2 where counting stops. The oldest is found among the tasks of the queue, a probe of an index for each.
with recursive tasks(task) as (
    (select task from hive.job
     where queue = $1 and state in ('scheduled', 'pending', 'retrying') order by task limit 1)
    union all
    select next.task from tasks cross join lateral (
        select job.task from hive.job as job
        where job.queue = $1 and job.state in ('scheduled', 'pending', 'retrying') and job.task > tasks.task
        order by job.task
        limit 1
    ) as next
)
select
    (select count(*) from (select from hive.job where queue = $1 and state = 'pending' limit $2) as each) as waiting,
    (select count(*) from (
        select from hive.job where queue = $1 and state in ('scheduled', 'retrying') limit $2) as each) as delayed,
    (select count(*) from (select from hive.job where queue = $1 and state = 'running' limit $2) as each) as running,
    (select case when count(*) > 0
        then greatest(0, extract(epoch from statement_timestamp() - min(oldest.run_at)))::float8 end
     from tasks, lateral (
        select run_at from hive.job as job
        where job.queue = $1 and job.task = tasks.task and job.state = 'pending'
        order by job.run_at
        limit 1
     ) as oldest) as oldest_seconds;

-- name: waiting
-- $1 queues, $2 for each where counting stops: what waits there, due or not.
select asked.queue, (
    select count(*) from (
        select from hive.job as job
        where job.queue = asked.queue and job.state in ('scheduled', 'pending', 'retrying')
        limit asked.most
    ) as each
) as waiting
from unnest($1::text[], $2::integer[]) as asked(queue, most);

-- name: backlog
-- $1 queue, $2 the tenant before the page ('' for system work) or null, $3 tenants in a page, $4 where counting
-- stops. Two rings over the tenants, those that wait in each lane and those that run, merged by their order.
with recursive waiting(lane, line) as (
    select lanes.lane, first.line
    from (values (0::smallint), (1::smallint), (2::smallint)) as lanes(lane) cross join lateral (
        select coalesce(job.tenant, '') as line from hive.job as job
        where job.queue = $1 and job.state = 'pending' and job.lane = lanes.lane
            and coalesce(job.tenant, '') >= coalesce($2::text, '')
            and ($2::text is null or coalesce(job.tenant, '') <> $2::text)
        order by coalesce(job.tenant, '')
        limit 1
    ) as first
    union all
    select waiting.lane, next.line
    from waiting cross join lateral (
        select coalesce(job.tenant, '') as line from hive.job as job
        where job.queue = $1 and job.state = 'pending' and job.lane = waiting.lane
            and coalesce(job.tenant, '') > waiting.line
        order by coalesce(job.tenant, '')
        limit 1
    ) as next
), nearest as materialized (
    select lane, line from waiting limit 3 * $3
), page as materialized (
    select line from (
        select line from nearest
        union
        select coalesce(tenant, '') from hive.job
        where queue = $1 and state = 'running' and ($2::text is null or coalesce(tenant, '') > $2)
    ) as lines(line)
    order by line
    limit $3
)
select nullif(page.line, '') as tenant,
    (select count(*) from (
        select from hive.job as job
        where job.queue = $1 and job.state = 'pending' and job.lane = any('{0,1,2}')
            and coalesce(job.tenant, '') = page.line
        limit $4
    ) as each) as waiting,
    (select count(*) from (
        select from hive.job as job
        where job.queue = $1 and job.state = 'running' and coalesce(job.tenant, '') = page.line
        limit $4
    ) as each) as running,
    (select greatest(0, extract(epoch from statement_timestamp() - min(oldest.run_at)))::float8
     from (values (0), (1), (2)) as lanes(lane), lateral (
        select job.run_at from hive.job as job
        where job.queue = $1 and job.state = 'pending' and job.lane = lanes.lane
            and coalesce(job.tenant, '') = page.line
        order by job.run_at
        limit 1
     ) as oldest) as oldest_seconds
from page
order by page.line;

-- name: position
-- $1 id, $2 where counting stops; null unless it waits.
select (select count(*) from (
    select from hive.job as before
    where before.queue = job.queue and before.lane = job.lane and before.state = 'pending'
        and coalesce(before.tenant, '') = coalesce(job.tenant, '') and (before.run_at, before.id) < (job.run_at, job.id)
    limit $2
) as each)
from hive.job as job
where job.id = $1 and job.state = 'pending';

-- name: find
-- $1 id
select id, queue, task, tenant, state, lane, attempt, max_attempts, stage, done, total, error_kind, error_code,
    error_summary, owner, created_at, run_at, started_at, finished_at, args::text as args
from hive.job
where id = $1;

-- name: jobs
-- $1 queue, $2 tenant, $3 state, $4 task (each null for any), $5 limit
select id, queue, task, tenant, state, lane, attempt, max_attempts, stage, done, total, error_kind, error_code,
    error_summary, owner, created_at, run_at, started_at, finished_at, args::text as args
from hive.job
where ($1::text is null or queue = $1) and ($2::text is null or tenant = $2) and ($3::text is null or state = $3)
    and ($4::text is null or task = $4)
order by id desc
limit $5;

-- name: dead_letters
-- $1 queue, $2 tenant (null for any), $3 limit
select id, queue, task, tenant, args::text as args, error_kind, error_code, error_summary, attempt, finished_at
from hive.job
where state = 'failed' and ($1::text is null or queue = $1) and ($2::text is null or tenant = $2)
order by finished_at desc, id desc
limit $3;
