-- What the relay's role has to be granted in this database: to connect, and to keep its witness.
select set_config('cdc_outbox.role', {role_name}, false);
do $$
declare
  others text := pg_catalog.current_setting('search_path');
  wanted name := current_setting('cdc_outbox.role');
begin
  perform pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
  if not has_database_privilege(wanted, current_database(), 'connect') then
    execute format('grant connect on database %I to %I', current_database(), wanted);
  end if;
  if not has_schema_privilege(wanted, 'public', 'usage') then
    execute format('grant usage on schema public to %I', wanted);
  end if;
  perform pg_catalog.set_config('search_path', others, true);
end
$$;
grant select, insert, update, delete on table public.cdc_outbox_witness to {role};

-- Suggested, not needed: with it the relay can name age and query of a transaction that holds it up.
-- grant pg_read_all_stats to {role};
