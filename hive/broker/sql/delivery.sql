-- name: claim
-- moves: pending -> running
-- $1 queue, $2 owner, $3 limit, $4 lease in seconds, $5 to $7 each lane's part of the limit, $8 to $10 each lane's
-- cursor: the tenant ('' for system work) that was served last, $11 how many tenants are looked at, $12 whether to
-- go past the level below. Returns a row for each one taken, or one without an id; in all of them stand `more`,
-- whether another pass may find what this one left, and `ends`, for each lane with more tenants than were looked at
-- the last of those. The lanes are no arrays: Postgres would guess how many there are, think its generic plan the
-- dearer one, and plan anew each time, which takes twice as long as the claim itself.
--
-- Tenants are walked in a ring from the cursor by the line's index, one probe each, so that what waits behind
-- them costs nothing. Where there are several, what each may take is what levels their loads (cost in flight by
-- weight), and of what was found the least loaded is taken first. A window function over all that waits would
-- be exact as well, and took 75 times as long with a million rows.
--
-- A claim is a lease, and its commit does not wait for the disk: a third of the time from publish to handler. A server
-- that crashes in the half second before its log is flushed forgets the claim, and the job waits again, as after
-- any lost lease; what its handler or its settle commits later is flushed together with the claim. So that no
-- fence is given twice even then, it follows the server's clock.
with recursive moment(fence, unflushed) as materialized (
    select (extract(epoch from statement_timestamp()) * 1000000)::bigint,
        set_config('synchronous_commit', 'off', true)
), lanes(lane, part, cursor) as (
    select lane, part, cursor
    from moment cross join (values (0::smallint, $5::integer, $8::text), (1::smallint, $6::integer, $9::text),
        (2::smallint, $7::integer, $10::text)) as lanes(lane, part, cursor)
    where moment.unflushed is not null and not exists (select from hive.paused_queue as paused where paused.queue = $1)
), ahead(lane, step, line, cost) as (
    select lane, 0, cursor, 0 from lanes
    union all
    select ahead.lane, ahead.step + 1, next.line, next.cost
    from ahead cross join lateral (
        select coalesce(job.tenant, '') as line, job.cost from hive.job as job
        where job.queue = $1 and job.state = 'pending' and job.lane = ahead.lane
            and coalesce(job.tenant, '') > ahead.line
        order by coalesce(job.tenant, ''), job.run_at, job.id
        limit 1
    ) as next
    where ahead.step < $11::integer
), behind(lane, step, line, cost, cursor) as (
    select lanes.lane, 1, next.line, next.cost, lanes.cursor
    from lanes cross join lateral (
        select coalesce(job.tenant, '') as line, job.cost from hive.job as job
        where job.queue = $1 and job.state = 'pending' and job.lane = lanes.lane
            and coalesce(job.tenant, '') < lanes.cursor
        order by coalesce(job.tenant, ''), job.run_at, job.id
        limit 1
    ) as next
    where (select count(*) from ahead where ahead.lane = lanes.lane) <= $11::integer
    union all
    select behind.lane, behind.step + 1, next.line, next.cost, behind.cursor
    from behind cross join lateral (
        select coalesce(job.tenant, '') as line, job.cost from hive.job as job
        where job.queue = $1 and job.state = 'pending' and job.lane = behind.lane
            and coalesce(job.tenant, '') > behind.line and coalesce(job.tenant, '') < behind.cursor
        order by coalesce(job.tenant, ''), job.run_at, job.id
        limit 1
    ) as next
    where behind.step < $11::integer
), others as materialized (
    select lane, line, cost, step as place from ahead where step > 0
    union all
    select lane, line, cost, $11 + step from behind
), ring as materialized (
    select lane, line, cost, place from others
    union all
    -- Who was served last is asked last; alone, without being looked at first.
    select lanes.lane, lanes.cursor, coalesce(head.cost, 1), 2 * $11 + 1
    from lanes left join lateral (
        select job.cost from hive.job as job
        where job.queue = $1 and job.state = 'pending' and job.lane = lanes.lane
            and coalesce(job.tenant, '') = lanes.cursor and exists (select from others)
        order by job.run_at, job.id
        limit 1
    ) as head on true
    where head.cost is not null or not exists (select from others)
), shared as materialized (
    select exists (select from others) as among_several, (select count(*) from ring) * $3 <= 256 as are_few,
        greatest(1, 2048 / greatest(1, (select count(*) from ring)))::integer as at_most
), loads as materialized (
    select coalesce(tenant, '') as line, sum(cost)::float8 as load
    from hive.job
    where queue = $1 and state = 'running' and (select among_several from shared)
    group by coalesce(tenant, '')
), weighed as (
    select ring.lane, ring.line, ring.place, ring.cost::float8 as cost, coalesce(loads.load, 0) as load,
        coalesce(tenant.weight, 1)::float8 as weight
    from ring left join loads using (line)
        left join hive.tenant as tenant on tenant.id = ring.line and (select among_several from shared)
), level as (
    select lane, ($3 + sum(load / cost)) / sum(weight / cost) as load_by_weight from weighed group by lane
), allowed as materialized (
    select weighed.lane, weighed.line, weighed.place, weighed.load, weighed.weight,
        case
            when shared.are_few then $3
            when $12::boolean then least($3, shared.at_most)
            else least($3, ceil((level.load_by_weight * weighed.weight - weighed.load) / weighed.cost))::integer
        end as most
    from weighed join level using (lane) cross join shared
), found as materialized (
    select allowed.lane, allowed.line, allowed.place, allowed.load, allowed.weight, job.*
    from allowed cross join lateral (
        select waiting.id, waiting.run_at, waiting.cost, waiting.resource
        from hive.job as waiting
        where waiting.queue = $1 and waiting.state = 'pending' and waiting.lane = allowed.lane
            and coalesce(waiting.tenant, '') = allowed.line
            and (waiting.expires_at is null or waiting.expires_at > statement_timestamp())
            and (waiting.resource is null or not exists (
                select from hive.job as other
                where other.state = 'running' and other.resource = waiting.resource
                    and coalesce(other.tenant, '') = allowed.line
            ))
        order by waiting.run_at, waiting.id
        limit greatest(allowed.most, 0)
        for update of waiting skip locked
    ) as job
), free as materialized (
    -- Two claims with resources in different orders would wait for each other at the unique index: whoever comes
    -- second leaves a resource alone instead.
    select found.* from found
    where found.resource is null or case when exists (
        select from found as before
        where before.resource = found.resource and before.line = found.line
            and (before.lane, before.run_at, before.id) < (found.lane, found.run_at, found.id)
    ) then false else pg_try_advisory_xact_lock(hashtextextended(found.line || ':' || found.resource, 0)) end
), levelled as (
    select id, lane, place, run_at,
        (load + sum(cost) over (partition by lane, line order by run_at, id)) / weight as load_by_weight
    from free
), ranked as (
    select id, lane, place, row_number() over (partition by lane order by load_by_weight, place, run_at, id) as rank
    from levelled
), taken as materialized (
    select ranked.id, ranked.place, ranked.rank
    from ranked join lanes using (lane)
    order by ranked.rank > lanes.part, ranked.lane, ranked.rank
    limit $3
), claimed as (
    -- By an array and not by a join: planned while the table is empty, a join walks all of it for each row taken.
    update hive.job as job
    set state = 'running', owner = $2, lease_until = statement_timestamp() + make_interval(secs => $4),
        fence = greatest(job.fence + 1, (select fence from moment)), attempt = job.attempt + 1,
        started = false, started_at = null
    where job.id = any(array(select id from taken))
    returning job.id, job.task, job.tenant, job.args::text as args, job.lane, job.fence, job.attempt, job.max_attempts, job.key,
        job.resource, job.cost, job.parent, job.trace, job.created_at, job.redelivered
), handed as materialized (
    -- Both hold the same rows. A full join, since Postgres can hash or merge that, and never walks one for each
    -- row of the other.
    select claimed.*, taken.place, taken.rank from claimed full join taken on taken.id = claimed.id
), rest as (
    select exists (
        -- Some took all that they were allowed to, some had several of one resource, or there are more tenants.
        select from allowed
        where most < $3 and most <= (
            select count(*) from found where found.lane = allowed.lane and found.line = allowed.line
        )
    ) or (select count(*) from free) < (select count(*) from found)
        or exists (select from ahead where step >= $11) or exists (select from behind where step >= $11) as more,
    case when exists (select from ahead where step >= $11) then array(
        select (select line from ahead where ahead.lane = lanes.lane and step >= $11) from lanes order by lane
    ) end as ends
)
select handed.*, rest.more, rest.ends from rest left join handed on handed.id is not null order by handed.lane, handed.rank;

-- name: renew
-- $1 ids, $2 fences, $3 owners, $4 lease in seconds; returns what is lost. A row that is locked is held by its own
-- handler's transaction (or by a claim that is about to commit): it is left alone, and lost only if it says so.
with asked as (
    select * from unnest($1::uuid[], $2::bigint[], $3::uuid[]) as asked(id, fence, owner)
), held as materialized (
    select id, fence, owner, state from hive.job
    where id = any($1::uuid[])
    order by id
    for update skip locked
), renewed as (
    update hive.job as job
    set lease_until = statement_timestamp() + make_interval(secs => $4)
    where job.id = any(array(
        select held.id from held join asked using (id, fence, owner) where held.state = 'running'
    ))
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
    select id, fence, owner, state from hive.job
    where id = any($1::uuid[])
    order by id
    for update skip locked
)
update hive.job as job
set started = true, started_at = statement_timestamp()
where not job.started and job.id = any(array(
    select held.id
    from held join unnest($1::uuid[], $2::bigint[], $3::uuid[]) as asked(id, fence, owner) using (id, fence, owner)
    where held.state = 'running'
));

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
