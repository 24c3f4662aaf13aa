"""The heart of a session: status updates by a clock of their own, whatever Kafka or the reader do.

The server ends a walsender that it hasn't heard for `wal_sender_timeout`; we end a connection on which nothing came
for a while after we asked, for TCP may call a frozen or unreachable peer alive for hours. The same question
brings the position that lets an idle slot advance.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

from cdc_outbox.errors import PostgresShutdown, PostgresUnavailable

if TYPE_CHECKING:
    from cdc_outbox.intake import Intake
    from cdc_outbox.postgres.stream import ReplicationStream

ASK_EVERY: Final = 10.0
"""Seconds between requests for a keepalive."""

SILENCE: Final = 15.0
"""Seconds without a byte after such a request: the connection is dead."""

TICK: Final = 0.1
"""Seconds between looks at the clock; less where the server's patience is so short that these would add up to it."""


async def beat(stream: ReplicationStream, intake: Intake) -> None:
    """Send status updates until the session ends, often enough for the server's patience with us.

    Raises PostgresUnavailable when the connection is dead, PostgresShutdown when the server asks in a storm.
    """
    every = min(ASK_EVERY, stream.sender_timeout / 3) if stream.sender_timeout else ASK_EVERY
    tick = min(TICK, every / 8)
    asked = sent = -ASK_EVERY
    while True:
        now = time.monotonic()
        if intake.shutdown_signs:
            raise PostgresShutdown(
                "PostgreSQL asks for a last word, as it does in a shutdown",
                next="nothing to do: the relay made way and reconnects by itself",
            )
        if now - asked >= ASK_EVERY:
            stream.send_status(ask=True)
            asked = sent = now
        elif now - sent >= every:
            stream.send_status()
            sent = now
        else:
            stream.reply_if_due(now)
        if stream.silent_for(now) > SILENCE:
            raise PostgresUnavailable(
                f"nothing came from PostgreSQL for {SILENCE:.0f} s after a question",
                next="nothing to do: the relay reconnects by itself; check the network if it happens again",
            )
        await asyncio.sleep(tick)
