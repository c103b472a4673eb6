-- What wakes a tenant that rests: see hive.tenant_works().
create trigger works after insert or update on connector_credential_pair
    for each statement execute function hive.tenant_works();
create trigger works after insert on index_attempt for each statement execute function hive.tenant_works();
