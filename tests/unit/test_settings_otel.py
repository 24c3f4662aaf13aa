"""Whether metrics are pushed: our setting, OpenTelemetry's own variables, and the extra that it takes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cdc_outbox.errors import ConfigError
from cdc_outbox.settings import Settings, load
from tests.servers.cache import CHECKOUT

TOKEN = "planted-token-1234"


def settings(*flags: str, **environment: str) -> Settings:
    return load("start", {"otel": "--otel" in flags}, environment, Path("/nonexistent"))


def test_nobody_pushes_unless_asked_to() -> None:
    assert not settings(
        OTEL_EXPORTER_OTLP_ENDPOINT="http://collector:4318", OTEL_METRICS_EXPORTER="otlp"
    ).otel.metrics
    assert settings("--otel").otel.metrics
    assert settings(CDC_OUTBOX_OTEL_METRICS="true").otel.metrics


def test_what_others_have_set_wrong_is_no_concern_of_a_relay_that_doesnt_push() -> None:
    assert not settings(OTEL_EXPORTER_OTLP_PROTOCOL="grpc", OTEL_METRIC_EXPORT_INTERVAL="soon").otel.metrics


@pytest.mark.parametrize(
    ("name", "value"),
    [("OTEL_SDK_DISABLED", "true"), ("OTEL_SDK_DISABLED", "True"), ("OTEL_METRICS_EXPORTER", "none")],
)
def test_the_variables_can_forbid_it(name: str, value: str) -> None:
    otel = settings("--otel", **{name: value}).otel
    assert not otel.metrics
    assert otel.forbidden == f"{name}={value.lower()}"


def test_how_often() -> None:
    assert settings("--otel").otel.every == 60
    assert settings("--otel", OTEL_METRIC_EXPORT_INTERVAL="500").otel.every == 0.5


@pytest.mark.parametrize(
    ("name", "value", "error", "remedy"),
    [
        ("OTEL_METRIC_EXPORT_INTERVAL", "soon", "a number of milliseconds, 100 at least", "=60000"),
        ("OTEL_METRIC_EXPORT_INTERVAL", "1", "a number of milliseconds, 100 at least", "=60000"),
        ("OTEL_METRIC_EXPORT_INTERVAL", "inf", "a number of milliseconds, 100 at least", "=60000"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "10s", "a number of seconds", "=10"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc", "pushed by http/protobuf", "=http/protobuf"),
        ("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", "http/json", "pushed by http/protobuf", "=http/protobuf"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "collector:4318", "no address of a collector", "http://localhost:4318"),
        ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "http://[::1", "no address", "http://localhost:4318"),
        ("OTEL_EXPORTER_OTLP_HEADERS", f"authorization: {TOKEN}", "isn't NAME=VALUE", "percent-encoded"),
    ],
)  # fmt: skip
def test_what_cant_be_followed_ends_the_start(name: str, value: str, error: str, remedy: str) -> None:
    with pytest.raises(ConfigError) as raised:
        settings("--otel", **{name: value})
    assert name in str(raised.value)
    assert error in str(raised.value)
    assert remedy in raised.value.next
    assert TOKEN not in str(raised.value)


def test_the_protocol_of_metrics_counts_before_that_of_all() -> None:
    named = {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc", "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL": "http/protobuf"}
    assert settings("--otel", **named).otel.metrics


@pytest.mark.parametrize(
    "text",
    [f"authorization=Bearer%20{TOKEN}", f"api-key = {TOKEN}", f"a=b,authorization=Bearer {TOKEN}", TOKEN],
)
def test_headers_are_secret(text: str) -> None:
    redact = settings(OTEL_EXPORTER_OTLP_HEADERS=text).redactor.redact
    assert TOKEN not in redact(f"InvalidHeader: {text!r}")
    assert TOKEN not in redact(f"it says Bearer {TOKEN}")
    assert redact("api-key of b") == "api-key of b"


def run_start(*flags: str, hide: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    """`cdc-outbox start` with servers that aren't there, which ends it."""
    path = f"{hide}:{CHECKOUT}" if hide is not None else str(CHECKOUT)
    return subprocess.run(
        [sys.executable, "-m", "cdc_outbox", "start", "--no-http", "--log-format", "text", "--fail-fast", *flags],
        env={
            "PATH": os.environ["PATH"], "PYTHONPATH": path,
            "CDC_OUTBOX_DSN": "postgresql://nobody@127.0.0.1:9/nothing", **environment,
        },
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip


@pytest.fixture
def without_the_extra(tmp_path: Path) -> Path:
    (tmp_path / "opentelemetry.py").write_text("raise ImportError('not installed')\n")
    return tmp_path


def test_without_the_extra_the_next_step_is_to_install_it(without_the_extra: Path) -> None:
    done = run_start("--otel", hide=without_the_extra)
    assert done.stderr.splitlines() == [
        "error: otel.metrics is on, and OpenTelemetry's packages aren't installed",
        "next: in the checkout: pip install '.[otel]'",
    ]
    assert done.returncode == 78


@pytest.mark.parametrize(
    ("flags", "environment"),
    [
        ((), {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}),
        (("--otel",), {"OTEL_SDK_DISABLED": "true"}),
        (("--otel",), {"OTEL_METRICS_EXPORTER": "none"}),
    ],
)
def test_where_nothing_is_pushed_nothing_is_needed(
    flags: tuple[str, ...], environment: dict[str, str], without_the_extra: Path
) -> None:
    done = run_start(*flags, hide=without_the_extra, **environment)
    assert done.returncode == 1, done.stderr
    assert "127.0.0.1:9" in done.stderr
    assert ("metrics are not pushed" in done.stderr) is bool(flags)


def test_nothing_of_it_is_loaded_where_it_is_off() -> None:
    script = (
        "import sys\n"
        "import cdc_outbox.relay, cdc_outbox.watch.watching, cdc_outbox.cli.start\n"
        "from cdc_outbox.settings import load\n"
        "print({'opentelemetry', 'requests', 'google'} & sys.modules.keys())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=CHECKOUT, capture_output=True, text=True, check=True
    )
    assert done.stdout == "set()\n"
