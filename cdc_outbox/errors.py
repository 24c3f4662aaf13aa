"""Everything that can go wrong, as one tree.

Each error says what is wrong, with the value that is wrong, in a lower-case clause; carries the next step for
the person who reads it, as a command where there is one; and knows the exit code of the process that it ends
and whether trying again helps.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

# What applications catch, and may lean on; the rest of the tree is the relay's own.
__all__ = ["CallRefused", "EventTooLarge", "EventUnfit", "OutsideTransaction"]


class CdcOutboxError(Exception):
    """The root. `str(error)` is what is wrong; `error.next` is the next step."""

    exit_code: ClassVar[int] = 1
    retriable: ClassVar[bool] = False

    def __init__(self, message: str, *, next: str) -> None:  # noqa: A002 - the contract's word for the remedy
        super().__init__(message)
        self.next = next


class UsageError(CdcOutboxError):
    """A flag whose value is malformed."""

    exit_code = 2


class ConfigError(CdcOutboxError):
    """The file or the environment is wrong."""

    exit_code = 78


class SetupError(CdcOutboxError):
    """Something on the server is missing or wrong, and a restart won't help."""

    exit_code = 78


class SlotMissing(SetupError):
    """There is no replication slot of that name."""


class SlotLost(SetupError):
    """The server has removed WAL that the slot still needed."""


class SlotUnusable(SetupError):
    """The slot belongs to another plugin or database, or is a physical one."""


class GapFound(SetupError):
    """The slot stands beyond what this relay has proof of having delivered."""


class PublicationWrong(SetupError):
    """The publication is missing, lacks the table, or hides rows."""


class PublicationUnseen(PublicationWrong):
    """Decoding reached rows that were written while the publication did not exist, and goes no further (15 to 17)."""


class PublicationReplaced(SetupError):
    """The publication was made again while rows may have been written: what was skipped is unknown."""


class MissingRight(SetupError):
    """The role may not do what is needed."""


class PasswordRefused(SetupError):
    """PostgreSQL refuses a password that was asked for anew; the next one may be another."""


class SynchronousStandby(SetupError):
    """The server counts us as a synchronous standby: the application's commits would wait for Kafka."""


class MappingError(SetupError):
    """The table's columns can't be turned into Kafka messages."""


class PoisonEvent(CdcOutboxError):
    """One row can't be published, ever, as it is. A person must decide.

    `lsn` and `seq` are the row's place (final LSN of its transaction, place within it); `event_id` its id
    as text, or None where it has none; `reason` is a bounded word for metrics.
    """

    exit_code = 70

    def __init__(
        self,
        message: str,
        *,
        next: str,  # noqa: A002 - as above
        reason: str,
        lsn: int = 0,
        seq: int = 0,
        event_id: str | None = None,
    ) -> None:
        super().__init__(message, next=next)
        self.reason = reason
        self.lsn = lsn
        self.seq = seq
        self.event_id = event_id


class Unavailable(CdcOutboxError):
    """A server can't be reached, or went away: try again with backoff."""

    retriable = True


class PostgresUnavailable(Unavailable):
    """PostgreSQL can't be reached or ended the connection."""


class PostgresShutdown(PostgresUnavailable):
    """PostgreSQL is shutting down or not yet up (57P01 to 57P03): get out of its way at once."""


class PostgresGone(PostgresUnavailable):
    """Nothing listens at PostgreSQL's address."""


class OtherServer(PostgresUnavailable):
    """Another server answers than the one that streams to us."""


class DecodingFailed(PostgresUnavailable):
    """The server failed while it decoded its WAL for us; it may do so at the same place again and again."""


class KafkaUnavailable(Unavailable):
    """No broker can be reached, or a delivery's outcome is unknown."""


class SlotBusy(CdcOutboxError):
    """Another process streams from the slot: wait as its hot standby."""

    retriable = True


class SlotBlocked(CdcOutboxError):
    """A slot could not be made in time, for transactions were open; once they end it can."""


class Held(CdcOutboxError):
    """The environment forbids delivery for now (authorisation, topic, quota, guard): nothing is skipped."""

    retriable = True


class ProtocolViolation(CdcOutboxError):
    """Bytes from the server that the protocol doesn't allow."""

    retriable = True


class DrainExceeded(CdcOutboxError):
    """The drain limit passed before everything in flight was confirmed."""


class Unmarked(CdcOutboxError):
    """Rows that were sent are not marked in the table, and the relay has come to its end."""


class CallRefused(CdcOutboxError):
    """A call of `enqueue` or `inbox` that can't be carried out as it is. The transaction was left untouched.

    Its reader is a programmer, who sees a traceback and no two lines: the next step is a note in it.
    """

    def __init__(self, message: str, *, next: str) -> None:  # noqa: A002 - as above
        super().__init__(message, next=next)
        self.add_note(f"next: {next}")


class EventUnfit(CallRefused):
    """An event that PostgreSQL or Kafka would not take, or that the table has no column for."""


class EventTooLarge(EventUnfit):
    """An event that is larger than a Kafka record may be."""


class OutsideTransaction(CallRefused):
    """The connection is in autocommit and no transaction is open: what belongs together would be apart."""


def numbered(texts: Iterable[str]) -> str:
    """Several messages, or their steps in the same order, as one."""
    return " ".join(f"({number}) {text}" for number, text in enumerate(texts, 1))
