"""The metrics by OTLP (protobuf over HTTP) to an OpenTelemetry collector, for those who don't scrape.

What is pushed is what `/metrics` serves at that moment: the families of the same registry, so that names, labels and
values can't differ.

| a family | is sent as |
|---|---|
| counter | a monotonic, cumulative sum under its name in queries, with `_total`, since the relay's process began |
| gauge | a gauge |
| histogram | a cumulative histogram with the same bounds |

Labels are attributes, the unit is the name's own. What PostgreSQL has counted for a slot began at a time that isn't
known, and says so by having none.

Where to, with which headers and how often is told by OpenTelemetry's own variables, as to every program. That it is
done is a setting of ours, for those variables are often set for a whole namespace: a relay that nobody told to push
must neither end for want of a package, nor send what is scraped already once more.

A push runs in a thread that nobody waits for. What comes next brings newer values, so nothing is tried twice.

https://opentelemetry.io/docs/specs/otel/compatibility/prometheus_and_openmetrics/
https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import cdc_outbox
from cdc_outbox import hook, log
from cdc_outbox.errors import ConfigError
from cdc_outbox.state import State
from cdc_outbox.watch.metrics import PREFIX

try:
    import requests
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.sdk.metrics import export as sdk
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope
except ImportError as error:
    raise ConfigError(
        "otel.metrics is on, and OpenTelemetry's packages aren't installed",
        next="in the checkout: pip install '.[otel]'",
    ) from error

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from prometheus_client.metrics_core import Metric
    from prometheus_client.samples import Sample

    from cdc_outbox.state import Status
    from cdc_outbox.watch.exposition import CollectorRegistry

_log = log.get(__name__)

LAST: Final = 2.0
"""Seconds that a stop waits for a last push."""

PATIENCE: Final = 30.0
"""Seconds that the collector gets at most, whatever the variables say: other languages count them in milliseconds."""

SLOW: Final = 60.0
"""Seconds after which a push that isn't over has failed, though it may end yet: one's patience begins anew with each
byte of an answer's head, and a name's look-up knows none."""

_UNITS: Final = {"seconds": "s", "bytes": "By"}
_CUMULATIVE: Final = sdk.AggregationTemporality.CUMULATIVE


@dataclass(frozen=True, slots=True)
class _Failure:
    """Why a push failed: a bounded word for the metric, and words for a person."""

    reason: str
    words: str


class _Failed(Exception):
    """No push, for a reason that the session knows. The exporter takes it for nothing to try again."""


class _Session(requests.Session):
    """The exporter's way to the collector, which knows where that is, and what was wrong."""

    def __init__(self) -> None:
        super().__init__()
        self.failure: _Failure | None = None
        self.to = ""

    def request(self, method: Any, url: Any, *args: Any, **options: Any) -> requests.Response:
        """As the session's own, but of the answer only its head. Raises _Failed where no success came back.

        What a body has to say changes nothing, and one without an end would fill the memory.
        """
        where = urlsplit(url)
        self.to = f"{where.scheme}://{where.netloc.rpartition('@')[2]}{where.path}"
        options |= {"stream": True, "allow_redirects": False}
        options["timeout"] = min(options.get("timeout") or PATIENCE, PATIENCE)
        # Else REQUESTS_CA_BUNDLE counts before the exporter's own variable.
        options.setdefault("verify", self.verify)
        try:
            answer = super().request(method, url, *args, **options)
        except Exception as error:
            self.failure = _Failure("unreachable", f"{self.to} can't be reached: {_cause(error)}")
        else:
            answer.close()
            if 200 <= answer.status_code < 300:
                return answer
            self.failure = _Failure("refused", f"{self.to} answers {answer.status_code} {answer.reason}")
        raise _Failed


