"""Metrics pushed to an OpenTelemetry collector: what a family becomes, and a collector that is as bad as can be."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality
from prometheus_client.parser import text_string_to_metric_families

import cdc_outbox
from cdc_outbox.state import State
from cdc_outbox.watch import exposition, otlp
from cdc_outbox.watch.otlp import Push
from cdc_outbox.watch.sample import Spill
from tests.servers.collector import Collector, Pushed
from tests.unit.sampled import Watched, sample

CUMULATIVE = AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE
EVERY = 0.02
TOKEN = "planted-token-1234"


@pytest.fixture(autouse=True)
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """A last push comes to its end on a busy machine, too."""
    monkeypatch.setattr(otlp, "LAST", 30.0)


@pytest.fixture
def variables(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """An environment without a word of OpenTelemetry's."""
    for name in list(os.environ):
        if name.startswith("OTEL_"):
            monkeypatch.delenv(name)
    return monkeypatch


@pytest.fixture
def collector(variables: pytest.MonkeyPatch) -> Iterator[Collector]:
    with Collector() as listening:
        variables.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", listening.address)
        yield listening


@pytest.fixture
def watched() -> Watched:
    known = Watched()
    now = time.time_ns() // 1000
    known.status.tally.confirmed(
        "orders", 40, 9000, since=time.monotonic(), commits_us=(now - 9_000_000, now)
    )
    known.status.tally.transactions_of({1: 30, 10: 1, 2_000_000: 1})
    known.sampler.fresh = sample(spill=Spill(1, 5))
    return known


@contextlib.asynccontextmanager
async def pushing(watched: Watched, every: float = EVERY) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(Push(watched.status, watched.registry, every=every).run())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.005)


def pushed_once(watched: Watched, collector: Collector) -> Pushed:
    """The first push of a relay that ends at once."""

    async def life() -> None:
        async with pushing(watched, every=60):
            await until(lambda: collector.pushed)

    asyncio.run(life())
    return collector.pushed[0]


def test_it_is_all_that_a_scrape_brings(collector: Collector, watched: Watched) -> None:
    families = list(text_string_to_metric_families(exposition.text(watched.registry).decode()))
    scraped = {
        (each.name, frozenset(each.labels.items())): each.value
        for family in families
        for each in family.samples
    }
    pushed = pushed_once(watched, collector)
    assert pushed.path == "/v1/metrics"
    assert pushed.series() == scraped
    for family in families:
        if family.samples:
            name = family.name + ("_total" if family.type == "counter" else "")
            metric = pushed.metrics[name]
            kind = {"counter": "sum", "gauge": "gauge", "histogram": "histogram"}[family.type]
            assert metric.WhichOneof("data") == kind
            assert metric.description == family.documentation


def test_counters_are_cumulative_since_the_process_began(collector: Collector, watched: Watched) -> None:
    before = time.time_ns()
    pushed = pushed_once(watched, collector)
    published = pushed.metrics["cdc_outbox_events_published_total"].sum
    (point,) = published.data_points
    assert published.is_monotonic
    assert published.aggregation_temporality == CUMULATIVE
    assert before <= point.start_time_unix_nano <= point.time_unix_nano <= time.time_ns()
    assert [(each.key, each.value.string_value) for each in point.attributes] == [("topic", "orders")]
    latency = pushed.metrics["cdc_outbox_event_latency_seconds"].histogram
    assert latency.aggregation_temporality == CUMULATIVE
    assert latency.data_points[0].start_time_unix_nano == point.start_time_unix_nano


def test_what_postgresql_has_counted_began_nobody_knows_when(collector: Collector, watched: Watched) -> None:
    metric = pushed_once(watched, collector).metrics["cdc_outbox_slot_spilled_bytes_total"]
    assert metric.sum.is_monotonic
    assert metric.sum.data_points[0].start_time_unix_nano == 0


