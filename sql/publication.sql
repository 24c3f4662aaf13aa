-- The publication: which rows the slot hands out. Inserts only, so that updating and deleting outbox rows costs the
-- relay nothing; a partitioned outbox appears under its own name. It must exist before the slot: decoding sees the
-- catalogue as it was at each position of the write-ahead log.
create publication {publication} for table {tables}
  with (publish = 'insert', publish_via_partition_root = true);
