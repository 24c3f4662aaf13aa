"""One sample of a slot: all that its health is judged by, in one query.

It needs no right beyond those of the role that streams (LOGIN and REPLICATION). What such a role may not see, such
as start times of other users' transactions, is None, and None is never 0. What can't be asked for without a right,
or without the table being there, is asked for from the second sample on, when the first has told that it may be.

A sample never decodes, takes no lock that somebody could wait for, and costs the server a few milliseconds.

https://www.postgresql.org/docs/current/view-pg-replication-slots.html
https://www.postgresql.org/docs/current/monitoring-stats.html
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, LiteralString

from cdc_outbox.errors import CdcOutboxError
from cdc_outbox.lsn import LSN
from cdc_outbox.postgres import publication as publications
from cdc_outbox.postgres import sqlstate
from cdc_outbox.postgres import witness as witnesses
from cdc_outbox.postgres.connection import execute
from cdc_outbox.postgres.publication import PublicationState
from cdc_outbox.postgres.server import timeline_of, unsigned
from cdc_outbox.postgres.slot import Slot, pending_name
from cdc_outbox.postgres.witness import Absent, Witness

if TYPE_CHECKING:
    from cdc_outbox.event import TableName
    from cdc_outbox.postgres.connection import Connection


@dataclass(frozen=True, slots=True)
class Holder:
    """The session that streams from the slot. `since` and `client` are None where the role may not see them."""

    pid: int
    user: str | None
    application: str | None
    since: datetime | None
    client: str | None


@dataclass(frozen=True, slots=True)
class Transaction:
    """An open or prepared transaction that has written: decoding keeps the WAL from its beginning on.

    `pid` is None for a prepared one, which has a `gid` instead. `began` (or prepared), `query_began` and `state`
    are None where the role may not see them. `xid_age` counts the transactions that began since `xid` did.
    """

    pid: int | None
    gid: str | None
    user: str | None
    application: str | None
    database: str | None
    began: datetime | None
    query_began: datetime | None
    state: str | None
    xid: int
    xid_age: int


@dataclass(frozen=True, slots=True)
class Spill:
    """What decoding for the slot has written to disk, since the server's statistics were reset."""

    transactions: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Limits:
    """The server's settings, in bytes. `slot_keep` (max_slot_wal_keep_size) is None where there is no limit.

    `idle` (idle_replication_slot_timeout, 18) is in seconds, None where a slot may be idle for ever.
    """

    slot_keep: int | None
    wal_keep: int
    segment: int
    idle: int | None = None


