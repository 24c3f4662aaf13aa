"""Watching from outside: the samples of some slots over a connection of our own, and the health by them.

Needs no Kafka and no running relay. A server that can't be asked is an answer, not an error.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, LiteralString

from cdc_outbox.errors import CdcOutboxError, MissingRight, SlotMissing
from cdc_outbox.postgres import owning, server, witness
from cdc_outbox.postgres.connection import Connection, connect_control, execute
from cdc_outbox.postgres.remedy import at_hand, complete_for
from cdc_outbox.postgres.slot import PENDING_SUFFIX
from cdc_outbox.postgres.witness import Absent
from cdc_outbox.settings import DEFAULT_LISTEN
from cdc_outbox.watch import inquiry, reads
from cdc_outbox.watch import sample as samples
from cdc_outbox.watch.checks import judge, unreachable
from cdc_outbox.watch.forecast import Course
from cdc_outbox.watch.reads import Known
from cdc_outbox.watch.thresholds import Thresholds

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cdc_outbox.settings import Settings
    from cdc_outbox.watch.forecast import Forecast
    from cdc_outbox.watch.health import Health
    from cdc_outbox.watch.reads import Reads
    from cdc_outbox.watch.sample import Sample

APPLICATION_NAME: Final = "cdc-outbox health"
APART: Final = 1.0
"""Seconds between the first two samples."""

PATIENCE: Final = 5.0
"""Seconds that the server has for a connection and for an answer."""

_ALL: Final[LiteralString] = """
select slot_name::text from pg_catalog.pg_replication_slots
 where plugin = 'pgoutput' and database = current_database() and not temporary order by slot_name
"""


class Vigil:
    """The slots `names` (none: all that a relay of this database could read), and what was seen of them."""

    def __init__(
        self,
        settings: Settings,
        names: Sequence[str],
        *,
        volume: int | None = None,
        repeat: Callable[[str], str] = str,
    ) -> None:
        """`repeat`: a next step whose commands have the flags that were given to the running one."""
        self._settings = settings
        self._names = list(names)
        self._volume = volume
        self._repeat = repeat
        self._thresholds = Thresholds.of(settings.health)
        self._every = not names
        self._several = len(self._names) != 1
        self._connection: Connection | None = None
        self._reads: dict[str, Reads] = {}
        self._last: dict[str, Sample] = {}
        self._courses: dict[str, Course] = {}
        self._forecasts: dict[str, Forecast] = {}

    async def first(self) -> list[Health]:
        """Two samples of each slot a second apart, and the health by them.

        Raises SlotMissing where all slots are wanted and there is none.
        """
        try:
            await self._take()
        except SlotMissing:
            raise
        except CdcOutboxError as error:
            return await self._unreachable(error)
        # A slot that isn't there needs no rate, only a second look at what the first found to be readable.
        if any(sample.kept is not None for sample in self._last.values()):
            await asyncio.sleep(APART)
        return await self.again()

    async def again(self) -> list[Health]:
        """One more sample of each slot, and the health by all so far."""
        asking = asyncio.create_task(self._ask())
        try:
            await self._take()
            said = await asking
            return await self._judged(said)
        except CdcOutboxError as error:
            return await self._unreachable(error)
        finally:
            asking.cancel()

    async def _judged(self, said: dict[str, Any] | None) -> list[Health]:
        return [await self._completed(self._judge(name, said)) for name in self._names]

    def _judge(self, name: str, said: dict[str, Any] | None) -> Health:
        sample = self._last[name]
        told = inquiry.of_server(said, sample.system_identifier)
        return judge(
            sample,
            inquiry.sooner(told, name, self._forecasts[name]),
            self._thresholds,
            inquiry.delivery(told, name),
            volume=self._volume,
            known=self._reads[name].known,
        )

    async def _completed(self, health: Health) -> Health:
        """The same with commands that name through which publication the slot is read, and from which tables.

        They name the owner where our role isn't that, and have the flags that were given.
        """
        if health.next is None:
            return health
        read = self._reads[health.slot]
        step = await self._by_whom(health.next, read)
        step = complete_for(at_hand(step, self._settings), health.slot, read.publication, read.tables)
        return replace(health, next=self._repeat(step))

    async def _by_whom(self, step: str, read: Reads) -> str:
        conn = await self._connected()
        return await owning.by_whom(conn, step, read.publication, read.tables, within=PATIENCE)

    async def accept(self, healths: Sequence[Health]) -> bool:
        """Take the incidents of these healths out of the witness rows; whether there were any."""
        happened = [health for health in healths if health.incidents]
        for health in happened:
            await witness.accept(await self._connected(), health.slot, health.incidents, within=PATIENCE)
        return bool(happened)

    async def close(self) -> None:
        """Close the connection, if there is one."""
        if self._connection is not None:
            await self._connection.close()
            self._connection = None

    async def _connected(self) -> Connection:
        if self._connection is None or self._connection.closed:
            self._connection = await connect_control(
                self._settings.postgres, application_name=APPLICATION_NAME, timeout=PATIENCE
            )
        return self._connection

    async def _all(self) -> list[str]:
        """The slots that are there, a pending one by the name that it will have; then those that are gone."""
        conn = await self._connected()
        there = await execute(conn, _ALL, within=PATIENCE)
        names = [str(name).removesuffix(PENDING_SUFFIX) for (name,) in there] + await self._delivered()
        if names or self._names:
            return names
        if (await server.identity(conn, within=PATIENCE)).in_recovery:
            raise SlotMissing(
                "this server is a standby, and has none of the primary's slots that a relay could read",
                next="look at the primary: cdc-outbox health --all, with its address in CDC_OUTBOX_DSN",
            )
        raise SlotMissing(
            "this database has no slot that a relay could read", next="cdc-outbox init, or another --dsn"
        )

    async def _delivered(self) -> list[str]:
        """The slots of this primary that have a witness row: one that was dropped by another hand is missed."""
        conn = await self._connected()
        try:
            rows = await witness.read_all(conn, within=PATIENCE)
        except MissingRight:
            return []
        if isinstance(rows, Absent):
            return []
        here = await server.identity(conn, within=PATIENCE)
        return [
            row.slot
            for row in rows
            if row.system_identifier == here.system_identifier
            and not here.in_recovery
            and not row.slot.endswith(PENDING_SUFFIX)
        ]

    async def _take(self) -> None:
        if self._every:
            self._names = list(dict.fromkeys((*self._names, *await self._all())))
        for name in self._names:
            read = await self._read_through(name)
            sample = await samples.take(
                await self._connected(),
                name,
                read.publication,
                read.tables,
                within=PATIENCE,
                before=self._last.get(name),
                lists_wal=True,
            )
            course = self._courses.setdefault(name, Course(volume=self._volume))
            self._forecasts[name] = course.add(sample)
            self._last[name] = sample

    async def _read_through(self, name: str) -> Reads:
        found = self._reads.get(name)
        if found is None or found.known is not Known.NAMED:
            found = self._reads[name] = await reads.find(
                await self._connected(), name, self._settings, several=self._several, within=PATIENCE
            )
        return found

    async def _ask(self) -> dict[str, Any] | None:
        http = self._settings.http
        address = http.listen or (None if http.explicit else DEFAULT_LISTEN)
        if address is None:
            return None
        return await asyncio.to_thread(inquiry.ask, address, http.token_file)

    async def _unreachable(self, error: CdcOutboxError) -> list[Health]:
        await self.close()
        names = self._names or [self._settings.postgres.slot]
        return [unreachable(name, error, last=self._last.get(name)) for name in names]
