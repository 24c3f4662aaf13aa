"""Real servers for the tests, and the tools that break them and count what survived.

`postgres` and `kafka` run the real thing from local binaries; `proxy` stands between the relay and a server
and misbehaves on request; `relay` is the relay as its users run it; `ledger` keeps account of what was
committed and what arrived. Everything that they start ends with the tests, however those end.

The environment may say where servers come from, and where they live:

- `CDC_OUTBOX_TEST_POSTGRES_18` (15, 16, 17): a superuser's connection string of a server to share
- `CDC_OUTBOX_TEST_POSTGRES_18_BIN` (15, 16, 17): the directory with `postgres` and `initdb`
- `CDC_OUTBOX_TEST_KAFKA`: the bootstrap address of a cluster to share
- `CDC_OUTBOX_TEST_DOCKER`: `first` prefers containers to local servers, `no` forbids them
- `CDC_OUTBOX_TEST_DATA`: where servers keep their data; tests take memory where there is plenty
- `CDC_OUTBOX_TEST_CACHE`: where downloads are kept, instead of `.cache` in the checkout

`python -m tests.servers` fetches everything that is missing.
"""
