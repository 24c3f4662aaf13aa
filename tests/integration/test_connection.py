"""Both connections on every version: our session settings, the way to one server, and each way to be refused."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import psycopg
import pytest
from psycopg.sql import SQL, Identifier, Literal

from cdc_outbox.errors import (
    CdcOutboxError,
    MissingRight,
    PostgresGone,
    PostgresShutdown,
    PostgresUnavailable,
    SetupError,
    UsageError,
)
from cdc_outbox.postgres import refusal, server, sqlstate, table_rows
from cdc_outbox.postgres.connection import (
    ANSWER_TIMEOUT,
    Connection,
    connect_control,
    connect_replication,
    execute,
)
from cdc_outbox.settings.secret import SECRET_WORDS
from tests.integration.conftest import Database
from tests.integration.connected import settings_of, with_control
from tests.servers.postgres import Postgres, PostgresServer
from tests.servers.proxy import Proxy
from tests.servers.wait import PATIENCE, eventually

NAME = "cdc-outbox/test_slot"


def refused(dsn: str, *, replication: bool = False, timeout: float = 5) -> CdcOutboxError:
    """The error of a connection attempt."""

    async def run() -> CdcOutboxError:
        connect = connect_replication if replication else connect_control
        with pytest.raises(CdcOutboxError) as caught:
            await connect(settings_of(dsn), application_name=NAME, timeout=timeout)
        return caught.value

    return asyncio.run(run())


@dataclass(frozen=True)
class Role:
    name: str
    dsn: str


@pytest.fixture
def role(database: Database, slot: str) -> Iterator[Role]:
    """A role of the test's own that may log in and nothing else."""
    name, password = f"role_{slot}", "s3cret-and-#odd"
    database.server.execute(
        SQL("create role {} login password {}").format(Identifier(name), Literal(password))
    )
    yield Role(name, database.server.dsn(database.name, user=name, password=password))
    database.server.execute(SQL("drop owned by {}").format(Identifier(name)), dbname=database.name)
    database.server.execute(SQL("drop role {}").format(Identifier(name)))


SETTINGS = """
select name, setting from pg_settings where name in ('bytea_output', 'DateStyle', 'IntervalStyle', 'TimeZone',
  'extra_float_digits', 'client_encoding', 'synchronous_commit', 'default_transaction_read_only', 'search_path',
  'statement_timeout', 'wal_sender_timeout', 'idle_session_timeout', 'transaction_timeout', 'work_mem',
  'application_name')
"""


def test_session_settings_are_ours_whatever_the_role_has(
    postgres_version: Postgres, database: Database, role: Role
) -> None:
    defaults = {
        "bytea_output": "escape",
        "DateStyle": "German",
        "IntervalStyle": "sql_standard",
        "TimeZone": "Europe/Berlin",
        "extra_float_digits": "-5",
        "client_encoding": "LATIN1",
        "default_transaction_read_only": "on",
        "synchronous_commit": "off",
        "idle_session_timeout": "1s",
        "search_path": "somewhere",
        "wal_sender_timeout": "0",
        "work_mem": "7MB",
    }
    if database.major >= 17:
        defaults["transaction_timeout"] = "1s"
    for setting, value in defaults.items():
        database.server.execute(
            SQL("alter role {} set {} = {}").format(
                Identifier(role.name), Identifier(setting), Literal(value)
            )
        )
    database.server.execute(SQL("alter role {} replication").format(Identifier(role.name)))

    async def read() -> tuple[dict[str, str], dict[str, str]]:
        async with (
            await connect_control(settings_of(role.dsn), application_name=NAME) as control,
            await connect_replication(settings_of(role.dsn), application_name=NAME) as stream,
        ):
            return dict(await execute(control, SETTINGS)), dict(await execute(stream, SETTINGS))

    control, stream = asyncio.run(read())
    for session in (control, stream):
        assert session["bytea_output"] == "hex"
        assert session["DateStyle"] == "ISO, MDY"
        assert session["IntervalStyle"] == "postgres"
        assert session["TimeZone"] == "UTC"
        assert session["extra_float_digits"] == "1"
        assert session["client_encoding"] == "UTF8"
        assert session["idle_session_timeout"] == "0"
        assert session.get("transaction_timeout", "0") == "0"
        assert session["application_name"] == NAME
        assert session["work_mem"] == "7168"
    assert control["synchronous_commit"] == "local"
    assert control["default_transaction_read_only"] == "off"
    assert control["search_path"] == "pg_catalog, pg_temp"
    assert int(control["statement_timeout"]) < 1000 * ANSWER_TIMEOUT
    assert stream["wal_sender_timeout"] == "30000"


