"""Prometheus' metric families and their text form, without the servers that prometheus_client brings along.

Importing `prometheus_client` as a whole loads an HTTP client and three HTTP servers, 1.8 MB of memory; the modules for
families and registry are 0.1 MB. So those are imported without the package's `__init__`, which runs as ever for
whoever imports the package itself later. Its text form lives beside its servers, and is written here; a test holds
it to the same bytes.

https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format
"""

from __future__ import annotations

import importlib.util
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.metrics_core import Metric
    from prometheus_client.samples import Sample


@contextmanager
def _bare(package: str) -> Iterator[None]:
    """Import modules of a package without the package's own `__init__`, unless that has run already."""
    spec = None if package in sys.modules else importlib.util.find_spec(package)
    if spec is None:
        yield
        return
    sys.modules[package] = importlib.util.module_from_spec(spec)
    try:
        yield
    finally:
        del sys.modules[package]


with _bare("prometheus_client"):
    from prometheus_client.metrics_core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
    )
    from prometheus_client.registry import CollectorRegistry
    from prometheus_client.utils import floatToGoString

__all__ = [
    "CONTENT_TYPE",
    "CollectorRegistry",
    "CounterMetricFamily",
    "GaugeMetricFamily",
    "HistogramMetricFamily",
    "text",
]

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

_IN_VALUE = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})
_IN_HELP = str.maketrans({"\\": r"\\", "\n": r"\n"})


def text(registry: CollectorRegistry) -> bytes:
    """All metrics of a registry, of the kinds counter, gauge and histogram, in the text format."""
    return "".join(line for family in registry.collect() for line in _lines(family)).encode()


def _lines(family: Metric) -> Iterator[str]:
    name = f"{family.name}_total" if family.type == "counter" else family.name
    yield f"# HELP {name} {family.documentation.translate(_IN_HELP)}\n"
    yield f"# TYPE {name} {family.type}\n"
    for sample in family.samples:
        value = floatToGoString(sample.value)  # type: ignore[no-untyped-call]
        yield f"{sample.name}{_labels(sample)} {value}\n"


def _labels(sample: Sample) -> str:
    if not sample.labels:
        return ""
    pairs = (f'{name}="{value.translate(_IN_VALUE)}"' for name, value in sorted(sample.labels.items()))
    return f"{{{','.join(pairs)}}}"
