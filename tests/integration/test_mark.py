"""`outbox.mark = update`: the table's own columns say what was sent, and nothing else than that."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import LiteralString

import psycopg
import pytest

from cdc_outbox.errors import SetupError
from cdc_outbox.event import TableName
from cdc_outbox.postgres.connection import connect_control, execute
from cdc_outbox.postgres.markable import NONE
from cdc_outbox.postgres.marking import Delivered, Marking, Outcome, marking
from cdc_outbox.postgres.whole import Keys, Whole, left_behind
from cdc_outbox.settings import Settings, load
from cdc_outbox.table.mapping import Mapping
from tests.integration.conftest import Database
from tests.integration.passage import Passage, last_words
from tests.polling.table import TABLES, Table
from tests.servers.cache import CHECKOUT
from tests.servers.kafka import Kafka, KafkaBroker
from tests.servers.ledger import read_all
from tests.servers.postgres import PASSWORD, Postgres, PostgresServer
from tests.servers.relay import RelayProcess, clean_environment, run_command
from tests.servers.shell import FENCE, Shell, blocks, path_of
from tests.servers.wait import PATIENCE, eventually

MARKED: dict[str, LiteralString] = {
    "a": "status = 'sent' and sent_at is not null",
    "b": "status = 'sent' and sent_at is not null",
    "c": "sent_at is not null",
}
TEXT = (CHECKOUT / "docs" / "how-to" / "keep-status-columns-right.md").read_text()
PAGE = blocks(TEXT)


class Place:
    """One of the three tables in a fresh database, its slot, its topic, and relays that mark."""

    def __init__(self, passage: Passage, table: Table) -> None:
        self.passage = passage
        self.table = table
        self.flags = ("--mark", "update", *table.key_flags)
        self.topic = passage.topic("orders", 2)
        self.written = 0

    def write(self, rows: int, *, bus: str = "kafka", connection: psycopg.Connection | None = None) -> None:
        """Insert rows, in one transaction."""
        with contextlib.ExitStack() as stack:
            own = connection or stack.enter_context(psycopg.connect(self.passage.database.dsn))
            for _ in range(rows):
                self.written += 1
                event_id = f"00000000-0000-4000-8000-{self.written:012}"
                key = f"order-{self.written % 7}"
                parameters = {
                    "event_id": event_id,
                    "key": key,
                    "topic": self.topic,
                    "bus": bus,
                    "payload": json.dumps({"event_id": event_id, "order_id": key, "n": self.written}),
                }
                own.execute(self.table.insert, parameters)

    def count(self, condition: LiteralString) -> int:
        [(count,)] = self.passage.sql("select count(*) from outbox where " + condition)
        return int(count)

    @property
    def marked(self) -> int:
        return self.count(MARKED[self.table.letter])

    def wait_marked(self, rows: int, relay: RelayProcess) -> None:
        eventually(
            lambda: self.marked >= rows, PATIENCE, lambda: f"{self.marked} of {rows} marked\n{relay.text()}"
        )
        assert self.marked == rows

    def metric(self, relay: RelayProcess, name: str) -> float:
        return sum(
            float(line.rpartition(" ")[2])
            for line in relay.get("/metrics")[1].splitlines()
            if line.partition(" ")[0].partition("{")[0] == f"cdc_outbox_{name}"
        )


@pytest.fixture
def make_place(database: Database, kafka: Kafka, slot: str, topics: str) -> Callable[..., Place]:
    def make(letter: str, *, broker: Kafka | None = None, init: tuple[str, ...] = ()) -> Place:
        passage = Passage(database, broker or kafka, slot, topics)
        place = Place(passage, TABLES[letter])
        place.table.make(database.dsn)
        passage.init(*init)
        return place

    return make


def test_what_was_sent_is_marked_in_batches_and_what_was_sent_before_too(
    make_place: Callable[..., Place],
) -> None:
    place = make_place("c")
    place.write(1500)
    place.passage.run(*place.table.key_flags)
    assert place.marked == 0
    place.write(1500)
    place.passage.run(*place.flags)
    assert len(place.passage.read(place.topic)) == place.marked == 3000
    assert place.count(place.table.unsent) == 0


def wait_confirmed(place: Place, relay: RelayProcess) -> None:
    """Wait until the slot is confirmed beyond all that is committed now."""
    goal = place.passage.end_of_wal()
    place.passage.sql("select pg_logical_emit_message(false, 'noise', repeat('x', 70000))")
    eventually(
        lambda: place.passage.confirmed() >= goal, PATIENCE, lambda: f"{goal} confirmed\n{relay.text()}"
    )


@contextlib.contextmanager
def standing_still(relay: RelayProcess) -> Iterator[None]:
    """Nothing is marked within the block, so that rows can be locked between their commit and their mark."""
    relay.signal(signal.SIGSTOP)
    try:
        yield
    finally:
        relay.signal(signal.SIGCONT)


def test_nothing_is_marked_that_the_broker_has_not_confirmed(
    make_place: Callable[..., Place], own_kafka: KafkaBroker
) -> None:
    place = make_place("a", broker=own_kafka)
    with place.passage.relay(*place.flags) as relay:
        place.write(10)
        place.wait_marked(10, relay)
        own_kafka.pause()
        place.write(30)
        eventually(
            lambda: place.metric(relay, "inflight_events") == 30, PATIENCE, "the rows are on their way"
        )
        checks = place.metric(relay, "guard_checks_total")
        eventually(lambda: place.metric(relay, "guard_checks_total") > checks + 1, PATIENCE, "more rounds")
        assert place.marked == 10
        own_kafka.resume()
        place.wait_marked(40, relay)


def test_a_lock_on_the_table_holds_up_marks_alone(make_place: Callable[..., Place]) -> None:
    """Confirming goes on, the marks catch up; rows that somebody holds are marked when he lets them go."""
    place = make_place("c")
    place.write(300)
    with psycopg.connect(place.passage.database.dsn) as other:
        other.execute("lock table outbox in share mode")
        with place.passage.relay(*place.flags) as relay:
            wait_confirmed(place, relay)
            failed = relay.wait_for(lambda record: record["event"] == "rows can't be marked as sent")
            assert "lock timeout" in failed["error"]
            assert place.marked == 0
            assert place.metric(relay, "mark_failures_total") >= 1
            other.rollback()
            relay.wait_for(lambda record: record["event"] == "rows are marked as sent again", PATIENCE)
            place.wait_marked(300, relay)
            with standing_still(relay):
                place.write(5, connection=other)
                other.commit()
                other.execute("select from outbox where sent_at is null for update")
            place.write(5)
            place.wait_marked(305, relay)
            other.rollback()
            place.wait_marked(310, relay)
            assert relay.terminate()[0] == 0


@pytest.mark.parametrize("lock", ["lock table outbox in share mode", "select from outbox limit 1 for update"])
def test_being_caught_up_without_all_marks_is_no_success(
    make_place: Callable[..., Place], lock: LiteralString
) -> None:
    place = make_place("c")
    place.write(20)
    with psycopg.connect(place.passage.database.dsn) as other:
        other.execute(lock)
        error, step = last_words(place.passage.run(*place.flags, code=1))
    assert error.startswith("all is delivered, and rows stay unmarked: ")
    assert "lock" in error
    assert len(place.passage.read(place.topic)) == 20
    assert place.marked == (0 if "table" in lock else 19)
    assert f"cdc-outbox start --mark update --until-caught-up --slot {place.passage.slot}" in step
    place.passage.run(*place.flags)
    assert place.marked == 20


def test_a_key_that_is_used_again_while_its_mark_waits_for_a_lock_marks_no_row_before_it_is_delivered(
    make_place: Callable[..., Place], own_kafka: KafkaBroker
) -> None:
    place = make_place("c", broker=own_kafka)
    with place.passage.relay(*place.flags) as relay, psycopg.connect(place.passage.database.dsn) as other:
        place.write(2)
        place.wait_marked(2, relay)
        with psycopg.connect(place.passage.database.dsn) as holder:
            with standing_still(relay):
                place.write(1, connection=other)
                other.commit()
                holder.execute("select from outbox where sent_at is null for update")
            wait_confirmed(place, relay)
            eventually(lambda: place.metric(relay, "mark_waiting") == 1, PATIENCE, relay.text)
            [(used,)] = place.passage.sql("select max(id) from outbox")
            own_kafka.pause()
            holder.execute("delete from outbox where id = %s", (used,))
            holder.execute("select setval('outbox_id_seq', %s, false)", (used,))
            place.write(1, connection=holder)
            holder.commit()
        rounds = place.metric(relay, "guard_checks_total")
        eventually(lambda: place.metric(relay, "guard_checks_total") > rounds + 5, PATIENCE, "more rounds")
        assert place.count("sent_at is null") == 1
        own_kafka.resume()
        place.wait_marked(3, relay)


def test_the_row_of_a_table_that_inherits_is_another_one(passage: Passage) -> None:
    """Neither by its key nor by a search; nor are its rows left behind."""
    passage.sql(
        "create table outbox (id bigint primary key, topic text, aggregate_id text, payload text, sent_at timestamptz);"
        " create table child (primary key (id)) inherits (outbox)"
    )
    insert = (
        "insert into {} (id, topic, aggregate_id, payload) select i, %s, 'k', i from generate_series(1, 5) i"
    )
    topic = passage.topic("t")
    passage.init("--only", "publication")
    passage.sql("alter publication outbox_pub set table only outbox")
    passage.sql(insert.format("child"), topic)
    passage.init("--no-backfill")
    passage.sql(insert.format("outbox"), topic)
    for _ in range(2):
        passage.run("--mark", "update")
        assert passage.sql(
            "select tableoid::regclass::text, count(sent_at)::int from outbox group by 1 order by 1"
        ) == [
            ("child", 0),
            ("outbox", 5),
        ]
        passage.sql("update only outbox set sent_at = null")


def test_a_per_cent_sign_in_a_name_is_no_parameter(passage: Passage) -> None:
    passage.sql(
        'create table "out%box" ("id%s" bigserial, "100%" int default 1, topic text, aggregate_id text, payload text,'
        ' sent_at timestamptz, primary key ("id%s", "100%"));'
    )
    topic = passage.topic("t")
    flags = ("--table", 'public."out%box"', "--column", "id=id%s")
    passage.init(*flags)
    insert = 'insert into "out%%box" (topic, aggregate_id, payload) values (%s, %s, %s)'
    passage.sql(insert, topic, "k", "1")
    passage.run("--mark", "update", *flags)
    passage.sql('update "out%%box" set sent_at = null where %s', True)
    passage.run("--mark", "update", *flags)
    assert passage.sql('select count(sent_at)::int from "out%%box" where %s', True) == [(1,)]


def test_a_row_that_a_constraint_keeps_from_it_keeps_no_other_from_being_marked(
    make_place: Callable[..., Place],
) -> None:
    """By its key as by a search."""
    place = make_place("c")
    place.passage.sql("alter table outbox add check (sent_at is null or payload ->> 'n' <> '7')")
    place.write(300)
    place.passage.run(*place.flags)
    assert place.marked == 299
    place.passage.sql("update outbox set sent_at = null")
    place.passage.run(*place.flags)
    assert place.marked == 299
    assert place.count("sent_at is null and payload ->> 'n' = '7'") == 1


def test_what_a_killed_relay_left_unmarked_is_found_and_nothing_else(
    make_place: Callable[..., Place],
) -> None:
    """Neither rows that were put in after what is proven, nor rows that the old relay gave up, nor another bus's."""
    place = make_place("b")
    place.write(200)
    place.write(3, bus="rabbitmq")
    with psycopg.connect(place.passage.database.dsn) as other:
        other.execute("lock table outbox in share mode")
        with place.passage.relay(*place.flags) as relay:
            wait_confirmed(place, relay)
            relay.wait_for(lambda record: record["event"] == "rows can't be marked as sent")
            relay.kill()
        # Its session outlives it while it waits for the lock, and would mark the rows if it came to have that.
        eventually(
            lambda: (
                not place.passage.sql(
                    "select pid from pg_stat_activity where application_name = %s",
                    f"cdc-outbox/{place.passage.slot}/mark",
                )
            ),
            PATIENCE,
            "the session that marked has ended",
        )
        other.rollback()
    assert place.marked == 0
    held = "update outbox set status = 'failed' where payload ->> 'n' in ('8', '9')"
    place.passage.sql(held)
    with place.passage.relay(*place.flags) as relay:
        place.write(1)
        found = relay.wait_for(
            lambda record: record["event"] == "unmarked rows were found and marked", PATIENCE
        )
        assert found["rows"] == 198
        place.wait_marked(199, relay)
    assert place.count("status = 'pending' and bus = 'rabbitmq'") == 3
    assert place.count("status = 'failed'") == 2
    assert len(read_all(place.passage.kafka.bootstrap, place.topic)) == 201


