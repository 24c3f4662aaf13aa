"""Who keeps WAL besides the relay is named, with what ends it."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

from cdc_outbox.lsn import LSN
from cdc_outbox.watch.health import Level
from tests.unit.judged import judged
from tests.unit.sampled import AT, HOLDER, MIB, START, at, slot


class TestHeld:
    def test_by_whom_and_not_by_the_relay(self) -> None:
        known: dict[str, Any] = {"active": True, "oldest": HOLDER}
        health = judged(
            at(0, written=400 * MIB, confirmed=400 * MIB, **known),
            at(1, written=520 * MIB, confirmed=520 * MIB, **known),
        )
        assert health.culprit is not None
        assert health.culprit.document() == {
            "kind": "transaction",
            "pid": 815,
            "gid": None,
            "slot": None,
            "user": "app",
            "application": "batch",
            "database": "app",
            "age_seconds": None,
            "query_start": None,
            "held_bytes": 520 * MIB,
            "message": "pid 815 (user app, database app, application batch, age unknown) holds 0.5 GiB of WAL that"
            " was delivered; grant pg_read_all_stats to the relay's role, and its age is shown",
        }
        assert health.summary.startswith("active, caught up; pid 815 (user app")
        assert health.next == "let that transaction end, or end it: select pg_terminate_backend(815);"

    def test_a_prepared_one_by_its_name_as_sql_spells_it(self) -> None:
        known: dict[str, Any] = {"active": True, "oldest_prepared": replace(HOLDER, pid=None, gid="it's")}
        health = judged(
            at(0, written=400 * MIB, confirmed=400 * MIB, **known),
            at(1, written=520 * MIB, confirmed=520 * MIB, **known),
        )
        assert health.culprit is not None
        assert health.culprit.kind == "prepared_transaction"
        assert health.next == "in database app: rollback prepared 'it''s'; or commit prepared"

    def test_with_its_age_where_it_may_be_seen(self) -> None:
        began = AT - timedelta(hours=3)
        seen = replace(HOLDER, began=began, query_began=began + timedelta(minutes=2))
        known: dict[str, Any] = {"active": True, "oldest": seen, "sees_sessions": True}
        health = judged(
            at(0, written=400 * MIB, confirmed=400 * MIB, **known),
            at(1, written=420 * MIB, confirmed=420 * MIB, **known),
        )
        assert health.culprit is not None
        assert health.culprit.age_seconds == 3 * 3600 + 1
        assert "open for 3h, query since 07:02:00Z) holds" in health.culprit.message
        assert "grant" not in health.culprit.message

    def test_by_another_slot(self) -> None:
        other = slot(
            name="abandoned", active=False, restart_lsn=LSN(START - 900 * MIB), wal_status="extended"
        )
        health = judged(at(0, written=MIB, active=True, others=(other,)))
        assert health.culprit is not None
        assert (health.culprit.kind, health.culprit.slot) == ("slot", "abandoned")
        assert "nobody reads from it" in health.culprit.message
        assert health.status is Level.OK
