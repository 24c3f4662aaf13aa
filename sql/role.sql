-- The role that the relay runs as, with no more than it needs: it may log in and stream the write-ahead log. It
-- needs no right on the outbox table. It has no password yet: set one, or let pg_hba.conf admit it. Where only the
-- provider may give the attribute replication, its role rds_replication stands for it.
select set_config('cdc_outbox.role', {role_name}, false);
do $$
declare
  others text := pg_catalog.current_setting('search_path');
  wanted name := current_setting('cdc_outbox.role');
  stand_in boolean := exists (select from pg_catalog.pg_roles where rolname = 'rds_replication');
begin
  perform pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
  if not exists (select from pg_catalog.pg_roles where rolname = wanted) then
    execute format(case when stand_in then 'create role %I login' else 'create role %I login replication' end, wanted);
  elsif not (select rolcanlogin from pg_catalog.pg_roles where rolname = wanted) then
    execute format('alter role %I login', wanted);
  end if;
  if stand_in then
    execute format('grant rds_replication to %I', wanted);
  elsif not (select rolreplication or rolsuper from pg_catalog.pg_roles where rolname = wanted) then
    execute format('alter role %I replication', wanted);
  end if;
  perform pg_catalog.set_config('search_path', others, true);
end
$$;
