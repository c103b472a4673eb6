-- name: reserve_fences
-- $1 queue, $2 how many; returns where the reserved block ends.
insert into hive.stream_fence (queue, reserved) values ($1, $2)
on conflict (queue) do update set reserved = hive.stream_fence.reserved + excluded.reserved
returning reserved;

-- name: bury
-- A letter may be written again after a crash in between: the newer one stands.
insert into hive.dead_letter (
    id, tenant, queue, task, args, raw, message, lane, key, error_kind, error_code, error_summary, attempts
)
select id, tenant, $1, task, args::jsonb, raw, message::jsonb, lane, key, error_kind, error_code, error_summary,
    attempts
from unnest(
    $2::uuid[], $3::text[], $4::text[], $5::text[], $6::bytea[], $7::text[], $8::smallint[], $9::text[],
    $10::text[], $11::text[], $12::text[], $13::integer[]
) as given(
    id, tenant, task, args, raw, message, lane, key, error_kind, error_code, error_summary, attempts
)
on conflict (id) do update set
    tenant = excluded.tenant, queue = excluded.queue, task = excluded.task, args = excluded.args,
    raw = excluded.raw, message = excluded.message, lane = excluded.lane, key = excluded.key,
    error_kind = excluded.error_kind, error_code = excluded.error_code, error_summary = excluded.error_summary,
    attempts = excluded.attempts, died_at = statement_timestamp();

-- name: dead_letters
-- $1 queue, $2 tenant (null for any), $3 limit
select id, queue, task, tenant, args, error_kind, error_code, error_summary, attempts, died_at
from hive.dead_letter
where ($1::text is null or queue = $1) and ($2::text is null or tenant = $2)
order by died_at desc, id desc
limit $3;

-- name: replayable
-- $1 ids: locks them. One that could not be read cannot be replayed.
select id, queue, args, message from hive.dead_letter
where id = any($1::uuid[]) and message is not null and args is not null
order by id
for update;

-- name: purge
-- $1 ids
with gone as (delete from hive.dead_letter where id = any($1::uuid[]) returning id)
select count(*) from gone;

-- name: outbox_put
-- $1 ids, $2 queues, $3 messages
insert into hive.outbox (id, queue, message)
select id, queue, message::jsonb from unnest($1::uuid[], $2::text[], $3::text[]) as given(id, queue, message)
on conflict do nothing;

-- name: outbox_take
-- $1 limit: the oldest that no other process is sending.
select id, queue, message::text as message,
    extract(epoch from statement_timestamp() - created_at)::float8 as age_seconds
from hive.outbox
order by created_at, id
limit $1
for update skip locked;

-- name: outbox_sent
-- $1 ids
delete from hive.outbox where id = any($1::uuid[]);

-- name: weights
-- Tenants whose weight is not the default.
select id, weight from hive.tenant where weight <> 1;
