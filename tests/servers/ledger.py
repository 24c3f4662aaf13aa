"""The books: what was committed, what arrived, and whether the two agree.

A `Writer` inserts outbox rows with a counter per aggregate and knows which of its transactions committed,
also through crashes of the server: a commit whose outcome was lost with the connection is looked up in the
table. A `Consumer` (confluent-kafka, so that no bug is shared with the relay) reads topics from their
beginning. `verify` compares: nothing missing, nothing invented, counters of a key strictly rising in first
deliveries.
"""

from __future__ import annotations

import contextlib
import json
import random
import secrets
import threading
import time
import uuid
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import psycopg
from confluent_kafka import OFFSET_BEGINNING, KafkaException, TopicPartition
from confluent_kafka import Consumer as ConfluentConsumer
from psycopg.sql import SQL, Identifier

from tests.servers.cache import CHECKOUT
from tests.servers.wait import PATIENCE, eventually

LOST = (psycopg.OperationalError, psycopg.InterfaceError)


@dataclass(frozen=True, slots=True)
class Entry:
    """One committed row: its key, its place among the rows of that key, and when its commit was known."""

    key: str
    n: int
    committed_at: float


def create_outbox(dsn: str, table: str = "outbox", *, schema: str = "public") -> None:
    """Make the default table of the project, by the statement that its users run."""
    statement = (CHECKOUT / "sql" / "outbox.sql").read_text()
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(SQL(statement).format(table=Identifier(schema, table)))


def entries_in_table(dsn: str, table: str = "outbox", *, schema: str = "public") -> dict[str, Entry]:
    """What the table holds, as `verify` wants it: for rows that no `Writer` wrote, or after a failover."""
    query = SQL(
        "select id::text, aggregate_id, (payload ->> 'n')::int, extract(epoch from created_at) from {}"
    )
    with psycopg.connect(dsn, autocommit=True) as connection:
        rows = connection.execute(query.format(Identifier(schema, table))).fetchall()
    return {event_id: Entry(key, n, float(at)) for event_id, key, n, at in rows}


class Writer:
    """Writes rows of the default table, at a rate in the background or a number of them at once.

    Each aggregate belongs to one thread, so that its counter rises in commit order. `committed` maps the ids
    of the rows that are surely there; `rolled_back` holds ids that must never arrive.
    """

    def __init__(
        self,
        dsn: str,
        *,
        aggregate_type: str,
        table: str = "outbox",
        schema: str = "public",
        aggregates: int = 20,
        threads: int = 1,
        rate: float | None = 200,
        rows_per_transaction: int = 1,
        rollback_share: float = 0.0,
        padding: int = 0,
        prefix: str = "",
    ) -> None:
        """`rate` in rows per second over all threads, None for no limit; `padding` bytes per payload."""
        if aggregates < threads:
            raise ValueError("fewer aggregates than threads")
        self.dsn = dsn
        self.aggregate_type = aggregate_type
        self.committed: dict[str, Entry] = {}
        self.rolled_back: set[str] = set()
        self.failures = 0
        self._rate = rate
        self._rows = rows_per_transaction
        self._rollback_share = rollback_share
        self._padding = "x" * padding
        self._insert = SQL(
            "insert into {} (id, aggregate_type, aggregate_id, event_type, event_version, payload)"
            " values (%s, %s, %s, 'counted', 1, %s)"
        ).format(Identifier(schema, table))
        self._look_up = SQL("select id::text from {} where id = any(%s)").format(Identifier(schema, table))
        self._stop = threading.Event()
        self._error: BaseException | None = None
        prefix = prefix or secrets.token_hex(3)
        keys = [f"{prefix}-{number}" for number in range(aggregates)]
        self._hands = [_Hand(self, keys[number::threads]) for number in range(threads)]
        self._threads: list[threading.Thread] = []

    def start(self) -> Writer:
        """Write in the background until `stop()`."""
        self._stop.clear()
        rate = None if self._rate is None else self._rate / len(self._hands)
        self._threads = [
            threading.Thread(target=self._guard, args=(hand, rate), name=f"writer-{number}", daemon=True)
            for number, hand in enumerate(self._hands)
        ]
        for thread in self._threads:
            thread.start()
        return self

    def _guard(self, hand: _Hand, rate: float | None) -> None:
        try:
            hand.run(self._stop, rate, self._rows)
        except BaseException as error:
            self._error = error

    def stop(self, timeout: float = 60) -> dict[str, Entry]:
        """End the background writing, find out what became of open commits; answers `committed`.

        The server must be there again, or the outcome can't be known: AssertionError after `timeout` seconds.
        """
        self._stop.set()
        deadline = time.monotonic() + timeout
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
            assert not thread.is_alive(), f"a writer still waits for its server after {timeout:g} s"
        self._threads = []
        if self._error is not None:
            raise self._error
        for hand in self._hands:
            hand.settle(max(1.0, deadline - time.monotonic()))
        return self.committed

    def write(self, rows: int, *, rows_per_transaction: int | None = None) -> list[str]:
        """Commit `rows` rows now, in the caller's thread; their ids. Not while the background writes."""
        assert not self._threads, "the writer is already writing"
        return self._hands[0].write(rows, rows_per_transaction or self._rows)

    def wait_written(self, rows: int, timeout: float = 60) -> None:
        """Wait until `rows` more rows are committed than now."""
        goal = len(self.committed) + rows

        def written() -> bool:
            if self._error is not None:
                raise self._error
            return len(self.committed) >= goal

        eventually(written, timeout, lambda: f"{goal} rows committed, {len(self.committed)} are")

    def close(self) -> None:
        """End the writing, whatever became of it."""
        self._stop.set()
        for thread in self._threads:
            thread.join(30)
        for hand in self._hands:
            hand.disconnect()


