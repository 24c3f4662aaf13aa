"""Rates and what they mean for the slot: stopped, slow, keeping up, held by somebody's transaction."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from cdc_outbox.lsn import LSN
from cdc_outbox.postgres.witness import Witness
from cdc_outbox.watch.forecast import Basis, Course, Forecast, Outlook
from cdc_outbox.watch.rates import FAST, Average
from cdc_outbox.watch.sample import Sample, Transaction
from tests.unit.sampled import AT, HOLDER, MIB, START, at, sample, slot


def course(*samples: Sample, volume: int | None = None) -> Forecast:
    """What the last of these samples says."""
    followed = Course(volume=volume)
    *_, last = [followed.add(each) for each in samples]
    return last


class TestAverage:
    def test_is_right_from_the_first_interval_on(self) -> None:
        average = Average(FAST)
        assert average.value is None
        average.add(8.0, 1)
        assert average.value == pytest.approx(8.0)

    def test_forgets_all_but_a_third(self) -> None:
        average = Average(FAST)
        average.add(100.0, 100 * FAST)
        average.add(0.0, FAST)
        assert average.value == pytest.approx(36.8, abs=0.1)

    def test_is_the_same_in_one_step_and_in_many(self) -> None:
        whole, parts = Average(FAST), Average(FAST)
        for average in (whole, parts):
            average.add(10.0, 60)
        whole.add(50.0, 60)
        for _ in range(60):
            parts.add(50.0, 1)
        assert parts.value == pytest.approx(whole.value)


class TestStopped:
    def test_the_slot_is_lost_when_the_rest_is_written(self) -> None:
        found = course(at(0, written=0), at(1, written=4 * MIB))
        assert found.rates is not None
        assert found.rates.wal == pytest.approx(4 * MIB)
        assert found.basis is Basis.LIMIT
        assert found.loss is Outlook.IN
        assert found.seconds_to_loss == pytest.approx(1020 / 4)
        assert (found.caught_up, found.seconds_to_caught_up) == (Outlook.NEVER, None)

    def test_a_burst_counts_at_once_and_isnt_forgotten_in_an_hour(self) -> None:
        followed = Course()
        for hour in range(7):
            followed.add(at(hour * 3600.0, written=hour * 36 * MIB))
        quiet = followed.add(at(6 * 3600.0 + 60, written=216 * MIB))
        burst = followed.add(at(6 * 3600.0 + 120, written=(216 + 600) * MIB))
        assert quiet.rates is not None
        assert burst.rates is not None
        assert quiet.rates.wal == quiet.rates.wal_slow
        assert burst.rates.wal == burst.rates.wal_fast > 100 * quiet.rates.wal
        assert burst.seconds_to_loss is not None
        assert burst.seconds_to_loss < 600

    def test_no_wal_no_loss(self) -> None:
        found = course(at(0, written=500 * MIB), at(1, written=500 * MIB))
        assert (found.loss, found.seconds_to_loss) == (Outlook.NEVER, None)

    def test_one_sample_tells_no_time(self) -> None:
        found = course(at(0, written=10 * MIB))
        assert found.rates is None
        assert (found.loss, found.seconds_to_loss) == (Outlook.UNKNOWN, None)

    def test_nothing_left_is_now(self) -> None:
        found = course(at(0, written=1030 * MIB))
        assert (found.loss, found.seconds_to_loss, found.left) == (Outlook.NOW, 0.0, 0)

    def test_seen_inactive_since(self) -> None:
        followed = Course()
        followed.add(at(0, written=0, active=True))
        followed.add(at(5, written=MIB))
        assert followed.add(at(9, written=2 * MIB)).inactive_at == AT + timedelta(seconds=5)
        assert followed.add(at(12, written=3 * MIB, active=True)).inactive_at is None


def idle(seconds: float, *, timeout: int | None = 3600, **changes: Any) -> Sample:
    """Little is written, nobody reads, and the server gives up such slots."""
    quiet = at(0, written=0)
    return replace(
        quiet,
        slot=slot(
            **{"active": False, "active_pid": None, "inactive_since": AT - timedelta(seconds=seconds)}
            | changes
        ),
        limits=replace(quiet.limits, idle=timeout),
    )


class TestGivenUpWhenIdle:
    def test_however_little_is_kept(self) -> None:
        found = course(idle(3000))
        assert (found.loss, found.seconds_to_loss, found.basis) == (Outlook.IN, 600.0, Basis.IDLE)

    def test_at_the_next_checkpoint(self) -> None:
        found = course(idle(3601))
        assert (found.loss, found.seconds_to_loss, found.basis) == (Outlook.NOW, 0.0, Basis.IDLE)

    @pytest.mark.parametrize(
        "quiet",
        [
            idle(3000, timeout=None),
            idle(59),
            idle(14, timeout=30),
            idle(3601, active=True),
            idle(3601, restart_lsn=None),
            idle(3601, wal_status="lost", safe_wal_size=None),
            replace(idle(3601, synced=True), in_recovery=True),
        ],
        ids=["off", "a restart", "a quick one", "read", "without WAL", "lost", "carried to a standby"],
    )
    def test_not(self, quiet: Sample) -> None:
        assert course(quiet).basis is Basis.LIMIT

    def test_unless_its_WAL_ends_before(self) -> None:  # noqa: N802 - a proper name
        found = course(replace(idle(60), slot=slot(active=False, active_pid=None, safe_wal_size=0)))
        assert (found.loss, found.basis) == (Outlook.NOW, Basis.LIMIT)


class TestWithoutALimit:
    def test_nobody_can_tell(self) -> None:
        found = course(at(0, written=0, limit=None), at(1, written=MIB, limit=None))
        assert (found.loss, found.seconds_to_loss, found.basis, found.left) == (
            Outlook.UNKNOWN,
            None,
            None,
            None,
        )

    def test_the_volume_less_what_the_slot_keeps(self) -> None:
        found = course(at(0, written=0, limit=None), at(1, written=MIB, limit=None), volume=101 * MIB)
        assert (found.basis, found.left) == (Basis.VOLUME_ESTIMATED, 100 * MIB)
        assert found.loss is Outlook.IN
        assert found.seconds_to_loss == pytest.approx(100)

    def test_the_volume_less_pg_wal_where_that_may_be_seen(self) -> None:
        found = course(
            at(0, written=0, limit=None),
            at(1, written=MIB, limit=None, wal_bytes=51 * MIB),
            volume=101 * MIB,
        )
        assert (found.basis, found.left) == (Basis.VOLUME, 50 * MIB)


class TestRead:
    def test_one_that_keeps_up_is_never_lost_however_much_others_write(self) -> None:
        found = course(
            at(0, written=0, confirmed=0, active=True),
            at(1, written=50 * MIB, confirmed=0, active=True),
        )
        assert (found.loss, found.caught_up) == (Outlook.NEVER, Outlook.NOW)

    def test_a_slow_one_is_lost_by_the_difference(self) -> None:
        found = course(
            at(0, written=500 * MIB, confirmed=0, active=True),
            at(1, written=510 * MIB, confirmed=6 * MIB, active=True),
        )
        assert found.loss is Outlook.IN
        assert found.seconds_to_loss == pytest.approx((1024 - 510) / 4)
        assert found.caught_up is Outlook.NEVER

    def test_a_fast_one_catches_up(self) -> None:
        found = course(
            at(0, written=500 * MIB, confirmed=0, active=True),
            at(1, written=510 * MIB, confirmed=30 * MIB, active=True),
        )
        assert found.loss is Outlook.NEVER
        assert found.caught_up is Outlook.IN
        assert found.seconds_to_caught_up == pytest.approx(480 / 20)

    def test_one_that_has_stopped_confirming_is_lost_by_all_that_is_written(self) -> None:
        """However fast it was for minutes before: an average of five minutes would go on to hope."""
        followed = Course()
        for second in range(0, 601, 4):
            followed.add(
                at(second, written=second * MIB, confirmed=second * MIB, restart=second * MIB, active=True)
            )
        for second in range(604, 640, 4):
            found = followed.add(
                at(second, written=second * MIB, confirmed=600 * MIB, restart=600 * MIB, active=True)
            )
        assert not found.keeps_up
        assert found.seconds_to_loss == pytest.approx(1024 - 36, rel=0.01)

    def test_on_a_standby_one_that_is_carried_over_is_never_lost_though_nobody_reads_it_there(self) -> None:
        def carried(second: int, confirmed: int) -> Sample:
            moved = at(second, written=second * 8 * MIB, confirmed=confirmed, restart=confirmed)
            return replace(moved, in_recovery=True, slot=replace(moved.slot or slot(), synced=True))

        found = course(*(carried(second, max(0, second - 6) * 8 * MIB) for second in range(0, 121, 4)))
        assert (found.loss, found.caught_up) == (Outlook.NEVER, Outlook.NOW)
        left = course(*(carried(second, 0) for second in range(0, 121, 4)))
        assert left.loss is Outlook.IN, "the primary's is gone, or the standby doesn't follow any more"

    def test_an_idle_database_is_caught_up(self) -> None:
        found = course(
            at(0, written=100, confirmed=0, active=True), at(1, written=100, confirmed=0, active=True)
        )
        assert (found.loss, found.caught_up) == (Outlook.NEVER, Outlook.NOW)


class TestASingleLook:
    """A second after somebody's burst: a reader of an idle outbox confirms every ten, and none of it was seen."""

    def looked(self, seconds: float) -> Forecast:
        """The reader confirmed so many seconds before, as the witness row says."""
        row = Witness("outbox_slot", "7", 1, LSN(START), updated_at=AT - timedelta(seconds=seconds))
        known: dict[str, Any] = {"active": True, "witness": row}
        return course(at(0, written=100 * MIB, **known), at(1, written=101 * MIB, **known))

    def test_says_nothing_of_a_reader_that_has_confirmed_lately(self) -> None:
        found = self.looked(8)
        assert (found.loss, found.seconds_to_loss) == (Outlook.UNKNOWN, None)
        assert (found.caught_up, found.seconds_to_caught_up) == (Outlook.UNKNOWN, None)

    def test_sees_one_that_stands(self) -> None:
        found = self.looked(40)
        assert found.loss is Outlook.IN
        assert found.seconds_to_loss == pytest.approx(1024 - 101)
        assert found.caught_up is Outlook.NEVER