@pytest.mark.xdist_group("outbox_relay")  # the page's name for the role, which belongs to the whole server
def test_init_grants_what_marking_needs_and_no_more(make_place: Callable[..., Place], tmp_path: Path) -> None:
    """By the page's own commands; and a right that is withdrawn later is counted, and ends nothing."""
    place = make_place("a")
    passage, server = place.passage, place.passage.database.server
    variables = {
        "PATH": path_of(Path(sys.prefix)),
        "CDC_OUTBOX_BOOTSTRAP_SERVERS": passage.kafka.bootstrap,
        "CDC_OUTBOX_HTTP": "off",
        "CDC_OUTBOX_SLOT": passage.slot,
    }
    shell = Shell(tmp_path, clean_environment({**variables, **passage.environment}))
    try:
        shell.run(PAGE["grant"])
        passage.sql(f"alter role outbox_relay password '{PASSWORD}'")
        dsn = server.dsn(passage.database.name, user="outbox_relay")
        with psycopg.connect(dsn, autocommit=True) as connection:
            for refused in ("select payload from outbox", "update outbox set payload = null"):
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    connection.execute(refused)
        passage.environment["CDC_OUTBOX_DSN"] = dsn
        shell.export(CDC_OUTBOX_DSN=dsn)
        with passage.relay(*place.flags) as relay:
            place.write(4)
            place.wait_marked(4, relay)
            passage.sql("revoke update (status) on outbox from outbox_relay")
            place.write(6)
            eventually(
                lambda: place.metric(relay, "mark_failures_total"), PATIENCE, "a failure that is counted"
            )
            wait_confirmed(place, relay)
            assert "permission denied" in json.loads(relay.get("/status")[1])["marks"]["failing"]
            assert place.marked == 4
        error, remedy = last_words(passage.run(*place.flags, code=78))
        assert "the role outbox_relay may not mark rows of public.outbox: it lacks update (status)" in error
        passage.sql(remedy.partition("as its owner: ")[2].partition(" or leave")[0])
        shell.run(PAGE["all"])
        assert place.marked == 10
    finally:
        passage.sql("drop owned by outbox_relay")
        passage.sql("drop role outbox_relay")


