"""Rows that a pending slot hasn't got: `init` gives it its name only if nothing can have been hidden from it."""

from __future__ import annotations

import json
from typing import LiteralString

import pytest

from tests.integration.backfilled import TABLE_C, Backfilled
from tests.integration.backfilled import place as shop
from tests.integration.conftest import ALL_VERSIONS
from tests.integration.initial import ROW, Set, open_transaction, place

__all__ = ["place", "shop"]

GONE: LiteralString = "drop publication outbox_pub"
BACK: LiteralString = (
    "create publication outbox_pub for table outbox"
    " with (publish = 'insert', publish_via_partition_root = true)"
)
ROW_C: LiteralString = "insert into outbox (topic, payload) values (%s, jsonb_build_object('n', %s::int))"
NOTED: LiteralString = "select slot, publication from cdc_outbox_witness order by slot"


def begun(place: Set) -> str:
    """An `init` that has found a row from before the slot; the pending slot's name."""
    place.ok("--create-table", "--only", "table")
    place.execute(ROW)
    place.refused()
    return f"{place.slot}_pending"


@ALL_VERSIONS
def test_a_row_that_was_hidden_from_the_pending_slot_is_not_left_out(shop: Backfilled) -> None:
    """The publication is made again between `init` and `init --no-backfill`."""
    shop.execute(TABLE_C)
    shop.execute(ROW_C, (shop.topic, 1))
    shop.refused("--key", "none")
    shop.execute(GONE)
    shop.execute(ROW_C, (shop.topic, 2))
    shop.execute(BACK)
    pending = f"{shop.slot}_pending"
    start = shop.start_of(pending)
    for flags in (["--no-backfill"], []):
        error, remedy = shop.refused("--key", "none", *flags)
        assert f'the slot "{pending}" may lack rows that were committed after {start}' in error
        assert "publication outbox_pub was made again or altered since" in error
        assert f"cdc-outbox backfill --slot {shop.slot}" in remedy
        assert (
            f"cdc-outbox drop --slot {shop.slot} && cdc-outbox init --no-backfill --slot {shop.slot}"
            in remedy
        )
        assert (shop.slots(), shop.start_of(pending)) == ([pending], start)
    done = shop.command("--key", "none")
    assert done.returncode == 0, done.stderr
    told_of_a_gap(done.stderr, start, anew=shop.database.major < 18)
    assert [record.json()["n"] for record in shop.records()] == [1, 2]
    shop.execute(ROW_C, (shop.topic, 3))
    shop.relay("--key", "none")
    assert {record.json()["n"] for record in shop.records()} == {1, 2, 3}


def told_of_a_gap(stderr: str, start: object, *, anew: bool) -> None:
    (warning,) = [line for line in stderr.splitlines() if "rows may be missing from the pending slot" in line]
    assert f"committed_after={start}" in warning
    assert "publication outbox_pub was made again or altered since" in warning
    assert f"made_anew={str(anew).lower()}" in warning


def test_a_slot_whose_publication_was_altered_keeps_what_it_has(shop: Backfilled) -> None:
    """Rows that are in the slot alone, since the application deletes them, are not given up with it."""
    shop.execute(TABLE_C)
    shop.execute(ROW_C, (shop.topic, 1))
    shop.refused("--key", "none")
    start = shop.start_of(f"{shop.slot}_pending")
    shop.execute(ROW_C, (shop.topic, 2))
    shop.execute("delete from outbox where payload ->> 'n' = '2'")
    shop.execute("alter publication outbox_pub set (publish = 'update')")
    shop.execute(ROW_C, (shop.topic, 3))
    shop.execute("alter publication outbox_pub set (publish = 'insert')")
    done = shop.command("--key", "none")
    assert done.returncode == 0, done.stderr
    told_of_a_gap(done.stderr, start, anew=False)
    shop.relay("--key", "none")
    assert [record.json()["n"] for record in shop.records()] == [1, 3, 2]


@pytest.mark.parametrize(
    "change",
    [
        [GONE, ROW, "delete from outbox", BACK],
        [
            "alter publication outbox_pub set (publish = 'update')",
            ROW,
            "delete from outbox",
            "alter publication outbox_pub set (publish = 'insert')",
        ],
        [
            "alter publication outbox_pub set table outbox where (false)",
            ROW,
            "delete from outbox",
            "alter publication outbox_pub set table outbox",
        ],
    ],
    ids=["made again", "altered", "filtered"],
)
def test_that_no_row_waits_is_no_proof_for_a_table_that_keeps_none(
    place: Set, change: list[LiteralString]
) -> None:
    pending = begun(place)
    for statement in change:
        place.execute(statement)
    error, _ = place.refused()
    assert "was made again or altered since" in error
    assert place.slots() == [pending]


def test_the_way_out_that_leaves_all_rows_out_can_be_gone(place: Set) -> None:
    begun(place)
    place.execute(GONE)
    place.execute(BACK)
    place.refused("--no-backfill")
    place.ok("--yes", command="drop")
    assert place.execute(NOTED) == []
    place.ok("--no-backfill")
    assert place.slots() == [place.slot]


@pytest.mark.parametrize("flags", [["--no-backfill"], []])
def test_a_pending_slot_of_which_nothing_was_noted_is_not_trusted(place: Set, flags: list[str]) -> None:
    place.ok("--create-table", "--only", "table", "--only", "witness", "--only", "publication")
    pending = f"{place.slot}_pending"
    place.execute("select pg_create_logical_replication_slot(%s, 'pgoutput')", (pending,))
    error, _ = place.refused(*flags)
    assert "nothing says what the publication outbox_pub was when the slot was made" in error
    assert place.slots() == [pending]


def test_a_note_of_another_server_or_of_a_later_time_is_none(place: Set) -> None:
    begun(place)
    change: LiteralString
    for change in ("system_identifier = '1'", "position = pg_current_wal_insert_lsn() + 1000"):
        place.execute("update cdc_outbox_witness set " + change)
        error, _ = place.refused("--no-backfill")
        assert "nothing says" in error


@ALL_VERSIONS
def test_the_note_is_there_before_the_slot_and_goes_with_the_decision(place: Set) -> None:
    """Killed while the slot is made, the publication made again after that, and then the whole way."""
    with open_transaction(place), place.waiting():
        ((name, before),) = place.execute(NOTED)
        assert name == f"{place.slot}_pending"
    place.execute(GONE)
    place.execute(BACK)
    place.execute(ROW)
    place.refused()
    ((name, noted),) = place.execute(NOTED)
    assert json.loads(noted) != json.loads(before)
    place.ok("--no-backfill")
    ((name, decided),) = place.execute(NOTED)
    assert (name, decided) == (place.slot, noted)


def test_a_publication_that_a_pending_slot_needs_stays(place: Set) -> None:
    begun(place)
    other = Set(place.database, f"{place.slot}_b")
    other.ok("--no-backfill")
    said = other.ok("--yes", command="drop")
    assert f"kept publication outbox_pub, which slot {place.slot}_pending uses" in said
    assert "removed publication outbox_pub" in place.ok("--yes", command="drop")