class TestAfterAQuietNight:
    """The averages are slow to believe in a burst; what was seen half a minute ago is better."""

    def burst(self, confirmed: int) -> Forecast:
        """Forty seconds of 50 MiB a second after hours of nothing; so much of it confirmed."""
        followed = Course()
        for minute in range(200):
            followed.add(at(minute * 60.0, written=0, active=True))
        for second in range(0, 41, 4):
            moved = min(confirmed, second * 50 * MIB)
            last = followed.add(
                at(
                    199 * 60.0 + second,
                    written=second * 50 * MIB,
                    confirmed=moved,
                    restart=moved,
                    active=True,
                    limit=8192 * MIB,
                )
            )
        return last

    def test_a_reader_that_is_ten_seconds_behind_is_no_alarm(self) -> None:
        found = self.burst(1500 * MIB)
        assert found.keeps_up
        assert (found.loss, found.caught_up) == (Outlook.NEVER, Outlook.NOW)

    def test_a_reader_that_is_more_than_half_a_minute_behind_is(self) -> None:
        found = self.burst(300 * MIB)
        assert not found.keeps_up
        assert found.loss is Outlook.IN

    def test_what_is_held_for_less_than_a_minute_is_nobodys_fault(self) -> None:
        followed = Course()
        for minute in range(200):
            followed.add(at(minute * 60.0, written=0, active=True, oldest=HOLDER))
        known: dict[str, Any] = {"active": True, "limit": 8192 * MIB, "oldest": HOLDER}
        seconds = range(4, 101, 4)
        held = [
            followed.add(
                at(
                    199 * 60.0 + second,
                    written=second * 50 * MIB,
                    confirmed=second * 50 * MIB,
                    restart=min(second, 8) * 50 * MIB,
                    **known,
                )
            ).holder
            for second in seconds
        ]
        since = next(second for second, holder in zip(seconds, held, strict=True) if holder is not None)
        assert 68 <= since <= 76


