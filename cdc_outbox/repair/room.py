"""How much WAL the server still keeps for a slot that nobody reads from meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cdc_outbox import log
from cdc_outbox.errors import SlotLost, SlotMissing
from cdc_outbox.postgres import slot

if TYPE_CHECKING:
    from cdc_outbox.postgres.slot import Slot

_log = log.get(__name__)


class Room:
    """The bytes of WAL that the slot `name` may still keep, told at first and each time that they have halved."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._told: int | None = None

    def look(self, found: Slot | None) -> None:
        """Take in the slot as it is now. Raises SlotMissing, SlotLost."""
        if found is None:
            raise SlotMissing(
                f'the slot "{self._name}" was dropped by another session',
                next="find out who drops slots here, then run this again: it starts anew",
            )
        if found.lost:
            raise SlotLost(
                f'the slot "{self._name}" is lost: the server keeps no more WAL for it',
                next=f"{slot.limit_of(found)}, then run this again: it makes the slot and reads the table anew",
            )
        room, told = found.safe_wal_size, self._told
        if room is None or (told is not None and room > told / 2):
            return
        if told is None:
            _log.info("the slot keeps WAL meanwhile", slot=self._name, safe_wal_bytes=room)
        else:
            _log.warning(
                "the slot comes near its limit",
                slot=self._name,
                safe_wal_bytes=room,
                wal_status=found.wal_status,
            )
        self._told = max(room, 0)
