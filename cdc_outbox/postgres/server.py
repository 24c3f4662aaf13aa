"""Which server answers: version, system identifier, timeline, and whether it is a standby.

A virtual address, a failover or a list of hosts can put the two connections on two servers; what one of
them says about the slot is then nothing about the stream of the other. So both say who they are, and the
answers are compared. The timeline is read from the name of the WAL file that is being written:
pg_control_checkpoint() is old until the next checkpoint after a promotion. A server that was restarted may be an
earlier state of itself, put back from a snapshot: so they also say when it started.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, LiteralString

from cdc_outbox.errors import MissingRight, OtherServer, PostgresUnavailable, SetupError
from cdc_outbox.event import quote
from cdc_outbox.postgres.connection import Connection, decoded, execute, place


@dataclass(frozen=True, slots=True)
class Server:
    """Who answers on a connection.

    `version` is like 180001; `timeline` is None on a standby asked by SQL; `started` are seconds since 1970 as text.
    """

    version: int
    system_identifier: str
    timeline: int | None
    in_recovery: bool
    place: str
    started: str

    def __str__(self) -> str:
        return f"{self.place}, system {self.system_identifier}, timeline {self.timeline}"

    @property
    def major(self) -> int:
        return self.version // 10000


_IDENTITY: Final[LiteralString] = """
select (select system_identifier from pg_catalog.pg_control_system()), pg_catalog.pg_is_in_recovery(),
       case when pg_catalog.pg_is_in_recovery() then null
            else pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_insert_lsn()) end,
       extract(epoch from pg_catalog.pg_postmaster_start_time())::text
"""
_INSTANCE: Final[LiteralString] = """
select pg_catalog.pg_is_in_recovery(), extract(epoch from pg_catalog.pg_postmaster_start_time())::text
"""


def timeline_of(walfile: str | None) -> int | None:
    """The timeline in a WAL file's name: its first eight hex digits."""
    return int(walfile[:8], 16) if walfile else None


def unsigned(system_identifier: int) -> str:
    """A system identifier as IDENTIFY_SYSTEM prints it; SQL has it as a signed bigint."""
    return str(system_identifier % 2**64)


async def identity(conn: Connection, *, within: float | None = None) -> Server:
    """Who answers on the control connection."""
    ((system_identifier, in_recovery, walfile, started),) = await execute(conn, _IDENTITY, within=within)
    return Server(
        version=conn.info.server_version,
        system_identifier=unsigned(int(system_identifier)),
        timeline=timeline_of(walfile),
        in_recovery=bool(in_recovery),
        place=place(conn),
        started=str(started),
    )


async def identify(conn: Connection, *, within: float | None = None) -> Server:
    """Who answers on the replication connection, by IDENTIFY_SYSTEM.

    Raises SetupError when it is a pooler, which doesn't speak replication.
    """
    ((system_identifier, timeline, *_),) = await execute(
        conn, "IDENTIFY_SYSTEM", stage="identify", within=within
    )
    ((in_recovery, started),) = await execute(conn, _INSTANCE, stage="identify", within=within)
    return Server(
        version=conn.info.server_version,
        system_identifier=decoded(system_identifier),
        timeline=int(timeline),
        in_recovery=bool(in_recovery),
        place=place(conn),
        started=decoded(started),
    )


def require_primary(found: Server) -> None:
    """Raise PostgresUnavailable on a standby: nothing can be made there or streamed, until it is promoted."""
    if found.in_recovery:
        raise PostgresUnavailable(
            f"PostgreSQL at {found.place} is a standby",
            next="name the primary in --dsn or CDC_OUTBOX_DSN, and in --admin-dsn if there is one; or wait until this "
            "one is promoted",
        )


def require_same(control: Server, stream: Server) -> None:
    """Raise OtherServer unless both connections reached one server, in one run of it."""
    if control.system_identifier != stream.system_identifier or (
        control.timeline is not None and control.timeline != stream.timeline
    ):
        raise OtherServer(
            f"the control connection reached another server ({control}) than the stream ({stream})",
            next="nothing to do while a failover is under way; else name one host in --dsn",
        )
    if control.started != stream.started:
        raise OtherServer(
            f"PostgreSQL at {stream.place} was restarted between two connections",
            next="nothing to do: the relay connects again by itself",
        )


_DATABASE: Final[LiteralString] = "select current_database()::text"


async def require_one_database(owner: Connection, relay: Connection) -> None:
    """Raise SetupError unless the owner's connection and the relay's lead to one server and database."""
    here, there = await identity(owner), await identity(relay)
    names = [(await execute(each, _DATABASE))[0][0] for each in (owner, relay)]
    if here.system_identifier != there.system_identifier or names[0] != names[1]:
        raise SetupError(
            f'--admin-dsn leads to database "{names[0]}" at {here.place}, --dsn to "{names[1]}" at {there.place}, '
            "which is not the same",
            next="let both name the same server and database, with different roles",
        )


# rds_replication is how Amazon's servers give the right to replicate: the role attribute stays off there.
MAY_REPLICATE: Final[LiteralString] = """
       (r.rolreplication or r.rolsuper
         or exists (select from pg_catalog.pg_roles g
                     where g.rolname = 'rds_replication' and pg_catalog.pg_has_role(r.oid, g.oid, 'member')))
"""
"""A condition on a row `r` of pg_roles."""

_ABLE: Final[LiteralString] = """
select session_user::text, {may_replicate}, pg_catalog.current_setting('wal_level')
  from pg_catalog.pg_roles r where r.rolname = session_user
""".replace("{may_replicate}", MAY_REPLICATE)


async def require_able(conn: Connection, *, within: float | None = None) -> None:
    """Raise SetupError or MissingRight unless server and role can do logical replication at all."""
    ((role, able, wal_level),) = await execute(conn, _ABLE, within=within)
    if wal_level != "logical":
        raise wrong_wal_level(str(wal_level))
    if not able:
        raise MissingRight(
            f"the role {role} may not replicate",
            next=f"as a superuser: alter role {quote(str(role))} replication;",
        )


def wrong_wal_level(wal_level: str) -> SetupError:
    """The error for a server that writes too little into its WAL."""
    return SetupError(
        f"wal_level is {wal_level}, and decoding needs logical",
        next="alter system set wal_level = logical; then restart PostgreSQL",
    )
