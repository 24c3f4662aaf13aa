"""A sample of a slot with whatever a test says about it, and a sampler that has taken it."""

from __future__ import annotations

from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, TypeVar, cast

from cdc_outbox.event import TableName
from cdc_outbox.lsn import LSN
from cdc_outbox.postgres.publication import PublicationState
from cdc_outbox.postgres.slot import Slot
from cdc_outbox.state import Status
from cdc_outbox.watch.answers import Answers
from cdc_outbox.watch.forecast import Forecast, Outlook
from cdc_outbox.watch.health import Delivery, Health, Level
from cdc_outbox.watch.history import History
from cdc_outbox.watch.metrics import registry
from cdc_outbox.watch.sample import Limits, Sample, Transaction
from cdc_outbox.watch.sampler import Sampler
from cdc_outbox.watch.token import Token

MIB = 1 << 20
GIB = 1024 * MIB
START = 1 << 30
Record = TypeVar("Record")


def record(kind: type[Record], **known: Any) -> Record:
    """A record of which the rest is None."""
    return kind(**(dict.fromkeys(each.name for each in fields(cast(Any, kind))) | known))


AT = datetime(2026, 5, 4, 10, 0, 0, tzinfo=UTC)

SLOT = record(
    Slot,
    name="outbox_slot",
    plugin="pgoutput",
    slot_type="logical",
    database="app",
    here=True,
    temporary=False,
    active=True,
    active_pid=4711,
    catalog_xmin=700,
    restart_lsn=LSN(0x1000000),
    confirmed_flush_lsn=LSN(0x1200000),
    wal_status="reserved",
    safe_wal_size=60 * MIB,
    two_phase=False,
    failover=False,
    synced=False,
)

SAMPLE = record(
    Sample,
    name="outbox_slot",
    at=AT,
    version=180000,
    system_identifier="7",
    timeline=1,
    database="app",
    in_recovery=False,
    current_lsn=LSN(0x1400000),
    insert_lsn=LSN(0x1400000),
    slot=SLOT,
    others=(),
    catalog_xmin_age=3,
    limits=Limits(slot_keep=64 * MIB, wal_keep=0, segment=16 * MIB),
    synchronous_standby_names="",
    synchronized_standby_slots="",
    publication=PublicationState("outbox_pub", None, "", None, LSN(0x1400000)),
    publishes=("insert",),
    tables=(TableName("public", "outbox"),),
    sees_sessions=False,
    may_read_witness=False,
    may_list_wal=False,
)

HOLDER = Transaction(815, None, "app", "batch", "app", None, None, None, 700, 90_000)

FORECAST = record(
    Forecast,
    loss=Outlook.UNKNOWN,
    caught_up=Outlook.UNKNOWN,
    began=AT,
)


def slot(**changes: Any) -> Slot:
    return replace(SLOT, **changes)


def sample(**changes: Any) -> Sample:
    return replace(SAMPLE, **changes)


def at(
    seconds: float,
    *,
    written: int,
    confirmed: int = 0,
    restart: int = 0,
    active: bool = False,
    limit: int | None = 1024 * MIB,
    **changes: Any,
) -> Sample:
    """A sample so many seconds after the start, with so many bytes written, confirmed and let go since."""
    lsn = LSN(START + written)
    safe = None if limit is None else limit - (written - restart)
    return sample(
        at=AT + timedelta(seconds=seconds),
        current_lsn=lsn,
        insert_lsn=lsn,
        limits=Limits(slot_keep=limit, wal_keep=0, segment=16 * MIB),
        slot=slot(
            active=active,
            active_pid=4711 if active else None,
            confirmed_flush_lsn=LSN(START + confirmed),
            restart_lsn=LSN(START + restart),
            safe_wal_size=safe,
        ),
        **changes,
    )


def health(status: Level = Level.OK, summary: str = "all is well", **changes: Any) -> Health:
    known: dict[str, Any] = {"slot": "outbox_slot", "checks": (), "delivery": Delivery()}
    return record(Health, status=status, summary=summary, **(known | changes))


class Watched:
    """The watch of a relay that doesn't run: its state, sample and health are what the test makes them."""

    def __init__(self, *, loopback: bool = True, token: Token | None = None) -> None:
        self.status = Status("outbox_slot")
        self.sampler = SimpleNamespace(fresh=None, forecast=None, health=None)
        sampler = cast(Sampler, self.sampler)
        self.history = History(self.status, sampler)
        self.registry = registry(self.status, sampler)
        self.answers = Answers(
            self.status,
            sampler,
            self.history,
            self.registry,
            lambda text: text.replace("hunter2", "***"),
            loopback=loopback,
            token=token,
        )