def test_a_row_that_waits_for_a_synchronous_standby_is_marked_when_it_is_visible(
    own_postgres: PostgresServer, kafka: Kafka, slot: str, topics: str
) -> None:
    """The stream brings a commit once it is flushed; the table shows it when the standby has answered."""
    own_postgres.create_database("app")
    place = Place(Passage(Database(own_postgres, "app"), kafka, slot, topics), TABLES["c"])
    place.table.make(own_postgres.dsn("app"))
    place.passage.init()
    with place.passage.relay(*place.flags) as relay:
        place.write(1)
        place.wait_marked(1, relay)
        own_postgres.execute("alter system set synchronous_standby_names = 'nobody'")
        own_postgres.execute("select pg_reload_conf()")
        waiting = threading.Thread(target=place.write, args=(1,))
        eventually(
            lambda: own_postgres.value("show synchronous_standby_names") == "nobody", PATIENCE, "the setting"
        )
        # Commits wait once the checkpointer has heard of it as well.
        own_postgres.execute("checkpoint")
        waiting.start()
        eventually(lambda: place.metric(relay, "events_published_total") == 2, PATIENCE, relay.text)
        checks = place.metric(relay, "guard_checks_total")
        eventually(lambda: place.metric(relay, "guard_checks_total") > checks + 3, PATIENCE, "more rounds")
        assert place.metric(relay, "mark_waiting") == 1
        own_postgres.execute("alter system reset synchronous_standby_names")
        own_postgres.execute("select pg_reload_conf()")
        waiting.join(PATIENCE)
        place.wait_marked(2, relay)