class TestHeld:
    def held(self, **changes: Any) -> Forecast:
        known = {"active": True, "restart": 0, "oldest": HOLDER, **changes}
        return course(
            at(0, written=400 * MIB, confirmed=400 * MIB, **known),
            at(1, written=401 * MIB, confirmed=401 * MIB, **known),
        )

    def test_by_an_open_transaction(self) -> None:
        found = self.held()
        assert found.holder == HOLDER
        assert found.loss is Outlook.IN
        assert found.seconds_to_loss == pytest.approx(623)
        assert found.caught_up is Outlook.NOW

    def test_by_a_prepared_one(self) -> None:
        prepared = Transaction(
            None, "tx", "app", None, "app", AT - timedelta(days=1), None, None, 600, 99_000
        )
        assert self.held(oldest_prepared=prepared).holder == prepared

    @pytest.mark.parametrize(("age", "named"), [(2, False), (60, True)])
    def test_by_one_that_one_sample_has_seen_if_it_is_old(self, age: float, named: bool) -> None:
        seen = Transaction(815, None, "app", "", "app", AT - timedelta(seconds=age), None, "active", 700, 9)
        found = course(
            at(0, written=400 * MIB, confirmed=400 * MIB, active=True),
            at(1, written=401 * MIB, confirmed=401 * MIB, active=True, oldest=seen),
        )
        assert (found.holder == seen) == named

    def test_not_by_one_that_only_the_last_sample_has_seen(self) -> None:
        found = course(
            at(0, written=400 * MIB, confirmed=400 * MIB, active=True),
            at(1, written=401 * MIB, confirmed=401 * MIB, active=True, oldest=HOLDER),
        )
        assert found.holder is None

    def test_not_where_no_more_is_kept_than_always(self) -> None:
        assert self.held(restart=390 * MIB).holder is None

    def test_a_slot_that_nobody_reads_is_nobody_elses_fault(self) -> None:
        assert self.held(active=False).holder is None


