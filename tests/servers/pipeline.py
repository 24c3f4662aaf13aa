"""PostgreSQL, relays that stay, and Kafka put together: for tests that break one of them, or look at the slot.

Whoever asks for the messages alone takes a `Passage` (tests/integration/passage.py), whose relays end by themselves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, LiteralString

from psycopg.sql import SQL, Composed

from cdc_outbox.lsn import LSN
from tests.servers.kafka import Kafka
from tests.servers.ledger import Consumer, Record, Verdict, Writer, create_outbox, read_all, verify
from tests.servers.postgres import Postgres
from tests.servers.relay import RelayProcess, run_command
from tests.servers.wait import PATIENCE, eventually


class Pipeline:
    """One outbox table, one slot, the relays that follow each other on it, and one topic.

    `way` and `bootstrap` are the relay's ways to its servers, which may lead through a proxy. Everybody else goes to
    the servers directly.
    """

    def __init__(
        self,
        server: Postgres,
        kafka: Kafka,
        *,
        slot: str,
        aggregate_type: str = "test",
        dbname: str = "postgres",
        way: str | None = None,
        bootstrap: str | None = None,
        flags: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.server = server
        self.kafka = kafka
        self.slot = slot
        self.aggregate_type = aggregate_type
        self.topic = f"outbox.event.{aggregate_type}"
        self.dbname = dbname
        self.dsn = server.dsn(dbname)
        """The superuser's."""
        self.way = way or self.dsn
        self.bootstrap = bootstrap
        self.flags = tuple(flags)
        self.env = dict(env or {})
        self.relays: list[RelayProcess] = []
        self._others: list[Writer | Consumer] = []

    def prepare(self, partitions: int = 3) -> Pipeline:
        """Make the topic, and the table where there is none."""
        if self.value("select to_regclass('public.outbox') is null"):
            create_outbox(self.dsn)
        self.kafka.create_topic(self.topic, partitions)
        return self

    def init(self) -> Pipeline:
        """Make publication, witness and slot, as a user does."""
        done = run_command("init", "--slot", self.slot, env={"CDC_OUTBOX_DSN": self.dsn})
        assert done.returncode == 0, done.stderr
        return self

    def start(
        self,
        *flags: str,
        way: str | None = None,
        state: str | None = "streaming",
        env: Mapping[str, str] | None = None,
        **options: Any,
    ) -> RelayProcess:
        """Start a relay and wait for its state, None for not at all. `way` is another one to the server."""
        relay = RelayProcess(
            way or self.way,
            self.bootstrap or self.kafka.bootstrap,
            slot=self.slot,
            flags=(*self.flags, *flags),
            env={**self.env, **(env or {})},
            **options,
        )
        self.relays.append(relay)
        if state is not None:
            relay.wait_state(state)
        return relay

    @property
    def relay(self) -> RelayProcess:
        """The relay that was started last."""
        return self.relays[-1]

    def writer(self, **options: Any) -> Writer:
        """A writer of rows for the topic."""
        writer = Writer(self.dsn, aggregate_type=self.aggregate_type, **options)
        self._others.append(writer)
        return writer

    def consumer(self) -> Consumer:
        """A consumer of the topic, which begins now."""
        consumer = Consumer(self.kafka.bootstrap, self.topic)
        self._others.append(consumer)
        return consumer

    def read(self) -> list[Record]:
        """Everything that the topic holds now."""
        return read_all(self.kafka.bootstrap, self.topic)

    def books(self, writer: Writer, consumer: Consumer | None = None) -> Verdict:
        """End the writing, wait for every row, and compare.

        Every row has arrived when the consumer has seen it; without one, when the slot has confirmed it.
        """
        committed = writer.stop()
        if consumer is not None:
            records = consumer.wait_ids(committed, PATIENCE)
        else:
            self.wait_confirmed(self.end_of_wal())
            records = self.read()
        return verify(committed, records, rolled_back=writer.rolled_back)

    def sql(self, *statements: SQL | Composed) -> None:
        """Run statements, each in a transaction of its own."""
        with self.server.connect(self.dbname) as connection:
            for statement in statements:
                connection.execute(statement)

    def value(self, query: LiteralString | Composed, parameters: tuple[object, ...] = ()) -> Any:
        """The first column of the first row."""
        return self.server.value(query, parameters, dbname=self.dbname)

    def slot_value(self, column: str) -> Any:
        """A column of pg_replication_slots; None where there is no slot."""
        query = SQL("select {} from pg_replication_slots where slot_name = %s").format(SQL(column))
        rows = self.server.execute(query, (self.slot,), dbname=self.dbname)
        return rows[0][0] if rows else None

    def witness(self) -> Mapping[str, Any]:
        """The slot's witness row."""
        found = self.value("select to_jsonb(w) from cdc_outbox_witness w where slot = %s", (self.slot,))
        assert isinstance(found, dict)
        return found

    def confirmed(self) -> LSN:
        """The slot's confirmed position."""
        shown = self.slot_value("confirmed_flush_lsn::text")
        assert shown is not None, f"there is no slot {self.slot}"
        return LSN.parse(shown)

    def walsender(self) -> int | None:
        """The process id of the slot's walsender; None while it has none."""
        shown = self.slot_value("active_pid")
        return None if shown is None else int(shown)

    def heard(self) -> LSN:
        """How far the relay says that it has received: it rises with each keepalive that it took."""
        shown = self.slot_value(
            "(select write_lsn::text from pg_stat_replication where pid = active_pid)",
        )
        return LSN(0) if shown is None else LSN.parse(shown)

    def wait_heard(self, position: LSN, timeout: float = PATIENCE) -> None:
        """Wait until the relay says that it has received everything up to `position`."""
        eventually(
            lambda: self.heard() >= position, timeout, lambda: f"{position} received; {self.heard()} is"
        )

    def wait_round(self) -> None:
        """Wait until the relay has begun another round of its guard; the watch of the slot asks there as well."""
        since = self.value("select clock_timestamp()")
        eventually(
            lambda: self.server.execute(
                "select 1 from pg_stat_activity where application_name = %s"
                " and backend_type = 'client backend' and query_start > %s"
                " and query not like '%%server_version_num%%'",
                (f"cdc-outbox/{self.slot}", since),
            ),
            PATIENCE,
            "another round of the guard",
        )

    def end_of_wal(self) -> LSN:
        """Where the next WAL record would be written."""
        return LSN.parse(self.value("select pg_current_wal_insert_lsn()::text"))

    def terminate_walsender(self) -> int:
        """End the slot's walsender as an administrator would; its process id. Waits until it is there, and gone."""
        pid = eventually(self.walsender, PATIENCE, f"slot {self.slot} active")
        assert pid is not None
        self.server.execute("select pg_terminate_backend(%s, 10000)", (pid,))
        return pid

    def wait_confirmed(self, position: LSN | None = None, timeout: float = PATIENCE) -> None:
        """Wait until the slot is confirmed up to `position`, by default all that is committed now.

        The end of WAL may lie behind the relay's own last witness row, and what comes after the last event is confirmed
        only when there is enough of it. So some is made.
        """
        goal = position or self.end_of_wal()
        if self.confirmed() < goal:
            self.value("select pg_logical_emit_message(false, 'noise', repeat('x', 70000))::text")
        eventually(
            lambda: self.confirmed() >= goal,
            timeout,
            lambda: f"{goal} confirmed; {self.confirmed()} is.\n{self.relay.text()}",
        )

    def close(self) -> None:
        """End every relay, writer and consumer."""
        for each in (*self.relays, *self._others):
            each.close()
