"""Each way in which a publication hides rows, on every version: named, with SQL that mends it as printed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

import psycopg
import pytest
from psycopg.sql import SQL

from cdc_outbox.event import TableName
from cdc_outbox.lsn import LSN
from cdc_outbox.postgres.connection import connect_control
from cdc_outbox.postgres.publication import LOOK, PublicationState, look, parameters
from cdc_outbox.postgres.publication_identity import Change, Identity, compare
from cdc_outbox.settings.model import PostgresSettings
from tests.integration.conftest import Database
from tests.servers.postgres import Postgres
from tests.servers.wait import PATIENCE

OUTBOX = TableName("public", "outbox")
CREATE = "create publication p for table outbox with (publish = 'insert', publish_via_partition_root = true)"


class Publications:
    """A database to change, and the look at it."""

    def __init__(self, database: Database) -> None:
        self.dsn = database.dsn

    def sql(self, *statements: str) -> None:
        """Run statements one by one, as `psql` does with what a person pastes."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            for statement in statements:
                connection.execute(SQL(statement))

    def look(
        self, *tables: TableName, name: str = "p", dsn: str | None = None, within: float | None = None
    ) -> PublicationState:
        async def run() -> PublicationState:
            settings = PostgresSettings(
                dsn=dsn or self.dsn, admin_dsn="", slot="s", publication=name, guard_interval=1.0
            )
            async with await connect_control(settings, application_name="cdc-outbox/s") as conn:
                return await look(conn, name, tables or (OUTBOX,), within=within)

        return asyncio.run(run())

    def identity(self, *tables: TableName) -> Identity:
        state = self.look(*tables)
        assert state.problem is None
        assert state.identity is not None
        return state.identity


@pytest.fixture
def publications(postgres_version: Postgres, database: Database) -> Publications:
    """A database of each version with the table `public.outbox`."""
    made = Publications(database)
    made.sql("create table outbox (id bigint primary key, payload text)")
    return made


def test_as_init_makes_it(publications: Publications) -> None:
    publications.sql(CREATE)
    state = publications.look()
    assert state.problem is None
    assert state.identity is not None
    assert Identity.parse(str(state.identity)) == state.identity
    assert state.insert_lsn is not None
    assert state.insert_lsn > LSN(0)


HIDING: list[tuple[str, Sequence[str], str]] = [
    ("missing", [], "publication p does not exist"),
    ("lacks the table", ["create publication p"], "publication p lacks table public.outbox"),
    (
        "another table",
        ["create table other (id int)", "create publication p for table other"],
        "publication p lacks table public.outbox",
    ),
    (
        "no inserts",
        ["create publication p for table outbox with (publish = 'update, delete')"],
        "publication p does not publish inserts",
    ),
    (
        "row filter",
        ["create publication p for table outbox where (id > 5) with (publish = 'insert')"],
        "publication p has a row filter on public.outbox",
    ),
    (
        "column list",
        ["create publication p for table outbox (id)"],
        "publication p has a column list on public.outbox",
    ),
    (
        "all at once",
        [
            "create publication p for table outbox (id) where (id > 5) with (publish = 'delete')",
            "alter table outbox replica identity full",
        ],
        (
            "publication p does not publish inserts; publication p has a row filter on public.outbox, which hides rows;"
            " publication p has a column list on public.outbox, which hides columns"
        ),
    ),
    (
        "unlogged",
        ["create publication p for all tables", "alter table outbox set unlogged"],
        "table public.outbox is unlogged",
    ),
]


@pytest.mark.parametrize(("made", "problem"), [case[1:] for case in HIDING], ids=[case[0] for case in HIDING])
def test_what_hides_rows_is_named_and_mended_as_printed(
    publications: Publications, made: Sequence[str], problem: str
) -> None:
    publications.sql(*made)
    state = publications.look()
    assert state.problem is not None
    assert state.problem.startswith(problem)
    remedy = state.next.partition(" then cdc-outbox start")[0]
    publications.sql(*(statement for statement in remedy.split("; ") if statement))
    assert publications.look().problem is None


def test_a_missing_table(publications: Publications) -> None:
    publications.sql(CREATE)
    state = publications.look(OUTBOX, TableName("public", "Other"))
    assert state.problem == 'table public."Other" does not exist'
    assert state.identity is None
    publications.sql("create view seen as select 1 as id")
    state = publications.look(TableName("public", "seen"))
    assert state.problem == "public.seen is a view: only a table's rows are in the write-ahead log"
    assert state.next == "name the table behind it with --table SCHEMA.NAME"


def test_an_unlogged_table_is_named_before_a_publication_that_could_not_have_it(
    publications: Publications,
) -> None:
    publications.sql("create unlogged table fleeting (id int)")
    state = publications.look(TableName("public", "fleeting"), name="nowhere")
    assert state.problem is not None
    assert state.problem.startswith("table public.fleeting is unlogged or temporary")
    assert state.next == "alter table public.fleeting set logged;"


