-- What a waiting job costs the server is mostly its indexes' entries and checks: narrower ones.

-- A claim reads what is pending alone, so that the state need not stand in each entry, nor be compared at each step.
drop index hive.job_line;
create index job_line on hive.job (queue, lane, coalesce(tenant, ''), run_at, id) where state = 'pending';
create index job_later on hive.job (queue, state, lane, coalesce(tenant, ''), run_at, id)
    where state in ('scheduled', 'retrying');
-- Whoever asks for a task asks for all of it that waits; what is pending was due earlier than what is not.
drop index hive.job_task;
create index job_task on hive.job (queue, task, run_at) where state in ('scheduled', 'pending', 'retrying');

-- The same four as before, in one and in few words: Postgres reads them anew for each statement that writes, which was a
-- quarter of what a statement of one row cost.
alter table hive.job
    drop constraint job_state_check,
    drop constraint running_has_owner,
    drop constraint terminal_is_finished,
    drop constraint failed_has_cause,
    add constraint state_is_whole check (case
        when finished_at is null then case
            when owner is null or lease_until is null then state in ('pending', 'scheduled', 'retrying')
            else state = 'running'
        end
        else (owner is null or lease_until is null) and (state in ('completed', 'cancelled')
            or state = 'failed' and error_kind is not null and error_summary is not null)
    end);
