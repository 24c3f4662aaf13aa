"""From a SQLSTATE and the stage it came in to our error: one table.

The same SQLSTATE means different things at different stages: 42704 is a missing slot when streaming
starts and a missing publication in the middle of the stream. What a restart can't cure is a set-up error
(78); everything that isn't in the table is taken as an outage, for trying again is harmless and giving up
is not.

Errors of connecting carry no SQLSTATE in psycopg (libpq keeps it to itself) and their text is in the server's
language. `connection.py` finds it out; `from_text` is the hint for where it can't.

https://www.postgresql.org/docs/current/errcodes-appendix.html
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from psycopg import DataError, NotSupportedError, ProgrammingError
from psycopg.pq import DiagnosticField

from cdc_outbox.errors import (
    CdcOutboxError,
    DecodingFailed,
    MissingRight,
    PostgresShutdown,
    PostgresUnavailable,
    PublicationUnseen,
    SetupError,
    SlotBusy,
    SlotLost,
    SlotMissing,
    UsageError,
)
from cdc_outbox.event import quote
from cdc_outbox.postgres.remedy import recover

if TYPE_CHECKING:
    from collections.abc import Mapping

    from psycopg import Error
    from psycopg.pq.abc import PGresult

Stage: TypeAlias = Literal["connect", "identify", "start", "stream", "control", "create", "drop"]


@dataclass(frozen=True, slots=True)
class Meaning:
    """One line of the table: the error, a clause before the server's own words, and the next step."""

    error: type[CdcOutboxError]
    clause: str
    next: str


_AGAIN: Final = "nothing to mend: try again in a moment, as a running relay does by itself"
_RECOVER: Final = recover("{slot}")

NOT_LET_IN: Final = Meaning(
    SetupError,
    "PostgreSQL refuses the connection",
    "check user, password and pg_hba.conf; the DSN is --dsn, CDC_OUTBOX_DSN or what CDC_OUTBOX_DSN_FILE names",
)
POOLER: Final = Meaning(
    SetupError,
    "what answers there does not speak replication",
    "point --dsn at PostgreSQL itself (usually port 5432), not at a pooler such as PgBouncer",
)
_LOST: Final = Meaning(SlotLost, "the replication slot is lost", _RECOVER)
_SHUTDOWN: Final = Meaning(PostgresShutdown, "PostgreSQL is shutting down or starting", _AGAIN)
_OUTAGE: Final = Meaning(PostgresUnavailable, "PostgreSQL failed", _AGAIN)
_UNDECODED: Final = Meaning(
    DecodingFailed,
    "PostgreSQL failed to decode its WAL",
    "see PostgreSQL's log, and update it to its last minor version; if it fails at this place for ever, "
    + _RECOVER,
)
_BAD_NAME: Final = Meaning(
    UsageError,
    "PostgreSQL refuses the slot's name",
    "name the slot with --slot, in lower-case letters, digits and underscores, at most 55 of them",
)
_EXISTS: Final = Meaning(
    SetupError, "there is already one of that name", "choose another name with --slot or --publication"
)
_OPTION: Final = Meaning(
    SetupError,
    "PostgreSQL does not accept this way of streaming",
    "use PostgreSQL 15 to 18 with the plugin pgoutput",
)