def test_odd_names_come_quoted_in_remedies(publications: Publications) -> None:
    publications.sql('create schema "Odd ""one"""', 'create table "Odd ""one"""."it\'s" (id int)')
    table = TableName('Odd "one"', "it's")
    for _ in range(2):
        state = publications.look(table, name="Pub; --")
        if state.problem is None:
            break
        publications.sql(state.next.partition(" then cdc-outbox start")[0])
    assert state.problem is None


PARTITIONED = (
    "drop table outbox",
    "create table outbox (id int, day int) partition by range (day)",
    "create table outbox_1 partition of outbox for values from (0) to (10) partition by range (day)",
    "create table outbox_11 partition of outbox_1 for values from (0) to (5)",
)


def test_partitions_are_published_by_their_root_or_named(publications: Publications) -> None:
    leaf = TableName("public", "outbox_11")
    publications.sql(*PARTITIONED, "create publication p for table outbox with (publish = 'insert')")
    by_leaf = publications.look()
    assert by_leaf.problem == "publication p publishes the partitions of public.outbox under their own names"
    assert publications.look(leaf).problem is None
    publications.sql(by_leaf.next)
    by_root = publications.identity()
    under_root = publications.look(leaf)
    assert under_root.problem is not None
    assert "partition root" in under_root.problem
    publications.sql("drop publication p", CREATE)
    assert compare(by_root, publications.identity()) is Change.MADE_AGAIN


PUBLICATIONS = (
    "all tables",
    "table outbox",
    "table outbox_1",
    "table outbox_11, plain",
    "table outbox, outbox_11",
    "tables in schema public",
    "tables in schema far",
    "table outbox, tables in schema far",
    "table outbox_1, tables in schema far",
    "table far.outbox_12, tables in schema public",
)


@pytest.mark.parametrize("by_root", [True, False])
def test_what_is_published_under_its_own_name_is_what_the_server_says(
    publications: Publications, by_root: bool
) -> None:
    publications.sql(
        *PARTITIONED,
        "create schema far",
        "create table far.outbox_12 partition of outbox_1 for values from (5) to (10)",
        "create table outbox_2 partition of outbox for values from (10) to (20)",
        "create table plain (id int)",
        "create table far.plain (id int)",
        "create unlogged table far.unlogged (id int)",
    )
    with psycopg.connect(publications.dsn) as connection:
        rows = connection.execute(
            "select relnamespace::regnamespace::text, relname from pg_class"
            " where relkind in ('r', 'p') and relnamespace::regnamespace::text in ('public', 'far') order by 1, 2"
        ).fetchall()
        tables = [TableName(*row) for row in rows]
        for scope in PUBLICATIONS:
            create = f"create publication p for {scope} with (publish_via_partition_root = {by_root})"
            connection.execute(SQL(create))
            seen = connection.execute(SQL(LOOK), parameters("p", tables)).fetchall()
            told = connection.execute(
                "select n.nspname, c.relname from pg_get_publication_tables('p') g join pg_class c on c.oid = g.relid"
                " join pg_namespace n on n.oid = c.relnamespace order by 1, 2"
            ).fetchall()
            ours = [(t.schema, t.name) for t, row in zip(tables, seen, strict=True) if row[9]]
            assert ours == [each for each in told if each[0] in ("public", "far")], scope
            connection.execute("drop publication p")


def test_a_partition_that_leaves_no_trace_is_seen_from_the_root(publications: Publications) -> None:
    """Whenever it comes: what was inserted there can't be told afterwards."""
    publications.sql(
        *PARTITIONED, "create publication p for table outbox with (publish_via_partition_root = true)"
    )
    assert publications.look().problem is None
    publications.sql("create unlogged table outbox_3 partition of outbox for values from (20) to (30)")
    seen = publications.look()
    assert (
        seen.problem
        == "partitions of public.outbox leave no rows in the write-ahead log: public.outbox_3 (unlogged)"
    )
    assert seen.traceless
    publications.sql(seen.next)
    assert publications.look().problem is None


def test_a_filter_on_the_partition_root_is_seen_from_the_leaf(publications: Publications) -> None:
    publications.sql(
        *PARTITIONED,
        "create publication p for table outbox where (day > 5) with (publish_via_partition_root = true)",
    )
    assert "row filter" in str(publications.look().problem)


@pytest.mark.parametrize("scope", ["all tables", "tables in schema public"])
def test_wider_publications_pass_and_are_told_apart(publications: Publications, scope: str) -> None:
    create = f"create publication p for {scope} with (publish = 'insert')"
    publications.sql(create)
    before = publications.identity()
    rows = dict(before.members)["public.outbox"].rows
    assert bool(rows) == (scope != "all tables")
    assert compare(before, publications.identity()) is Change.UNCHANGED
    publications.sql("drop publication p", create)
    assert compare(before, publications.identity()) is Change.MADE_AGAIN