class Push:
    """The metrics of one relay on their way to a collector."""

    def __init__(self, status: Status, metrics: CollectorRegistry, *, every: float) -> None:
        """`every`: seconds between two pushes. Raises ConfigError for what the exporter won't have."""
        self._status = status
        self._metrics = metrics
        self._every = every
        self._began = time.time_ns()
        self._session = _Session()
        self._works: bool | None = None
        try:
            self._exporter = OTLPMetricExporter(session=self._session)
            self._resource = _resource()
        except Exception as error:
            raise ConfigError(
                f"OpenTelemetry's exporter can't follow its variables: {error}",
                next="correct the one that is named, or leave it out",
            ) from error

    async def run(self) -> None:
        """Push until cancelled, and once more then, unless a drain was broken off."""
        pushing = asyncio.create_task(self._push(), name="push")
        try:
            while True:
                await asyncio.shield(pushing)
                await asyncio.sleep(self._every)
                pushing = asyncio.create_task(self._push(), name="push")
        finally:
            if self._status.state is not State.DRAINING:
                await asyncio.wait([asyncio.create_task(self._last(pushing))], timeout=LAST)

    async def _last(self, pushing: asyncio.Task[None]) -> None:
        await asyncio.wait([pushing])
        await self._push()

    async def _push(self) -> None:
        loop = asyncio.get_running_loop()
        late = loop.call_later(SLOW, self._is_late)
        try:
            families = list(self._metrics.collect())
            failure = await hook.answer(self._export, families=families, at=time.time_ns())
        except Exception as error:
            failure = _Failure("failed", repr(error))
        finally:
            late.cancel()
        if failure is None or loop.time() < late.when():
            self._tell(failure)

    def _is_late(self) -> None:
        self._tell(_Failure("unreachable", f"{self._session.to} hasn't answered for {SLOW:.0f} s"))

    def _export(self, *, families: Sequence[Metric], at: int) -> _Failure | None:
        """Send them, in a thread; what was wrong, if anything."""
        self._session.failure = None
        scope = InstrumentationScope("cdc_outbox", cdc_outbox.__version__)
        metrics = [_metric(family, self._began, at) for family in families if family.samples]
        scoped = sdk.ScopeMetrics(scope=scope, metrics=metrics, schema_url="")
        data = sdk.MetricsData([sdk.ResourceMetrics(self._resource, [scoped], schema_url="")])
        try:
            result = self._exporter.export(data)
        except _Failed:
            return self._session.failure
        if result is sdk.MetricExportResult.SUCCESS:
            return None
        return self._session.failure or _Failure("failed", "the exporter refuses them")

    def _tell(self, failure: _Failure | None) -> None:
        """Count a failure, and log when the first comes and when the last is over."""
        if failure is not None:
            self._status.tally.push_failures[failure.reason] += 1
        works = failure is None
        if works is self._works:
            return
        self._works = works
        if failure is None:
            _log.info("metrics are pushed", to=self._session.to, every=self._every)
        else:
            _log.warning(
                "metrics are not pushed",
                error=f"the metrics are not pushed: {failure.words}",
                next="look at the collector, OTEL_EXPORTER_OTLP_ENDPOINT and OTEL_EXPORTER_OTLP_HEADERS; the relay"
                " delivers on, and tries again",
            )


def _metric(family: Metric, began: int, at: int) -> sdk.Metric:
    """A family as OpenTelemetry has it; times in nanoseconds since the epoch."""
    counter = family.type == "counter"
    name = family.name + ("_total" if counter else "")
    data: sdk.Sum | sdk.Gauge | sdk.Histogram
    if family.type == "histogram":
        data = sdk.Histogram([*_histograms(family.samples, began, at)], _CUMULATIVE)
    else:
        since = began if not name.startswith(f"{PREFIX}slot_") else 0
        points = [
            sdk.NumberDataPoint(dict(each.labels), since if counter else 0, at, float(each.value))
            for each in family.samples
        ]
        data = sdk.Sum(points, _CUMULATIVE, is_monotonic=True) if counter else sdk.Gauge(points)
    unit = _UNITS.get(family.name.rpartition("_")[2], "")
    return sdk.Metric(name=name, description=family.documentation, unit=unit, data=data)


def _histograms(samples: Sequence[Sample], began: int, at: int) -> Iterator[sdk.HistogramDataPoint]:
    """One point for each set of labels: the counts of the buckets by themselves, not of all up to each."""
    for labels, group in groupby(samples, lambda each: {**each.labels, "le": ""}):
        own = list(group)
        buckets = [(float(each.labels["le"]), int(each.value)) for each in own if "le" in each.labels]
        total = next(each.value for each in own if each.name.endswith("_sum"))
        yield sdk.HistogramDataPoint(
            attributes={name: value for name, value in labels.items() if name != "le"},
            start_time_unix_nano=began,
            time_unix_nano=at,
            count=buckets[-1][1],
            sum=total,
            bucket_counts=[upto - below for (_, below), (_, upto) in pairwise([(0.0, 0), *buckets])],
            explicit_bounds=[bound for bound, _ in buckets[:-1]],
            min=None,  # type: ignore[arg-type]  # not known, and left out then
            max=None,  # type: ignore[arg-type]
        )


def _resource() -> Resource:
    """Whose metrics they are: what the variables say, and what they leave open."""
    known: dict[str, Any] = {
        "service.name": "cdc-outbox",
        "service.version": cdc_outbox.__version__,
        "service.instance.id": f"{socket.gethostname()}/{os.getpid()}",
    }
    return Resource.create(known | dict(OTELResourceDetector().detect().attributes))


def _cause(error: BaseException) -> str:
    """What a library's exception goes back to, in words. Its own words may hold a header."""
    while (before := error.__cause__ or error.__context__) is not None:
        error = before
    if isinstance(error, requests.RequestException) or not isinstance(error, OSError):
        return type(error).__name__
    return str(error)
