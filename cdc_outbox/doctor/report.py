"""The report: the relay's own machine, then PostgreSQL, then Kafka, whatever one of them lacks.

A side that can't be reached is one failed check, and hides nothing of the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cdc_outbox.doctor import kafka, postgresql, relay, waiting
from cdc_outbox.doctor.check import Findings, Status

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from cdc_outbox.doctor.check import Check
    from cdc_outbox.settings import Settings


@dataclass(frozen=True, slots=True)
class Report:
    """All checks in their order, and each table's mapping in words."""

    checks: tuple[Check, ...]
    mapping: Mapping[str, str]

    @property
    def status(self) -> Status:
        """The worst of all checks."""
        return Status.worst([check.status for check in self.checks])

    @property
    def exit_code(self) -> int:
        """0 where nothing failed, 78 where a person has to change the set-up, else 1."""
        return max((check.exit_code for check in self.checks), default=0)

    def document(self) -> dict[str, Any]:
        """The report under the keys of the contract."""
        return {
            "schema_version": 1,
            "status": self.status.value,
            "checks": [check.document() for check in self.checks],
            "mapping": dict(self.mapping),
        }


async def examine(settings: Settings, complete: Callable[[str], str]) -> Report:
    """Look at everything; each remedy passes `complete`. Raises nothing but what is a fault of this program."""
    redact = settings.redactor.redact
    own, server, cluster = (Findings(side, redact, complete) for side in ("relay", "postgres", "kafka"))
    relay.examine(settings, own)
    outbox = await postgresql.examine(settings, server)
    await waiting.examine(settings, outbox, server, within=postgresql.WITHIN)
    await kafka.examine(settings.kafka, outbox, cluster)
    mapping = {table: redact(words) for table, words in outbox.mapping.items()}
    return Report((*own.checks, *server.checks, *cluster.checks), mapping)
