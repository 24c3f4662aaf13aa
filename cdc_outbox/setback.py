"""What an error means for the relay: the end, or another try, and the state until then.

Some are an outage the first time, and the second time at the same place they are none. Each is told at once with its
remedy, and while it lasts in one line a minute.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from cdc_outbox import log
from cdc_outbox.errors import (
    ConfigError,
    DecodingFailed,
    Held,
    KafkaUnavailable,
    PasswordRefused,
    PoisonEvent,
    PublicationReplaced,
    PublicationUnseen,
    PublicationWrong,
    Unavailable,
)
from cdc_outbox.publisher import BusRefused
from cdc_outbox.state import State

if TYPE_CHECKING:
    from cdc_outbox.errors import CdcOutboxError
    from cdc_outbox.state import Status

_log = log.get(__name__)

SAY_AGAIN: Final = 60.0
"""Seconds until the same error is worth another line."""


class Setbacks:
    """Those that were met since the process began."""

    def __init__(self, status: Status, *, blocks: bool) -> None:
        """`blocks`: whether a poison event is tried again, and is no end."""
        self._status = status
        self._blocks = blocks
        self._unseen: str | None = None
        self._undecoded: str | None = None
        self._said: dict[str, float] = {}

    def may_go_on(self, error: CdcOutboxError, *, began: bool, flowed: bool) -> bool:
        """Whether to begin again. `began`: whether any session has come to a bus that took us, or to a stream;
        `flowed`: whether this one has come to a stream.

        What is wrong with the publication, a provider's password or a file that the settings name, or what the bus has
        against us, ends us at the start and holds us later.
        """
        if isinstance(error, PublicationUnseen):
            # Decoding stops there for ever, even when the publication is there again.
            if str(error) == self._unseen:
                return False
            self._unseen = str(error)
        ours = PublicationWrong | PublicationReplaced | PasswordRefused
        changed = (isinstance(error, ours) and self._status.admitted) or (
            isinstance(error, BusRefused | ConfigError) and began
        )
        if isinstance(error, DecodingFailed):
            # Its text names the LSN: at the same one again it is no outage.
            changed, self._undecoded = str(error) == self._undecoded, str(error)
        # A delivery that fails again and again would tell the log each time that we stream.
        undelivered = isinstance(error, KafkaUnavailable) and flowed
        if changed or undelivered or isinstance(error, Held):
            self._status.change(State.HELD, str(error))
            return True
        if isinstance(error, PoisonEvent):
            return self._blocks
        if error.retriable:
            self._status.change(State.CONNECTING, str(error))
        return error.retriable

    def say(self, error: CdcOutboxError) -> None:
        """Log an error and its remedy at once, and while it lasts one line a minute."""
        self._status.trouble(error)
        now = time.monotonic()
        text = str(error)
        said = self._said.get(text)
        if said is None:
            _log.warning("waiting", error=text, next=_meanwhile(error), slot=self._status.slot)
        elif now - said >= SAY_AGAIN:
            _log.warning("still waiting", error=text, slot=self._status.slot)
        else:
            return
        self._said = {known: at for known, at in self._said.items() if now - at < 2 * SAY_AGAIN} | {text: now}


def _meanwhile(error: CdcOutboxError) -> str:
    """The next step, and what we do until then where the error doesn't say so."""
    if not isinstance(error, Unavailable) or "relay" in error.next:
        return error.next
    return f"{error.next}; the relay goes on trying"
