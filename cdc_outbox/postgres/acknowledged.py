"""Which rows of an outbox table are surely delivered, as far as the witness rows of its slots prove it.

A row doesn't say where its commit stands in the write-ahead log, but who made it: the transaction in its `xmin`. And a
witness row has a snapshot of which is proven that all it saw as finished was delivered: the end of the log was read
after it, and then confirmed (see `guard.ProvenSnapshot`). So a row that is visible, and whose xmin is below the xmin of
that snapshot, was delivered, or needed no delivery. Why that holds:

- Every transaction below a snapshot's xmin had ended when it was taken, subtransactions included: they have higher
  numbers than the transaction that they belong to, and while that one is open the snapshot's xmin isn't above it. Those
  that are prepared count as open. The list behind the xmin has no subtransactions, so it isn't used.
- An UPDATE, a move to another partition or a rewrite of the table gives a row the xmin of whoever did it. That one may
  have a lower number than the insert, but it committed later: it had to see the row. So once it has ended, so has the
  insert.
- Freezing (VACUUM, CLUSTER, COPY) leaves the number in the row. Numbers are compared as PostgreSQL itself does it, by
  their distance from now, modulo 2^32: a row older than 2^31 transactions may look younger than it is, and then isn't
  taken for delivered. Never the other way round, as long as the snapshot isn't that old itself; one of more than 2^30
  transactions ago proves nothing here.
- Numbers mean nothing on another server, and on another timeline only what was replicated; a witness row of another
  server or timeline proves nothing until its relay has written it again.

Every slot that feeds the table has to have proven it, shards and relays to several clusters alike: of each witness row
the identity of its publication says which tables it has, by their OIDs. A pending slot about which nothing is decided
has no such row, and `backfill` is yet to publish what was in the table before it: while there is one in the database,
of whatever table, nothing is proven. One that is made later wants what is in the table by then: so whoever takes rows
away does it `unless_undecided`. A row that was there before the slot fed the table, or was left out by a setting, or
lies in a gap that a person accepted, counts as acknowledged like those that were sent: nothing will deliver it any
more.

https://www.postgresql.org/docs/current/functions-info.html#FUNCTIONS-PG-SNAPSHOT
https://www.postgresql.org/docs/current/routine-vacuuming.html#VACUUM-FOR-WRAPAROUND
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, LiteralString

from psycopg import sql

from cdc_outbox.errors import CdcOutboxError, MissingRight
from cdc_outbox.event import quote
from cdc_outbox.postgres import server, slip, witness
from cdc_outbox.postgres.connection import Connection, execute
from cdc_outbox.postgres.family import FAMILY
from cdc_outbox.postgres.slot import PENDING_SUFFIX, PLUGIN, pending_name
from cdc_outbox.postgres.transaction import transaction
from cdc_outbox.postgres.witness import Absent, Witness

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from datetime import datetime

    from cdc_outbox.event import TableName
    from cdc_outbox.postgres.server import Server

OLDEST: Final = 2**30
"""Transactions since a snapshot beyond which it proves nothing: half of what can be told apart."""

_TABLE: Final[LiteralString] = """
{family}
select relation::int8 from family union
select a.relid::oid::int8 from named, pg_catalog.pg_partition_ancestors(named.relation) as a (relid)
""".replace("{family}", FAMILY)

_NOW: Final[LiteralString] = (
    "select pg_catalog.pg_snapshot_xmax(pg_catalog.pg_current_snapshot())::text::int8"
)

_PENDING: Final[LiteralString] = """
select slot_name::text from pg_catalog.pg_replication_slots
 where database = current_database() and plugin = %s and pg_catalog.right(slot_name::text, %s) = %s
"""

_UNDECIDED: Final[LiteralString] = (
    _PENDING
    + """   and not exists (select from public.cdc_outbox_witness w
                    where w.slot = pg_catalog.left(slot_name::text, -pg_catalog.length(%s)))
 order by 1 limit 1
