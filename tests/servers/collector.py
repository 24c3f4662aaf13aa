"""An OpenTelemetry collector's receiver of metrics by OTLP over HTTP, which keeps what it is sent.

It takes the protobuf that the protocol's own package decodes, and answers as a test wants: well, with a refusal, or not
at all.
"""

from __future__ import annotations

import gzip
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric

from tests.servers.process import free_port
from tests.servers.wait import eventually

Labels = frozenset[tuple[str, str]]


@dataclass(frozen=True)
class Pushed:
    """One request that came."""

    path: str
    headers: Mapping[str, str]
    message: ExportMetricsServiceRequest

    @property
    def resource(self) -> dict[str, str]:
        """The attributes of whose metrics they are."""
        (one,) = self.message.resource_metrics
        return {each.key: each.value.string_value for each in one.resource.attributes}

    @property
    def metrics(self) -> dict[str, Metric]:
        """The metrics by name."""
        (resource,) = self.message.resource_metrics
        (scope,) = resource.scope_metrics
        assert scope.scope.name == "cdc_outbox"
        named = {each.name: each for each in scope.metrics}
        assert len(named) == len(scope.metrics), "a name came twice"
        return named

    def series(self) -> dict[tuple[str, Labels], float]:
        """Each series as a scrape has it, by its name and labels."""
        return {key: value for metric in self.metrics.values() for key, value in _series(metric)}


def _series(metric: Metric) -> Iterator[tuple[tuple[str, Labels], float]]:
    name = metric.name
    for number in (*metric.gauge.data_points, *metric.sum.data_points):
        yield (name, _labels(number)), number.as_double
    for point in metric.histogram.data_points:
        labels, below = _labels(point), 0
        for bound, count in zip([*point.explicit_bounds, float("inf")], point.bucket_counts, strict=True):
            below += count
            le = "+Inf" if bound == float("inf") else str(bound)
            yield (f"{name}_bucket", labels | {("le", le)}), below
        yield (f"{name}_count", labels), point.count
        yield (f"{name}_sum", labels), point.sum


def _labels(point: object) -> Labels:
    return frozenset((each.key, each.value.string_value) for each in point.attributes)  # type: ignore[attr-defined]


class Collector:
    """A receiver on a port of its own. `answer` is its status; with `hold` it answers nothing until it is let go."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.port = free_port()
        self.address = f"{'http' if tls is None else 'https'}://127.0.0.1:{self.port}"
        self._tls = tls
        self.answer = 200
        self.pushed: list[Pushed] = []
        """What came and is answered."""
        self.answered: list[int] = []
        """With what."""
        self.held = 0
        """How many were kept waiting."""
        self._free = threading.Event()
        self._free.set()
        self._server: ThreadingHTTPServer | None = None

    def __enter__(self) -> Collector:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def open(self) -> Collector:
        """Listen, again at the same port after a `close`."""
        self._server = _Server(("127.0.0.1", self.port), self._handler())
        if self._tls is not None:
            self._server.socket = self._tls.wrap_socket(self._server.socket, server_side=True)
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def close(self) -> None:
        """Be away."""
        self.let_go()
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def hold(self) -> None:
        """Answer no request from now on."""
        self._free.clear()

    def let_go(self) -> None:
        """Answer them all."""
        self._free.set()

    def next(self, timeout: float = 30, *, message: str | Callable[[], str] = "a push") -> Pushed:
        """The first request that comes from now on."""
        seen = len(self.pushed)
        eventually(lambda: len(self.pushed) > seen, timeout, message)
        return self.pushed[seen]

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                message = ExportMetricsServiceRequest.FromString(body)
                if not collector._free.is_set():
                    collector.held += 1
                    collector._free.wait()
                answer = collector.answer
                # Whoever has the answer may look at once.
                collector.answered.append(answer)
                collector.pushed.append(Pushed(self.path, dict(self.headers), message))
                said = ExportMetricsServiceResponse().SerializeToString()
                self.send_response(answer)
                self.send_header("Content-Type", "application/x-protobuf")
                self.send_header("Content-Length", str(len(said)))
                self.end_headers()
                self.wfile.write(said)

            def log_message(self, *_: object) -> None:
                """Nothing: who asks is told by the test."""

        return Handler


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, *_: object) -> None:
        """A client that has gone is none."""
