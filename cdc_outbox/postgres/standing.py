"""How the slots of a table stand, for who wonders why rows of it aren't acknowledged."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, LiteralString

from cdc_outbox.postgres import slot
from cdc_outbox.postgres.connection import Connection, execute
from cdc_outbox.postgres.remedy import recover

if TYPE_CHECKING:
    from cdc_outbox.postgres.acknowledged import Acknowledged, Proof
    from cdc_outbox.postgres.slot import Slot

_BEHIND: Final[LiteralString] = """
select pg_catalog.pg_wal_lsn_diff(pg_catalog.pg_current_wal_insert_lsn(), %s::pg_lsn)::int8
"""


async def standing(relay: Connection, acknowledged: Acknowledged) -> tuple[tuple[str, str], ...]:
    """For each slot that holds the table's acknowledgement back: how it stands, and the next step.

    That is each slot that has proven nothing, and of the others the one that is furthest behind.
    """
    return tuple([await _told(relay, proof) for proof in acknowledged.proofs if _holds(proof, acknowledged)])


def _holds(proof: Proof, acknowledged: Acknowledged) -> bool:
    return proof.horizon is None or proof.horizon == acknowledged.horizon


async def _told(relay: Connection, proof: Proof) -> tuple[str, str]:
    start, look = (f"cdc-outbox {command} --slot {proof.slot}" for command in ("start", "health"))
    found = await slot.inspect(relay, proof.slot)
    if proof.lacking is not None and (found is None or found.active):
        return proof.lacking, look if found is not None and proof.next == start else proof.next
    if found is None:
        return (
            f"the slot {proof.slot} is gone",
            f"{recover(proof.slot)}; or forget it: cdc-outbox drop --slot {proof.slot}",
        )
    if found.lost:
        return f"the slot {proof.slot} is lost", recover(proof.slot)
    behind = await _behind(relay, found)
    if not found.active:
        return f"no relay streams from the slot {proof.slot}, which is {behind} behind", start
    return (
        f"the relay of slot {proof.slot} is {behind} behind, or a transaction is open for as long",
        look,
    )


async def _behind(relay: Connection, found: Slot) -> str:
    ((behind,),) = await execute(relay, _BEHIND, (str(found.confirmed_flush_lsn),))
    return f"{int(behind) / 2**20:.1f} MiB" if behind is not None else "an unknown number of bytes"
