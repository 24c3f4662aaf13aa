"""What the running relay says of itself, asked at its address: the age of the oldest commit, which no table shows,
and what it has seen of the slot for longer than a call of `health` looks.

Short of patience, and silent where nobody answers: health needs no running relay.
"""

from __future__ import annotations

import http.client
import json
import socket
import threading
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from cdc_outbox.watch.forecast import Basis, Outlook
from cdc_outbox.watch.health import Delivery

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from cdc_outbox.watch.forecast import Forecast

PATIENCE: Final = 1.0
"""Seconds to reach the relay, and as many that it has for its whole answer."""

LARGEST: Final = 4 << 20
"""Bytes of an answer that are read at most."""

REPEATED: Final = 70.0
"""Seconds within which the relay says again what still troubles it."""

_REFUSED: Final = (401, 403)
"""The token is missing or wrong; nothing is told to others than the relay's machine, for there is no token."""

_ANYWHERE: Final = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - where to ask, not where to listen


def ask(address: tuple[str, int], token_file: Path | None = None) -> dict[str, Any] | None:
    """The relay's `/status`, None where there is no such answer; its `error` alone where we may not know it."""
    host, port = address
    headers = {"Accept": "application/json"}
    connection = http.client.HTTPConnection(_ANYWHERE.get(host, host), port, timeout=PATIENCE)
    try:
        if token_file is not None:
            headers["Authorization"] = f"Bearer {token_file.read_text(encoding='utf-8').strip()}"
        connection.connect()
        with _cut_after(PATIENCE, connection.sock):
            connection.request("GET", "/status", headers=headers)
            answer = connection.getresponse()
            document = json.loads(answer.read(LARGEST)) if answer.status in (200, *_REFUSED) else None
    except (OSError, ValueError, http.client.HTTPException):
        return None
    finally:
        connection.close()
    if not isinstance(document, dict):
        return None
    if answer.status not in _REFUSED:
        return document
    why = _text(document.get("error"))
    return None if why is None else {"error": why}


@contextmanager
def _cut_after(seconds: float, connected: socket.socket) -> Iterator[None]:
    """End a connection in so many seconds: its own timeout begins anew with each byte."""

    def cut() -> None:
        with suppress(OSError):
            connected.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(seconds, cut)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def of_server(document: dict[str, Any] | None, system_identifier: str) -> dict[str, Any] | None:
    """The same, None where it is a relay's of another server: slots have one name everywhere, and one address."""
    told = None if document is None else document.get("system_identifier")
    return document if told in (None, system_identifier) else None


def delivery(document: dict[str, Any] | None, slot: str) -> Delivery | None:
    """What a `/status` says of delivery, None where it is another slot's relay or isn't understood."""
    if document is not None and document.keys() == {"error"}:
        return Delivery(refusal=_text(document["error"]))
    if document is None or document.get("slot") != slot:
        return None
    told = document.get("delivery")
    told = told if isinstance(told, dict) else {}
    seconds = _seconds(told.get("oldest_unacknowledged_seconds"))
    reason, last = _text(document.get("reason")), _last_error(document, seconds or 0.0)
    trouble = _text(last.get("error"))
    found = Delivery(
        oldest_unacknowledged_seconds=seconds,
        last_acknowledged_at=_time(told.get("confirmable_since")) or _time(told.get("last_acknowledged_at")),
        state=_text(document.get("state")),
        reason=reason,
        trouble=trouble if trouble != reason else None,
        next=_text(last.get("next")),
    )
    return replace(found, next=_of_the_reason(document, reason) or found.next) if found.stuck else found


def sooner(document: dict[str, Any] | None, slot: str, forecast: Forecast) -> Forecast:
    """The forecast, or the relay's own where that expects the loss sooner: it has watched for longer than a moment."""
    health = document.get("health") if document is not None and document.get("slot") == slot else None
    told, rate = (_part(health, "forecast"), _part(health, "rate"))
    seconds, written = _seconds(told.get("seconds_to_loss")), _seconds(rate.get("wal_bytes_per_second"))
    ours = forecast.seconds_to_loss
    if seconds is None or written is None or forecast.rates is None or (ours is not None and ours <= seconds):
        return forecast
    try:
        basis = Basis(told.get("basis"))
    except ValueError:
        return forecast
    return replace(
        forecast,
        loss=Outlook.IN if seconds else Outlook.NOW,
        seconds_to_loss=seconds,
        basis=basis,
        rates=replace(forecast.rates, wal_slow=max(forecast.rates.wal_slow, written)),
    )


def _part(whole: object, name: str) -> dict[str, Any]:
    part = whole.get(name) if isinstance(whole, dict) else None
    return part if isinstance(part, dict) else {}


def _of_the_reason(document: dict[str, Any], reason: str | None) -> str | None:
    """The step that the relay gave when it became stuck, however long ago."""
    errors = document.get("errors")
    known = [each for each in errors if isinstance(each, dict)] if isinstance(errors, list) else []
    return next((_text(each.get("next")) for each in reversed(known) if each.get("error") == reason), None)


def _last_error(document: dict[str, Any], seconds: float) -> dict[str, Any]:
    """The relay's last error, if it came while what waits has waited; it says one that lasts again in a minute."""
    errors = document.get("errors")
    last = errors[-1] if isinstance(errors, list) and errors else None
    at = _time(last.get("at")) if isinstance(last, dict) else None
    if not seconds or at is None or not isinstance(last, dict):
        return {}
    return last if datetime.now(UTC) - at < timedelta(seconds=seconds + REPEATED) else {}


def _seconds(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        return None
    return float(value)


def _time(text: object) -> datetime | None:
    try:
        at = datetime.fromisoformat(text) if isinstance(text, str) else None
    except ValueError:
        return None
    return at if at is not None and at.tzinfo is not None else None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None