def test_a_short_wal_sender_timeout_and_the_users_options_stay(database: Database) -> None:
    dsn = f"{database.dsn}?options=-c%20wal_sender_timeout%3D2s%20-c%20work_mem%3D9MB"

    async def read() -> dict[str, str]:
        async with await connect_replication(settings_of(dsn), application_name=NAME) as conn:
            return dict(await execute(conn, SETTINGS))

    session = asyncio.run(read())
    assert session["wal_sender_timeout"] == "2000"
    assert session["work_mem"] == "9216"


def test_bytes_pass_through_a_sql_ascii_database(postgres: Postgres, slot: str) -> None:
    postgres.execute(
        SQL("create database {} encoding 'SQL_ASCII' locale 'C' template template0").format(Identifier(slot))
    )
    try:

        async def read() -> tuple[server.Server, object]:
            async with await connect_replication(
                settings_of(postgres.dsn(slot)), application_name=NAME
            ) as conn:
                assert conn.info.parameter_status("client_encoding") == "SQL_ASCII"
                return await server.identify(conn), (await execute(conn, "select 'x' || chr(233)"))[0][0]

        who, raw = asyncio.run(read())
        assert who.system_identifier.isdigit()
        assert raw == b"x\xe9"
    finally:
        postgres.drop_database(slot)


def test_both_connections_say_which_server_answers(postgres_version: Postgres, database: Database) -> None:
    async def ask() -> tuple[server.Server, server.Server]:
        one = settings_of(database.dsn)
        async with (
            await connect_replication(one, application_name=NAME) as stream,
            await connect_control(one, application_name=NAME, like=stream) as control,
        ):
            await server.require_able(control)
            return await server.identity(control), await server.identify(stream)

    control, stream = asyncio.run(ask())
    assert control == stream
    assert control.major == database.major
    assert control.timeline == 1
    assert not control.in_recovery
    server.require_same(control, stream)
    with pytest.raises(PostgresUnavailable, match="was restarted between two connections"):
        server.require_same(replace(control, started="1.5"), stream)


def test_F26_the_control_connection_goes_where_the_stream_went(  # noqa: N802 - the failure's own name
    make_postgres: Callable[..., PostgresServer],
) -> None:
    first, second = make_postgres(), make_postgres()
    hosts = psycopg.conninfo.make_conninfo(
        first.dsn(), host="127.0.0.1,127.0.0.1", port=f"{first.port},{second.port}"
    )
    alone = settings_of(second.dsn())

    async def ask() -> tuple[server.Server, server.Server, server.Server]:
        async with AsyncExitStack() as stack:
            enter = stack.enter_async_context
            stream = await enter(await connect_replication(alone, application_name=NAME))
            like = await enter(await connect_control(settings_of(hosts), application_name=NAME, like=stream))
            elsewhere = await enter(await connect_control(settings_of(hosts), application_name=NAME))
            return (
                await server.identify(stream),
                await server.identity(like),
                await server.identity(elsewhere),
            )

    stream, like, elsewhere = asyncio.run(ask())
    server.require_same(like, stream)
    with pytest.raises(PostgresUnavailable, match="another server") as caught:
        server.require_same(elsewhere, stream)
    assert f"127.0.0.1:{first.port}" in str(caught.value)


def test_a_role_without_the_right_is_told_so_with_sql_that_gives_it(
    postgres_version: Postgres, database: Database, role: Role
) -> None:
    with pytest.raises(MissingRight) as by_sql:
        with_control(role.dsn, server.require_able)
    by_connecting = refused(role.dsn, replication=True)
    assert type(by_connecting) is MissingRight
    for error in (by_sql.value, by_connecting):
        assert error.exit_code == 78
        remedy = error.next.removeprefix("as a superuser: ")
        database.server.execute(SQL(remedy))  # type: ignore[arg-type]  # the printed remedy, verbatim
    with_control(role.dsn, server.require_able)


@pytest.mark.parametrize("replication", [False, True])
def test_a_role_that_may_not_connect_is_told_so_with_sql_that_lets_it(
    database: Database, role: Role, replication: bool
) -> None:
    change = database.server.execute
    change(SQL("alter role {} replication").format(Identifier(role.name)))
    change(SQL("revoke connect on database {} from public").format(Identifier(database.name)))
    error = refused(role.dsn, replication=replication)
    assert type(error) is MissingRight
    assert "may not connect to the database" in str(error)
    remedy = error.next.removeprefix("as the owner of the database: ")
    change(SQL(remedy))  # type: ignore[arg-type]  # the printed remedy, verbatim
    with_control(role.dsn, server.require_able)


