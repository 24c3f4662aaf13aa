-- The replication slot: from here on PostgreSQL keeps the write-ahead log until the relay has confirmed it. Make it
-- last, and drop it when nobody reads from it any more: an abandoned slot fills the disk. Creating it waits for the
-- transactions that are open now, at most as long as statement_timeout says (lock_timeout bounds the wait for each
-- single one of them). On a primary of version 17 and later it is a failover slot where that is wanted.
-- Rows that were in the table before are not published. A slot without its publication would keep the log for nobody:
-- where that wasn't made, the slot isn't either, whatever the client does after an error.
set statement_timeout = {timeout};
do $$
declare
  others text := pg_catalog.current_setting('search_path');
begin
  perform pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
  if {publication} is not null
     and not exists (select from pg_catalog.pg_publication where pubname = {publication}) then
    raise exception 'no slot is made without its publication, and there is no publication %', {publication};
  end if;
  if {failover} and current_setting('server_version_num')::int >= 170000 and not pg_is_in_recovery() then
    perform pg_create_logical_replication_slot({slot}, 'pgoutput', false, false, true);
  else
    perform pg_create_logical_replication_slot({slot}, 'pgoutput');
  end if;
  perform pg_catalog.set_config('search_path', others, true);
end
$$;
reset statement_timeout;