def test_each_block_of_the_page_is_tested() -> None:
    assert [found[1] for found in FENCE.finditer(TEXT)] == ["grant", "start", "trigger", "all"]
    assert PAGE["all"] == PAGE["start"].replace("\n", " --until-caught-up\n")


def test_a_trigger_writes_what_marks_do_not_know(database: Database) -> None:
    with psycopg.connect(database.dsn, autocommit=True) as conn:
        conn.execute("create table outbox (id bigserial primary key, sent_at timestamptz, published boolean)")
        conn.execute(PAGE["trigger"].encode())
        conn.execute("insert into outbox default values; update outbox set sent_at = now()")
        assert conn.execute("select published from outbox").fetchall() == [(True,)]


def test_on_each_version_delivered_rows_are_marked_by_key_and_by_search(
    postgres_version: Postgres, database: Database
) -> None:
    """What is delivered and ours, in parts that are whole, and wasn't left behind; the others stay as they are."""
    assert database.server is postgres_version

    async def scene() -> tuple[Outcome, Keys, tuple[int, bool], tuple[int, bool], int]:
        conn = await connect_control(settings_of(database.dsn).postgres, application_name="test")
        try:
            await execute(conn, "set search_path = public")
            await execute(conn, TABLES["b"].ddl)
            insert = (
                "insert into outbox (event_id, bus, topic, payload, status)"
                " values (gen_random_uuid(), %s, 't', '{}', %s)"
            )
            for _ in range(2):
                await execute(conn, insert, ("kafka", "pending"))
            for bus, status in (("kafka", "pending"), ("rabbitmq", "pending"), ("kafka", "processing")) * 2:
                await execute(conn, insert, (bus, status))
            # Not the xmin, which others' transactions keep back for a moment, such as autovacuum's.
            ((horizon,),) = await execute(conn, "select pg_snapshot_xmax(pg_current_snapshot())::text::int8")
            await execute(conn, insert, ("kafka", "pending"))
            found = await looked_at(database.dsn)
            assert found.how.key[0].name == "event_id"
            ((key,),) = await execute(conn, "select event_id::text from outbox order by id limit 1")
            by_key = await found.mark(conn, [f"{{{key}}}"], 1)
            assert await found.blocks(conn) == 1
            ((oid,),) = await execute(conn, "select 'outbox'::regclass::oid::int8")
            [left] = (await left_behind(conn, found.rows, {"it": oid})).values()
            assert await left_behind(conn, found.rows, {"it": oid, "another": 1}, room=4) == {"another": []}
            by_search = await found.search(conn, 0, Delivered(horizon, Whole(frozenset({1}))))
            apart = {found.how.table: found.rows.apart(sorted(left)[:2])}
            whole = await found.search(conn, 0, Delivered(horizon, Whole(frozenset({oid}), apart)))
            ((waiting,),) = await execute(
                conn, "select count(*) from outbox where status <> 'sent' and sent_at is null"
            )
            return by_key, sorted(left), by_search, whole, waiting
        finally:
            await conn.close()

    # Nothing where it isn't whole; else all but two that were left behind, the last one, and another bus's 2.
    left = [[str(number)] for number in (2, 3, 5, 6, 8, 9)]
    assert asyncio.run(scene()) == (Outcome(1), left, (0, False), (3, False), 5)


