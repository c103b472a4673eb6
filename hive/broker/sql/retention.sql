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
