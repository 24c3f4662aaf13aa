"""PostgreSQL's side of the relay: the replication stream, slot and publication, and the control connection.

`protocol` and `pgoutput` are pure: bytes in, records out. Everything else here may use psycopg, and nothing
else of the relay does: `enqueue`, `inbox` and the demo have an application's own connection.
"""
