"""The two connections: control (ordinary SQL) and replication.

Both are autocommit psycopg connections whose session settings are ours, whatever the role's or the
database's defaults are. The settings are made by SET after connecting and not by the start-up packet's
`options`, so that the user's own `options` (in the DSN, the service file or PGOPTIONS) stay as they are,
and so that a pooler in between answers and can be named. Errors come as the tree of `cdc_outbox.errors`,
by the table of `sqlstate.py`; no message holds a password.

https://www.postgresql.org/docs/current/libpq-connect.html
https://www.postgresql.org/docs/current/protocol-replication.html
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, LiteralString, TypeAlias

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.rows import TupleRow
from psycopg.types.json import set_json_loads

from cdc_outbox.errors import CdcOutboxError, PostgresUnavailable, SetupError, UsageError
from cdc_outbox.postgres import password, refusal, sqlstate
from cdc_outbox.settings.dsn import LIBPQ_VARIABLES

if TYPE_CHECKING:
    from cdc_outbox.settings.model import PostgresSettings

Connection: TypeAlias = psycopg.AsyncConnection[TupleRow]
Parameters: TypeAlias = Sequence[object] | Mapping[str, object]

OLDEST: Final = 150000
CONNECT_TIMEOUT: Final = 10.0
ANSWER_TIMEOUT: Final = 10.0

# A dead network must be noticed in well under half a minute: 5 + 3 * 3 seconds when idle, 15 with data on
# the way.
_DEFAULTS: Final[dict[str, str]] = {
    "keepalives": "1",
    "keepalives_idle": "5",
    "keepalives_interval": "3",
    "keepalives_count": "3",
    "tcp_user_timeout": "15000",
}

# Without a schema only pg_catalog's names are found: a function or an operator that fits better and that somebody who
# may create in `public` has put there would run with our rights.
# https://www.postgresql.org/docs/current/sql-createfunction.html#SQL-CREATEFUNCTION-SECURITY
_OUTPUT: Final[LiteralString] = """
set search_path = pg_catalog, pg_temp;
set bytea_output = 'hex'; set datestyle = 'ISO, MDY'; set intervalstyle = 'postgres'; set timezone = 'UTC';
set extra_float_digits = 1; set statement_timeout = 0; set idle_session_timeout = 0;
"""

STATEMENT_TIMEOUT: Final[LiteralString] = "set statement_timeout = '9s';"
"""What the server gives a statement on a control connection: less than ANSWER_TIMEOUT, after which we cut it."""

_CONTROL: Final[LiteralString] = f"""
{STATEMENT_TIMEOUT} set lock_timeout = '5s'; set synchronous_commit = 'local';
set default_transaction_read_only = off; set default_transaction_isolation = 'read committed';
"""

PUBLIC: Final[LiteralString] = "set search_path = public"
"""For a session that reads rows, where a person's condition may name what is in `public`."""

TRIGGERS_SEE_PUBLIC: Final[LiteralString] = (
    "(select pg_catalog.set_config('search_path', 'public', true)) is not null"
)
"""A condition, always true, in what picks the rows that a statement writes: by then the statement's own names are
bound, and what the application's triggers name without a schema is found, until the statement ends."""

_NOTICE_THE_END: Final[LiteralString] = "set client_connection_check_interval = '500ms'"

_FIRST_OWN_TYPE: Final = 16384
"""The lowest OID of a type that isn't PostgreSQL's own."""

# A dead network must not leave a walsender that holds the slot for ever or for an hour. Smaller values stay.
_WAL_SENDER: Final[LiteralString] = """
select set_config('wal_sender_timeout', '30s', false) from pg_catalog.pg_settings
 where name = 'wal_sender_timeout' and (setting::int = 0 or setting::int > 30000);
"""

# Logical decoding runs inside transactions: a role's transaction_timeout would end the stream in a large one.
_CONTROL_17: Final[LiteralString] = "set transaction_timeout = 0;"


async def connect_control(
    settings: PostgresSettings,
    *,
    application_name: str,
    timeout: float = CONNECT_TIMEOUT,  # noqa: ASYNC109 - handed to libpq, host by host
    admin: bool = False,
    like: Connection | None = None,
) -> Connection:
    """An ordinary connection, autocommit, with our session settings.

    `like`: go to the very server that this other connection reached. `admin`: by the owner's DSN.
    `timeout` is for each host, in seconds, unless the DSN has its own; as long has who is asked for a password.

    Raises SetupError, PasswordRefused, MissingRight, UsageError, ConfigError, PostgresUnavailable or PostgresShutdown.
    """
    dsn = (settings.admin_dsn or settings.dsn) if admin else settings.dsn
    conn = await _connect(settings, dsn, application_name, timeout, like, {})
    conn.prepare_threshold = 5  # the guard asks the same every second
    set_json_loads(_json, conn)
    later = sql.SQL(_CONTROL_17) if conn.info.server_version >= 170000 else sql.SQL("")
    return await _prepared(conn, sql.SQL(_OUTPUT) + sql.SQL(_CONTROL) + later, "control")


