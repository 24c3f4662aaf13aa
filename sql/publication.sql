-- The publication: which rows the slot hands out. Inserts only, so that updating and deleting outbox rows costs the
-- relay nothing; a partitioned outbox appears under its own name. It must exist before the slot: decoding sees the
-- catalogue as it was at each position of the write-ahead log. One that is there stays as it is. Where somebody else
-- makes it, the tables' owner gets it, so that the owner can drop it.
select set_config('cdc_outbox.publication', {name}, false), set_config('cdc_outbox.tables', {tables}, false);
do $$
declare
  others text := pg_catalog.current_setting('search_path');
  heir text;
begin
  perform pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
  if not exists (select from pg_catalog.pg_publication where pubname = current_setting('cdc_outbox.publication')) then
    execute format('create publication %I for table %s with (publish = ''insert'', publish_via_partition_root = true)',
                   current_setting('cdc_outbox.publication'), current_setting('cdc_outbox.tables'));
    select min(pg_catalog.pg_get_userbyid(c.relowner)::text) into heir
      from pg_catalog.pg_publication p join pg_catalog.pg_publication_rel r on r.prpubid = p.oid
      join pg_catalog.pg_class c on c.oid = r.prrelid
     where p.pubname = current_setting('cdc_outbox.publication')
    having count(distinct c.relowner) = 1;
    if heir <> current_user then
      begin
        execute format('alter publication %I owner to %I', current_setting('cdc_outbox.publication'), heir);
      exception when insufficient_privilege then
        raise notice 'publication % stays with %: %', current_setting('cdc_outbox.publication'), current_user, sqlerrm;
      end;
    end if;
  end if;
  perform pg_catalog.set_config('search_path', others, true);
end
$$;
