"""Records what a real server streams for one scenario, as the files that test_recorded_streams reads.

    python -m tests.data.record "host=/run/postgresql user=postgres" tests/data

The server needs wal_level=logical and nothing else to do; the role must be superuser (replication origins).
The scenario runs in a database of its own, which is dropped in the end. Two files are written: what the relay
receives (a publication of inserts only), and all that pgoutput can send. One line per CopyData frame, in hex.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import LiteralString

import psycopg
from psycopg import pq, sql
from psycopg.conninfo import make_conninfo

from cdc_outbox.postgres.protocol import KEEPALIVE, XLOG_HEADER, encode_status

DATABASE = "cdc_outbox_recording"
RECORDINGS = {"inserts": "", "everything": ", messages 'true'"}
"""Name of recording, slot and publication, and the options of its stream besides the relay's own."""

OUTPUT = (
    "-c bytea_output=hex -c DateStyle=ISO -c IntervalStyle=postgres -c TimeZone=UTC -c extra_float_digits=1"
    " -c logical_decoding_work_mem=64kB"
)
"""The session that streams: output formats, and so little memory that big transactions are spilled."""

SETUP: LiteralString = """
create table outbox (
    id uuid primary key, aggregate_type text not null, aggregate_id text not null,
    event_type text not null, event_version integer,
    payload jsonb, headers jsonb, created_at timestamptz not null
);
create schema "Shop";
create table "Shop"."Out ""box" ("Id" bigint primary key, "Größe" text, "select" text);
create type mood as enum ('calm', 'busy');
create table every_type (
    id integer primary key, small smallint, big bigint, exact numeric(12,3), single real,
    double double precision, flag boolean, words text, short varchar(20), padded char(5),
    js json, jsb jsonb, raw bytea, uid uuid,
    local timestamp, zoned timestamptz, day date, clock time, span interval, tags text[], mood mood,
    made text generated always as (words || '!') stored
);
create table parts (id bigint, day date, payload text, primary key (id, day)) partition by range (day);
create table parts_old partition of parts for values from ('2020-01-01') to ('2024-01-01');
create table parts_new partition of parts for values from ('2024-01-01') to ('2030-01-01');
create table changing (id integer primary key, a text);
create table big (id integer primary key, note text, payload text);
create table whole (id integer primary key, note text);
alter table whole replica identity full;
create table private (id integer primary key);
create publication inserts for table
    outbox, "Shop"."Out ""box", every_type, parts, changing, big, whole
    with (publish = 'insert', publish_via_partition_root = true);
create publication everything for table
    outbox, "Shop"."Out ""box", every_type, parts, changing, big, whole
    with (publish = 'insert, update, delete, truncate', publish_via_partition_root = true);
select pg_replication_origin_create('upstream');
"""

BIG: LiteralString = "(select string_agg(md5(n::text), '') from generate_series(1, 150) n)"

SCENARIO: dict[str, LiteralString] = {
    "rows of one transaction": """
        begin;
        insert into outbox values
            ('00000000-0000-4000-8000-000000000001', 'order', '42', 'OrderCreated', 1,
             '{"total": 12.50, "lines": [1, 2], "note": "a \\"quoted\\" word"}',
             '{"traceparent": "00-01"}', '2024-01-17 14:14:10.25+01'),
            ('00000000-0000-4000-8000-000000000002', 'order', '42', 'OrderPaid', null, null, null,
             '2024-01-17 13:14:11Z');
        insert into outbox values
            ('00000000-0000-4000-8000-000000000003', 'Kunde', '', 'KundeGelöscht', -1, '{}', '{}',
             '2024-01-17 13:14:12.000001Z');
        commit;
    """,
    "quoted and mixed-case names": """
        insert into "Shop"."Out ""box" values (9007199254740993, 'größer', 'x');
    """,
    "every type": """
        insert into every_type values (
            2147483647, -32768, -9223372036854775808, 123.4, 0.1, 1e-300, true,
            E'tab\\tline\\n\\\\ end', 'naïve 🎉', 'ab', '{"b":1,  "a":[1,2]}', '{"b":1,  "a":[1,2]}',
            '\\x00ff5c6e', 'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11',
            '2024-01-17 13:14:10.25', '2024-01-17 13:14:10.25+05:30', '2024-02-29', '23:59:59.999999',
            '1 year 2 mons 3 days 04:05:06', '{"a,b",NULL,""}', 'busy'
        );
    """,
    "all null": "insert into every_type (id) values (0);",
    "empty and extreme": """
        insert into every_type
            (id, words, short, padded, raw, exact, single, double, local, zoned, day, tags, flag)
        values
            (-1, '', '', '', '', 'NaN', 'Infinity', '-Infinity',
             'infinity', '-infinity', '0044-03-15 BC', '{}', false);
    """,
    "partitions through their root": """
        insert into parts values
            (1, '2023-05-05', 'old'), (2, '2024-05-05', 'new'), (3, '2023-06-06', 'old again');
    """,
    "a row that moves to another partition": "update parts set day = '2024-05-06' where id = 1;",
    "ddl between inserts": """
        begin;
        insert into changing values (1, 'one');
        alter table changing add column b varchar(10) not null default 'dflt';
        insert into changing values (2, 'two', 'zwei');
        alter table changing rename column a to "A";
        alter table changing drop column b;
        insert into changing values (3, 'three');
        commit;
    """,
    "ddl that rolls back": """
        begin;
        savepoint before;
        alter table changing add column gone text;
        insert into changing values (4, 'four', 'gone');
        rollback to before;
        insert into changing values (4, 'vier');
        commit;
    """,
    "savepoints": """
        begin;
        insert into changing values (5, 'kept');
        savepoint one;
        insert into changing values (6, 'rolled back');
        savepoint two;
        insert into changing values (7, 'rolled back too');
        rollback to one;
        insert into changing values (8, 'kept after');
        savepoint three;
        insert into changing values (9, 'kept in a savepoint');
        release three;
        commit;
    """,
    "insert and delete": """
        begin;
        insert into changing values (10, 'short life');
        delete from changing where id = 10;
        commit;
    """,
    "rolled back": "begin; insert into changing values (11, 'never'); rollback;",
    "big and rolled back": """
        begin;
        insert into big select n, 'never', repeat('x', 200) from generate_series(1000, 1999) n;
        rollback;
    """,
    "big and rolled back in a savepoint": """
        begin;
        insert into changing values (12, 'before');
        savepoint big;
        insert into big select n, 'never', repeat('x', 200) from generate_series(1000, 1999) n;
        rollback to big;
        insert into changing values (13, 'after');
        commit;
    """,
    "a table that isn't published": "insert into private values (1);",
    "big values": "insert into big select 1, 'big', " + BIG + ";",
    "update beside a big value": "update big set note = 'changed' where id = 1;",
    "update of a key": 'update changing set id = 20, "A" = null where id = 1;',
    "update of a whole row": """
        begin;
        insert into whole values (1, null), (2, 'two');
        update whole set note = 'one' where id = 1;
        delete from whole where id = 2;
        commit;
    """,
    "insert or update": """
        insert into changing values (2, 'conflict'), (21, 'new')
            on conflict (id) do update set "A" = excluded."A";
    """,
    "delete by key": "delete from changing where id = 3;",
    "truncate": "truncate changing, whole restart identity cascade;",
    "many at once": "insert into changing select n, 'n' || n from generate_series(30, 32) n;",
    "messages": """
        begin;
        insert into changing values (40, 'before the message');
        select pg_logical_emit_message(true, 'cdc', 'inside'::bytea);
        insert into changing values (41, 'behind the message');
        commit;
        select pg_logical_emit_message(false, 'cdc', '\\x00ff'::bytea);
        select pg_logical_emit_message(true, '', ''::bytea);
    """,
    "from elsewhere": """
        begin;
        select pg_replication_origin_session_setup('upstream');
        select pg_replication_origin_xact_setup('0/ABCDEF', '2024-01-17 13:14:10Z');
        insert into changing values (50, 'from elsewhere');
        commit;
        select pg_replication_origin_session_reset();
    """,
    "the end": "insert into changing values (99, 'the end');",
}


