"""Which metrics the relay has, and which ones a text asks for."""

from __future__ import annotations

import re
from datetime import timedelta

from prometheus_client.parser import text_string_to_metric_families

from cdc_outbox.mark import Marks
from cdc_outbox.watch import exposition
from cdc_outbox.watch.forecast import Basis, Outlook
from cdc_outbox.watch.sample import Spill
from tests.unit.sampled import AT, FORECAST, Watched, record, sample, slot

NAME = re.compile(r"\bcdc_outbox_\w+")


def families() -> dict[str, tuple[str, set[str]]]:
    """Name to kind and labels of all that a scrape can bring, of an active slot and of an inactive one."""
    found: dict[str, tuple[str, set[str]]] = {}
    for active in (True, False):
        for family in text_string_to_metric_families(_scraped(active=active)):
            labels = {label for each in family.samples for label in each.labels} - {"le"}
            name = family.name + ("_total" if family.type == "counter" else "")
            found[name] = (family.type, labels)
    return found


def _scraped(*, active: bool) -> str:
    watched = Watched()
    tally = watched.status.tally
    tally.confirmed("topic", 1, 1, since=0.0, commits_us=(0, 0))
    watched.status.marks = Marks()
    watched.status.marks.failures["missing_right"] = 1
    tally.publish_errors["held"] = tally.restarts["held"] = tally.reconnects["kafka", "held"] = 1
    tally.cleanup_failures["setup"] = tally.push_failures["refused"] = 1
    watched.sampler.forecast = record(
        type(FORECAST),
        loss=Outlook.IN,
        seconds_to_loss=3600.0,
        basis=Basis.LIMIT,
        caught_up=Outlook.NOW,
        inactive_at=None if active else AT - timedelta(hours=1),
        began=AT,
    )
    watched.sampler.fresh = sample(slot=slot(active=active), spill=Spill(1, 2))
    return exposition.text(watched.registry).decode()


def exposed() -> set[str]:
    """The names of all series of those families, as a query names them."""
    parts = {"histogram": ("_bucket", "_sum", "_count")}
    return {name + part for name, (kind, _) in families().items() for part in parts.get(kind, ("",))}


def asked(text: str) -> set[str]:
    """The relay's metrics that a text names."""
    return set(NAME.findall(text))
