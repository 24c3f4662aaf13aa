"""cdc-outbox: stream a PostgreSQL outbox table into Kafka from the write-ahead log, and lose nothing."""

__version__ = "0.1.0"
