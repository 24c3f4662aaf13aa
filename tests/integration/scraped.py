"""What a running relay answers to a scraper, and its `/status`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from tests.servers.relay import RelayProcess


def scrape(relay: RelayProcess) -> dict[str, Metric]:
    """The metrics by their names without prefix and, for counters, without `_total`."""
    code, body = relay.get("/metrics")
    assert code == 200
    families = text_string_to_metric_families(body)
    return {family.name.removeprefix("cdc_outbox_"): family for family in families}


def value(relay: RelayProcess, name: str, **labels: str) -> float | None:
    """One sample's value, None where there is none."""
    family = scrape(relay).get(name)
    for sample in family.samples if family else ():
        if sample.labels.items() >= labels.items():
            return sample.value
    return None


def status(relay: RelayProcess) -> Mapping[str, Any]:
    code, body = relay.get("/status")
    assert code == 200
    document = json.loads(body)
    assert isinstance(document, dict)
    return document
