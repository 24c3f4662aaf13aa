"""cdc-outbox: stream a PostgreSQL outbox table into Kafka from the write-ahead log, and lose nothing.

What applications import, and what stays stable between versions: `cdc_outbox.enqueue` and `cdc_outbox.inbox`, a module
of each for every library, and `cdc_outbox.errors`. All else is the relay's own.
"""

__all__ = ["__version__"]
__version__ = "0.1.0"