class _Hand:
    """One thread's connection, aggregates and open commits."""

    def __init__(self, writer: Writer, keys: list[str]) -> None:
        self._writer = writer
        self._keys = keys
        self._counters = dict.fromkeys(keys, 0)
        self._connection: psycopg.Connection | None = None
        self._backend = 0
        self._doubtful: dict[str, tuple[str, int]] = {}
        self._random = random.Random(keys[0])

    def run(self, stop: threading.Event, rate: float | None, rows: int) -> None:
        due = time.monotonic()
        while not stop.is_set():
            try:
                self._connect()
                self._transaction(rows)
            except LOST:
                self._writer.failures += 1
                self.disconnect()
                stop.wait(0.05)
                continue
            if rate is not None:
                # Behind by a second or more (the server was away): don't make up for it in one flood.
                due = max(due + rows / rate, time.monotonic() - 1)
                stop.wait(due - time.monotonic())

    def write(self, rows: int, rows_per_transaction: int) -> list[str]:
        self._connect()
        written: list[str] = []
        while len(written) < rows:
            written += self._transaction(min(rows_per_transaction, rows - len(written)))
        return written

    def settle(self, timeout: float) -> None:
        """Make sure of every commit."""

        def settled() -> bool:
            with contextlib.suppress(*LOST):
                if self._doubtful:
                    self._connect()
                return True
            self.disconnect()
            return False

        eventually(settled, timeout, "the server to tell what became of the last commits")
        self.disconnect()

    def disconnect(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(*LOST):
                self._connection.close()
            self._connection = None

    def _connect(self) -> None:
        if self._connection is None:
            self._connection = psycopg.connect(
                self._writer.dsn, connect_timeout=5, application_name="test_writer", prepare_threshold=1
            )
            self._clear_doubts(self._connection)
            self._backend = self._connection.info.backend_pid

    def _clear_doubts(self, connection: psycopg.Connection) -> None:
        if not self._doubtful:
            return
        # The session that was lost may live on at the server, and its commit with it: end it first.
        connection.autocommit = True
        connection.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where pid = %s and application_name = 'test_writer' and pid <> pg_backend_pid()",
            (self._backend,),
        )
        eventually(
            lambda: (
                not connection.execute(
                    "select 1 from pg_stat_activity"
                    " where pid = %s and application_name = 'test_writer' and pid <> pg_backend_pid()",
                    (self._backend,),
                ).fetchall()
            ),
            PATIENCE,
            "the writer's lost session to end",
        )
        found = {row[0] for row in connection.execute(self._writer._look_up, (list(self._doubtful),))}
        connection.autocommit = False
        now = time.time()
        for event_id, (key, n) in self._doubtful.items():
            if event_id in found:
                self._writer.committed[event_id] = Entry(key, n, now)
            else:
                self._writer.rolled_back.add(event_id)
        self._doubtful.clear()

    def _transaction(self, rows: int) -> list[str]:
        connection = self._connection
        assert connection is not None
        writer = self._writer
        drafted: dict[str, tuple[str, int]] = {}
        parameters: list[tuple[object, ...]] = []
        for _ in range(rows):
            key = self._random.choice(self._keys)
            # A counter that was rolled back isn't used again: rising is all that is asked.
            self._counters[key] = n = self._counters[key] + 1
            event_id = str(uuid.uuid4())
            drafted[event_id] = (key, n)
            payload: dict[str, object] = {"n": n, "key": key}
            if writer._padding:
                payload["padding"] = writer._padding
            parameters.append((event_id, writer.aggregate_type, key, json.dumps(payload)))
        self._doubtful.update(drafted)
        with connection.cursor() as cursor:
            if rows == 1:
                cursor.execute(writer._insert, parameters[0])
            else:
                cursor.executemany(writer._insert, parameters)
        if writer._rollback_share and self._random.random() < writer._rollback_share:
            connection.rollback()
            writer.rolled_back.update(drafted)
            self._doubtful.clear()
            return []
        connection.commit()
        now = time.time()
        for event_id, (key, n) in drafted.items():
            writer.committed[event_id] = Entry(key, n, now)
        self._doubtful.clear()
        return list(drafted)


