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