# (SQLSTATE or its class, stage or None for any) -> meaning. The first of (state, stage), (state, any),
# (class, stage), (class, any) that is there wins.
TABLE: Final[Mapping[tuple[str, Stage | None], Meaning]] = {
    ("42704", "start"): Meaning(
        SlotMissing,
        "there is no such replication slot",
        f"cdc-outbox init --slot {{slot}}; if there was one before, {_RECOVER}",
    ),
    ("42704", "drop"): Meaning(SlotMissing, "there is no such replication slot", "nothing to do: it is gone"),
    ("42704", "stream"): Meaning(
        PublicationUnseen,
        "the stream reached rows that were written while the publication did not exist",
        f"{_RECOVER}; that leaves out what the slot has yet to send: to send what waits in the table, instead of that"
        " init: cdc-outbox backfill --slot {slot}",
    ),
    ("55006", None): Meaning(
        SlotBusy,
        "another process streams from the slot",
        "wait for it to end, or stop it: see active_pid in pg_replication_slots",
    ),
    ("55000", "start"): _LOST,
    ("55000", "stream"): _LOST,
    ("58P01", "start"): _LOST,
    ("58P01", "stream"): _LOST,
    ("42501", "connect"): Meaning(
        MissingRight,
        "the role may not replicate",
        "as a superuser: alter role {role} replication;",
    ),
    ("42501", "start"): Meaning(
        MissingRight,
        "the role may not replicate",
        "as a superuser: alter role {role} replication;",
    ),
    ("42501", "create"): Meaning(
        MissingRight,
        "the role may not do this",
        "name an owner's connection with --admin-dsn, or run the SQL of cdc-outbox init --print-sql as one",
    ),
    ("42501", None): Meaning(
        MissingRight,
        "the role may not do this",
        'export CDC_OUTBOX_ADMIN_DSN="$OWNER_DSN" && cdc-outbox init --role {role}',
    ),
    ("XX000", "start"): _OPTION,
    ("0A000", "start"): _OPTION,
    ("42601", "start"): _OPTION,
    ("22023", "start"): _OPTION,
    ("42710", "create"): _EXISTS,
    ("42P07", "create"): _EXISTS,
    ("42602", None): _BAD_NAME,
    ("42622", None): _BAD_NAME,
    ("22023", "create"): Meaning(
        SetupError,
        "PostgreSQL can't publish this table",
        "make the table an ordinary, logged one: alter table … set logged;",
    ),
    ("53400", "create"): Meaning(
        SetupError,
        "there is no room for another replication slot",
        "drop one that nobody needs, or raise max_replication_slots and restart PostgreSQL",
    ),
    ("55000", "create"): Meaning(
        SetupError,
        "PostgreSQL isn't ready for a logical replication slot",
        "alter system set wal_level = logical; then restart PostgreSQL",
    ),
    ("25006", None): Meaning(
        PostgresUnavailable,
        "the server takes no writes: it is a standby",
        "point --dsn at the primary; until then the relay waits",
    ),
    ("55P03", None): Meaning(
        PostgresUnavailable,
        "another session holds a lock that is needed",
        "see pg_locks and pg_blocking_pids for who holds it, then try again",
    ),
    ("57014", None): Meaning(PostgresUnavailable, "PostgreSQL did not answer in time", _AGAIN),
    ("57P01", None): _SHUTDOWN,
    ("57P02", None): _SHUTDOWN,
    ("57P03", None): _SHUTDOWN,
    ("57", None): _OUTAGE,
    ("53300", None): Meaning(
        PostgresUnavailable,
        "PostgreSQL has no connection to spare",
        "raise max_connections or max_wal_senders, or close idle sessions",
    ),
    ("28", None): NOT_LET_IN,
    ("3D000", None): Meaning(
        SetupError, "there is no such database", "name an existing database in --dsn or CDC_OUTBOX_DSN"
    ),
    ("08P01", "connect"): POOLER,
    ("08P01", "identify"): POOLER,
    ("0A000", "connect"): POOLER,
    ("0A000", "identify"): POOLER,
    ("42601", "identify"): POOLER,
    ("42704", "connect"): Meaning(
        SetupError,
        "PostgreSQL does not know a setting of the DSN",
        "mend `options` in --dsn, PGOPTIONS or the service file",
    ),
    ("22023", "connect"): Meaning(
        SetupError,
        "PostgreSQL refuses a setting of the DSN",
        "mend `options` in --dsn, PGOPTIONS or the service file",
    ),
    ("42", "stream"): _UNDECODED,
    ("22", "stream"): _UNDECODED,
    ("XX", "stream"): _UNDECODED,
    ("42", None): Meaning(
        SetupError,
        "the database is not as it should be",
        "cdc-outbox init makes what is missing; --print-sql shows it",
    ),
}