async def connect_replication(
    settings: PostgresSettings,
    *,
    application_name: str,
    timeout: float = CONNECT_TIMEOUT,  # noqa: ASYNC109 - handed to libpq, host by host
    like: Connection | None = None,
) -> Connection:
    """A logical replication connection, autocommit, that also takes simple SQL until START_REPLICATION.

    In a SQL_ASCII database its client_encoding is SQL_ASCII, so that bytes pass as they are. Arguments
    and errors as for `connect_control`.
    """
    replication = {"replication": "database"}
    conn = await _connect(settings, settings.dsn, application_name, timeout, like, replication)
    statements = sql.SQL(_OUTPUT) + sql.SQL(_WAL_SENDER)
    if conn.info.server_version >= 170000:
        statements += sql.SQL(_CONTROL_17)
    if conn.info.parameter_status("server_encoding") == "SQL_ASCII":
        statements += sql.SQL("set client_encoding = 'SQL_ASCII';")
    return await _prepared(conn, statements, "identify")


async def execute(
    conn: Connection,
    query: LiteralString | sql.SQL | sql.Composed,
    parameters: Parameters | None = None,
    *,
    stage: sqlstate.Stage = "control",
    within: float | None = None,
) -> list[TupleRow]:
    """Run one statement and fetch its rows (none for a statement without any).

    The server has `within` seconds (10 by default) to answer. After that, and when the caller is cancelled,
    the connection is cut: psycopg's way, to ask a server for the end of a query and wait for it, takes ten
    more seconds with a frozen one, which acknowledges everything and does nothing.

    Beside `parameters` the names and literals of a composed query may hold any sign, `beside_parameters` sees to that;
    its own SQL has `%%` where it means one.

    Raises the error that `sqlstate.py` has for the stage; PostgresUnavailable when the time is over.
    """
    if conn.closed:
        raise sqlstate.error(None, stage, "")
    role, where = conn.info.user, place(conn)
    limit = ANSWER_TIMEOUT if within is None else within
    answer = asyncio.ensure_future(_fetch(conn, query, parameters))
    try:
        in_time, _ = await asyncio.wait({answer}, timeout=limit)
    except BaseException:
        sever(conn)
        await asyncio.wait({answer})
        answer.exception()
        raise
    if not in_time:
        sever(conn)
        await asyncio.wait({answer})
    try:
        return answer.result()
    except psycopg.Error as failure:
        if in_time:
            raise sqlstate.from_exception(failure, stage=stage, role=role) from failure
        raise PostgresUnavailable(
            f"PostgreSQL at {where} did not answer within {limit:g} s", next=refusal.NETWORK
        ) from failure


async def _fetch(
    conn: Connection, query: LiteralString | sql.SQL | sql.Composed, parameters: Parameters | None
) -> list[TupleRow]:
    statement = sql.SQL(query) if isinstance(query, str) else query
    if parameters is not None and isinstance(statement, sql.Composed):
        statement = beside_parameters(statement, _speller(conn))
    cursor = await conn.execute(in_bytes(statement, conn), parameters)
    return await cursor.fetchall() if cursor.description is not None else []


def in_bytes(statement: sql.SQL | sql.Composed, conn: Connection) -> bytes:
    """The statement in the connection's encoding; in SQL_ASCII, as psycopg sends values, in UTF-8."""
    return statement.as_bytes(_speller(conn))


def _speller(conn: Connection) -> Connection | None:
    """Who spells names and literals; nobody while client_encoding is SQL_ASCII, for which psycopg has ASCII alone."""
    return None if conn.info.encoding == "ascii" else conn


def beside_parameters(statement: sql.Composed, conn: Connection | None = None) -> sql.Composed:
    """The statement with every `%` of its names and literals doubled: psycopg, given parameters, looks for their places
    in those too.

    `conn` is the one that will run it, where its encoding may be another than UTF-8.

    https://www.psycopg.org/psycopg3/docs/basic/params.html
    """
    parts: list[sql.Composable] = []
    for part in statement:
        if isinstance(part, sql.Composed):
            parts.append(beside_parameters(part, conn))
        elif isinstance(part, sql.Identifier | sql.Literal):
            parts.append(sql.SQL(part.as_string(conn).replace("%", "%%")))
        else:
            parts.append(part)
    return sql.Composed(parts)


