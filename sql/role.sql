-- The role that the relay runs as, with no more than it needs: it may log in, stream the write-ahead log and keep
-- its witness. It needs no right on the outbox table. It has no password yet: set one, or let pg_hba.conf admit it.
select set_config('cdc_outbox.role', {role_name}, false);
do $$
declare
  wanted name := current_setting('cdc_outbox.role');
begin
  if not exists (select from pg_catalog.pg_roles where rolname = wanted) then
    execute format('create role %I login replication', wanted);
  elsif not exists (select from pg_catalog.pg_roles
                     where rolname = wanted and rolcanlogin and (rolreplication or rolsuper)) then
    execute format('alter role %I login replication', wanted);
  end if;
end
$$;
grant select, insert, update, delete on table public.cdc_outbox_witness to {role};

-- Suggested, not needed: with it the relay can name age and query of a transaction that holds it up.
-- grant pg_read_all_stats to {role};
