"""PostgreSQL's side of the relay: the replication stream, slot and publication, and the control connection.

`protocol` and `pgoutput` are pure: bytes in, records out. Everything else here may use psycopg, and nothing
outside this package does.
"""
