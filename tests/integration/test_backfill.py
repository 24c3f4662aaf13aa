"""`backfill`: which rows of each table it publishes, in which order, and what the slot is called then."""

from __future__ import annotations

from tests.integration.backfilled import TABLE_A, Backfilled, place

__all__ = ["place"]


def test_rows_of_table_a(place: Backfilled) -> None:
    """Pending, stale in processing, failed (to be tried again) and of unknown states; in the order of the sequence."""
    place.execute(TABLE_A)
    place.execute(
        "insert into outbox (aggregate_id, topic, payload, status, locked_at)"
        " select 'k', %s, jsonb_build_object('n', n), status, now() - interval '1 h'"
        " from unnest(array['pending', 'sent', 'processing', 'failed', null]) with ordinality s (status, n)",
        (place.topic,),
    )
    error, remedy = place.refused()
    assert "public.outbox holds 4 rows from before the slot" in error
    assert f"cdc-outbox backfill --slot {place.slot}" in remedy
    assert place.slots() == [f"{place.slot}_pending"]
    start = place.start_of(f"{place.slot}_pending")
    said = place.backfill()
    assert "read 4 rows, published 4, left out none" in said
    assert place.start_of(place.slot) == start
    assert [record.json()["n"] for record in place.records()] == [1, 3, 4, 5]
    place.execute(
        "insert into outbox (aggregate_id, topic, payload) values ('k', %s, '{\"n\": 6}')", (place.topic,)
    )
    place.relay()
    last = place.records()[-1]
    assert last.json()["n"] == 6
    assert last.header("cdc.source") is None
    assert place.records()[0].header("cdc.source") == "backfill"