@dataclass(frozen=True, slots=True)
class Sample:
    """The slot `name` and what is around it, at one moment of the server's clock.

    `slot` is None where there is none. `pending` is the slot under its name before the work of `init` is done, which
    keeps WAL as the slot does. `others` are all other slots of the server, physical ones included.

    `current_lsn` is where WAL was written to, `insert_lsn` where it ends, both read after the slots; on a standby the
    first is what was received or replayed, whichever is more, and the second None. `catalog_xmin_age` is the slot's,
    in transactions. `witness` is None where it was not read; `wal_bytes`, the size of pg_wal, likewise.
    `oldest` is the oldest open transaction that has written, `oldest_prepared` the oldest prepared one.
    """

    name: str
    at: datetime
    version: int
    system_identifier: str
    timeline: int | None
    database: str
    in_recovery: bool
    current_lsn: LSN
    insert_lsn: LSN | None
    slot: Slot | None
    pending: Slot | None
    others: tuple[Slot, ...]
    catalog_xmin_age: int | None
    limits: Limits
    synchronous_standby_names: str
    synchronized_standby_slots: str
    holder: Holder | None
    spill: Spill | None
    publication: PublicationState
    publishes: tuple[str, ...]
    tables: tuple[TableName, ...]
    oldest: Transaction | None
    oldest_prepared: Transaction | None
    witness: Witness | Absent | None
    wal_bytes: int | None
    sees_sessions: bool
    may_read_witness: bool
    may_list_wal: bool

    @property
    def kept(self) -> Slot | None:
        """The slot that keeps WAL under this name: the slot itself, or its pending one."""
        return self.slot or self.pending

    @property
    def is_moved(self) -> bool:
        """Whether somebody moves the slot on: who reads from it, or on a standby PostgreSQL as the primary's moves."""
        slot = self.kept
        return slot is not None and (slot.active or (self.in_recovery and slot.synced))

    @property
    def retained(self) -> int | None:
        """Bytes of WAL that the server keeps for the slot: disk. None without a slot, and for a lost one.

        One that was given up for another reason than its WAL has a `restart_lsn` still, and nothing is kept for it.
        """
        slot = self.kept
        return (
            None if slot is None or slot.lost or slot.restart_lsn is None else self._behind(slot.restart_lsn)
        )

    @property
    def unconfirmed(self) -> int | None:
        """Bytes of WAL that were not confirmed yet: delivery. None without a slot."""
        slot = self.kept
        if slot is None or slot.confirmed_flush_lsn is None:
            return None
        return self._behind(slot.confirmed_flush_lsn)

    @property
    def held_beyond(self) -> int | None:
        """Bytes of WAL that were confirmed and are kept all the same, as a rule for somebody's open transaction."""
        retained, unconfirmed = self.retained, self.unconfirmed
        return None if retained is None or unconfirmed is None else max(0, retained - unconfirmed)

    @property
    def limit(self) -> int | None:
        """Bytes that the slot may keep before it is lost, None where there is no limit.

        The server never removes what wal_keep_size keeps, and counts in whole segments.
        """
        keep = self.limits.slot_keep
        return None if keep is None else max(keep, self.limits.wal_keep, self.limits.segment)

    @property
    def safe(self) -> int | None:
        """Bytes that may still be written before the slot can be lost; 0 when it can be lost at any moment.

        None where there is no limit, and for a lost slot.
        """
        slot = self.kept
        return None if slot is None or slot.safe_wal_size is None else max(0, slot.safe_wal_size)

    def _behind(self, lsn: LSN) -> int:
        return self.current_lsn.bytes_since(lsn)


