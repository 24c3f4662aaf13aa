-- The outbox: one row is one event. Insert it in the transaction that changes the business data; the relay reads
-- it from the write-ahead log. The relay never queries this table, so it needs no index beyond the primary key,
-- and rows that were delivered may be deleted at any time.
create table if not exists {table} (
  -- the event's identity, header "id": by it a consumer knows an event that comes twice
  id             uuid        primary key default gen_random_uuid(),
  -- picks the topic: outbox.event.<aggregate_type>
  aggregate_type text        not null,
  -- the message key: events with the same one stay in order
  aggregate_id   text        not null,
  -- header "type"
  event_type     text        not null,
  -- header "version"; left out where null
  event_version  integer,
  -- the message value, byte for byte as PostgreSQL prints it; null makes a tombstone
  payload        jsonb,
  -- a JSON object whose members become further headers
  headers        jsonb,
  created_at     timestamptz not null default now()
);
