"""The slot watch over all figures: never negative, never a NULL read as 0, and sooner lost the faster WAL grows."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from cdc_outbox.lsn import LSN
from cdc_outbox.settings.signal import SIGNALS, threshold
from cdc_outbox.watch import words
from cdc_outbox.watch.checks import judge
from cdc_outbox.watch.forecast import Course, Forecast, Outlook
from cdc_outbox.watch.health import Level
from cdc_outbox.watch.render.nagios import nagios
from cdc_outbox.watch.render.prometheus import prometheus
from cdc_outbox.watch.render.table import table
from cdc_outbox.watch.render.text import text
from cdc_outbox.watch.sample import Limits, Sample, Transaction
from cdc_outbox.watch.thresholds import Thresholds
from tests.unit.sampled import AT, sample, slot

LSNS = st.integers(min_value=0, max_value=2**63).map(LSN)
SIZES = st.integers(min_value=0, max_value=2**62)
NAMES = st.none() | st.text(st.characters(codec="utf-8"), max_size=20)

slots = st.builds(
    slot,
    active=st.booleans(),
    active_pid=st.none() | st.integers(1, 2**31),
    restart_lsn=st.none() | LSNS,
    confirmed_flush_lsn=st.none() | LSNS,
    wal_status=st.sampled_from(["reserved", "extended", "unreserved", "lost", None]),
    safe_wal_size=st.none() | st.integers(min_value=-(2**40), max_value=2**62),
    inactive_since=st.none() | st.datetimes().map(lambda at: at.replace(tzinfo=AT.tzinfo)),
    failover=st.booleans(),
    synced=st.booleans(),
)
transactions = st.builds(
    Transaction,
    pid=st.none() | st.integers(1, 2**31),
    gid=NAMES,
    user=NAMES,
    application=NAMES,
    database=NAMES,
    began=st.none() | st.datetimes().map(lambda at: at.replace(tzinfo=AT.tzinfo)),
    query_began=st.none(),
    state=st.none(),
    xid=st.integers(3, 2**32 - 1),
    xid_age=st.integers(0, 2**31),
)
limits = st.builds(
    Limits,
    slot_keep=st.none() | SIZES,
    wal_keep=st.integers(0, 2**40),
    segment=st.sampled_from([2**20, 2**24]),
)
samples: st.SearchStrategy[Sample] = st.builds(
    lambda seconds, **known: sample(at=AT + timedelta(seconds=seconds), **known),
    st.floats(min_value=0, max_value=10**8, allow_nan=False),
    current_lsn=LSNS,
    insert_lsn=st.none() | LSNS,
    slot=st.none() | slots,
    pending=st.none() | slots,
    others=st.lists(slots, max_size=2).map(tuple),
    limits=limits,
    in_recovery=st.booleans(),
    oldest=st.none() | transactions,
    oldest_prepared=st.none() | transactions,
    wal_bytes=st.none() | SIZES,
    catalog_xmin_age=st.none() | st.integers(0, 2**31),
)
volumes = st.none() | st.integers(min_value=1, max_value=2**62)


def followed(course: list[Sample], volume: int | None) -> Forecast:
    known = Course(volume=volume)
    *_, last = [known.add(each) for each in course]
    return last


def figures(value: Any) -> list[float]:
    """All numbers in a document."""
    if isinstance(value, dict):
        return [each for one in value.values() for each in figures(one)]
    if isinstance(value, list):
        return [each for one in value for each in figures(one)]
    return [value] if isinstance(value, int | float) and not isinstance(value, bool) else []


@given(st.lists(samples, min_size=1, max_size=4), volumes)
def test_nothing_is_ever_negative_and_every_form_can_be_written(
    course: list[Sample], volume: int | None
) -> None:
    forecast = followed(course, volume)
    health = judge(course[-1], forecast, Thresholds.of(), volume=volume)
    assert all(each >= 0 for each in figures(health.document()))
    assert (forecast.seconds_to_loss is None) == (forecast.loss in (Outlook.NEVER, Outlook.UNKNOWN))
    assert (forecast.seconds_to_caught_up is None) == (forecast.caught_up in (Outlook.NEVER, Outlook.UNKNOWN))
    assert text(health).splitlines()[0].startswith(f"outbox_slot  {health.status.value.upper()}  ")
    assert nagios([health]).split("\n")[0].count("|") <= 1
    assert prometheus([health]).startswith("# HELP cdc_outbox_slot_health ")
    assert all(len(line) <= 80 and line.isprintable() for line in table([health], AT, width=80, colour=False))


@given(st.lists(samples, min_size=2, max_size=4), volumes)
def test_what_isnt_known_is_never_nought(course: list[Sample], volume: int | None) -> None:
    *before, last = course
    forecast = followed([*before, last], volume)
    document = judge(last, forecast, Thresholds.of(), volume=volume).document()
    kept = last.kept
    if kept is None or kept.restart_lsn is None:
        assert document["slot"]["retained_bytes"] is None
    if kept is None or kept.confirmed_flush_lsn is None:
        assert document["slot"]["unconfirmed_bytes"] is None
    if kept is None or kept.safe_wal_size is None:
        assert document["slot"]["safe_wal_bytes"] is None
    if last.limits.slot_keep is None:
        assert document["limits"]["max_slot_wal_keep_bytes"] is None
        if volume is None and not (kept is not None and kept.lost):
            assert document["forecast"]["seconds_to_loss"] is None
    if forecast.rates is None:
        assert document["rate"]["wal_bytes_per_second"] is None
    assert document["delivery"]["oldest_unacknowledged_seconds"] is None
    for check in document["checks"]:
        if check["status"] == "unknown":
            assert check["value"] is None or check["name"] in ("inactive", "stalled")


@given(
    st.integers(min_value=0, max_value=2**40),
    st.integers(min_value=1, max_value=2**30),
    st.integers(min_value=1, max_value=2**30),
    st.floats(min_value=0.001, max_value=10**6),
)
def test_the_faster_wal_grows_the_sooner_a_stopped_slot_is_lost(
    room: int, slow: int, more: int, seconds: float
) -> None:
    def lost_in(written: int) -> float:
        first = sample(slot=slot(active=False, safe_wal_size=room))
        second = replace(
            first,
            at=AT + timedelta(seconds=seconds),
            current_lsn=LSN(int(first.current_lsn) + written),
            insert_lsn=LSN(int(first.current_lsn) + written),
        )
        forecast = followed([first, second], None)
        assert forecast.seconds_to_loss is not None
        return forecast.seconds_to_loss

    assert lost_in(slow + more) <= lost_in(slow)
    assert (lost_in(slow) == 0) == (room == 0)


@given(
    st.integers(min_value=0, max_value=2**40),
    st.integers(min_value=0, max_value=2**30),
    st.integers(min_value=0, max_value=2**30),
    st.booleans(),
)
def test_the_slower_it_is_confirmed_the_sooner_a_slot_that_falls_behind_is_lost(
    behind: int, written: int, confirmed: int, held: bool
) -> None:
    def lost_in(moved: int) -> float:
        start = 1 << 41
        first = sample(
            current_lsn=LSN(start + behind),
            slot=slot(confirmed_flush_lsn=LSN(start), restart_lsn=LSN(start), safe_wal_size=2**40),
        )
        second = replace(
            first,
            at=AT + timedelta(seconds=1),
            current_lsn=LSN(start + behind + written),
            slot=replace(first.kept or slot(), confirmed_flush_lsn=LSN(start + moved)),
        )
        forecast = followed([first, second], None)
        return float("inf") if forecast.seconds_to_loss is None else forecast.seconds_to_loss

    moved = min(confirmed, behind)
    assert lost_in(moved // 2) <= lost_in(moved)


@given(st.lists(samples, min_size=1, max_size=3), st.sampled_from(list(SIGNALS)))
def test_a_threshold_that_is_off_never_makes_it_worse(course: list[Sample], signal: str) -> None:
    forecast, strict = followed(course, None), Thresholds.of()
    lax = replace(strict, **{signal: replace(getattr(strict, signal), warning=None, critical=None)})
    before = judge(course[-1], forecast, strict).status
    after = judge(course[-1], forecast, lax).status
    assert after.gravity <= before.gravity
    assert judge(course[-1], forecast, lax).status is not Level.WARNING or before is not Level.OK


@given(st.integers(min_value=0, max_value=2**63))
def test_sizes_are_said_in_few_letters(size: int) -> None:
    said = words.size(size)
    assert len(said) <= 10
    assert float(said.split()[0]) >= 0


@given(st.sampled_from(list(SIGNALS)), st.text(max_size=12))
def test_a_threshold_is_read_or_refused(signal: str, spelled: str) -> None:
    try:
        value = threshold(signal, spelled)
    except ValueError:
        return
    assert value is None or isinstance(value, str) or value > 0