# The slots are read first and the end of the WAL last, so that no slot seems ahead of it. Columns that only newer
# servers have are read by name from a row's JSON form.
_SAMPLE: Final[LiteralString] = """
select pg_catalog.clock_timestamp(), pg_catalog.current_setting('server_version_num')::int,
       (select system_identifier from pg_catalog.pg_control_system()), pg_catalog.current_database()::text,
       pg_catalog.pg_is_in_recovery(), slots.list, look.list,
       case when pg_catalog.pg_is_in_recovery()
            then coalesce(greatest(pg_catalog.pg_last_wal_receive_lsn(), pg_catalog.pg_last_wal_replay_lsn()), '0/0')
            else pg_catalog.pg_current_wal_lsn() end::text,
       case when pg_catalog.pg_is_in_recovery() then null
            else pg_catalog.pg_current_wal_insert_lsn() end::text,
       case when pg_catalog.pg_is_in_recovery() then null
            else pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_insert_lsn()) end,
       pg_catalog.pg_size_bytes(pg_catalog.current_setting('max_slot_wal_keep_size')),
       pg_catalog.pg_size_bytes(pg_catalog.current_setting('wal_keep_size')),
       pg_catalog.pg_size_bytes(pg_catalog.current_setting('wal_segment_size')),
       extract(epoch from
               nullif(pg_catalog.current_setting('idle_replication_slot_timeout', true), '0')::interval)::int,
       pg_catalog.current_setting('synchronous_standby_names'),
       coalesce(pg_catalog.current_setting('synchronized_standby_slots', true), ''),
       (select pg_catalog.json_agg(pg_catalog.json_build_array(
               a.pid, a.usename, a.application_name, a.backend_start, host(a.client_addr)))
          from pg_catalog.pg_stat_activity a
         where a.pid in (select s.active_pid from pg_catalog.pg_replication_slots s
                          where s.slot_name = any(%(slots)s))),
       (select pg_catalog.json_build_array(t.spill_txns, t.spill_bytes)
          from pg_catalog.pg_stat_replication_slots t where t.slot_name = %(slot)s),
       (select array_remove(array[case when p.pubinsert then 'inserts' end, case when p.pubupdate then 'updates' end,
                                  case when p.pubdelete then 'deletes' end,
                                  case when p.pubtruncate then 'truncates' end], null)
          from pg_catalog.pg_publication p where p.pubname = %(publication)s),
       (select pg_catalog.json_build_array(a.pid, null, a.usename, a.application_name, a.datname,
               a.xact_start, a.query_start, a.state, a.backend_xid, pg_catalog.age(a.backend_xid))
          from pg_catalog.pg_stat_activity a
         where a.backend_xid is not null and a.pid <> pg_catalog.pg_backend_pid()
         order by pg_catalog.age(a.backend_xid) desc limit 1),
       (select pg_catalog.json_build_array(null, x.gid, x.owner, null, x.database,
               x.prepared, null, null, x.transaction, pg_catalog.age(x.transaction))
          from pg_catalog.pg_prepared_xacts x order by pg_catalog.age(x.transaction) desc limit 1),
       pg_catalog.pg_has_role('pg_read_all_stats', 'usage'),
       pg_catalog.has_function_privilege('pg_catalog.pg_ls_waldir()', 'execute'),
       pg_catalog.to_regclass('public.cdc_outbox_witness') is not null,
       coalesce(pg_catalog.has_table_privilege(
           pg_catalog.to_regclass('public.cdc_outbox_witness')::oid, 'select'), false),
       {wal}, {witness}
  from (select pg_catalog.json_agg(pg_catalog.to_jsonb(s) || pg_catalog.jsonb_build_object(
               'catalog_xmin_age', pg_catalog.age(s.catalog_xmin)))
          from pg_catalog.pg_replication_slots s) as slots (list)
 cross join (select pg_catalog.json_agg(pg_catalog.json_build_array(a, b, c, d, e, f, g, h, i, j, k, l, m))
               from ({look}) as seen (a, b, c, d, e, f, g, h, i, j, k, l, m)) as look (list)
""".replace("{look}", publications.LOOK)

_WAL: Final[LiteralString] = "(select sum(size)::bigint from pg_catalog.pg_ls_waldir())"
_WITNESS: Final[LiteralString] = """
    (select to_jsonb(w) from public.cdc_outbox_witness w where w.slot = %(slot)s)
"""
_NONE: Final[LiteralString] = "null"

_NO_MORE: Final = ("42P01", "42703", "42501")
"""SQLSTATEs of a table or column that isn't there, and of a right that isn't."""


async def take(
    conn: Connection,
    name: str,
    publication: str,
    tables: Sequence[TableName],
    *,
    within: float | None = None,
    before: Sample | None = None,
    lists_wal: bool = False,
) -> Sample:
    """Take a sample of the slot `name` on the control connection `conn`.

    `before` is the sample before this one on the same server: what it showed to be readable (the witness row, the
    size of pg_wal) is read this time. `within`: seconds that the server has to answer. `lists_wal`: also the size of
    pg_wal where a slot has no limit, which takes the server a millisecond for each hundred files that are there.

    Where that can't be read any more, because a table was dropped or a right withdrawn, it is left out again.
    Raises what `execute` raises; SetupError where the witness row can't be understood.
    """
    wanted = parameters(name, publication, tables)
    try:
        text = query(before, lists_wal=lists_wal)
        rows = await execute(conn, text, wanted, within=within)
    except CdcOutboxError as error:
        if before is None or sqlstate.of(error) not in _NO_MORE:
            raise
        return await take(conn, name, publication, tables, within=within)
    return _read(name, publication, tuple(tables), rows[0], asked_witness=_asks_witness(before))