class TestBeginsAnew:
    @pytest.mark.parametrize(
        "other",
        [
            at(2, written=1 * MIB),
            at(2, written=9 * MIB, system_identifier="8"),
            at(2, written=9 * MIB, timeline=2),
            at(0.5, written=9 * MIB),
        ],
        ids=["WAL went back", "another server", "another timeline", "the clock went back"],
    )
    def test_where_the_server_isnt_the_one_it_was(self, other: Sample) -> None:
        found = course(at(0, written=0), at(1, written=4 * MIB), other)
        assert found.rates is None
        assert found.confirmed_before is None
        assert found.began == other.at

    def test_where_the_slot_was_set_back(self) -> None:
        found = course(at(0, written=8 * MIB, confirmed=4 * MIB), at(1, written=8 * MIB, confirmed=2 * MIB))
        assert found.rates is None


def test_a_lost_slot_is_lost_now() -> None:
    gone = slot(active=False, wal_status="lost", safe_wal_size=None, restart_lsn=None)
    found = course(sample(slot=gone), sample(slot=gone, at=AT + timedelta(seconds=1)))
    assert (found.loss, found.seconds_to_loss, found.caught_up) == (Outlook.NOW, 0.0, Outlook.NEVER)


def test_without_a_slot_nothing_is_told() -> None:
    found = course(sample(slot=None), sample(slot=None, at=AT + timedelta(seconds=1)))
    assert (found.loss, found.caught_up) == (Outlook.UNKNOWN, Outlook.UNKNOWN)
