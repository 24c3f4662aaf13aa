"""What can be streamed from, judged by the slot's row alone; and how a blocking transaction is named."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cdc_outbox.errors import SlotLost, SlotMissing, SlotUnusable
from cdc_outbox.lsn import LSN
from cdc_outbox.postgres.blocker import Blocker
from cdc_outbox.postgres.slot import Slot, creation, limit_of, pending_name, require

GOOD = Slot(
    name="outbox_slot",
    plugin="pgoutput",
    slot_type="logical",
    database="app",
    here=True,
    temporary=False,
    active=False,
    active_pid=None,
    catalog_xmin=700,
    restart_lsn=LSN(100),
    confirmed_flush_lsn=LSN(200),
    wal_status="reserved",
    safe_wal_size=None,
    two_phase=False,
    inactive_since=None,
    invalidation_reason=None,
    failover=False,
    synced=False,
)


def test_a_whole_slot_passes_whoever_holds_it() -> None:
    assert require(GOOD, "outbox_slot") is GOOD
    active = replace(GOOD, active=True, active_pid=12)
    assert require(active, "outbox_slot") is active


def test_a_missing_slot_names_init() -> None:
    with pytest.raises(SlotMissing, match="outbox_slot") as caught:
        require(None, "outbox_slot")
    assert caught.value.next == "cdc-outbox init --slot outbox_slot"
    assert caught.value.exit_code == 78


def test_a_pending_slot_alone_is_a_missing_slot() -> None:
    with pytest.raises(SlotMissing, match='"outbox_slot_pending"'):
        require(None, "outbox_slot", pending=replace(GOOD, name=pending_name("outbox_slot")))


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (replace(GOOD, slot_type="physical", plugin=None, database=None, here=False), "physical"),
        (replace(GOOD, plugin="wal2json"), "wal2json"),
        (replace(GOOD, database="other", here=False), '"other"'),
        (replace(GOOD, temporary=True), "temporary"),
        (replace(GOOD, two_phase=True), "two_phase"),
    ],
)
def test_a_foreign_slot_is_refused_with_its_trait(changed: Slot, words: str) -> None:
    with pytest.raises(SlotUnusable, match=words) as caught:
        require(changed, "outbox_slot")
    assert "--slot" in caught.value.next


@pytest.mark.parametrize(
    "changed",
    [
        replace(GOOD, wal_status="lost"),
        replace(GOOD, invalidation_reason="idle_timeout"),
    ],
)
def test_a_lost_slot_says_from_where_events_are_missing(changed: Slot) -> None:
    with pytest.raises(SlotLost, match="outbox_slot") as caught:
        require(changed, "outbox_slot")
    assert "0/C8" in str(caught.value) + caught.value.next


def test_unreserved_is_not_lost() -> None:
    slot = replace(GOOD, wal_status="unreserved", safe_wal_size=0)
    assert require(slot, "outbox_slot") is slot


def test_a_blocker_says_no_more_than_is_known() -> None:
    seen = Blocker(7, "app", "worker", "shop", 754.0, "update\n  stock set n = 1", None)
    assert str(seen) == (
        "pid 7 (user app, database shop, application worker, open for 13 m, query: update stock set n = ?)"
    )
    hidden = Blocker(7, "app", "", "shop", None, None, None)
    assert str(hidden) == "pid 7 (user app, database shop)"
    prepared = Blocker(None, "app", None, "shop", 3.4, None, "tx1")
    assert str(prepared) == "prepared transaction 'tx1' (user app, database shop, open for 3 s)"
    long = Blocker(7, "app", "", "shop", 200_000.0, "x" * 500, None)
    assert len(str(long)) < 250
    assert "open for 2 d" in str(long)


def test_the_creation_of_a_slot_quotes_its_name() -> None:
    text = creation("o'slot", failover=True, within=1.5).as_string()
    assert "'o''slot'" in text
    assert "statement_timeout = '1500ms'" in text


@pytest.mark.parametrize(
    ("reason", "setting"),
    [
        ("idle_timeout", "idle_replication_slot_timeout"),
        ("wal_removed", "max_slot_wal_keep_size"),
        ("wal_level_insufficient", "wal_level"),
        (None, "max_slot_wal_keep_size"),
    ],
)
def test_the_setting_that_cost_a_slot_is_named(reason: str | None, setting: str) -> None:
    assert setting in limit_of(replace(GOOD, wal_status="lost", invalidation_reason=reason))