def meaning(sqlstate: str | None, stage: Stage, text: str = "") -> Meaning:
    """The line of the table for a SQLSTATE (None: the connection just broke) at a stage.

    `text` is the server's message: a few SQLSTATEs say too little, but settings are named alike in all
    languages.
    """
    if sqlstate is None:
        return Meaning(PostgresUnavailable, "the connection to PostgreSQL was lost", _AGAIN)
    if sqlstate == "55000" and "wal_level" in text:
        return TABLE["55000", "create"]
    for key in ((sqlstate, stage), (sqlstate, None), (sqlstate[:2], stage), (sqlstate[:2], None)):
        if (found := TABLE.get(key)) is not None:
            return found
    return _OUTAGE


def error(
    sqlstate: str | None,
    stage: Stage,
    text: str,
    *,
    context: str = "",
    role: str | None = None,
    slot: str | None = None,
) -> CdcOutboxError:
    """Our error for the server's: its clause, the server's words, and the SQLSTATE to look up.

    `role` is who is connected and `slot` whence, where that is known. Of an error in data the context is left out,
    since it may quote a row (`JSON data, line 1: …`); in the stream it names the position.
    """
    line = meaning(sqlstate, stage, text)
    words = " ".join(text.split())
    if context and (stage == "stream" or sqlstate is None or not sqlstate.startswith("22")):
        words = f"{words} ({' '.join(context.split())})"
    code = f" [{sqlstate}]" if sqlstate else ""
    return line.error(
        f"{line.clause}: {words}{code}" if words else f"{line.clause}{code}",
        next=line.next.replace("{role}", quote(role) if role else "NAME").replace("{slot}", slot or "NAME"),
    )


def of(failure: BaseException) -> str:
    """The SQLSTATE of the server's error that one of ours was raised from; empty where there is none."""
    return str(getattr(failure.__cause__, "sqlstate", None) or "")


_OF_PSYCOPG: Final = (DataError, NotSupportedError, ProgrammingError)


def from_exception(failure: Error, *, stage: Stage, role: str | None = None) -> CdcOutboxError:
    """Our error for one of psycopg's. `role` is who is connected, where that is known.

    What psycopg says of a statement or an answer itself has no SQLSTATE either, and the connection is as it was.
    """
    if failure.sqlstate is None and isinstance(failure, _OF_PSYCOPG):
        return PostgresUnavailable(f"psycopg failed: {failure!r}", next="please report it")
    text = failure.diag.message_primary or _first_line(str(failure))
    context = failure.diag.context or ""
    if "inline_code_block" in context:
        context = ""  # a DO block of ours: where in it says nothing to who reads the error
    return error(failure.sqlstate, stage, text, context=context, role=role)


def from_result(
    result: PGresult, *, stage: Stage, encoding: str = "utf-8", slot: str | None = None
) -> CdcOutboxError:
    """Our error for a result that libpq handed out, as at the end of a stream. Its context names the LSN."""

    def field(which: DiagnosticField) -> str:
        return (result.error_field(which) or b"").decode(encoding, "replace")

    text = field(DiagnosticField.MESSAGE_PRIMARY) or _first_line(
        result.error_message.decode(encoding, "replace")
    )
    state, context = field(DiagnosticField.SQLSTATE) or None, field(DiagnosticField.CONTEXT)
    return error(state, stage, text, context=context, slot=slot)


# What servers say in English when they refuse a connection. Words that no language translates stand first.
_TEXTS: Final = (
    ("pg_hba.conf", "28000"),
    ("password authentication failed", "28P01"),
    ("authentication failed", "28000"),
    ("is not permitted to log in", "28000"),
    ("replication role to start walsender", "42501"),
    ("permission denied to start WAL sender", "42501"),
    ("the database system is", "57P03"),
    ("sorry, too many clients", "53300"),
    ("remaining connection slots are reserved", "53300"),
    ("too many connections for", "53300"),
    ('exceeds "max_wal_senders"', "53300"),
    ("exceeds max_wal_senders", "53300"),
    ("unsupported startup parameter", "08P01"),
)


def from_text(text: str) -> str | None:
    """The SQLSTATE that an English refusal of a connection stands for, None if it isn't one that we know."""
    for words, state in _TEXTS:
        if words in text:
            return state
    if "FATAL" in text and text.rstrip().endswith("does not exist"):
        return "3D000" if 'database "' in text else "28000"
    return None


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0]
