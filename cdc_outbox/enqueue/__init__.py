"""Write an event in the caller's transaction. One module for each library:

- `cdc_outbox.enqueue.psycopg`: connections and cursors of psycopg 3, sync and async
- `cdc_outbox.enqueue.asyncpg`: connections of asyncpg, also those of a pool
- `cdc_outbox.enqueue.sqlalchemy`: Connection and Session, AsyncConnection and AsyncSession
- `cdc_outbox.enqueue.django`: the connections of Django's settings

Each has `enqueue`, `enqueue_many`, and `Outbox` for a table that isn't the default one. What can be known to be
wrong with an event is raised before anything is sent to the server, so that the transaction stays as it is.
"""