def test_wal_level_is_named_with_the_sql_that_mends_it(make_postgres: Callable[..., PostgresServer]) -> None:
    own = make_postgres(settings={"wal_level": "replica"})
    with pytest.raises(SetupError, match="wal_level is replica") as caught:
        with_control(own.dsn(), server.require_able)
    remedy, _, then = caught.value.next.partition(" then ")
    assert then == "restart PostgreSQL"
    own.settings.pop("wal_level")
    own._write_settings()
    own.execute(SQL(remedy))  # type: ignore[arg-type]  # the printed remedy, verbatim
    own.restart()
    with_control(own.dsn(), server.require_able)


def probed(dsn: str, **more: str) -> str | None:
    parameters = {key: str(value) for key, value in psycopg.conninfo.conninfo_to_dict(dsn).items()}
    return refusal.probe({**parameters, **more}, 5)


@pytest.mark.parametrize("english", [True, False], ids=["by-text", "by-sqlstate"])
def test_refusals_are_set_up_errors_in_any_language(
    postgres_version: Postgres,
    database: Database,
    role: Role,
    english: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not english:
        monkeypatch.setattr(sqlstate, "from_text", lambda text: None)
    of = database.server.dsn
    cases = {
        "28P01": of(database.name, user=role.name, password="wrong-password"),
        "3D000": of("no_such_database"),
        "42501": role.dsn,
    }
    for state, dsn in cases.items():
        error = refused(dsn, replication=state == "42501")
        assert isinstance(error, SetupError), state
        assert error.exit_code == 78
        assert f"[{state}]" in str(error)
        assert "wrong-password" not in str(error) + error.next
        assert "s3cret" not in str(error) + error.next
    unknown = refused(of(database.name, user="no_such_role", password="wrong-password"))
    assert isinstance(unknown, SetupError)
    assert "no_such_role" in str(unknown)


@pytest.mark.parametrize("password", ["a", "password", "authentication failed"])
def test_a_refusal_is_known_though_its_words_hold_the_password(
    database: Database, role: Role, password: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refusal, "probe", lambda *_: None)  # by the words alone
    error = refused(database.server.dsn(database.name, user=role.name, password=password))
    assert type(error) is SetupError
    assert "[28P01]" in str(error)
    assert f'for user "{role.name}"' in str(error)
    if len(password) > 1:
        assert password not in str(error).partition(": ")[2]


@pytest.mark.parametrize("word", SECRET_WORDS)
def test_whatever_is_secret_in_a_dsn_is_not_shown_again(word: str) -> None:
    parameters = {"host": "h", "user": "joe", "dbname": "shop", word: "hunter22"}
    failure = psycopg.OperationalError("connection failed: the words hunter22, joe and shop")
    error = asyncio.run(refusal.explain(failure, parameters))
    assert "the words ***, joe and shop" in str(error)


def test_a_public_word_of_the_dsn_is_shown_though_the_password_is_the_same() -> None:
    parameters = {"host": "127.0.0.1", "port": "1", "user": "app", "dbname": "app", "password": "app"}
    failure = psycopg.OperationalError('FATAL:  password authentication failed for user "app"')
    error = asyncio.run(refusal.explain(failure, parameters))
    assert type(error) is SetupError
    assert 'for user "app"' in str(error)


def test_a_role_that_may_not_log_in_and_a_full_server(
    postgres_version: Postgres, database: Database, role: Role
) -> None:
    change = database.server.execute
    change(SQL("alter role {} connection limit 0").format(Identifier(role.name)))
    full = refused(role.dsn)
    assert type(full) is PostgresUnavailable
    assert "[53300]" in str(full)
    assert probed(role.dsn) == "53300"
    change(SQL("alter role {} nologin").format(Identifier(role.name)))
    assert isinstance(refused(role.dsn), SetupError)
    assert probed(role.dsn) == "28000"


def test_a_probe_that_gets_through_knows_nothing(database: Database) -> None:
    assert probed(database.dsn) is None
    assert probed("host=127.0.0.1 port=1") is None


def test_a_server_that_is_not_there_is_an_outage_in_plain_words(own_postgres: PostgresServer) -> None:
    port = own_postgres.port
    own_postgres.stop()
    gone = refused(own_postgres.dsn())
    assert type(gone) is PostgresGone
    assert (
        str(gone) == f"can't reach PostgreSQL at 127.0.0.1:{port}: connection refused, nothing listens there"
    )
    assert "no such socket" in str(refused(own_postgres.socket_dsn()))
    unknown = refused("host=no-such-host.invalid password=s3cret")
    assert type(unknown) is PostgresUnavailable
    assert "no-such-host.invalid:5432: the name is not known" in str(unknown)
    assert unknown.next == "check the host's name in the DSN, and that this machine can look it up"


def test_a_silent_address_times_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        began = time.monotonic()
        error = refused(f"host=127.0.0.1 port={silent.getsockname()[1]}", timeout=2)
        assert time.monotonic() - began < 6
    assert type(error) is PostgresUnavailable
    assert "no answer in time" in str(error)


def test_a_server_that_speaks_no_tls(database: Database) -> None:
    error = refused(f"{database.dsn}?sslmode=require")
    assert type(error) is SetupError
    assert "no TLS" in str(error)


@contextmanager
def answering(answer: bytes) -> Iterator[int]:
    """A server that gives each client one answer; its port."""

    def serve() -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            with client:
                client.recv(4096)
                client.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
    thread.join(5)


def test_an_authority_whose_file_the_relay_does_not_see(tmp_path: Path) -> None:
    file = tmp_path / "db-ca.pem"
    with answering(b"S") as port:
        error = refused(
            f"host=127.0.0.1 port={port} sslmode=verify-full sslrootcert={file} gssencmode=disable"
        )
    assert type(error) is SetupError
    assert str(file) in str(error)
    assert error.next
    assert error.next.startswith("name by sslrootcert in the DSN one that the relay can see: ")


@pytest.mark.parametrize("sslmode", ["disable", "prefer", "require"])
def test_what_is_not_postgresql_is_waited_for(sslmode: str) -> None:
    """A port or an address that somebody else has meanwhile, or a gateway that has no server now."""
    with answering(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n") as port:
        error = refused(f"host=127.0.0.1 port={port} user=u sslmode={sslmode} gssencmode=disable")
    assert type(error) is PostgresUnavailable
    assert str(error) == f"can't reach PostgreSQL at 127.0.0.1:{port}: what answers there is not PostgreSQL"


@contextmanager
def refusing(severity: str, state: str, text: str) -> Iterator[str]:
    """A server that answers each start-up packet with one error; its DSN."""

    def message(kind: bytes, body: bytes) -> bytes:
        return kind + struct.pack("!I", len(body) + 4) + body

    fields = {b"S": severity, b"V": "FATAL", b"C": state, b"M": text}
    body = b"".join(key + value.encode() + b"\0" for key, value in fields.items()) + b"\0"
    with answering(message(b"E", body)) as port:
        yield f"host=127.0.0.1 port={port} user=u password=s3cret sslmode=disable gssencmode=disable"


@pytest.mark.parametrize(
    ("severity", "state", "text", "expected"),
    [
        ("致命错误", "28P01", '用户 "u" Password 认证失败', SetupError),
        ("FATAL", "3D000", "Datenbank »db« existiert nicht", SetupError),
        ("ВАЖНО", "57P03", "система баз данных запускается", PostgresShutdown),
        ("FATAL", "53300", "désolé, trop de clients sont déjà connectés", PostgresUnavailable),
        ("FATAL", "42501", "permiso denegado para iniciar el proceso walsender", MissingRight),
    ],
)
def test_a_refusal_in_another_language(
    severity: str, state: str, text: str, expected: type[CdcOutboxError]
) -> None:
    with refusing(severity, state, text) as dsn:
        error = refused(dsn)
    assert type(error) is expected
    assert f"[{state}]" in str(error)
    assert text in str(error)
    assert "s3cret" not in str(error)


def test_a_pooler_that_refuses_the_replication_parameter() -> None:
    with refusing("ERROR", "08P01", "unsupported startup parameter: replication") as dsn:
        error = refused(dsn, replication=True)
    assert type(error) is SetupError
    assert "pooler" in error.next


def test_a_pooler_that_ignores_the_replication_parameter(database: Database) -> None:
    # What is behind such a pooler is an ordinary session.
    with pytest.raises(SetupError, match="does not speak replication") as caught:
        with_control(database.dsn, server.identify)
    assert "pooler" in caught.value.next


def test_a_malformed_dsn_is_not_printed() -> None:
    error = refused("postgresql://u:s3cret@h:5432/db?nonsense=1&password=s3cret")
    assert type(error) is UsageError
    assert "s3cret" not in str(error) + error.next
    at = refused("postgresql://u:s3@cret@h.invalid/db")
    assert "cret" not in str(at) + at.next
    assert "percent-encoded" in str(at)
    assert isinstance(refused("host=127.0.0.1 port=nonsense"), SetupError)


def test_no_password_at_all(database: Database) -> None:
    given = {key: str(value) for key, value in psycopg.conninfo.conninfo_to_dict(database.dsn).items()}
    given.pop("password", None)
    error = refused(psycopg.conninfo.make_conninfo(**given, passfile="/nonexistent"))
    assert type(error) is SetupError
    assert "asks for a password" in str(error)


def test_a_frozen_server_is_left_within_the_limit(own_postgres: PostgresServer) -> None:
    async def run() -> float:
        conn = await connect_control(settings_of(own_postgres.dsn()), application_name=NAME)
        own_postgres.pause()
        began = time.monotonic()
        with pytest.raises(PostgresUnavailable, match=r"did not answer within 0\.5 s"):
            await execute(conn, "select 1", within=0.5)
        with pytest.raises(PostgresUnavailable):
            await execute(conn, "select 1")
        return time.monotonic() - began

    try:
        assert asyncio.run(run()) < 3
    finally:
        own_postgres.resume()


def test_a_cancelled_query_does_not_wait_for_a_frozen_server(own_postgres: PostgresServer) -> None:
    async def run() -> float:
        conn = await connect_control(settings_of(own_postgres.dsn()), application_name=NAME)
        own_postgres.pause()
        began = time.monotonic()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await execute(conn, "select 1")
        return time.monotonic() - began

    try:
        assert asyncio.run(run()) < 3
    finally:
        own_postgres.resume()


def test_a_frozen_network_is_left_within_the_limit(database: Database) -> None:
    address = psycopg.conninfo.conninfo_to_dict(database.dsn)
    with Proxy((str(address["host"]), int(str(address["port"])))) as proxy:
        dsn = database.server.dsn(database.name, host="127.0.0.1", port=proxy.port)

        async def run() -> None:
            conn = await connect_control(settings_of(dsn), application_name=NAME)
            proxy.freeze()
            with pytest.raises(PostgresUnavailable, match="did not answer"):
                await execute(conn, "select 1", within=0.5)

        asyncio.run(run())


def test_a_fast_shutdown_is_told_from_an_outage(make_postgres: Callable[..., PostgresServer]) -> None:
    own = make_postgres(15)

    async def run() -> None:
        conn = await connect_control(settings_of(own.dsn()), application_name=NAME)
        (pid,) = (await execute(conn, "select pg_backend_pid()"))[0]
        await asyncio.to_thread(own.execute, "select pg_terminate_backend(%s)", (pid,))
        gone = "select 1 from pg_stat_activity where pid = %s"
        await asyncio.to_thread(eventually, lambda: not own.execute(gone, (pid,)), PATIENCE, "backend ended")
        with pytest.raises(PostgresShutdown):
            await execute(conn, "select 1")

    asyncio.run(run())


def test_what_psycopg_itself_refuses_is_no_lost_connection(database: Database) -> None:
    async def mistaken(conn: Connection) -> None:
        for query, parameters in (("select %s, %(a)s", ["b"]), ("select %s", ["\0"]), ("select '%'", ["b"])):
            with pytest.raises(PostgresUnavailable, match=r"^psycopg failed: ") as refused:
                await execute(conn, query, parameters)
            assert refused.value.next == "please report it"
        with pytest.raises(PostgresUnavailable, match=r"^psycopg failed: DataError"):
            await execute(conn, "select '10000-01-01'::timestamptz")
        assert await execute(conn, "select 1") == [(1,)]

    with_control(database.dsn, mistaken)


def test_a_long_statement_that_nobody_waits_for_ends(database: Database) -> None:
    counting = "select exists (select from pg_stat_activity where query = 'select pg_sleep(100)')"

    async def broken_off(conn: Connection) -> None:
        await table_rows.patient(conn)
        with pytest.raises(PostgresUnavailable):
            await execute(conn, "select pg_sleep(100)", within=0.2)

    with_control(database.dsn, broken_off)
    eventually(lambda: not database.server.value(counting), PATIENCE, "the server has noticed")