def test_a_histogram_has_its_bounds_and_a_count_between_each_two(
    collector: Collector, watched: Watched
) -> None:
    (point,) = pushed_once(watched, collector).metrics["cdc_outbox_transaction_events"].histogram.data_points
    bounds = [1, 2, 5, 10, 50, 100, 500, 1e3, 5e3, 1e4, 1e5, 1e6]
    assert list(point.explicit_bounds) == bounds
    assert list(point.bucket_counts) == [30, 0, 0, 1, *[0] * 8, 1]
    assert (point.count, point.sum) == (32, 2_000_040)
    assert not point.HasField("min")
    assert not point.HasField("max")


def test_units_are_those_of_the_names(collector: Collector, watched: Watched) -> None:
    metrics = pushed_once(watched, collector).metrics
    units = {name.removeprefix("cdc_outbox_"): metric.unit for name, metric in metrics.items()}
    assert units["event_latency_seconds"] == units["oldest_unacked_commit_age_seconds"] == "s"
    assert units["slot_retained_wal_bytes"] == units["published_bytes_total"] == "By"
    assert units["events_published_total"] == units["state"] == units["slot_catalog_xmin_age"] == ""


def test_whose_they_are(collector: Collector, watched: Watched, variables: pytest.MonkeyPatch) -> None:
    resource = pushed_once(watched, collector).resource
    assert resource["service.name"] == "cdc-outbox"
    assert resource["service.version"] == cdc_outbox.__version__
    assert resource["service.instance.id"].endswith(f"/{os.getpid()}")
    variables.setenv("OTEL_SERVICE_NAME", "orders-relay")
    variables.setenv("OTEL_RESOURCE_ATTRIBUTES", "service.instance.id=relay-0,team=orders,service.name=other")
    collector.pushed.clear()
    resource = pushed_once(watched, collector).resource
    assert resource["service.name"] == "orders-relay"
    assert (resource["service.instance.id"], resource["team"]) == ("relay-0", "orders")


def test_the_variables_of_the_exporter_count(
    collector: Collector, watched: Watched, variables: pytest.MonkeyPatch
) -> None:
    variables.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    variables.setenv("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", f"{collector.address}/of/ours")
    variables.setenv("OTEL_EXPORTER_OTLP_HEADERS", f"authorization=Bearer%20{TOKEN},x-scope=orders")
    variables.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")
    variables.setenv("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", "delta")
    pushed = pushed_once(watched, collector)
    assert pushed.path == "/of/ours"
    headers = {name.lower(): value for name, value in pushed.headers.items()}
    assert (headers["authorization"], headers["x-scope"]) == (f"Bearer {TOKEN}", "orders")
    assert headers["content-encoding"] == "gzip"
    assert pushed.metrics["cdc_outbox_events_published_total"].sum.aggregation_temporality == CUMULATIVE, (
        "the numbers are what they are"
    )


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """A certificate with its key, for 127.0.0.1, which nobody vouches for but itself."""
    made = tmp_path / "certificate.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
         "-days", "2", "-subj", "/CN=collector", "-addext", "subjectAltName=IP:127.0.0.1",
         "-addext", "keyUsage=critical,keyCertSign,digitalSignature", "-keyout", made, "-out", tmp_path / "alone.pem"],
        check=True, capture_output=True,
    )  # fmt: skip
    made.write_text(made.read_text() + (tmp_path / "alone.pem").read_text())
    return made


def served_by(certificate: Path) -> ssl.SSLContext:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate)
    return tls


def test_a_collector_and_its_relay_know_each_other_by_certificates(
    watched: Watched, variables: pytest.MonkeyPatch, certificate: Path
) -> None:
    tls = served_by(certificate)
    tls.load_verify_locations(certificate)
    tls.verify_mode = ssl.CERT_REQUIRED
    with Collector(tls) as collector:
        variables.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.address)
        variables.setenv("OTEL_EXPORTER_OTLP_CERTIFICATE", str(certificate))
        variables.setenv("REQUESTS_CA_BUNDLE", "/nonexistent")  # for other programs
        variables.setenv("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE", str(certificate))
        variables.setenv("OTEL_EXPORTER_OTLP_CLIENT_KEY", str(certificate))
        assert pushed_once(watched, collector).path == "/v1/metrics"


