-- Beside the other grants, where rows are marked as sent (outbox.mark = update): the role may find a row of the outbox
-- by its key, and write the columns that say that it was sent. It may read no payload, and insert or delete nothing.
select set_config('cdc_outbox.role', {role_name}, false), set_config('cdc_outbox.table', {table_name}, false),
       set_config('cdc_outbox.written', {written}, false), set_config('cdc_outbox.read', {read}, false);
do $$
declare
  others text := pg_catalog.current_setting('search_path');
  outbox regclass := current_setting('cdc_outbox.table');
  wanted name := current_setting('cdc_outbox.role');
  written text[] := current_setting('cdc_outbox.written');
  read text[] := current_setting('cdc_outbox.read');
  columns text;
begin
  perform pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
  execute format('grant usage on schema %s to %I', (select relnamespace::regnamespace from pg_catalog.pg_class
                                                     where oid = outbox), wanted);
  -- names are compared without regard to case and underscores
  select string_agg(quote_ident(attname), ', ' order by attnum) into columns from pg_catalog.pg_attribute
   where attrelid = outbox and attnum > 0 and not attisdropped and replace(lower(attname), '_', '') = any(written);
  if columns is not null then
    execute format('grant update (%s) on table %s to %I', columns, outbox, wanted);
  end if;
  select string_agg(quote_ident(a.attname), ', ' order by a.attnum) into columns from pg_catalog.pg_attribute a
   where a.attrelid = outbox and not a.attisdropped
     and (a.attname in ('ctid', 'tableoid', 'xmin') or replace(lower(a.attname), '_', '') = any(written || read)
          or exists (select from pg_catalog.pg_index i where i.indrelid = outbox and i.indisunique
                        and i.indpred is null and a.attnum = any(i.indkey)));
  execute format('grant select (%s) on table %s to %I', columns, outbox, wanted);
  perform pg_catalog.set_config('search_path', others, true);
end
$$;
