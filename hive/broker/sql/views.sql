-- name: depth
-- $1 queue, $2 where counting stops
select
    (select count(*) from (select from hive.job where queue = $1 and state = 'pending' limit $2) as each) as waiting,
    (select count(*) from (
        select from hive.job where queue = $1 and state in ('scheduled', 'retrying') limit $2) as each) as delayed,
    (select count(*) from (select from hive.job where queue = $1 and state = 'running' limit $2) as each) as running,
    (select case when count(*) > 0
        then greatest(0, extract(epoch from statement_timestamp() - min(oldest.run_at)))::float8 end
     from (values (0), (1), (2)) as lanes(lane), lateral (
        select run_at from hive.job as job
        where job.queue = $1 and job.lane = lanes.lane and job.state = 'pending'
        order by job.run_at
        limit 1
     ) as oldest) as oldest_seconds;

-- name: backlog
-- $1 queue, $2 the tenant before the page or null, $3 tenants in a page, $4 where counting stops
with recursive tenants as (
    (select coalesce(tenant, '') as line from hive.job
     where queue = $1 and state in ('pending', 'running') and coalesce(tenant, '') > coalesce($2::text, '-')
        or queue = $1 and state in ('pending', 'running') and $2::text is null and tenant is null
     order by 1 limit 1)
    union all
    select (select min(coalesce(job.tenant, '')) from hive.job as job
        where job.queue = $1 and job.state in ('pending', 'running') and coalesce(job.tenant, '') > tenants.line)
    from tenants
    where tenants.line is not null
), page as (select line from tenants where line is not null limit $3)
select nullif(page.line, '') as tenant,
    (select count(*) from (
        select from hive.job where queue = $1 and state = 'pending' and coalesce(tenant, '') = page.line limit $4
    ) as each) as waiting,
    (select count(*) from (
        select from hive.job where queue = $1 and state = 'running' and coalesce(tenant, '') = page.line limit $4
    ) as each) as running,
    (select greatest(0, extract(epoch from statement_timestamp() - min(run_at)))::float8 from hive.job
     where queue = $1 and state = 'pending' and coalesce(tenant, '') = page.line) as oldest_seconds
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
    error_summary, owner, created_at, run_at, started_at, finished_at, args
from hive.job
where id = $1;

-- name: jobs
-- $1 queue, $2 tenant, $3 state, $4 task (each null for any), $5 limit
select id, queue, task, tenant, state, lane, attempt, max_attempts, stage, done, total, error_kind, error_code,
    error_summary, owner, created_at, run_at, started_at, finished_at, args
from hive.job
where ($1::text is null or queue = $1) and ($2::text is null or tenant = $2) and ($3::text is null or state = $3)
    and ($4::text is null or task = $4)
order by id desc
limit $5;

-- name: dead_letters
-- $1 queue, $2 tenant (null for any), $3 limit
select id, queue, task, tenant, args, error_kind, error_code, error_summary, attempt, finished_at
from hive.job
where state = 'failed' and ($1::text is null or queue = $1) and ($2::text is null or tenant = $2)
order by finished_at desc, id desc
limit $3;
