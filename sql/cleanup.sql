-- Beside the other grants, where the relay removes old rows by itself (cleanup.older_than): the role may read and delete
-- rows of the outbox and of the partitions that it has now. PostgreSQL asks for the right to update some column of who
-- locks a row, as is done with each row before it goes; none is ever updated. Partitions that are made later need the
-- same: run it again, or let cleanup connect as the owner.
select set_config('cdc_outbox.role', {role_name}, false), set_config('cdc_outbox.table', {table_name}, false);
do $$
declare
  others text := pg_catalog.current_setting('search_path');
  outbox regclass := current_setting('cdc_outbox.table');
  wanted name := current_setting('cdc_outbox.role');
  relation regclass;
  locked name;
begin
  perform pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
  for relation, locked in
    with recursive family (member) as (
      select outbox::oid union all
      select i.inhrelid from family f join pg_catalog.pg_inherits i on i.inhparent = f.member
        join pg_catalog.pg_class c on c.oid = i.inhrelid and c.relispartition)
    select f.member::regclass, (select a.attname from pg_catalog.pg_attribute a
                                 where a.attrelid = f.member and a.attnum > 0 and not a.attisdropped
                                   and a.attgenerated = '' order by a.attnum limit 1)
      from family f
  loop
    execute format('grant usage on schema %s to %I', (select relnamespace::regnamespace from pg_catalog.pg_class
                                                       where oid = relation), wanted);
    execute format('grant select, delete, update (%I) on table %s to %I', locked, relation, wanted);
  end loop;
  perform pg_catalog.set_config('search_path', others, true);
end
$$;
