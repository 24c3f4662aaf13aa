"""The relay watches its own slot: a sample every few seconds over the control connection that it has now.

A task of its own, beside the stream and never in its way: it waits in line for the connection as the guard does, is as
patient with the server as the guard is, and whatever goes wrong here ends nothing. Without a connection there is no
sample; the last one ages, and the health says so.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from cdc_outbox import log
from cdc_outbox.errors import CdcOutboxError, PostgresUnavailable
from cdc_outbox.postgres.remedy import complete
from cdc_outbox.state import State
from cdc_outbox.watch import sample as samples
from cdc_outbox.watch.alarms import Alarms
from cdc_outbox.watch.checks import judge, unreachable
from cdc_outbox.watch.forecast import Course
from cdc_outbox.watch.health import Delivery, Level
from cdc_outbox.watch.thresholds import Thresholds

if TYPE_CHECKING:
    from collections.abc import Callable

    from cdc_outbox.settings import Settings
    from cdc_outbox.state import Status
    from cdc_outbox.watch.alarms import Crossing
    from cdc_outbox.watch.forecast import Forecast
    from cdc_outbox.watch.health import Health
    from cdc_outbox.watch.sample import Sample

_log = log.get(__name__)

ANSWER: Final = 7.0
"""Seconds that the server has for a sample: longer than it waits for a lock, so that one on a catalogue that only the
sample reads costs the sample, and not the connection that it shares with the guard."""

EVERY: Final = 2.5
"""Seconds between samples: one may come late by as much before the health is unknown for it."""

CURRENT: Final = 4.75
"""Seconds after which a sample says nothing of the health any more: what is served for a quarter of a second more is by
one that is no older than five."""

FRESH: Final = 10.0
"""Seconds after which its figures are told no more either, and a server that wasn't asked counts as out of reach."""

SOON: Final = 0.5
"""Seconds until the next sample after a session that ended under one, and while a session begins."""


class Sampler:
    """The last sample, what it says together with those before, and the health by it."""

    def __init__(self, settings: Settings, status: Status, *, repeat: Callable[[str], str] = str) -> None:
        """`repeat`: a next step whose commands have the flags that were given to the running one."""
        self._settings = settings
        self._repeat = repeat
        self._status = status
        self._thresholds = Thresholds.of(settings.health)
        self._course = Course()
        self._alarms = Alarms()
        self._sample: Sample | None = None
        self._health: Health | None = None
        self._taken = self._began = time.monotonic()
        self._failed = ""
        self._error: CdcOutboxError | None = None
        self.forecast: Forecast | None = None

    @property
    def fresh(self) -> Sample | None:
        """The last sample, unless it is too old to tell of now."""
        return self._sample if time.monotonic() - self._taken < FRESH else None

    @property
    def health(self) -> Health | None:
        """The health by the last sample, which is unknown when that is late, and critical when it doesn't come.

        None before the first, for as long as it may be on its way.
        """
        age = time.monotonic() - self._taken
        if age < (CURRENT if self._sample is not None else FRESH):
            return self._health
        error = self._error
        if error is None:
            reason = f": {self._status.reason}" if self._status.reason else ""
            error = (PostgresUnavailable if age >= FRESH else CdcOutboxError)(
                f"the relay could not ask PostgreSQL for {age:.0f} s{reason}",
                next=self._status.errors[-1].next if self._status.errors else "see the relay's log",
            )
        return unreachable(self._status.slot, error, last=self._sample)

    async def run(self) -> None:
        """Sample for ever."""
        while True:
            began = time.monotonic()
            try:
                await self._status.connected.wait()
                await self._take()
            except CdcOutboxError as error:
                await asyncio.sleep(self._missed(error))
            except Exception as error:
                if repr(error) != self._failed:
                    self._failed = repr(error)
                    _log.error("the slot watch failed", fault=self._failed, slot=self._status.slot)
                await asyncio.sleep(EVERY)
            else:
                # What is seen of a slot that nobody reads yet is over in a moment.
                pause = SOON if self._status.state is State.CONNECTING else EVERY
                await asyncio.sleep(max(SOON, began + pause - time.monotonic()))

    def _missed(self, error: CdcOutboxError) -> float:
        """There is no sample: the session ended under it, or the server refused. Seconds until the next try."""
        admission = self._status.admission
        if admission is None or admission.control.lost.done():
            self._error = None
            return SOON
        if self._error is None or str(self._error) != str(error):
            _log.warning("no sample of the slot", error=str(error), next=error.next)
        self._error = error
        return EVERY

    async def _take(self) -> None:
        admission, postgres = self._status.admission, self._settings.postgres
        if admission is None:
            return
        before, asked = self._sample, time.time()
        sample = await admission.control.run(
            lambda conn: samples.take(
                conn,
                postgres.slot,
                postgres.publication,
                self._settings.outbox.tables,
                within=ANSWER,
                before=before,
            )
        )
        server = sample.at.timestamp()
        self._status.system_identifier = sample.system_identifier
        self._status.clock_ahead = server - min(max(server, asked), time.time())
        self.forecast = self._course.add(sample)
        self._sample, self._taken, self._error = sample, time.monotonic(), None
        health = judge(sample, self.forecast, self._thresholds, self._delivery())
        if health.next is not None:
            health = replace(health, next=self._repeat(complete(health.next, self._settings)))
        self._health = health
        # A start that is refused says why by itself, with a step that knows what was mistyped.
        for crossing in self._alarms.look(health) if self._status.admitted else ():
            self._say(crossing)

    def _delivery(self) -> Delivery:
        status = self._status
        acknowledged = status.acknowledged_at
        steps = [each.next for each in status.errors if each.error == status.reason]
        return Delivery(
            oldest_unacknowledged_seconds=status.oldest_known,
            last_acknowledged_at=None
            if acknowledged is None
            else datetime.fromtimestamp(acknowledged + status.clock_ahead, UTC),
            state=status.state.value,
            reason=status.reason or None,
            next=steps[-1] if steps else None,
        )

    def _say(self, crossing: Crossing) -> None:
        check = crossing.check
        say = _log.info
        if crossing.worse:
            say = _log.error if check.status is Level.CRITICAL else _log.warning
        threshold = check.critical if check.status is Level.CRITICAL else check.warning
        say(
            "threshold crossed" if crossing.worse else "threshold left",
            signal=check.name,
            status=check.status.value,
            value=check.value,
            threshold=threshold,
            what=check.message,
            next=check.next if check.status is not Level.OK else None,
            slot=self._status.slot,
        )
