-- The witness goes with the outbox: where somebody else makes it, the tables' owner gets it, so that the owner can drop
-- it and grant rights on it.
select set_config('cdc_outbox.tables', {tables}::text[]::text, false);
do $$
declare
  heir text;
begin
  select min(pg_catalog.pg_get_userbyid(c.relowner)::text) into heir
    from unnest(current_setting('cdc_outbox.tables')::text[]) as wanted (name)
    join pg_catalog.pg_class c on c.oid = pg_catalog.to_regclass(wanted.name)
  having count(distinct c.relowner) = 1;
  if heir <> current_user and exists (select from pg_catalog.pg_class
                                       where oid = pg_catalog.to_regclass('public.cdc_outbox_witness')
                                         and relowner = current_user::regrole) then
    execute format('alter table public.cdc_outbox_witness owner to %I', heir);
  end if;
exception when insufficient_privilege then
  raise notice 'public.cdc_outbox_witness stays with %: %', current_user, sqlerrm;
end
$$;
