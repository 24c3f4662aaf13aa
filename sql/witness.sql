-- The witness: one row per replication slot, written by the relay before it confirms a position to PostgreSQL.
-- It holds no events. It lets a relay that was away notice that its slot was dropped and made again, moved by
-- another hand, or restored from a backup, and that its publication was replaced meanwhile.
create table if not exists public.cdc_outbox_witness (
  slot              text primary key,
  system_identifier text not null,
  timeline          bigint not null,
  position          pg_lsn not null,
  publication       text,
  incidents         jsonb not null default '[]'::jsonb,
  snapshot          pg_snapshot,
  whole             jsonb not null default '{}'::jsonb,
  updated_at        timestamptz not null default clock_timestamp()
) with (fillfactor = 50);

comment on table public.cdc_outbox_witness is
  'cdc-outbox: what each relay has proof of having delivered; one row per replication slot';
comment on column public.cdc_outbox_witness.slot is
  'name of the replication slot';
comment on column public.cdc_outbox_witness.system_identifier is
  'system identifier of the server that the position belongs to, as IDENTIFY_SYSTEM prints it';
comment on column public.cdc_outbox_witness.timeline is
  'timeline that the position belongs to';
comment on column public.cdc_outbox_witness.position is
  'everything committed up to here was delivered; the slot is never confirmed beyond it';
comment on column public.cdc_outbox_witness.publication is
  'identity of the publication and of its tables: OIDs and xmin of their catalogue rows';
comment on column public.cdc_outbox_witness.incidents is
  'what happened to the publication or the slot and was not yet accepted: list of {kind, at, from_lsn, to_lsn, message}';
comment on column public.cdc_outbox_witness.snapshot is
  'rows whose xmin is below pg_snapshot_xmin of this snapshot were delivered';
comment on column public.cdc_outbox_witness.whole is
  'the tables and partitions in which unmarked rows are looked for, each with the keys of rows that were left behind';
comment on column public.cdc_outbox_witness.updated_at is
  'when the relay wrote the position';
