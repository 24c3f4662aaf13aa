"""The watch of a running relay, as one: its sampler, its history, the answers over HTTP, and the word to systemd."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

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

    from cdc_outbox.settings import Settings
    from cdc_outbox.state import Status


@asynccontextmanager
async def watching(
    settings: Settings, status: Status, *, repeat: Callable[[str], str] = str
) -> AsyncIterator[None]:
    """Watch the relay of this status while the block runs; `repeat` as for the sampler.

    Raises SetupError where it can't listen at the address that was asked for, ConfigError for a token file that
    holds none.
    """
    http = settings.http
    sampler = Sampler(settings, status, repeat=repeat)
    history = History(status, sampler)
    answers = Answers(
        status,
        sampler,
        history,
        registry(status, sampler),
        settings.redactor.redact,
        loopback=http.listen is None or is_loopback(http.listen[0]),
        token=Token(http.token_file) if http.listen is not None and http.token_file is not None else None,
    )
    async with serving(http, answers):
        tasks = [
            asyncio.create_task(sampler.run(), name="slot watch"),
            asyncio.create_task(history.run(), name="history"),
            asyncio.create_task(beat(status), name="heartbeat"),
            asyncio.create_task(Supervisor(status, settings.redactor.redact).run(), name="supervisor"),
        ]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
