"""What systemd is told of a running relay, by the datagrams of sd_notify(3): ready, how it is, alive, stopping.

| it is told | when |
|---|---|
| `READY=1` | when the set-up is judged, or a server is waited for: from then on a unit of `Type=notify` is active |
| `STATUS=` | when the state or its reason changes, and at an end by an error: `systemctl status` shows it |
| `WATCHDOG=1` | twice in `WatchdogSec=` while the event loop turns: who misses it is killed and started again |
| `STOPPING=1` | when the relay drains, or ends |

Who starts the unit hears at once of what a person has to mend, for that ends the relay before it is ready, and waits
for no outage: `STATUS=` says what is waited for. A set-up that can't be seen yet is judged when it can.

The absence of PostgreSQL or Kafka stops no `WATCHDOG=1`, for no restart would cure it. Without `NOTIFY_SOCKET` in the
environment nobody is told, and nothing runs. The protocol: https://www.freedesktop.org/software/systemd/man/sd_notify.html
"""

from __future__ import annotations

import asyncio
import os
import socket
from typing import TYPE_CHECKING, Final

from cdc_outbox import log
from cdc_outbox.state import State

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from cdc_outbox.state import Status

_log = log.get(__name__)

LOOK: Final = 0.5
"""Seconds between two looks at the state, at most."""

_ENDING: Final = (State.DRAINING, State.STOPPED)
_ENDED: Final = "ended: the last line of its log says why"
"""In place of the state in which an error met it, which would look as if all went on."""


class Supervisor:
    """Who started us and wants to know. `redact` takes secrets out of a reason.

    `environment` has `NOTIFY_SOCKET` (a path, or a name after `@`), and where there is a watchdog `WATCHDOG_USEC`,
    microseconds, and `WATCHDOG_PID`, whom it is for.
    """

    def __init__(
        self, status: Status, redact: Callable[[str], str], environment: Mapping[str, str] = os.environ
    ) -> None:
        self._status = status
        self._redact = redact
        self._address = environment.get("NOTIFY_SOCKET", "")
        self._watchdog = _watchdog(environment)
        self._ready = False
        self._stopping = False
        self._said = ""
        self._unheard = False

    async def run(self) -> None:
        """Tell it until cancelled, and of the end then; nothing where nobody wants to know."""
        if not self._address:
            return
        look = LOOK if self._watchdog is None else min(LOOK, self._watchdog / 4)
        alive_at = 0.0
        loop = asyncio.get_running_loop()
        try:
            while True:
                lines = self._news()
                if self._watchdog is not None and loop.time() - alive_at >= self._watchdog / 2 - look:
                    alive_at = loop.time()
                    lines.append("WATCHDOG=1")
                self._tell(lines)
                await asyncio.sleep(look)
        finally:
            self._tell(self._news(ends=True))

    def _news(self, *, ends: bool = False) -> list[str]:
        state, lines = self._status.state, []
        if not (self._ready or ends or state in _ENDING or self._judging):
            self._ready = True
            lines.append("READY=1")
        if (ends or state in _ENDING) and not self._stopping:
            self._stopping = True
            lines.append("STOPPING=1")
        reason = self._redact(self._status.reason)
        said = " ".join((f"{state.value}: {reason}" if reason else state.value).split())
        if ends and state not in _ENDING:
            said = _ENDED
        if said != self._said:
            self._said = said
            lines.append(f"STATUS={said}")
        return lines

    @property
    def _judging(self) -> bool:
        """Whether the first session looks at the set-up still: whatever it finds gives a state, a reason or the end."""
        return self._status.state is State.CONNECTING and not self._status.reason

    def _tell(self, lines: list[str]) -> None:
        if not lines:
            return
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.setblocking(False)
                sender.sendto("\n".join(lines).encode(), address)
        except OSError as error:
            if not self._unheard:
                self._unheard = True
                _log.warning("systemd can't be told how the relay is", socket=self._address, error=str(error))


def _watchdog(environment: Mapping[str, str]) -> float | None:
    """Seconds within which it wants to hear from us; None where it doesn't, or wants to hear from another process."""
    wanted = environment.get("WATCHDOG_USEC", "")
    if not wanted.isdecimal() or int(wanted) == 0:
        return None
    whose = environment.get("WATCHDOG_PID", "")
    return int(wanted) / 1_000_000 if whose in ("", str(os.getpid())) else None