def test_rows_of_a_backfill_are_marked_by_the_relay_that_follows(make_place: Callable[..., Place]) -> None:
    """Those too that a worker of the old relay once had in hand; so that it finds nothing when it is back."""
    place = make_place("a", init=("--only", "publication"))
    place.write(20)
    place.passage.sql(
        "update outbox set status = 'processing', locked_at = now() - interval '1 hour' where id in (3, 4)"
    )
    place.passage.sql("update outbox set status = 'failed', attempts = 2 where id = 5")
    at = ("--slot", place.passage.slot)
    assert run_command("init", *at, env=place.passage.environment).returncode == 78
    kafka = ("--bootstrap-servers", place.passage.kafka.bootstrap)
    done = run_command("backfill", "--yes", *at, *kafka, env=place.passage.environment)
    assert done.returncode == 0, done.stderr
    place.write(5)
    place.passage.run(*place.flags)
    assert place.marked == 25
    assert place.count("status in ('pending', 'failed') and next_run_at <= now()") == 0
    assert len(place.passage.read(place.topic)) == 25


@pytest.mark.parametrize(
    ("table", "words", "step"),
    [
        (
            "create table outbox (id uuid primary key, topic text, payload jsonb)",
            "nothing in public.outbox says",
            NONE,
        ),
        (
            "create table outbox (id uuid, topic text, payload jsonb, sent_at timestamptz)",
            "no primary key and no unique index",
            "alter table public.outbox add primary key (id);",
        ),
        (
            (
                "create table outbox (id uuid, topic text, payload jsonb, status text, primary key (id, status))"
                " partition by list (status)"
            ),
            "is partitioned by status",
            NONE,
        ),
        (
            (
                "create table outbox (id uuid primary key, topic text, payload jsonb, done boolean,"
                " status text generated always as (case when done then 'sent' end) stored)"
            ),
            "nothing in public.outbox says",
            NONE,
        ),
        (
            (
                "create type state as enum ('new', 'gone'); create table outbox (id uuid primary key, topic text,"
                " payload jsonb, status state)"
            ),
            "takes none of the words that say sent",
            NONE,
        ),
    ],
    ids=["no column", "no key", "partitioned by its mark", "generated", "no word"],
)
def test_what_cannot_be_marked_is_refused_by_name(
    database: Database, table: LiteralString, words: str, step: str
) -> None:
    with psycopg.connect(database.dsn, autocommit=True) as connection:
        connection.execute(table)
    with pytest.raises(SetupError, match=words) as refused:
        asyncio.run(looked_at(database.dsn))
    assert step in refused.value.next


