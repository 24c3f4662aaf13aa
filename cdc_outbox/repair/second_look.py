"""A second look into the table, for messages whose row the snapshot didn't have.

Their rows may have committed since, or lie outside of the window. The table is asked by the index of its id column.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from cdc_outbox import log
from cdc_outbox.errors import CdcOutboxError, SetupError
from cdc_outbox.postgres import lookup, sqlstate
from cdc_outbox.postgres.connection import reach_operators
from cdc_outbox.postgres.table_locked import TableLocked
from cdc_outbox.table.values import BYTEA, INT2, INT4, INT8

if TYPE_CHECKING:
    from collections.abc import Collection

    from cdc_outbox.postgres.connection import Connection
    from cdc_outbox.table.plan import Plan

_log = log.get(__name__)

LOCKED: Final = 30
"""Seconds that a table which somebody has to himself is waited for."""

UUID: Final = 2950
_BITS: Final = {INT2: 15, INT4: 31, INT8: 63}


class SecondLook:
    """The ids of one table."""

    def __init__(self, conn: Connection, plan: Plan) -> None:
        self._conn = conn
        self._type = plan.layout.id.type_oid
        self._lookup = lookup.Lookup(conn, plan.table, plan.layout.id.name, [])
        self._able = True

    async def prepare(self) -> None:
        """Without an index no look is taken: each would read the whole table."""
        await reach_operators(self._conn, self._type)
        try:
            await self._lookup.require()
        except SetupError as error:
            self._able = False
            _log.info("rows are not looked for again", reason=str(error))

    async def find(self, ids: Collection[bytes]) -> set[bytes]:
        """Those of the ids, as messages have them, that the table has."""
        if not self._able:
            return set()
        texts = {text: id_ for id_ in ids if (text := spelled(self._type, id_)) is not None}
        wanted = list(texts)
        known: set[bytes] = set()
        for at in range(0, len(wanted), lookup.MOST):
            found = await self._find(wanted[at : at + lookup.MOST])
            known |= {texts[text] for text in found if text in texts}
        return known

    async def _find(self, texts: list[str]) -> Collection[str]:
        for _ in range(LOCKED * 2):
            try:
                return await self._lookup.find(texts)
            except TableLocked:
                await asyncio.sleep(0.5)
            except CdcOutboxError as error:
                if not sqlstate.of(error).startswith("22"):
                    raise
                if len(texts) == 1:
                    return ()  # it is nothing that the column can hold
                half = len(texts) // 2
                return [*await self._find(texts[:half]), *await self._find(texts[half:])]
        return ()


def spelled(type_oid: int, raw: bytes) -> str | None:
    """An id as a column of this type spells it; None for one that it can't hold."""
    if type_oid == BYTEA:
        return "\\x" + raw.hex()
    try:
        id_ = raw.decode()
    except UnicodeDecodeError:
        return None
    if type_oid in _BITS:
        number = id_.isascii() and id_.removeprefix("-").isdecimal() and len(id_) <= 20
        return id_ if number and abs(int(id_)) < 1 << _BITS[type_oid] else None
    if type_oid == UUID and not _is_uuid(id_):
        return None
    return id_ if "\0" not in id_ else None


def _is_uuid(text: str) -> bool:
    return len(text) == 36 and text[8:24:5] == "----" and not set(text) - set("0123456789abcdef-")
