"""What an interruption of `init` leaves, what it waits for, and several of it at once."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import LiteralString

import pytest

from cdc_outbox.event import TableName
from cdc_outbox.postgres import slip
from cdc_outbox.postgres.connection import connect_control
from cdc_outbox.settings import load
from tests.integration.conftest import ALL_VERSIONS
from tests.integration.initial import ROW, Set, open_transaction, place
from tests.servers.relay import clean_environment

__all__ = ["place"]

WITNESS: LiteralString = (
    "select position::text, system_identifier, timeline, publication from cdc_outbox_witness"
)


@ALL_VERSIONS
def test_a_pending_slot_alone_keeps_its_place_and_the_rows_are_counted(place: Set) -> None:
    place.ok("--create-table", "--only", "table")
    place.execute(ROW)
    place.refused()
    pending = f"{place.slot}_pending"
    before = place.start_of(pending)
    place.execute(ROW)
    error, _ = place.refused()
    assert "holds 2 rows " in error
    assert place.slots() == [pending]
    place.ok("--no-backfill")
    assert place.slots() == [place.slot]
    assert place.start_of(place.slot) == before


@ALL_VERSIONS
@pytest.mark.parametrize("named", [False, True])
def test_what_was_counted_is_finished_without_counting_again(place: Set, named: bool) -> None:
    """Rows that came since are behind the slot, so they neither stop it nor get lost."""
    place.ok("--create-table")
    start = place.start_of(place.slot)
    pending = f"{place.slot}_pending"
    place.execute("select pg_copy_logical_replication_slot(%s, %s, false)", (place.slot, pending))
    if not named:
        place.execute("select pg_drop_replication_slot(%s)", (place.slot,))
    place.execute(ROW)
    assert place.steps()["slot"] == ("existed" if named else "created")
    assert place.slots() == [place.slot]
    assert place.start_of(place.slot) == start


def test_a_counted_pending_slot_whose_publication_was_made_again_is_left_to_a_backfill(place: Set) -> None:
    place.ok("--create-table")
    pending = f"{place.slot}_pending"
    place.execute("select pg_copy_logical_replication_slot(%s, %s, false)", (place.slot, pending))
    place.execute("select pg_drop_replication_slot(%s)", (place.slot,))
    place.execute("drop publication outbox_pub")
    place.execute(ROW)
    for flags in ([], ["--no-backfill"]):
        error, remedy = place.refused(*flags)
        assert "the publication outbox_pub was made again or altered since" in error
        assert f"cdc-outbox backfill --slot {place.slot}" in remedy
        assert place.slots() == [pending]


@ALL_VERSIONS
def test_an_open_transaction_is_named_and_nothing_is_left(place: Set) -> None:
    with open_transaction(place, "checkout") as other:
        error, remedy = place.refused("--create-table", "--wait", "1s", code=1)
        assert f"pid {other.info.backend_pid} (user postgres, database {place.database.name}" in error
        assert "application checkout, open for" in error
        assert "query: insert into written" in error
        assert f"pg_terminate_backend({other.info.backend_pid})" in remedy
        assert place.slots() == []
    assert set(place.steps().values()) == {"existed", "created"}


def test_killed_while_it_waits_it_leaves_nothing(place: Set) -> None:
    with open_transaction(place), place.waiting():
        assert place.slots() == [f"{place.slot}_pending"]
    place.ok()


@ALL_VERSIONS
def test_killed_anywhere_the_next_one_finishes_it(place: Set) -> None:
    """The kills are spread over the time that one run takes, from its start to its end."""
    command = [sys.executable, "-m", "cdc_outbox", "init", "--create-table", "--slot", place.slot]
    begun = time.monotonic()
    place.ok("--create-table")
    whole = time.monotonic() - begun
    for part in range(1, 9):
        place.ok("--yes", command="drop")
        process = subprocess.Popen(
            command,
            env=clean_environment({"CDC_OUTBOX_DSN": place.dsn}),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(whole * (0.3 + 0.08 * part))
        process.kill()
        process.wait()
        place.ok("--create-table")
        assert place.slots() == [place.slot]
        assert place.execute(WITNESS)[0][0] == place.start_of(place.slot)


@ALL_VERSIONS
def test_several_at_once_make_one_set(place: Set) -> None:
    command = [sys.executable, "-m", "cdc_outbox", "init", "--create-table", "--json", "--slot", place.slot]
    processes = [
        subprocess.Popen(
            command,
            env=clean_environment({"CDC_OUTBOX_DSN": place.dsn}),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(4)
    ]
    answers = [process.communicate(timeout=60) for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0, 0], answers
    documents = [json.loads(out) for out, _ in answers]
    slot = [next(step["status"] for step in each["steps"] if step["name"] == "slot") for each in documents]
    assert sorted(slot) == ["created", "existed", "existed", "existed"]
    assert len({each["slot"]["lsn"] for each in documents}) == 1
    assert place.slots() == [place.slot]


def test_a_table_that_another_has_made_meanwhile_is_no_slip(place: Set) -> None:
    """Who finds no table looks for a name that was meant, and by then there may be the very one."""
    settings = load("init", {"dsn": place.dsn}, {}, Path("/nonexistent"))
    (table,) = settings.outbox.tables

    async def meant() -> TableName | None:
        async with await connect_control(settings.postgres, application_name="test") as conn:
            return await slip.table(conn, table)

    place.execute("create table outbox (id int)")
    assert asyncio.run(meant()) is None