def test_a_table_that_leaves_its_schema_for_a_while(publications: Publications) -> None:
    publications.sql("create publication p for tables in schema public", "create schema elsewhere")
    publications.sql("alter table outbox set schema elsewhere")
    assert publications.look().problem == "table public.outbox does not exist"
    assert "lacks table" in str(publications.look(TableName("elsewhere", "outbox")).problem)


def test_a_partition_in_a_published_schema(publications: Publications) -> None:
    publications.sql(*PARTITIONED, "create publication p for tables in schema public")
    assert publications.look(TableName("public", "outbox_11")).problem is None
    assert "partitions of public.outbox under their own names" in str(publications.look().problem)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (["vacuum (freeze) pg_publication", "vacuum (freeze) pg_publication_rel"], Change.UNCHANGED),
        (["vacuum full pg_publication", "vacuum full pg_publication_rel"], Change.UNCHANGED),
        (["alter table outbox add column more int"], Change.UNCHANGED),
        (["truncate outbox"], Change.UNCHANGED),
        (["alter table outbox rename to gone", "alter table gone rename to outbox"], Change.UNCHANGED),
        (["create table other (id int)", "alter publication p add table other"], Change.UNCHANGED),
        (["alter publication p set (publish = 'insert')"], Change.ALTERED),
        (
            ["alter publication p set (publish = '')", "alter publication p set (publish = 'insert')"],
            Change.ALTERED,
        ),
        (
            ["alter publication p owner to pg_monitor", "alter publication p owner to postgres"],
            Change.ALTERED,
        ),
        (["alter publication p add tables in schema public"], Change.ALTERED),
        (["drop publication p", CREATE], Change.MADE_AGAIN),
        (
            ["alter publication p drop table outbox", "alter publication p add table outbox"],
            Change.MADE_AGAIN,
        ),
        (
            [
                "create table other (id int)",
                "alter publication p set table other",
                "alter publication p set table outbox",
            ],
            Change.MADE_AGAIN,
        ),
        (
            [
                "alter table outbox rename to outbox_old",
                "create table outbox (id bigint primary key, payload text)",
                "alter publication p add table outbox",
            ],
            Change.MADE_AGAIN,
        ),
    ],
    ids=lambda value: "; ".join(value) if isinstance(value, list) else value.value,
)
def test_what_became_of_it(publications: Publications, change: list[str], expected: Change) -> None:
    publications.sql(CREATE)
    before = publications.identity()
    publications.sql(*change)
    assert compare(before, publications.identity()) is expected


def test_several_tables_in_one_look(publications: Publications) -> None:
    second = TableName("public", "second")
    publications.sql("create table second (id int)", CREATE)
    state = publications.look(OUTBOX, second)
    assert state.problem == "publication p lacks table public.second"
    publications.sql(state.next)
    assert [name for name, _ in publications.identity(OUTBOX, second).members] == [
        "public.outbox",
        "public.second",
    ]


def test_a_role_without_any_right_on_the_table_sees_it_all(
    publications: Publications, database: Database, slot: str
) -> None:
    role = f"role_{slot}"
    publications.sql(CREATE, f"create role {role} login password 'x'")
    try:
        seen = publications.look(dsn=database.server.dsn(database.name, user=role, password="x"))
        assert seen.problem is None
        assert seen.identity == publications.identity()
    finally:
        publications.sql(f"drop role {role}")


def test_a_table_that_is_locked_keeps_no_look_waiting(publications: Publications) -> None:
    """As by VACUUM FULL, or a migration that takes its time: other tables' events would wait as well."""
    publications.sql(CREATE)
    with psycopg.connect(publications.dsn) as migration:
        migration.execute("lock table outbox in access exclusive mode")
        assert publications.look(within=2.0).problem is None


def test_a_publication_dropped_in_the_midst_of_looking(publications: Publications) -> None:
    async def run() -> list[PublicationState]:
        settings = PostgresSettings(
            dsn=publications.dsn, admin_dsn="", slot="s", publication="p", guard_interval=1.0
        )
        begun, stop = threading.Event(), threading.Event()

        def churn() -> None:
            with psycopg.connect(publications.dsn, autocommit=True) as connection:
                while not stop.is_set():
                    connection.execute("drop publication if exists p")
                    connection.execute(SQL(CREATE))
                    begun.set()

        async with await connect_control(settings, application_name="cdc-outbox/s") as conn:
            churning = asyncio.create_task(asyncio.to_thread(churn))
            try:
                assert await asyncio.to_thread(begun.wait, PATIENCE)
                states = [await look(conn, "p", (OUTBOX,)) for _ in range(300)]
            finally:
                stop.set()
                await churning
        return states

    seen = asyncio.run(run())
    assert {state.problem for state in seen} <= {
        None,
        "publication p does not exist",
        "publication p lacks table public.outbox",
    }
    assert len({str(state.identity) for state in seen}) > 1
