"""The alerts that are shipped: Prometheus takes them, they fire and don't, and ask for metrics that there are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.servers.cache import CHECKOUT
from tests.servers.promtool import check_queries, promtool
from tests.unit.metric_names import asked, exposed

RULES = CHECKOUT / "docker" / "prometheus" / "alerts.yaml"
TESTS = RULES.with_name("alerts_test.yaml")
RUNBOOKS = CHECKOUT / "docs" / "how-to" / "alerts"

ALERTS = {
    "RelayDown": {"critical"},
    "RestartLoop": {"warning"},
    "SlotInactive": {"warning", "critical"},
    "SlotLost": {"critical"},
    "SlotNearLimit": {"warning", "critical"},
    "SlotWillBeLost": {"warning", "critical"},
    "UnlimitedRetention": {"info", "warning", "critical"},
    "CatalogXminOld": {"warning", "critical"},
    "LongTransaction": {"warning"},
    "PublicationDrift": {"critical"},
    "DeliveryStalled": {"warning", "critical"},
    "DeliverySlow": {"warning"},
    "PublishErrors": {"warning"},
    "DeadLetters": {"warning"},
}
"""The alerts of the contract with their severities."""


def rules() -> list[tuple[str, str]]:
    """The name and the text of each rule."""
    parts = re.split(r"^      - alert: (\w+)$", RULES.read_text(), flags=re.MULTILINE)
    return list(zip(parts[1::2], parts[2::2], strict=True))


def test_prometheus_takes_the_rules():
    promtool("check", "rules", RULES)


def test_they_fire_when_they_should_and_only_then():
    promtool("test", "rules", TESTS)


def test_each_is_seen_to_fire_with_each_severity():
    seen = re.findall(r'ALERTS\{alertname="(\w+)", .*?severity="(\w+)"\}', TESTS.read_text())
    assert set(seen) == {(name, severity) for name, severities in ALERTS.items() for severity in severities}


def test_all_alerts_are_there_with_their_severities():
    found: dict[str, set[str]] = {}
    for name, text in rules():
        found.setdefault(name, set()).update(re.findall(r"severity: (\w+)", text))
    assert found == ALERTS


@pytest.mark.parametrize(("name", "text"), rules(), ids=[name for name, _ in rules()])
def test_each_says_what_and_has_a_runbook(name: str, text: str):
    assert re.search(r"^          summary: \S", text, re.MULTILINE)
    assert re.search(r"^          description: \S", text, re.MULTILINE)
    assert f"runbook_url: docs/how-to/alerts/{name}.md" in text
    runbook = (RUNBOOKS / f"{name}.md").read_text()
    assert runbook.startswith(f"# {name}\n")
    assert re.findall(r"^## (.*)$", runbook, re.MULTILINE) == ["What it means", "Look", "Act"]


def test_no_runbook_is_without_its_alert():
    assert {path.stem for path in RUNBOOKS.glob("*.md")} == set(ALERTS)


def test_they_ask_only_for_metrics_that_the_relay_has():
    assert asked(RULES.read_text()) <= exposed()
    assert asked(TESTS.read_text()) <= exposed()


def test_a_query_that_is_none_is_refused(tmp_path: Path):
    with pytest.raises(AssertionError, match="parse error"):
        check_queries({"here": "sum by ("}, tmp_path)


def test_the_example_of_a_configuration_is_one(tmp_path: Path):
    page = (RUNBOOKS.parent / "watch-with-prometheus.md").read_text()
    (example,) = re.findall(r"<!-- config: prometheus.yml -->\n```yaml\n(.*?)```", page, re.DOTALL)
    file = tmp_path / "prometheus.yml"
    file.write_text(example)
    promtool("check", "config", "--syntax-only", file)
