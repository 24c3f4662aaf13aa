"""What the server keeps for the slot, by each measure, and when that costs the slot."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cdc_outbox.watch.health import Level
from cdc_outbox.watch.sample import Limits
from tests.unit.judged import check, judged
from tests.unit.sampled import GIB, MIB, SLOT, at, sample, slot


class TestRetained:
    @pytest.mark.parametrize(
        ("kept", "status"),
        [(500, Level.OK), (512, Level.WARNING), (767, Level.WARNING), (768, Level.CRITICAL)],
    )
    def test_as_a_share_of_the_limit(self, kept: int, status: Level) -> None:
        # Read and catching up, so that there is no time to a loss.
        health = judged(
            at(0, written=kept * MIB, active=True),
            at(1, written=kept * MIB, confirmed=100 * MIB, active=True),
        )
        assert check(health, "retained").status is health.status is status
        assert health.advice is None

    @pytest.mark.parametrize(
        ("kept", "status"), [(1023, Level.OK), (1024, Level.WARNING), (5120, Level.CRITICAL)]
    )
    def test_in_bytes_without_a_limit(self, kept: int, status: Level) -> None:
        health = judged(at(0, written=kept * MIB, active=True, limit=None))
        assert check(health, "retained_bytes").status is status
        assert health.advice is not None
        assert health.advice.startswith("without max_slot_wal_keep_size")

    @pytest.mark.parametrize(("kept", "status"), [(9, Level.OK), (10, Level.WARNING), (25, Level.CRITICAL)])
    def test_as_a_share_of_the_volume(self, kept: int, status: Level) -> None:
        health = judged(at(0, written=kept * GIB, active=True, limit=None), volume=100 * GIB)
        assert check(health, "retained_volume").status is status
        assert f"on a volume of 100.0 GiB ({kept} %)" in health.summary

    @pytest.mark.parametrize(
        ("word", "status"),
        [
            ("reserved", Level.OK),
            ("extended", Level.WARNING),
            ("unreserved", Level.CRITICAL),
            ("lost", Level.CRITICAL),
        ],
    )
    def test_wal_status(self, word: str, status: Level) -> None:
        health = judged(sample(slot=slot(wal_status=word)))
        assert check(health, "wal_status").status is status

    def test_wal_status_is_named_where_nothing_else_is_as_bad(self) -> None:
        extended = sample(slot=slot(wal_status="extended"))
        assert "wal_status is extended; WAL kept" in judged(extended).summary
        assert "wal_status" not in judged(extended, warning={"retained": "1%"}).summary

    def test_a_wal_status_of_a_server_to_come_is_unknown(self) -> None:
        health = judged(sample(slot=slot(wal_status="borrowed")))
        assert (health.status, check(health, "wal_status").status) == (Level.OK, Level.UNKNOWN)


class TestTimeToLoss:
    @pytest.mark.parametrize(
        ("rate", "status"), [(0.04, Level.OK), (0.06, Level.WARNING), (0.3, Level.CRITICAL)]
    )
    def test_by_hours(self, rate: float, status: Level) -> None:
        health = judged(at(0, written=0), at(10, written=int(rate * 10 * MIB)))
        assert check(health, "time_to_loss").status is status
        assert "lost in about" in health.summary

    def test_is_unknown_without_a_limit_and_says_so(self) -> None:
        health = judged(at(0, written=0, limit=None), at(1, written=MIB, limit=None))
        found = check(health, "time_to_loss")
        assert (found.status, found.value) == (Level.UNKNOWN, None)
        assert "--wal-volume-size" in found.message
        assert health.document()["forecast"]["seconds_to_loss"] is None


@pytest.mark.parametrize(
    ("age", "status"), [(99_999_999, Level.OK), (10**8, Level.WARNING), (5 * 10**8, Level.CRITICAL)]
)
def test_catalog_xmin_age(age: int, status: Level) -> None:
    assert judged(sample(catalog_xmin_age=age)).status is status


def test_a_limit_of_nought_is_no_division_by_it() -> None:
    tight = sample(
        limits=Limits(slot_keep=0, wal_keep=0, segment=16 * MIB),
        slot=replace(SLOT, safe_wal_size=9),
    )
    assert check(judged(tight), "retained").value == pytest.approx(0.25)
