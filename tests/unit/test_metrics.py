"""The metrics by their contract: names, types, labels, what is 0 from the start and what is absent."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta

import pytest
from prometheus_client import Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from cdc_outbox import __version__
from cdc_outbox.mark import Marks
from cdc_outbox.state import State
from cdc_outbox.tally import TOPICS
from cdc_outbox.watch import exposition
from cdc_outbox.watch.forecast import Basis, Outlook
from cdc_outbox.watch.sample import Spill, Transaction
from tests.servers.cache import CHECKOUT
from tests.unit.metric_names import asked, families
from tests.unit.sampled import AT, FORECAST, MIB, Watched, record, sample, slot

ALWAYS = {
    "build_info": "gauge",
    "state": "gauge",
    "events_received": "counter",
    "events_published": "counter",
    "events_skipped": "counter",
    "dead_letters": "counter",
    "rows_cleaned": "counter",
    "cleanup_failures": "counter",
    "publish_errors": "counter",
    "published_bytes": "counter",
    "event_latency_seconds": "histogram",
    "publish_duration_seconds": "histogram",
    "transaction_events": "histogram",
    "inflight_events": "gauge",
    "inflight_bytes": "gauge",
    "oldest_unacked_commit_age_seconds": "gauge",
    "reconnects": "counter",
    "keepalives_received": "counter",
    "status_updates_sent": "counter",
    "dead_letters_open": "gauge",
    "parked_keys": "gauge",
    "guard_checks": "counter",
    "push_failures": "counter",
    "session_restarts": "counter",
}
"""Without `_total`, which the parser takes from counters."""

BY_SAMPLE = {
    "publication_ok": "gauge",
    "slot_active": "gauge",
    "slot_retained_wal_bytes": "gauge",
    "slot_unconfirmed_wal_bytes": "gauge",
    "slot_safe_wal_bytes": "gauge",
    "slot_wal_limit_bytes": "gauge",
    "slot_wal_status": "gauge",
    "slot_catalog_xmin_age": "gauge",
    "oldest_transaction_age_seconds": "gauge",
}

OPEN = record(Transaction, pid=7, user="app", database="app", began=AT - timedelta(seconds=90), xid_age=4)


class Scraped:
    """What a scrape brings, by the names of the contract without their prefix."""

    def __init__(self, watched: Watched) -> None:
        self.text = exposition.text(watched.registry).decode()
        self.families: dict[str, Metric] = {
            family.name.removeprefix("cdc_outbox_"): family
            for family in text_string_to_metric_families(self.text)
        }

    def values(self, name: str, *labels: str) -> dict[tuple[str, ...], float]:
        """Values of label names → value, of a family that has just one kind of sample."""
        samples = self.families[name].samples
        return {tuple(each.labels[label] for label in labels): each.value for each in samples}

    def value(self, name: str) -> float:
        (one,) = self.families[name].samples
        return one.value

    def kinds(self) -> Mapping[str, str]:
        return {name: family.type for name, family in self.families.items()}


@pytest.fixture
def watched() -> Watched:
    return Watched()


def test_before_anything_has_happened_all_is_there_and_counters_are_zero(watched: Watched) -> None:
    scraped = Scraped(watched)
    assert scraped.kinds() == ALWAYS
    counters = [family for family in scraped.families.values() if family.type == "counter"]
    assert {each.value for family in counters for each in family.samples} == {0}
    assert scraped.value("events_received") == 0
    assert scraped.values("guard_checks", "result") == {("passed",): 0, ("failed",): 0, ("unanswered",): 0}
    assert scraped.values("build_info", "version") == {(__version__,): 1}


def test_it_is_the_same_text_as_the_librarys_own(watched: Watched) -> None:
    tally = watched.status.tally
    tally.published['a "quoted"\\topic\n'] += 12_345_678
    tally.confirmed("orders", 40, 9000, since=time.monotonic(), commits_us=(time.time_ns() // 1000, 0))
    watched.sampler.fresh = sample(spill=Spill(1, 5), oldest=OPEN)
    watched.status.oldest_unacknowledged()
    lines = exposition.text(watched.registry).splitlines()
    assert lines == generate_latest(watched.registry).splitlines()


def test_of_marks_only_where_rows_are_marked(watched: Watched) -> None:
    assert not any(name.startswith("mark_") for name in Scraped(watched).families)
    watched.status.marks = Marks()
    watched.status.marks.marked, watched.status.marks.dropped, watched.status.marks.waiting = 5, 3, 2
    watched.status.marks.failures["missing_right"] = 4
    scraped = Scraped(watched)
    assert [scraped.value(name) for name in ("mark_rows", "mark_dropped", "mark_waiting")] == [5, 3, 2]
    assert scraped.values("mark_failures", "error") == {("missing_right",): 4}


def test_state_is_one_of_all(watched: Watched) -> None:
    watched.status.change(State.HELD, "because")
    states = Scraped(watched).values("state", "state")
    assert {state for (state,), value in states.items() if value} == {"held"}
    assert len(states) == len(State)


def test_what_was_delivered(watched: Watched) -> None:
    tally = watched.status.tally
    now = time.time_ns() // 1000
    tally.confirmed(
        "orders", 40, 9000, since=time.monotonic() - 0.25, commits_us=(now - 400_000, now - 400_000)
    )
    tally.transactions_of({1: 30, 10: 1})
    tally.publish_errors["not_leader_for_partition"] += 1
    scraped = Scraped(watched)
    assert scraped.values("events_published", "topic") == {("orders",): 40}
    assert scraped.values("published_bytes", "topic") == {("orders",): 9000}
    assert scraped.values("publish_errors", "error") == {("not_leader_for_partition",): 1}
    assert scraped.value("last_ack_timestamp_seconds") == pytest.approx(time.time(), abs=5)
    latency = {
        each.labels.get("le", each.name): each.value
        for each in scraped.families["event_latency_seconds"].samples
    }
    assert latency["0.3"] == 0
    assert latency["+Inf"] == latency["cdc_outbox_event_latency_seconds_count"] == 40
    assert latency["cdc_outbox_event_latency_seconds_sum"] == pytest.approx(16, rel=0.5)
    rows = {
        each.labels.get("le", each.name): each.value
        for each in scraped.families["transaction_events"].samples
    }
    assert (rows["1.0"], rows["10.0"], rows["cdc_outbox_transaction_events_sum"]) == (30, 31, 40)


def test_topics_beyond_the_first_hundred_are_other(watched: Watched) -> None:
    for number in range(TOPICS + 50):
        watched.status.tally.published[f"topic-{number}"] += 1
    topics = Scraped(watched).values("events_published", "topic")
    assert len(topics) == TOPICS + 1
    assert topics["other",] == 50


def test_the_slot_by_a_fresh_sample(watched: Watched) -> None:
    watched.sampler.fresh = sample()
    scraped = Scraped(watched)
    assert scraped.kinds() == ALWAYS | BY_SAMPLE
    label = ("outbox_slot",)
    for name, value in {
        "slot_active": 1,
        "slot_retained_wal_bytes": 4 * MIB,
        "slot_unconfirmed_wal_bytes": 2 * MIB,
        "slot_safe_wal_bytes": 60 * MIB,
        "slot_wal_limit_bytes": 64 * MIB,
    }.items():
        assert scraped.values(name, "slot") == {label: value}
    statuses = scraped.values("slot_wal_status", "slot", "status")
    assert statuses == {
        ("outbox_slot", word): int(word == "reserved")
        for word in ("reserved", "extended", "unreserved", "lost")
    }
    assert scraped.value("publication_ok") == 1
    assert scraped.value("oldest_transaction_age_seconds") == 0


def test_without_a_limit_there_is_no_safe_size_and_no_time_to_loss(watched: Watched) -> None:
    unlimited = replace(sample().limits, slot_keep=None)
    watched.sampler.fresh = sample(limits=unlimited, slot=slot(safe_wal_size=None))
    watched.sampler.forecast = FORECAST
    families = Scraped(watched).families
    assert not {"slot_safe_wal_bytes", "slot_wal_limit_bytes", "slot_time_to_loss_seconds"} & set(families)


@pytest.mark.parametrize(
    ("loss", "seconds", "value"),
    [(Outlook.IN, 1234.5, 1234.5), (Outlook.NOW, 0.0, 0.0), (Outlook.NEVER, None, float("inf"))],
)
def test_time_to_loss(loss: Outlook, seconds: float | None, value: float, watched: Watched) -> None:
    watched.sampler.fresh = sample()
    watched.sampler.forecast = replace(FORECAST, loss=loss, seconds_to_loss=seconds, basis=Basis.LIMIT)
    assert Scraped(watched).value("slot_time_to_loss_seconds") == value


def test_an_inactive_slot_says_since_when(watched: Watched) -> None:
    since = AT - timedelta(minutes=14)
    watched.sampler.fresh = sample(slot=slot(active=False, active_pid=None, inactive_since=since))
    scraped = Scraped(watched)
    assert scraped.value("slot_active") == 0
    assert scraped.value("slot_inactive_since_timestamp_seconds") == since.timestamp()


def test_before_17_an_inactive_slot_is_inactive_since_it_was_seen_so(watched: Watched) -> None:
    watched.sampler.fresh = sample(slot=slot(active=False, active_pid=None))
    assert "slot_inactive_since_timestamp_seconds" not in Scraped(watched).families
    watched.sampler.forecast = replace(FORECAST, inactive_at=AT)
    assert Scraped(watched).value("slot_inactive_since_timestamp_seconds") == AT.timestamp()


def test_a_slot_that_is_gone_is_not_active_and_has_no_figures(watched: Watched) -> None:
    watched.sampler.fresh = sample(slot=None)
    scraped = Scraped(watched)
    assert scraped.value("slot_active") == 0
    assert not {"slot_retained_wal_bytes", "slot_unconfirmed_wal_bytes", "slot_wal_status"} & set(
        scraped.families
    )


def test_a_lost_slot(watched: Watched) -> None:
    lost = slot(active=False, restart_lsn=None, wal_status="lost", safe_wal_size=None)
    watched.sampler.fresh = sample(slot=lost)
    scraped = Scraped(watched)
    assert scraped.values("slot_wal_status", "slot", "status")["outbox_slot", "lost"] == 1
    assert "slot_retained_wal_bytes" not in scraped.families
    assert scraped.value("slot_unconfirmed_wal_bytes") == 2 * MIB


def test_spilled_bytes_and_a_wrong_publication(watched: Watched) -> None:
    wrong = replace(sample().publication, problem="the publication is gone")
    watched.sampler.fresh = sample(publication=wrong, spill=Spill(2, 5 * MIB))
    scraped = Scraped(watched)
    assert scraped.value("publication_ok") == 0
    assert scraped.values("slot_spilled_bytes", "slot") == {("outbox_slot",): 5 * MIB}


def test_the_oldest_transaction_is_absent_where_the_role_may_not_see_its_age(watched: Watched) -> None:
    watched.sampler.fresh = sample(oldest=OPEN)
    assert Scraped(watched).value("oldest_transaction_age_seconds") == 90
    prepared = replace(OPEN, pid=None, gid="x", began=AT - timedelta(hours=1))
    watched.sampler.fresh = sample(oldest=OPEN, oldest_prepared=prepared)
    assert Scraped(watched).value("oldest_transaction_age_seconds") == 3600
    watched.sampler.fresh = sample(oldest=replace(OPEN, began=None))
    assert "oldest_transaction_age_seconds" not in Scraped(watched).families


def test_the_librarys_servers_are_not_loaded_and_the_library_is_whole_afterwards() -> None:
    script = (
        "import sys; before = set(sys.modules)\n"
        "import cdc_outbox.watch.exposition\n"
        "assert 'prometheus_client' not in sys.modules\n"
        "assert not {'http.server', 'wsgiref', 'urllib.request'} & (set(sys.modules) - before)\n"
        "from prometheus_client import CollectorRegistry, Counter, start_http_server\n"
        "from cdc_outbox.watch.exposition import CollectorRegistry as ours\n"
        "assert ours is CollectorRegistry\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_the_reference_has_each_metric_with_its_kind_and_labels() -> None:
    text = (CHECKOUT / "docs" / "reference" / "metrics.md").read_text()
    rows = re.findall(r"^\| `(cdc_outbox_\w+)` \| (\w+) \| (.*?) \| ", text, re.MULTILINE)
    assert {name: (kind, set(re.findall(r"`(\w+)`", labels))) for name, kind, labels in rows} == families()
    assert asked(text) - {"cdc_outbox_slot_"} <= set(families())
