"""The trace that an event belongs to, from OpenTelemetry where the application uses it.

The relay passes these headers through untouched, so that the consumer's spans continue the trace.

https://www.w3.org/TR/trace-context/, https://www.w3.org/TR/baggage/
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Final

_TRACE: Final = frozenset({"traceparent", "tracestate"})


def joined(headers: Mapping[str, object]) -> Mapping[str, object]:
    """The headers with `traceparent`, `tracestate` and `baggage` of the current context, as far as there is one.

    A trace that the headers name themselves stays theirs: the state of another one would be wrong beside it.
    """
    if "opentelemetry.trace" not in sys.modules:
        return headers  # nobody can have started a span
    from opentelemetry.baggage.propagation import W3CBaggagePropagator
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier: dict[str, str] = {}
    if _TRACE.isdisjoint(headers):
        TraceContextTextMapPropagator().inject(carrier)
    W3CBaggagePropagator().inject(carrier)
    return {**headers, **{name: value for name, value in carrier.items() if name not in headers}}
