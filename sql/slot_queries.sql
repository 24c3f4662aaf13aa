-- Queries about replication slots, to read and to run by hand. They change nothing.

-- What each slot keeps and how far it is delivered: retained is disk, unconfirmed is delivery. safe_wal_size is
-- what may still be written before the slot is lost; null means that there is no limit, or that it is lost already.
select slot_name, plugin, database, active, active_pid, wal_status,
       pg_size_pretty(pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)) as retained,
       pg_size_pretty(pg_wal_lsn_diff(pg_current_wal_lsn(), confirmed_flush_lsn)) as unconfirmed,
       pg_size_pretty(safe_wal_size) as safe
  from pg_replication_slots
 order by restart_lsn;

-- The limit for what a slot may keep; -1 means none, so that an abandoned slot fills the disk.
select name, setting, unit
  from pg_settings
 where name in ('max_slot_wal_keep_size', 'max_replication_slots', 'max_wal_senders', 'wal_level');

-- Who streams from a slot, and since when.
select s.slot_name, a.pid, a.usename, a.application_name, a.client_addr, a.backend_start
  from pg_replication_slots s
  join pg_stat_activity a on a.pid = s.active_pid
 order by s.slot_name;

-- The oldest open transactions that write: creating a slot waits for them, and a slot's disk grows with them.
select pid, usename, application_name, datname, state, clock_timestamp() - xact_start as open_for, query
  from pg_stat_activity
 where backend_xid is not null
 order by age(backend_xid) desc
 limit 10;

-- Prepared transactions that nobody finished hold a slot's disk in the same way.
select gid, owner, database, clock_timestamp() - prepared as open_for
  from pg_prepared_xacts
 order by prepared;

-- Which tables each publication lets through, and what it publishes of them.
select p.pubname, t.schemaname, t.tablename, p.pubinsert, p.pubviaroot, p.puballtables, t.rowfilter
  from pg_publication p
  left join pg_publication_tables t on t.pubname = p.pubname
 order by p.pubname, t.schemaname, t.tablename;
