"""PostgreSQL, relay and Kafka put together, with what a test asks about the slot while it breaks one of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import LiteralString

from cdc_outbox.lsn import LSN
from tests.servers.kafka import Kafka
from tests.servers.postgres import Postgres
from tests.servers.relay import RelayProcess, run_command
from tests.servers.wait import eventually


class Pipeline:
    """One slot and the relays that follow each other on it.

    `dsn` and `bootstrap` are the relay's ways to its servers, which may lead through a proxy. Questions about the
    slot go to the server directly.
    """

    def __init__(
        self,
        server: Postgres,
        kafka: Kafka,
        *,
        slot: str,
        dbname: str = "postgres",
        dsn: str | None = None,
        bootstrap: str | None = None,
        flags: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.server = server
        self.kafka = kafka
        self.slot = slot
        self.dbname = dbname
        self.dsn = dsn or server.dsn(dbname)
        self._bootstrap = bootstrap
        self.flags = tuple(flags)
        self.env = dict(env or {})
        self.relays: list[RelayProcess] = []

    @property
    def bootstrap(self) -> str:
        """The relay's way to Kafka."""
        return self._bootstrap or self.kafka.bootstrap

    def init(self) -> Pipeline:
        """Make publication, witness and slot, as `cdc-outbox init` does."""
        done = run_command("init", "--slot", self.slot, env={"CDC_OUTBOX_DSN": self.server.dsn(self.dbname)})
        assert done.returncode == 0, done.stderr
        return self

    def start(self, *flags: str, http: bool = True, streaming: bool = True) -> RelayProcess:
        """Start a relay; with `streaming` wait until it streams."""
        relay = RelayProcess(
            self.dsn,
            self.bootstrap,
            slot=self.slot,
            flags=(*self.flags, *flags),
            env=self.env,
            http=http,
        )
        self.relays.append(relay)
        if streaming:
            relay.wait_for(lambda record: record.get("event") == "streaming", 60, message="the relay streams")
        return relay

    @property
    def relay(self) -> RelayProcess:
        """The relay that was started last."""
        return self.relays[-1]

    def _of_slot(self, query: LiteralString) -> str | None:
        rows = self.server.execute(query, (self.slot,), dbname=self.dbname)
        return None if not rows or rows[0][0] is None else str(rows[0][0])

    def confirmed(self) -> LSN:
        """The slot's confirmed position."""
        shown = self._of_slot(
            "select confirmed_flush_lsn::text from pg_replication_slots where slot_name = %s"
        )
        assert shown is not None, f"there is no slot {self.slot}"
        return LSN.parse(shown)

    def walsender(self) -> int | None:
        """The process id of the slot's walsender; None while it has none."""
        shown = self._of_slot("select active_pid from pg_replication_slots where slot_name = %s")
        return None if shown is None else int(shown)

    def heard(self) -> LSN:
        """How far the relay says that it has received: it rises with each keepalive that it took."""
        shown = self._of_slot(
            "select write_lsn::text from pg_stat_replication join pg_replication_slots on active_pid = pid"
            " where slot_name = %s"
        )
        return LSN(0) if shown is None else LSN.parse(shown)

    def wait_heard(self, position: LSN, timeout: float = 30) -> None:
        """Wait until the relay says that it has received everything up to `position`."""
        eventually(
            lambda: self.heard() >= position, timeout, lambda: f"{position} received; {self.heard()} is"
        )

    def wait_round(self) -> None:
        """Wait until the relay has begun another round of its guard."""
        since = self.server.value("select clock_timestamp()")
        eventually(
            lambda: self.server.execute(
                "select 1 from pg_stat_activity where application_name = %s"
                " and backend_type = 'client backend' and query_start > %s",
                (f"cdc-outbox/{self.slot}", since),
            ),
            30,
            "another round of the guard",
        )

    def end_of_wal(self) -> LSN:
        """Where the next WAL record would be written."""
        return LSN.parse(self.server.value("select pg_current_wal_insert_lsn()::text"))

    def terminate_walsender(self) -> int:
        """End the slot's walsender as an administrator would; its process id. Waits until it is there, and gone."""
        pid = eventually(self.walsender, 60, f"slot {self.slot} active")
        assert pid is not None
        self.server.execute("select pg_terminate_backend(%s, 10000)", (pid,))
        return pid

    def wait_confirmed(self, position: LSN, timeout: float = 60) -> None:
        """Wait until the slot is confirmed up to `position`."""
        eventually(
            lambda: self.confirmed() >= position,
            timeout,
            lambda: f"{position} confirmed; {self.confirmed()} is.\n{self.relay.text()}",
        )

    def close(self) -> None:
        """End every relay."""
        for relay in self.relays:
            relay.close()
