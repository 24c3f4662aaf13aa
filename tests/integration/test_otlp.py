"""A relay that pushes its metrics to an OpenTelemetry collector, which is well, away, slow, or refuses."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from cdc_outbox.watch.otlp import LAST
from tests.integration.conftest import Database
from tests.servers.cache import CHECKOUT
from tests.servers.collector import Collector, Labels
from tests.servers.kafka import Kafka
from tests.servers.pipeline import Pipeline
from tests.servers.relay import RelayProcess
from tests.servers.shell import Running, Shell, blocks, shell_of_checkout
from tests.servers.wait import PATIENCE, eventually

PAGE = blocks((CHECKOUT / "docs" / "how-to" / "watch-with-prometheus.md").read_text())
TOKEN = f"token-{secrets.token_hex(8)}"

Series = dict[tuple[str, Labels], float]


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as listening:
        yield listening


@pytest.fixture
def pipeline(
    outbox: Database, kafka: Kafka, make_pipeline: Callable[..., Pipeline], collector: Collector
) -> Pipeline:
    """Servers, and relays that push three times a second, with a token."""
    environment = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector.address,
        "OTEL_EXPORTER_OTLP_HEADERS": f"authorization=Bearer%20{TOKEN}",
        "OTEL_METRIC_EXPORT_INTERVAL": "300",
    }
    return make_pipeline(outbox, kafka, flags=["--otel"], env=environment).prepare().init()


def scraped(relay: RelayProcess) -> Series:
    code, body = relay.get("/metrics")
    assert code == 200
    families = text_string_to_metric_families(body)
    return {
        (each.name, frozenset(each.labels.items())): each.value
        for family in families
        for each in family.samples
    }


def published(pipeline: Pipeline, series: Series) -> float | None:
    return series.get(("cdc_outbox_events_published_total", frozenset({("topic", pipeline.topic)})))


def of_push(relay: RelayProcess) -> list[str]:
    """What the log says of pushes."""
    return [event for each in relay.records if (event := str(each["event"])).startswith("metrics are ")]


def wait_said(relay: RelayProcess, *events: str) -> None:
    eventually(lambda: of_push(relay) == [*events], PATIENCE, relay.text)


def failures(relay: RelayProcess, reason: str) -> float:
    return scraped(relay).get(("cdc_outbox_push_failures_total", frozenset({("reason", reason)})), 0)


def test_what_is_pushed_is_what_is_scraped(pipeline: Pipeline, collector: Collector) -> None:
    relay = pipeline.start()
    pipeline.writer().write(30, rows_per_transaction=3)
    eventually(lambda: published(pipeline, scraped(relay)) == 30, PATIENCE, relay.text)
    eventually(
        lambda: any(name.startswith("cdc_outbox_slot_") for name, _ in scraped(relay)), PATIENCE, relay.text
    )
    looks: list[tuple[Series, Series]] = []

    def same() -> bool:
        """Whether nothing has moved from one scrape to another, and what was pushed between them is the same."""
        before = scraped(relay)
        collector.next()  # may have been on its way
        between = collector.next().series()
        collector.next()  # the answer to a scrape may be a quarter of a second old
        looks.append((before, between))
        return before == between == scraped(relay)

    eventually(same, PATIENCE, lambda: [before.items() ^ between.items() for before, between in looks[-3:]])
    pushed = collector.next()
    assert pushed.path == "/v1/metrics"
    assert pushed.headers["authorization"] == f"Bearer {TOKEN}"
    assert pushed.resource["service.name"] == "cdc-outbox"
    assert pushed.resource["service.instance.id"].endswith(f"/{relay.pid}")
    pipeline.writer().write(5)
    eventually(lambda: published(pipeline, scraped(relay)) == 35, PATIENCE, relay.text)
    code, _ = relay.terminate()
    assert code == 0
    last = collector.pushed[-1].series()
    assert published(pipeline, last) == 35
    assert last["cdc_outbox_state", frozenset({("state", "stopped")})] == 1
    assert of_push(relay) == ["metrics are pushed"]
    assert TOKEN not in relay.text(1_000_000)


@pytest.mark.parametrize("answer", [401, 500])
def test_a_collector_that_refuses_is_told_once_and_holds_nothing_up(
    answer: int, pipeline: Pipeline, collector: Collector
) -> None:
    collector.answer = answer
    relay, writer, consumer = pipeline.start("--log-level", "debug"), pipeline.writer(), pipeline.consumer()
    writer.write(20)
    assert pipeline.books(writer, consumer).duplicates == ()
    eventually(lambda: failures(relay, "refused") > 3, PATIENCE, relay.text)
    wait_said(relay, "metrics are not pushed")
    told = relay.wait_for(lambda record: record["event"] == "metrics are not pushed")
    assert f"{collector.address}/v1/metrics answers {answer} " in told["error"]
    assert told["next"]
    collector.answer = 200
    wait_said(relay, "metrics are not pushed", "metrics are pushed")
    assert relay.terminate()[0] == 0
    assert TOKEN not in relay.text(1_000_000)


def test_a_collector_that_is_away_is_told_once_and_holds_nothing_up(
    pipeline: Pipeline, collector: Collector
) -> None:
    collector.close()
    relay, writer, consumer = pipeline.start(), pipeline.writer(), pipeline.consumer()
    writer.write(20)
    assert pipeline.books(writer, consumer).duplicates == ()
    eventually(lambda: failures(relay, "unreachable") > 3, PATIENCE, relay.text)
    collector.open()
    eventually(lambda: collector.pushed, PATIENCE, relay.text)
    wait_said(relay, "metrics are not pushed", "metrics are pushed")
    assert published(pipeline, collector.pushed[-1].series()) == 20
    collector.close()
    wait_said(relay, "metrics are not pushed", "metrics are pushed", "metrics are not pushed")
    assert relay.terminate()[0] == 0


def test_a_collector_that_never_answers_holds_up_neither_the_stream_nor_a_stop(
    pipeline: Pipeline, collector: Collector
) -> None:
    collector.hold()
    relay, writer, consumer = pipeline.start(), pipeline.writer(rate=200), pipeline.consumer()
    eventually(lambda: collector.held, PATIENCE, relay.text)
    writer.start()
    writer.wait_written(200)
    assert pipeline.books(writer, consumer).duplicates == ()
    code, seconds = relay.terminate()
    assert code == 0
    assert LAST <= seconds < LAST + 10, "of which a busy machine may need the ten to end a process"


def test_the_page(
    pipeline: Pipeline, collector: Collector, tmp_path: Path, launched: Callable[[Shell, str], Running]
) -> None:
    assert list(PAGE) == ["push"]
    shell = shell_of_checkout(
        tmp_path,
        CDC_OUTBOX_DSN=pipeline.dsn,
        CDC_OUTBOX_SLOT=pipeline.slot,
        CDC_OUTBOX_BOOTSTRAP_SERVERS=pipeline.kafka.bootstrap,
        CDC_OUTBOX_HTTP="off",
        OTEL_METRIC_EXPORT_INTERVAL="300",
    )
    running = launched(shell, PAGE["push"].replace("http://localhost:4318", collector.address))
    pipeline.writer().write(5)
    running.wait(lambda: collector.pushed and published(pipeline, collector.pushed[-1].series()) == 5)
    assert running.terminate() == 0
    assert collector.pushed[-1].resource["service.name"] == "orders-relay"