def test_a_collector_that_nobody_vouches_for_gets_nothing(
    watched: Watched, variables: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, certificate: Path
) -> None:
    with Collector(served_by(certificate)) as collector:
        variables.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.address)

        async def life() -> None:
            async with pushing(watched):
                await until(lambda: said(caplog))

        asyncio.run(life())
        assert not collector.pushed
    assert "certificate verify failed" in told(caplog)[0][1]["error"]


def test_it_goes_on_with_new_values_and_ends_with_the_last(collector: Collector, watched: Watched) -> None:
    async def life() -> None:
        async with pushing(watched):
            await until(lambda: len(collector.pushed) > 2)
            watched.status.tally.published["orders"] += 2
            series = ("cdc_outbox_events_published_total", frozenset({("topic", "orders")}))
            await until(lambda: collector.pushed[-1].series()[series] == 42)
            watched.status.change(State.STOPPED)

    asyncio.run(life())
    stopped = ("cdc_outbox_state", frozenset({("state", "stopped")}))
    assert collector.pushed[-1].series()[stopped] == 1


def told(caplog: pytest.LogCaptureFixture) -> list[tuple[str, dict[str, str]]]:
    """What the push has logged, with its fields."""
    ours = [vars(each) for each in caplog.records if each.name == otlp.__name__]
    return [(each["msg"], each["fields"]) for each in ours]


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [event for event, _ in told(caplog)]


