-- The publication: which rows the slot hands out. Inserts only, so that updating and deleting outbox rows costs the
-- relay nothing; a partitioned outbox appears under its own name. It must exist before the slot: decoding sees the
-- catalogue as it was at each position of the write-ahead log. One that is there stays as it is.
select set_config('cdc_outbox.publication', {name}, false), set_config('cdc_outbox.tables', {tables}, false);
do $$
begin
  if not exists (select from pg_catalog.pg_publication where pubname = current_setting('cdc_outbox.publication')) then
    execute format('create publication %I for table %s with (publish = ''insert'', publish_via_partition_root = true)',
                   current_setting('cdc_outbox.publication'), current_setting('cdc_outbox.tables'));
  end if;
end
$$;
