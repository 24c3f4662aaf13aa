"""The one table from SQLSTATE and stage to error: each line of the contract, and what isn't in it."""

from __future__ import annotations

import psycopg
import pytest

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
from cdc_outbox.postgres import sqlstate
from cdc_outbox.postgres.sqlstate import Stage

CONTRACT: list[tuple[str, Stage, type[CdcOutboxError]]] = [
    ("42704", "start", SlotMissing),
    ("42704", "stream", PublicationUnseen),
    ("42704", "drop", SlotMissing),
    ("55006", "start", SlotBusy),
    ("55006", "drop", SlotBusy),
    ("55006", "create", SlotBusy),
    ("55000", "start", SlotLost),
    ("55000", "stream", SlotLost),
    ("58P01", "stream", SlotLost),
    ("42501", "connect", MissingRight),
    ("42501", "start", MissingRight),
    ("42501", "control", MissingRight),
    ("42501", "create", MissingRight),
    ("XX000", "start", SetupError),
    ("0A000", "start", SetupError),
    ("42710", "create", SetupError),
    ("42602", "create", UsageError),
    ("22023", "create", SetupError),
    ("53400", "create", SetupError),
    ("28P01", "connect", SetupError),
    ("28000", "connect", SetupError),
    ("3D000", "connect", SetupError),
    ("08P01", "connect", SetupError),
    ("42601", "identify", SetupError),
    ("42P01", "control", SetupError),
    ("57P01", "control", PostgresShutdown),
    ("57P02", "stream", PostgresShutdown),
    ("57P03", "connect", PostgresShutdown),
    ("57P05", "control", PostgresUnavailable),
    ("53300", "connect", PostgresUnavailable),
    ("53100", "stream", PostgresUnavailable),
    ("08006", "stream", PostgresUnavailable),
    ("57014", "control", PostgresUnavailable),
    ("25006", "control", PostgresUnavailable),
    ("XX000", "stream", DecodingFailed),
    ("22003", "stream", DecodingFailed),
    ("40001", "control", PostgresUnavailable),
]


@pytest.mark.parametrize(("state", "stage", "expected"), CONTRACT)
def test_each_line_of_the_contract(state: str, stage: Stage, expected: type[CdcOutboxError]) -> None:
    error = sqlstate.error(state, stage, "what the server\n  says", context="slot, LSN 0/1")
    assert type(error) is expected
    context = "" if state.startswith("22") and stage != "stream" else " (slot, LSN 0/1)"
    assert f"what the server says{context} [{state}]" in str(error)
    assert error.next


@pytest.mark.parametrize(
    ("stage", "told"), [("control", False), ("create", False), ("connect", False), ("stream", True)]
)
def test_the_context_of_an_error_in_data_may_quote_a_row_and_is_told_of_the_stream_alone(
    stage: Stage, told: bool
) -> None:
    text = "invalid input syntax for type json"
    error = sqlstate.error("22P02", stage, text, context='JSON data, line 1: {"card": 4111')
    assert text in str(error)
    assert ("4111" in str(error)) is told


@pytest.mark.parametrize(
    "line", sqlstate.TABLE.values(), ids=["/".join(map(str, key)) for key in sqlstate.TABLE]
)
def test_each_line_names_a_next_step(line: sqlstate.Meaning) -> None:
    assert line.clause
    assert line.clause[0].islower() or line.clause.startswith("PostgreSQL")
    assert line.next
    # What can be tried again says so by its class, what can't ends the process by its code.
    assert line.error.retriable or line.error.exit_code in (2, 78)


def test_without_sqlstate_the_connection_was_lost() -> None:
    error = sqlstate.from_exception(psycopg.OperationalError("server closed\nmore"), stage="control")
    assert type(error) is PostgresUnavailable
    assert str(error) == "the connection to PostgreSQL was lost: server closed"


def test_a_missing_wal_level_is_no_lost_slot_in_any_language() -> None:
    error = sqlstate.error("55000", "start", "logische Dekodierung erfordert wal_level >= logical")
    assert type(error) is SetupError
    assert "wal_level = logical" in error.next


def test_the_remedy_names_the_role() -> None:
    assert sqlstate.error("42501", "connect", "no", role='Re"lay').next == (
        'as a superuser: alter role "Re""lay" replication;'
    )
    assert "alter role NAME replication" in sqlstate.error("42501", "start", "no").next


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ('FATAL:  password authentication failed for user "x"', "28P01"),
        ('FATAL:  PAM authentication failed for user "x"', "28000"),
        ('FATAL:  role "database" does not exist', "28000"),
        ('FATAL:  role "x" is not permitted to log in', "28000"),
        ('FATAL:  database "x" does not exist', "3D000"),
        ("FATAL:  kein pg_hba.conf-Eintrag für Host »127.0.0.1«", "28000"),
        ("FATAL:  must be superuser or replication role to start walsender", "42501"),
        ("FATAL:  permission denied to start WAL sender", "42501"),
        ("FATAL:  the database system is starting up", "57P03"),
        ("FATAL:  the database system is shutting down", "57P03"),
        ("FATAL:  sorry, too many clients already", "53300"),
        ("FATAL:  remaining connection slots are reserved for roles with the SUPERUSER attribute", "53300"),
        ('FATAL:  too many connections for role "x"', "53300"),
        ('FATAL:  number of requested standby connections exceeds "max_wal_senders" (currently 1)', "53300"),
        ("ERROR:  unsupported startup parameter: replication", "08P01"),
        ("FATAL:  Passwort-Authentifizierung für Benutzer »x« fehlgeschlagen", None),
        ("Connection refused", None),
        ("file does not exist", None),
    ],
)
def test_english_refusals_are_known_by_their_words(text: str, state: str | None) -> None:
    assert sqlstate.from_text(text) == state