async def reach_operators(conn: Connection, *types: int) -> None:
    """Let the session find what is in `public`, where a type isn't PostgreSQL's own: nor are its operators then."""
    if any(oid >= _FIRST_OWN_TYPE for oid in types):
        await execute(conn, PUBLIC)


async def end_with_us(conn: Connection, *, stage: sqlstate.Stage = "control") -> None:
    """Let the server end a statement of the session that nobody waits for any more, where its platform can tell.

    It is Linux's and macOS's that can; elsewhere a statement has its own limit.
    """
    with suppress(CdcOutboxError):
        await execute(conn, _NOTICE_THE_END, stage=stage)


def sever(conn: Connection) -> None:
    """End the connection without a word to the server; whoever waits on it gets an error at once."""
    if conn.closed:
        return
    with suppress(OSError), socket.socket(fileno=os.dup(conn.fileno())) as end:
        end.shutdown(socket.SHUT_RDWR)


def place(conn: Connection) -> str:
    """Host and port that a connection reached."""
    return refusal.place({"host": conn.info.host, "port": str(conn.info.port)})


def leads_somewhere(dsn: str) -> bool:
    """Whether somebody has said which server it is: by a connection string, or by what libpq reads in its place."""
    return bool(dsn) or any(os.environ.get(name) for name in LIBPQ_VARIABLES)


def in_short(error: Exception) -> str:
    """What libpq says of a connection that is of no use any more: the first line of it."""
    return next(iter(str(error).strip().splitlines()), "closed by the server")


def decoded(text: str | bytes) -> str:
    """A text of a replication connection's answer, which comes as bytes while client_encoding is SQL_ASCII."""
    return text.decode("ascii") if isinstance(text, bytes) else text


async def _connect(
    settings: PostgresSettings,
    dsn: str,
    application_name: str,
    within: float,
    like: Connection | None,
    extra: Mapping[str, str],
) -> Connection:
    try:
        given = conninfo_to_dict(dsn)
    except psycopg.ProgrammingError:
        # libpq's message quotes the DSN, and what it can't read may be the password.
        raise UsageError(
            "the DSN is malformed",
            next="write it as postgresql://user:password@host:5432/database, special characters"
            " percent-encoded, in --dsn or CDC_OUTBOX_DSN",
        ) from None
    wanted: dict[str, str] = {**_DEFAULTS, "connect_timeout": str(max(2, math.ceil(within)))}
    wanted |= {name: str(value) for name, value in given.items() if value is not None}
    wanted |= {"application_name": application_name, "client_encoding": "UTF8", **extra}
    if like is not None:
        wanted |= {"host": like.info.host, "port": str(like.info.port)}
        wanted.pop("hostaddr", None)
        if like.info.hostaddr:
            wanted["hostaddr"] = like.info.hostaddr
    asked = None if "password" in wanted else settings.password_provider
    if asked is not None:
        wanted["password"] = await password.ask(asked, wanted, within=within)
    try:
        return await psycopg.AsyncConnection.connect(
            make_conninfo(**wanted), autocommit=True, prepare_threshold=None
        )
    except asyncio.CancelledError as cancelled:
        # Whoever keeps it would keep the connection that was half made, and the server a session.
        raise cancelled.with_traceback(None) from None
    except (psycopg.Error, OSError) as failure:
        explained = await refusal.explain(failure, wanted, provider=asked)
        if not leads_somewhere(dsn):
            raise refusal.without_dsn(explained, owner=bool(settings.admin_dsn)) from None
        raise explained from None


def _json(said: str | bytes) -> Any:
    """What the catalogue shows in JSON: names of a server's other databases may be in their encoding, and pass as they
    are.

    https://www.postgresql.org/docs/current/multibyte.html
    """
    return json.loads(said if isinstance(said, str) else said.decode(errors="replace"))


async def _prepared(
    conn: Connection, statements: sql.SQL | sql.Composed, stage: sqlstate.Stage
) -> Connection:
    try:
        if conn.info.server_version < OLDEST:
            raise SetupError(
                f"PostgreSQL {conn.info.server_version // 10000} at {place(conn)} is too old",
                next="upgrade it: cdc-outbox supports PostgreSQL 15 to 18",
            )
        await execute(conn, statements, stage=stage)
    except BaseException:
        sever(conn)
        await conn.close()
        raise
    return conn