def test_a_table_is_marked_by_what_it_has(database: Database, kafka: Kafka, slot: str, topics: str) -> None:
    """An enum's own spelling, a key of two columns, hostile ids, a type's odd name, and triggers that are told."""
    passage = Passage(database, kafka, slot, topics)
    passage.sql(
        "create type state as enum ('New', 'Published'); create domain \"i%d\" as text;"
        ' create table outbox (id "i%d", at timestamptz not null, topic text, payload jsonb, status state,'
        " published_at timestamp, primary key (id, at)) partition by range (at);"
        " create table outbox_1 partition of outbox default;"
        " create function f() returns trigger language plpgsql as 'begin return new; end';"
        " create trigger told before update of status on outbox for each row execute function f();"
        " create trigger silent before insert on outbox for each row execute function f();"
    )
    passage.init()
    for id_, state in (('a"\\,{}%s', "New"), ("NULL", None), ("", "New")):
        passage.sql(
            "insert into outbox values (%s, now(), %s, '{}', %s)", id_, passage.topic(f"t{len(id_)}"), state
        )
    how = asyncio.run(looked_at(database.dsn)).how
    assert (how.triggers, str(how)) == (("told",), "status = 'Published', published_at, found by id, at")
    passage.run("--mark", "update", "--key", "none")
    [(marked,)] = passage.sql(
        "select count(*) from outbox where status = 'Published' and published_at > now() - interval '1 day'"
    )
    assert marked == 3


@pytest.mark.parametrize(
    ("default", "rows", "word"),
    [
        ("", ["PENDING", "SENT", "SENT"], "SENT"),
        ("", ["new", "published", "published", "Published"], "published"),
        ("default 'Pending'", ["Pending", "InProgress"], "Sent"),
        ("default 'NEW'", [], "SENT"),
        ("default 'new'", ["FAILED"], "sent"),
        ("", [], "sent"),
    ],
)
@pytest.mark.parametrize("partitioned", [False, True])
def test_where_any_word_will_do_it_is_the_one_that_rows_have(
    default: LiteralString, rows: list[str], word: str, partitioned: bool, database: Database
) -> None:
    with psycopg.connect(database.dsn, autocommit=True) as connection:
        connection.execute(
            "create table outbox (id bigserial primary key, topic text, payload jsonb, status varchar(20) "
            + default
            + (") partition by hash (id)" if partitioned else ")")
        )
        if partitioned:
            connection.execute(
                "create table part partition of outbox for values with (modulus 1, remainder 0)"
            )
        for value in rows:
            connection.execute("insert into outbox (status) values (%s)", (value,))
        connection.execute("analyze part" if partitioned else "analyze outbox")
    assert str(asyncio.run(looked_at(database.dsn)).how) == f"status = '{word}', found by id"


def settings_of(dsn: str) -> Settings:
    return load("start", {"dsn": dsn, "key": "none", "mark": "update"}, {}, Path("/nonexistent"))


async def looked_at(dsn: str) -> Marking:
    """How `public.outbox` is marked."""
    settings = settings_of(dsn)
    conn = await connect_control(settings.postgres, application_name="test")
    try:
        mapping = Mapping(settings.outbox, "slot")
        return await marking(conn, mapping, settings.outbox, TableName("public", "outbox"), "none")
    finally:
        await conn.close()