"""
)

# Between two statements it waits for another connection, for as long as that takes.
_NUMBERED: Final[LiteralString] = """
select pg_catalog.set_config('idle_in_transaction_session_timeout', '0', true), pg_catalog.pg_current_xact_id()
"""


class Undecided(CdcOutboxError):
    """A slot is being made, and of the rows from before it nothing is decided."""


@dataclass(frozen=True, slots=True)
class Proof:
    """What one slot has proven of a table.

    What transactions below `horizon`, a 64-bit number, committed is delivered; None where nothing is proven, and
    then `lacking` says why, and `next` what would change it. `updated_at`: when its witness row was written.
    """

    slot: str
    horizon: int | None
    lacking: str | None = None
    next: str = ""
    updated_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """What all slots of a table have proven of it, at one moment. It holds for good; see `unless_undecided`."""

    table: TableName
    proofs: tuple[Proof, ...]

    @property
    def horizon(self) -> int | None:
        """Below it each slot has proven everything; None where one has proven nothing."""
        horizons = [proof.horizon for proof in self.proofs]
        known = [horizon for horizon in horizons if horizon is not None]
        return min(known) if known and len(known) == len(horizons) else None

    def condition(self, row: sql.Composable | None = None) -> sql.Composable:
        """The condition that a visible row was delivered. `row`: how the query calls the table, by default by its name.

        It is never null: true only for what is sure.
        """
        horizon = self.horizon
        if horizon is None:
            return sql.SQL("false")
        xmin = sql.Identifier("xmin")
        named = sql.Identifier(self.table.schema, self.table.name) if row is None else row
        return sql.SQL("pg_catalog.age({}.{}) > pg_catalog.age({}::pg_catalog.xid)").format(
            named, xmin, sql.Literal(str(horizon % 2**32))
        )


async def acknowledged(relay: Connection, owner: Connection, slot: str, table: TableName) -> Acknowledged:
    """What the slots of a table have proven of it, that named `slot` and all others that feed it.

    `relay` reads the witness, `owner` is the connection on which the condition will be asked: both have to be in one
    database of one primary. Raises SetupError where they aren't or there is no such table, PostgresUnavailable on a
    standby, MissingRight for who may not read the witness.
    """
    here = await server.identity(owner)
    server.require_primary(here)
    await server.require_one_database(owner, relay)
    now = await newest(owner)
    relations = {int(oid) for (oid,) in await execute(owner, _TABLE, (table.schema, table.name))}
    if not relations:
        raise await slip.no_table(owner, table)
    try:
        rows = await witness.read_all(relay)
    except MissingRight as error:
        role = quote(relay.info.user)
        raise MissingRight(
            f"the role {role} may not read {witness.TABLE}, which says what was delivered: {error}",
            next=f"as its owner: grant select on {witness.TABLE} to {role}; or name the relay's connection with --dsn "
            "and the owner's with --admin-dsn",
        ) from error
    if isinstance(rows, Absent):
        own = Proof(slot, None, rows.value, f"cdc-outbox init --slot {slot}")
        return Acknowledged(table, (own,))
    rows = [row for row in rows if not row.slot.endswith(PENDING_SUFFIX)]
    proofs = [_proof(row, here, now) for row in rows if row.slot == slot or _feeds(row, relations)]
    undecided = await _undecided(owner, {row.slot for row in rows})
    proofs += [
        Proof(
            name,
            None,
            f"rows from before the slot {pending_name(name)} have yet to be published",
            f"cdc-outbox backfill --slot {name}",
        )
        for name in undecided
    ]
    own_row = next((row for row in rows if row.slot == slot), None)
    if own_row is None:
        if slot not in undecided:
            proofs.append(Proof(slot, None, Absent.ROW.value, f"cdc-outbox start --slot {slot}"))
    elif not _feeds(own_row, relations):
        proofs = [each for each in proofs if each.slot != slot]
        proofs.append(
            Proof(
                slot,
                None,
                f"the slot {slot} doesn't feed {table}",
                f"name the slot of {table} with --slot; or feed it: cdc-outbox start --slot {slot} --table {table}",
                own_row.updated_at,
            )
        )
    return Acknowledged(table, tuple(sorted(proofs, key=lambda proof: proof.slot)))


async def newest(conn: Connection) -> int:
    """The number behind the last transaction that has ended, of 64 bits."""
    ((now,),) = await execute(conn, _NOW)
    return int(now)


def is_recent(horizon: int, now: int) -> bool:
    """Whether a horizon proves anything when `newest` is `now`: of 64-bit numbers a row has only the lower half."""
    return 0 <= now - horizon <= OLDEST


@asynccontextmanager
async def unless_undecided(relay: Connection) -> AsyncIterator[None]:
    """Take rows away in the block, by another connection, unless a pending slot is undecided.

    The block is inside a transaction of `relay` that has its number before it looks for such slots, and the creation of
    a slot waits for every transaction that has one. So a slot is seen, or it is made once the rows are gone, and they
    are counted and read after that. Raises Undecided; PostgresUnavailable.
    """
    async with transaction(relay, end="rollback"):
        await execute(relay, _NUMBERED)
        suffix = PENDING_SUFFIX
        found = await execute(relay, _UNDECIDED, (PLUGIN, len(suffix), suffix, suffix))
        if found:
            name = str(found[0][0])
            raise Undecided(
                f"rows from before the slot {name} have yet to be published",
                next=f"cdc-outbox backfill --slot {name.removesuffix(suffix)}",
            )
        yield


async def _undecided(conn: Connection, known: set[str]) -> list[str]:
    """The slots of this database that have but their pending one, and no witness row: nothing is decided of them."""
    suffix = PENDING_SUFFIX
    found = [str(name) for (name,) in await execute(conn, _PENDING, (PLUGIN, len(suffix), suffix))]
    return [
        name
        for name in (each.removesuffix(suffix) for each in found if each not in known)
        if name not in known
    ]


def _feeds(row: Witness, relations: set[int]) -> bool:
    """Whether the row's slot brings rows of one of these; one that doesn't say may."""
    identity = row.identity
    return identity is None or any(member.table in relations for _, member in identity.members)


def _proof(row: Witness, here: Server, now: int) -> Proof:
    """What the row proves on this server, when `now` is the next transaction's number."""

    def lacking(why: str) -> Proof:
        return Proof(row.slot, None, why, f"cdc-outbox start --slot {row.slot}", row.updated_at)

    if row.system_identifier != here.system_identifier:
        return lacking(f"the witness of slot {row.slot} belongs to another server")
    if row.timeline != here.timeline:
        return lacking(f"the witness of slot {row.slot} belongs to timeline {row.timeline}")
    if row.snapshot is None:
        return lacking(f"the slot {row.slot} has no proof yet of what was delivered")
    horizon = int(row.snapshot.partition(":")[0])
    if not is_recent(horizon, now):
        return lacking(f"the proof of slot {row.slot} is {now - horizon} transactions old")
    return Proof(row.slot, horizon, updated_at=row.updated_at)