@contextmanager
def scratch_database(dsn: str) -> Iterator[str]:
    """A fresh database on the server of `dsn`, as a DSN; dropped, with the slots in it, in the end."""
    with psycopg.connect(dsn, autocommit=True) as control:
        control.execute(
            sql.SQL("create database {} encoding 'UTF8' template template0").format(sql.Identifier(DATABASE))
        )
        try:
            yield make_conninfo(dsn, dbname=DATABASE, client_encoding="UTF8")
        finally:
            control.execute(
                "select pg_terminate_backend(active_pid, 10000) from pg_replication_slots"
                " where database = %s and active",
                [DATABASE],
            )
            control.execute(
                "select pg_drop_replication_slot(slot_name) from pg_replication_slots where database = %s",
                [DATABASE],
            )
            control.execute(
                "select pg_replication_origin_drop(roname) from pg_replication_origin"
                " where roname = 'upstream'"
            )
            control.execute(sql.SQL("drop database {} with (force)").format(sql.Identifier(DATABASE)))


def stream(dsn: str, name: str, options: str) -> list[bytes]:
    """The frames of slot `name`, up to a keepalive behind the scenario's last row."""
    frames: list[bytes] = []
    conninfo = make_conninfo(dsn, replication="database", options=OUTPUT)
    with closing(psycopg.connect(conninfo, autocommit=True)) as connection:
        pgconn = connection.pgconn
        plugin_options = f"proto_version '1', publication_names '\"{name}\"'{options}"
        started = pgconn.exec_(f"START_REPLICATION SLOT {name} LOGICAL 0/0 ({plugin_options})".encode())
        if started.status != pq.ExecStatus.COPY_BOTH:
            raise RuntimeError(f"no stream: {started.error_message!r}")
        last_row_seen = asked = False
        while not asked or frames[-1][0] != KEEPALIVE:
            size, data = pgconn.get_copy_data(0)
            if size < 0:
                raise RuntimeError("the stream ended too early")
            frames.append(bytes(data))
            last_row_seen = last_row_seen or b"the end" in frames[-1]
            if last_row_seen and frames[-1][XLOG_HEADER : XLOG_HEADER + 1] == b"C":
                asked = True
                pgconn.put_copy_data(encode_status(0, 0, 0, 0, reply=True))
                pgconn.flush()
    return frames


def record(dsn: str) -> dict[str, list[bytes]]:
    """Play the scenario on the server of `dsn`; the frames of each recording, by name."""
    with scratch_database(dsn) as database, psycopg.connect(database, autocommit=True) as connection:
        connection.execute(SETUP)
        for name in RECORDINGS:
            connection.execute("select pg_create_logical_replication_slot(%s, 'pgoutput')", [name])
        for statements in SCENARIO.values():
            connection.execute(statements)
        return {name: stream(database, name, options) for name, options in RECORDINGS.items()}


def main(dsn: str, directory: str) -> None:
    with psycopg.connect(dsn) as connection:
        version = connection.info.server_version // 10000
    for name, frames in record(dsn).items():
        lines = "".join(f"{frame.hex()}\n" for frame in frames)
        Path(directory, f"postgresql-{version}-{name}.hex").write_text(lines)


if __name__ == "__main__":
    main(*sys.argv[1:])
