"""One slot as it is to be judged: its sample, what the samples say over time, and what the relay says of itself."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final

from cdc_outbox.postgres.witness import Witness
from cdc_outbox.watch.reads import Known

if TYPE_CHECKING:
    from cdc_outbox.postgres.slot import Slot
    from cdc_outbox.watch.forecast import Forecast
    from cdc_outbox.watch.health import Delivery
    from cdc_outbox.watch.sample import Sample
    from cdc_outbox.watch.thresholds import Thresholds

APPLICATION: Final = "cdc-outbox/"
"""How the application_name of each of our walsenders begins."""


@dataclass(frozen=True, slots=True)
class Subject:
    """What a judgement goes by; see `cdc_outbox.watch.checks.judge`."""

    sample: Sample
    forecast: Forecast
    thresholds: Thresholds
    delivery: Delivery
    volume: int | None
    known: Known

    @property
    def kept(self) -> Slot:
        """The slot, or its pending one."""
        kept = self.sample.kept
        assert kept is not None  # noqa: S101 - only asked for where there is one
        return kept

    @property
    def ours(self) -> bool:
        """Whether the slot is surely this project's: it has a witness row, or its reader bears our name."""
        holder = self.sample.holder
        return isinstance(self.sample.witness, Witness) or (
            holder is not None and (holder.application or "").startswith(APPLICATION)
        )

    @property
    def foreign_publication(self) -> bool:
        """Whether it isn't known through which publication the slot is read, perhaps by another tool."""
        state = self.sample.publication
        missing = state.identity is None and not self.sample.publishes
        default = self.known is Known.DEFAULT and missing and not self.ours
        return default or self.known is Known.GUESSED

    @property
    def next(self) -> str:
        """The step that has delivery go on."""
        name = self.sample.name
        if self.delivery.next is not None:
            return self.delivery.next
        if not self.kept.active and self.delivery.state is None:
            return f"cdc-outbox start --slot {name}"
        peek = f"cdc-outbox peek --slot {name} --follow"
        return f"see what the relay says at /status and in its log, and what comes next: {peek}"

    def since(self, at: datetime) -> float:
        """Seconds from then to the sample."""
        return max(0.0, (self.sample.at - at).total_seconds())
