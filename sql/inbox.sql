-- The inbox: which events a consumer has applied already. It lives in the consumer's database, and its row is written
-- in the transaction that applies the event, so that an event which comes twice is applied once. The helpers of
-- cdc_outbox.inbox write it; from any other language it is
--   insert into public.cdc_outbox_inbox (consumer, event_id) values ('billing', 'ID') on conflict do nothing
-- whose row count, 1 or 0, says whether to apply the event. Who runs that needs the right to insert, and no other.
create table if not exists public.cdc_outbox_inbox (
  consumer     text collate "C" not null,
  event_id     text collate "C" not null,
  processed_at timestamptz      not null default clock_timestamp(),
  primary key (consumer, event_id)
);

-- Rows by their age, for cleanup.
create index if not exists cdc_outbox_inbox_processed_at on public.cdc_outbox_inbox (processed_at);

comment on table public.cdc_outbox_inbox is
  'cdc-outbox: the events that each consumer has applied; a row older than any event can come again may be deleted';
comment on column public.cdc_outbox_inbox.consumer is
  'who applied the event: one name for all instances that share the work';
comment on column public.cdc_outbox_inbox.event_id is
  'the event''s id, as its Kafka header "id" has it';
comment on column public.cdc_outbox_inbox.processed_at is
  'when it was applied';
