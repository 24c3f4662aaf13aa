"""The Grafana board: every query is one, and asks for metrics that the relay really has."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cdc_outbox.state import State
from tests.servers.cache import CHECKOUT
from tests.servers.promtool import check_queries
from tests.unit.metric_names import asked, exposed

BOARD: dict[str, Any] = json.loads((CHECKOUT / "docker" / "grafana" / "cdc-outbox.json").read_text())
PANELS = [panel for panel in BOARD["panels"] if panel["type"] != "row"]
GLOBALS = {"__rate_interval": "5m", "__interval": "1m", "__range": "6h"}
"""Grafana's own variables, and what they are like."""


def queries() -> Iterator[tuple[str, str]]:
    for panel in PANELS:
        for target in panel["targets"]:
            yield f"{panel['title']} {target['refId']}", target["expr"]


def variables() -> dict[str, dict[str, Any]]:
    return {each["name"]: each for each in BOARD["templating"]["list"]}


def test_every_query_is_one(tmp_path: Path):
    values = dict.fromkeys(variables(), ".*") | GLOBALS
    check_queries(
        {name: re.sub(r"\$(\w+)", lambda one: values[one[1]], query) for name, query in queries()}, tmp_path
    )


def test_they_ask_only_for_metrics_that_the_relay_has():
    assert asked(json.dumps(BOARD)) <= exposed()


def test_the_questions_of_the_contract_are_answered():
    shown = asked(json.dumps(PANELS))
    assert shown >= {
        f"cdc_outbox_{name}"
        for name in (
            "slot_time_to_loss_seconds",
            "slot_retained_wal_bytes",
            "slot_wal_limit_bytes",
            "slot_unconfirmed_wal_bytes",
            "oldest_unacked_commit_age_seconds",
            "events_published_total",
            "event_latency_seconds_bucket",
            "state",
            "publish_errors_total",
            "session_restarts_total",
            "reconnects_total",
        )
    }
    assert {"heatmap", "state-timeline"} <= {panel["type"] for panel in PANELS}


def test_it_works_with_any_data_source_and_any_slot():
    assert variables()["datasource"]["type"] == "datasource"
    assert {panel["datasource"]["uid"] for panel in PANELS} == {"${datasource}"}
    for name, query in queries():
        for selector in re.findall(r"cdc_outbox_\w+\{(.*?)\}", query):
            assert 'job=~"$job"' in selector, name
            assert ('slot=~"$slot"' in selector) == ("cdc_outbox_slot_" in query), name


def test_each_panel_says_what_it_shows_and_in_which_unit():
    for panel in PANELS:
        assert panel["description"], panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]


def test_panels_stand_side_by_side_and_fill_their_rows():
    taken = set()
    for panel in BOARD["panels"]:
        place = panel["gridPos"]
        for y in range(place["y"], place["y"] + place["h"]):
            for x in range(place["x"], place["x"] + place["w"]):
                assert (x, y) not in taken, panel["title"]
                taken.add((x, y))
    height = max(y for _, y in taken) + 1
    assert len(taken) == 24 * height
    assert len({panel["id"] for panel in BOARD["panels"]}) == len(BOARD["panels"])


def test_the_states_are_those_of_the_relay():
    (timeline,) = [panel for panel in PANELS if panel["type"] == "state-timeline"]
    (query,) = [target["expr"] for target in timeline["targets"]]
    numbered = {int(number): state for state, number in re.findall(r'state="(\w+)"\} \* (\d+)', query)}
    named = timeline["fieldConfig"]["defaults"]["mappings"][0]["options"]
    assert numbered == {int(number): option["text"] for number, option in named.items()}
    assert set(numbered.values()) == {state.value for state in State}