def query(before: Sample | None, *, lists_wal: bool = False) -> LiteralString:
    """The one query of a sample; `parameters` fills it."""
    lists = lists_wal and before is not None and before.may_list_wal and before.limit is None
    return _SAMPLE.replace("{wal}", _WAL if lists else _NONE).replace(
        "{witness}", _WITNESS if _asks_witness(before) else _NONE
    )


def parameters(name: str, publication: str, tables: Sequence[TableName]) -> dict[str, object]:
    """What `query` wants to know."""
    slots = {"slot": name, "slots": [name, pending_name(name)]}
    return publications.parameters(publication, tables) | slots


def _asks_witness(before: Sample | None) -> bool:
    return before is not None and before.may_read_witness


def _read(
    name: str, publication: str, tables: tuple[TableName, ...], row: Sequence[Any], *, asked_witness: bool
) -> Sample:
    (
        at, version, system_identifier, database, in_recovery, listed, look, current, insert, walfile,
        slot_keep, wal_keep, segment, idle, synchronous, synchronized, holders, spill, publishes, oldest,
        prepared, sees_sessions, may_list_wal, witness_exists, may_read_witness, wal_bytes, witness,
    ) = row  # fmt: skip
    ages = {each["slot_name"]: each["catalog_xmin_age"] for each in listed or ()}
    slots = {each["slot_name"]: Slot.of(each, str(database)) for each in listed or ()}
    slot, pending = slots.pop(name, None), slots.get(pending_name(name))
    if slot is None and pending is not None:
        del slots[pending.name]
    kept = slot or pending
    holding = {each[0]: each for each in holders or ()}.get(kept.active_pid if kept is not None else None)
    known: Witness | Absent | None = None
    if not witness_exists:
        known = Absent.TABLE
    elif asked_witness:
        known = Absent.ROW if witness is None else _witness(witness)
    return Sample(
        name=name,
        at=at,
        version=version,
        system_identifier=unsigned(system_identifier),
        timeline=timeline_of(walfile),
        database=database,
        in_recovery=in_recovery,
        current_lsn=LSN.parse(current),
        insert_lsn=None if insert is None else LSN.parse(insert),
        slot=slot,
        pending=pending,
        others=tuple(slots.values()),
        catalog_xmin_age=ages[kept.name] if kept is not None else None,
        limits=Limits(None if slot_keep < 0 else slot_keep, wal_keep, segment, idle),
        synchronous_standby_names=synchronous,
        synchronized_standby_slots=synchronized,
        holder=None
        if holding is None
        else Holder(holding[0], holding[1], holding[2], _time(holding[3]), holding[4]),
        spill=None if spill is None else Spill(*spill),
        publication=publications.read_look(publication, tables, look or ()),
        publishes=tuple(publishes or ()),
        tables=tables,
        oldest=_transaction(oldest),
        oldest_prepared=_transaction(prepared),
        witness=known,
        wal_bytes=wal_bytes,
        sees_sessions=sees_sessions,
        may_read_witness=may_read_witness,
        may_list_wal=may_list_wal,
    )


def _witness(row: dict[str, Any]) -> Witness:
    return witnesses.of(
        row["slot"],
        row["system_identifier"],
        row["timeline"],
        row["position"],
        row["publication"],
        row["incidents"],
        row["snapshot"],
        _time(row["updated_at"]),
    )


def _transaction(row: Sequence[Any] | None) -> Transaction | None:
    if row is None:
        return None
    pid, gid, user, application, database, began, query_began, state, xid, age = row
    return Transaction(
        pid, gid, user, application, database, _time(began), _time(query_began), state, int(xid), int(age)
    )


def _time(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)