@dataclass(frozen=True, slots=True)
class Record:
    """A Kafka record as it was read. `headers` in their order; `timestamp` in ms."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp: int
    timestamp_kind: int

    def header(self, name: str) -> str | None:
        """The first header of that name, as text."""
        for each, value in self.headers:
            if each == name:
                return None if value is None else value.decode()
        return None

    @property
    def id(self) -> str | None:
        """The event's id."""
        return self.header("id")

    def json(self) -> Any:
        """The value, parsed."""
        assert self.value is not None, f"a tombstone at {self.topic}/{self.partition}/{self.offset}"
        return json.loads(self.value)


def _client(bootstrap: str, extra: Mapping[str, str] | None) -> ConfluentConsumer:
    return ConfluentConsumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"test-{secrets.token_hex(4)}",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "fetch.wait.max.ms": 20,
            "fetch.error.backoff.ms": 20,
            "reconnect.backoff.ms": 20,
            "reconnect.backoff.max.ms": 500,
            "topic.metadata.refresh.interval.ms": 1000,
            "log_level": 0,
            **(extra or {}),
        }
    )


def _partitions(
    client: ConfluentConsumer, topics: Collection[str], prefix: str | None, *, within: float
) -> set[tuple[str, int]]:
    listed = client.list_topics(timeout=within).topics
    return {
        (name, partition)
        for name, topic in listed.items()
        if name in topics or (prefix is not None and name.startswith(prefix))
        for partition in topic.partitions
    }


def _record(message: Any) -> Record:
    kind, timestamp = message.timestamp()
    return Record(
        message.topic(),
        message.partition(),
        message.offset(),
        message.key(),
        message.value(),
        tuple(message.headers() or ()),
        timestamp,
        kind,
    )


class Consumer:
    """Reads topics from their beginning, in a thread, until closed. New topics and partitions are found."""

    def __init__(
        self,
        bootstrap: str,
        *topics: str,
        prefix: str | None = None,
        client: Mapping[str, str] | None = None,
    ) -> None:
        """Read `topics`, and all that begin with `prefix`. `client` holds settings such as security."""
        self.records: list[Record] = []
        self._topics = topics
        self._prefix = prefix
        self._ids: set[str] = set()
        self._error: BaseException | None = None
        self._stop = threading.Event()
        self._client = _client(bootstrap, client)
        self._thread = threading.Thread(target=self._guard, name="consumer", daemon=True)
        self._thread.start()

    def _guard(self) -> None:
        try:
            self._read()
        except BaseException as error:
            self._error = error
        finally:
            self._client.close()

    def _read(self) -> None:
        known: set[tuple[str, int]] = set()
        look_again = 0.0
        while not self._stop.is_set():
            if time.monotonic() >= look_again:
                # Brokers that are away are the tests' daily bread.
                with contextlib.suppress(KafkaException):
                    there = _partitions(self._client, self._topics, self._prefix, within=5)
                    self._follow(known, there)
                    known = there
                look_again = time.monotonic() + 0.5
            for message in self._client.consume(500, 0.05):
                if message.error() is None:
                    record = _record(message)
                    self.records.append(record)
                    if record.id is not None:
                        self._ids.add(record.id)

    def _follow(self, known: set[tuple[str, int]], there: set[tuple[str, int]]) -> None:
        if new := there - known:
            self._client.incremental_assign([TopicPartition(*each, OFFSET_BEGINNING) for each in new])
        # A topic that is made again under its name is read from its beginning, if it was seen to be gone.
        if gone := known - there:
            self._client.incremental_unassign([TopicPartition(*each) for each in gone])

    def check(self) -> None:
        """Raise what the reading thread died of, if it did."""
        if self._error is not None:
            raise self._error

    def wait_count(self, count: int, timeout: float = PATIENCE) -> list[Record]:
        """Wait until at least `count` records were read; all of them."""

        def enough() -> bool:
            self.check()
            return len(self.records) >= count

        eventually(enough, timeout, lambda: f"{count} records; {len(self.records)} were read")
        return list(self.records)

    def wait_ids(self, ids: Iterable[str], timeout: float = 60) -> list[Record]:
        """Wait until every id has arrived at least once; all records so far."""
        wanted = set(ids)

        def arrived() -> bool:
            self.check()
            return wanted <= self._ids

        eventually(arrived, timeout, lambda: _missing_text(wanted - self._ids, len(wanted)))
        return list(self.records)

    def close(self) -> None:
        """End the reading."""
        self._stop.set()
        self._thread.join(30)


