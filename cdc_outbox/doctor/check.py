"""One thing that was looked at, and what was found.

A check that failed has the exit code that `start` would end with for the same reason: 78 where a person has to change
the set-up, 1 where it may pass by itself or by what an operator does at run time. A warning has none: `start` would
work, and something is worth knowing or mending.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from cdc_outbox.terminal import one_line

if TYPE_CHECKING:
    from collections.abc import Callable

    from cdc_outbox.errors import CdcOutboxError

Side: TypeAlias = Literal["relay", "postgres", "kafka"]

MAY_PASS: Final = 1
SET_UP: Final = 78


class Status(enum.Enum):
    """How a check came out, the worst last."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"

    @classmethod
    def worst(cls, found: list[Status]) -> Status:
        """The worst of several; ok for none."""
        order = list(cls)
        return max(found, key=order.index, default=cls.OK)


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the report. `remedy` may have several lines, each to be pasted as it stands."""

    name: str
    side: Side
    status: Status
    message: str
    remedy: str | None = None
    exit_code: int = 0

    def document(self) -> dict[str, str | None]:
        """The check under the keys of the contract."""
        return {
            "name": self.name,
            "side": self.side,
            "status": self.status.value,
            "message": self.message,
            "remedy": self.remedy,
        }


class Findings:
    """What is found on one side, in the order in which it is looked for.

    All text passes `redact`, a remedy `complete` before. A message is a line that a terminal shows as it is: ids of
    rows are anybody's.
    """

    def __init__(
        self, side: Side, redact: Callable[[str], str], complete: Callable[[str], str] = str
    ) -> None:
        self.side = side
        self.checks: list[Check] = []
        self._redact = redact
        self._complete = complete

    def ok(self, name: str, message: str, remedy: str | None = None) -> None:
        """Nothing to do; a remedy is a suggestion then."""
        self._add(name, Status.OK, message, remedy)

    def warn(self, name: str, message: str, remedy: str | None = None) -> None:
        """Something that `start` gets by with."""
        self._add(name, Status.WARNING, message, remedy)

    def fail(self, name: str, message: str, remedy: str, *, exit_code: int = SET_UP) -> None:
        """Something that keeps `start` from working. `exit_code`: 78, or 1 for what may pass by itself."""
        self._add(name, Status.FAILED, message, remedy, exit_code)

    def refuse(self, name: str, error: CdcOutboxError, remedy: str | None = None) -> None:
        """What `start` would raise. `remedy`: a better one than the error's own."""
        code = MAY_PASS if error.exit_code == MAY_PASS else SET_UP
        self._add(name, Status.FAILED, str(error), remedy or error.next, code)

    def _add(self, name: str, status: Status, message: str, remedy: str | None, exit_code: int = 0) -> None:
        shown = None if remedy is None else self._redact(self._complete(remedy))
        line = one_line(self._redact(message))
        self.checks.append(Check(name, self.side, status, line, shown, exit_code))
