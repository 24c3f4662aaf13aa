"""Why a row can't become a message.

The rooms of this package know a column and its value, not the row's place in the stream. They raise
`Unfit`, and the plan turns it into the poison event that a person reads. Values of payload, key and headers
never enter the text; a topic's name does, since it is what has to be mended.
"""

from __future__ import annotations

from typing import Final

LEAVE_OUT: Final = (
    "send only rows in which a column has a value, by --only COLUMN=VALUE (all others are left out)"
)


class Unfit(Exception):
    """One row can't be encoded. `reason` is a bounded word; `next` the way out."""

    def __init__(self, reason: str, problem: str, remedy: str) -> None:
        super().__init__(problem)
        self.reason = reason
        self.next = remedy
