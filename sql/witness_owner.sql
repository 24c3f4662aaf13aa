-- The witness goes with the outbox: where somebody else makes it, the tables' owner gets it, so that the owner can drop
-- it and grant rights on it.
select set_config('cdc_outbox.tables', {tables}::text[]::text, false);
do $$
declare
  others text := pg_catalog.current_setting('search_path');
  heir text;
begin
  perform pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
  select min(pg_catalog.pg_get_userbyid(c.relowner)::text) into heir
    from unnest(current_setting('cdc_outbox.tables')::text[]) as wanted (name)
    join pg_catalog.pg_class c on c.oid = pg_catalog.to_regclass(wanted.name)
  having count(distinct c.relowner) = 1;
  if heir <> current_user and exists (select from pg_catalog.pg_class
                                       where oid = pg_catalog.to_regclass('public.cdc_outbox_witness')
                                         and relowner = current_user::regrole) then
    execute format('alter table public.cdc_outbox_witness owner to %I', heir);
  end if;
  perform pg_catalog.set_config('search_path', others, true);
exception when insufficient_privilege then
  raise notice 'public.cdc_outbox_witness stays %''s, who alone can drop it and grant rights on it, for % could not give '
    'it to %, the owner of the outbox: %', current_user, current_user, heir, sqlerrm;
end
$$;
