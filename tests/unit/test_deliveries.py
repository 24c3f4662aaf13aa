"""When the memory of deliveries must end because the server went back to an earlier state of itself."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cdc_outbox.lsn import LSN
from cdc_outbox.postgres.admission import Admission, Memory
from cdc_outbox.postgres.witness import Absent, Witness
from cdc_outbox.publisher import Deliveries
from cdc_outbox.settings import load

SETTINGS = load("start", {}, {}, Path("/nonexistent"))


class Shown:
    """What a server shows at the start of a session: its witness row, the slot, and the end of its WAL."""

    def __init__(self, *, witness: int | None, slot: int, ends: int | None) -> None:
        self.witness = witness
        self.slot = slot
        self.ends = ends

    def set_back(self, memory: Memory, delivered: int) -> bool:
        admission = Admission(SETTINGS.postgres, SETTINGS.outbox.tables, memory)
        admission.witness = Absent.TABLE if self.witness is None else Witness("s", "1", 1, LSN(self.witness))
        admission.position = LSN(self.slot)
        ends = None if self.ends is None else LSN(self.ends)
        admission.publication = cast(Any, SimpleNamespace(insert_lsn=ends))
        return admission.was_set_back(delivered)


@pytest.mark.parametrize(
    ("shown", "set_back"),
    [
        (Shown(witness=500, slot=500, ends=900), False),
        (Shown(witness=500, slot=400, ends=900), False),
        (Shown(witness=400, slot=400, ends=900), True),
        (Shown(witness=500, slot=500, ends=600), True),
        (Shown(witness=500, slot=500, ends=None), False),
        (Shown(witness=None, slot=500, ends=900), False),
        (Shown(witness=None, slot=400, ends=900), True),
        (Shown(witness=None, slot=500, ends=600), True),
    ],
    ids=[
        "as it was",
        "a crash that takes the slot's position back",
        "an older witness row, and new rows since",
        "the end of WAL before what arrived",
        "a server that doesn't tell its end of WAL",
        "as it was, without a witness table",
        "an older slot without a witness table",
        "the end of WAL before what arrived, without a witness table",
    ],
)
def test_a_server_that_knows_less_than_it_did_was_set_back(shown: Shown, set_back: bool) -> None:
    memory = Memory(proven=LSN(500))
    assert shown.set_back(memory, delivered=700) is set_back


def test_a_set_back_is_noticed_once() -> None:
    memory = Memory(proven=LSN(500))
    earlier = Shown(witness=400, slot=400, ends=900)
    assert earlier.set_back(memory, delivered=700)
    # The deliveries were forgotten with that.
    assert not earlier.set_back(memory, delivered=0)


def test_a_first_session_has_nothing_to_forget() -> None:
    assert not Shown(witness=None, slot=0, ends=0).set_back(Memory(), delivered=0)
    assert not Shown(witness=400, slot=400, ends=900).set_back(Memory(), delivered=0)


def test_what_has_arrived_beyond_a_position_is_told_by_the_place_of_its_commit() -> None:
    deliveries = Deliveries()
    assert not deliveries.beyond(0)
    deliveries.settle("orders", 0, (0x100, 3))
    deliveries.settle("orders", 1, (0x200, 0))
    assert deliveries.beyond(0x200)
    assert not deliveries.beyond(0x201)
    deliveries.forget_beyond(LSN(0x180))
    assert deliveries.beyond(0x100)
    assert not deliveries.beyond(0x180)
    assert deliveries.until + 1 == 0x181  # a place, with which one may calculate, and no position