def read_all(
    bootstrap: str,
    *topics: str,
    prefix: str | None = None,
    timeout: float = 60,
    client: Mapping[str, str] | None = None,
) -> list[Record]:
    """Everything that the topics hold now, in one pass, ordered by topic, partition and offset."""
    consumer = _client(bootstrap, {"enable.partition.eof": "true", **(client or {})})
    try:
        partitions = _partitions(consumer, topics, prefix, within=timeout)
        consumer.assign([TopicPartition(*each, OFFSET_BEGINNING) for each in partitions])
        deadline = time.monotonic() + timeout
        records: list[Record] = []
        pending = set(partitions)
        while pending:
            assert time.monotonic() < deadline, f"{sorted(pending)} not read to the end within {timeout:g} s"
            for message in consumer.consume(1000, 0.1):
                error = message.error()
                if error is None:
                    records.append(_record(message))
                elif error.name() == "_PARTITION_EOF":
                    pending.discard((message.topic(), message.partition()))
    finally:
        consumer.close()
    return sorted(records, key=lambda record: (record.topic, record.partition, record.offset))


@dataclass(frozen=True, slots=True)
class Verdict:
    """What `verify` found when all was well."""

    committed: int
    records: int
    duplicates: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.committed} committed, {self.records} records, {len(self.duplicates)} duplicates"


def _missing_text(missing: Collection[str], of: int) -> str:
    return f"{len(missing)} of {of} missing: {', '.join(sorted(missing)[:10])}"


def verify(
    committed: Mapping[str, Entry], records: Iterable[Record], *, rolled_back: Collection[str] = ()
) -> Verdict:
    """Compare what was committed with what arrived.

    Raises AssertionError, naming the first ten of each kind, when an id is missing, when one arrived that was
    never committed, when a record isn't its row (key, counter), when a key is in two partitions, or when
    first deliveries of a key aren't in the order of their counters. Answers what came twice.
    """
    faults: list[str] = []
    seen: set[str] = set()
    duplicates: list[str] = []
    last: dict[str, tuple[int, str]] = {}
    place: dict[str, tuple[str, int]] = {}
    count = 0
    for record in sorted(records, key=lambda each: (each.topic, each.partition, each.offset)):
        count += 1
        where = f"{record.topic}/{record.partition}/{record.offset}"
        event_id = record.id
        if event_id is None:
            faults.append(f"no id header at {where}")
            continue
        entry = committed.get(event_id)
        if entry is None:
            kind = "rolled back" if event_id in rolled_back else "never written"
            faults.append(f"{event_id} at {where} was {kind}")
            continue
        key = None if record.key is None else record.key.decode()
        if key != entry.key:
            faults.append(f"{event_id} at {where} has the key {key!r}, its row {entry.key!r}")
        n = record.json().get("n")
        if n != entry.n:
            faults.append(f"{event_id} at {where} has the counter {n}, its row {entry.n}")
        home = place.setdefault(entry.key, (record.topic, record.partition))
        if home != (record.topic, record.partition):
            faults.append(f"key {entry.key} is in {home[0]}/{home[1]} and at {where}")
        if event_id in seen:
            duplicates.append(event_id)
            continue
        seen.add(event_id)
        before = last.get(entry.key)
        if before is not None and entry.n <= before[0]:
            faults.append(
                f"key {entry.key}: counter {entry.n} at {where} comes after {before[0]} at {before[1]}"
            )
        last[entry.key] = (entry.n, where)
    missing = committed.keys() - seen
    if missing:
        faults.insert(0, _missing_text(missing, len(committed)))
    if faults:
        more = f"\n… and {len(faults) - 10} more" if len(faults) > 10 else ""
        raise AssertionError("the books don't agree:\n" + "\n".join(faults[:10]) + more)
    return Verdict(len(committed), count, tuple(duplicates))