@pytest.mark.parametrize("answer", [400, 401, 404, 429, 500, 503, 302])
def test_a_collector_that_refuses_is_told_once_and_counted(
    answer: int, collector: Collector, watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    failures = watched.status.tally.push_failures
    collector.answer = answer

    async def life() -> None:
        async with pushing(watched):
            await until(lambda: failures["refused"] > 3)
            collector.answer = 200
            await until(lambda: len(said(caplog)) > 1)

    asyncio.run(life())
    assert said(caplog) == ["metrics are not pushed", "metrics are pushed"]
    fields = told(caplog)[0][1]
    assert f": {collector.address}/v1/metrics answers {answer} " in fields["error"]
    assert "OTEL_EXPORTER_OTLP_HEADERS" in fields["next"]
    assert failures.keys() == {"refused"}
    refused = [each for each in collector.answered if each == answer]
    assert len(refused) == failures["refused"], "nothing is tried twice"


def test_a_collector_that_is_away_and_comes_back(
    collector: Collector, watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    failures = watched.status.tally.push_failures

    async def life() -> None:
        async with pushing(watched):
            await until(lambda: collector.pushed)
            await asyncio.to_thread(collector.close)
            await until(lambda: failures["unreachable"] > 3)
            collector.open()
            await until(lambda: len(said(caplog)) > 2)

    asyncio.run(life())
    assert said(caplog) == ["metrics are pushed", "metrics are not pushed", "metrics are pushed"]
    assert f": {collector.address}/v1/metrics can't be reached: " in told(caplog)[1][1]["error"]


def test_a_collector_that_never_answers_keeps_nobody_waiting(
    collector: Collector, watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(otlp, "LAST", 0.3)
    collector.hold()

    async def life() -> float:
        async with pushing(watched):
            await until(lambda: collector.held)
            await asyncio.sleep(3 * EVERY)  # in which three more would have been due
            assert collector.held == 1, "one at a time"
            began = time.monotonic()
        return time.monotonic() - began

    assert asyncio.run(life()) < 5


def test_no_time_out_of_a_variable_is_too_long(
    collector: Collector, watched: Watched, variables: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Other languages count it in milliseconds: a namespace that says 10000 means ten seconds."""
    caplog.set_level(logging.INFO)
    variables.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "10000")
    variables.setattr(otlp, "PATIENCE", 0.1)
    collector.hold()

    async def life() -> None:
        async with pushing(watched):
            await until(lambda: watched.status.tally.push_failures["unreachable"] > 1)
            variables.setattr(otlp, "PATIENCE", 10.0)
            collector.let_go()
            await until(lambda: len(said(caplog)) > 1)

    asyncio.run(life())
    assert said(caplog) == ["metrics are not pushed", "metrics are pushed"]


def test_a_push_that_is_not_over_for_long_is_told_and_may_end_yet(
    collector: Collector, watched: Watched, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One byte of a head in a while is no timeout; neither is a name whose servers are looked for."""
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(otlp, "SLOW", 0.1)
    collector.hold()

    async def life() -> None:
        async with pushing(watched):
            await until(lambda: said(caplog))
            monkeypatch.setattr(otlp, "SLOW", 60.0)
            collector.let_go()
            await until(lambda: len(said(caplog)) > 1)

    asyncio.run(life())
    assert said(caplog) == ["metrics are not pushed", "metrics are pushed"]
    assert f"{collector.address}/v1/metrics hasn't answered for " in told(caplog)[0][1]["error"]
    assert watched.status.tally.push_failures == {"unreachable": 1}


@contextlib.contextmanager
def saying(head: bytes, piece: bytes) -> Iterator[str]:
    """The address of somebody who answers each request with a head, and pieces of a body without end."""

    def answer(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            connection.recv(1 << 16)
            connection.sendall(head)
            while piece:
                connection.sendall(piece)

    def take() -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=answer, args=(listening.accept()[0],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=take, daemon=True).start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        listening.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize(
    ("code", "event"), [(200, "metrics are pushed"), (500, "metrics are not pushed")], ids=["well", "refused"]
)
def test_an_answer_without_an_end_is_not_read(
    code: int,
    event: str,
    watched: Watched,
    variables: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It filled the relay's memory, and was the last push."""
    caplog.set_level(logging.INFO)
    with saying(f"HTTP/1.1 {code} Well\r\n\r\n".encode(), b"y" * 65536) as address:
        variables.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", address)

        async def life() -> None:
            async with pushing(watched):
                await until(lambda: said(caplog))

        asyncio.run(life())
    assert said(caplog) == [event]


def test_a_redirection_is_not_followed() -> None:
    """Behind it is a page to log in, as a rule, and one's headers are not for whoever is there."""
    with saying(b"HTTP/1.1 302 Found\r\nLocation: /login\r\nContent-Length: 0\r\n\r\n", b"") as address:
        session = otlp._Session()
        with pytest.raises(otlp._Failed):
            session.request("POST", address)
    assert session.failure == otlp._Failure("refused", f"{address} answers 302 Found")


def test_a_drain_that_is_broken_off_pushes_no_more(collector: Collector, watched: Watched) -> None:
    async def life() -> None:
        async with pushing(watched, every=60):
            await until(lambda: collector.pushed)
            watched.status.change(State.DRAINING)

    asyncio.run(life())
    assert len(collector.pushed) == 1


def test_a_fault_of_ours_is_a_failure_and_no_end(
    collector: Collector, watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    fresh, watched.sampler.fresh = watched.sampler.fresh, object()

    async def life() -> None:
        async with pushing(watched):
            await until(lambda: watched.status.tally.push_failures["failed"] > 1)
            watched.sampler.fresh = fresh
            await until(lambda: collector.pushed)

    asyncio.run(life())
    assert "AttributeError" in told(caplog)[0][1]["error"]


@pytest.mark.usefixtures("variables")
def test_an_address_is_told_without_what_is_secret_in_it(
    watched: Watched, variables: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    variables.setenv(
        "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", f"http://user:{TOKEN}@127.0.0.1:9/v1/metrics?key={TOKEN}"
    )

    async def life() -> None:
        async with pushing(watched):
            await until(lambda: said(caplog))

    asyncio.run(life())
    error = told(caplog)[0][1]["error"]
    assert ": http://127.0.0.1:9/v1/metrics can't be reached: " in error
    assert error.endswith("Connection refused")
    assert TOKEN not in str(told(caplog))


def test_a_header_that_no_request_can_hold_is_not_told(
    collector: Collector, watched: Watched, variables: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    variables.setenv("OTEL_EXPORTER_OTLP_HEADERS", f"authorization={TOKEN}%0Aand-more")

    async def life() -> None:
        async with pushing(watched):
            await until(lambda: said(caplog))

    asyncio.run(life())
    assert not collector.pushed
    assert TOKEN not in str(told(caplog))
