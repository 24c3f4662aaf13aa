"""The watch of a running relay, as one: its sampler, its history, the answers over HTTP, and the word to systemd.

Where metrics are to be pushed, that is done here, too.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from cdc_outbox import log
from cdc_outbox.ended import ended
from cdc_outbox.watch.answers import Answers
from cdc_outbox.watch.history import History
from cdc_outbox.watch.http import is_loopback
from cdc_outbox.watch.metrics import registry
from cdc_outbox.watch.sampler import Sampler
from cdc_outbox.watch.server import beat, serving
from cdc_outbox.watch.supervisor import Supervisor
from cdc_outbox.watch.token import Token

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from cdc_outbox.settings import OtelSettings, Settings
    from cdc_outbox.state import Status
    from cdc_outbox.watch.exposition import CollectorRegistry
    from cdc_outbox.watch.otlp import Push

_log = log.get(__name__)


@asynccontextmanager
async def watching(
    settings: Settings, status: Status, *, repeat: Callable[[str], str] = str
) -> AsyncIterator[None]:
    """Watch the relay of this status while the block runs; `repeat` as for the sampler.

    Raises SetupError where it can't listen at the address that was asked for, ConfigError for a token file that
    holds none, and where metrics are to be pushed without the packages for it.
    """
    http = settings.http
    sampler = Sampler(settings, status, repeat=repeat)
    history = History(status, sampler)
    metrics = registry(status, sampler)
    answers = Answers(
        status,
        sampler,
        history,
        metrics,
        settings.redactor.redact,
        loopback=http.listen is None or is_loopback(http.listen[0]),
        token=Token(http.token_file) if http.listen is not None and http.token_file is not None else None,
    )
    push = _push(settings.otel, status, metrics)
    async with serving(http, answers):
        tasks = [
            asyncio.create_task(sampler.run(), name="slot watch"),
            asyncio.create_task(history.run(), name="history"),
            asyncio.create_task(beat(status), name="heartbeat"),
            asyncio.create_task(Supervisor(status, settings.redactor.redact).run(), name="supervisor"),
        ]
        if push is not None:
            tasks.append(asyncio.create_task(push.run(), name="push"))
        try:
            yield
        finally:
            await ended(*tasks)


def _push(otel: OtelSettings, status: Status, metrics: CollectorRegistry) -> Push | None:
    """Who pushes the metrics, if anybody is to: what that needs is loaded only then."""
    if otel.forbidden is not None:
        _log.info("metrics are not pushed", forbidden=otel.forbidden)
    if not otel.metrics:
        return None
    from cdc_outbox.watch.otlp import Push

    return Push(status, metrics, every=otel.every)
