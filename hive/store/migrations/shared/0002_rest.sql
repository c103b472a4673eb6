-- Tenants that rest, and a job table that keeps its pages.

-- false: periodic tasks find nothing to do for it.
alter table hive.tenant add column working boolean not null default true;

-- A trigger of tenants' tables: what changed may be work for periodic tasks. The row is locked before it is looked at,
-- so that whoever takes the mark away (hive.ingest.rest) either sees the change or comes before it.
create function hive.tenant_works() returns trigger language plpgsql as $$
declare
    own text := tg_table_schema;  -- as it stands, of type name and with its collation, no index would find it
begin
    perform from hive.tenant where schema_name = own for no key update;
    update hive.tenant set working = true where schema_name = own and not working;
    if found then
        perform pg_notify('hive_tenants', '');
    end if;
    return null;
end $$;

-- Truncating locks everybody out, for pages that are soon needed again.
alter table hive.job set (vacuum_truncate = off);
