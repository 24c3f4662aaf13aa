"""The steps of `drop`: slot, pending slot, witness row, publication, whatever there is of them.

The publication is the one that the slot's witness row names, unless a person names another. One that another slot's
witness row names stays: that relay would be held without it.

The slot goes first: as long as somebody streams from it nothing is removed, and decoding never meets a
publication that is gone. A witness row without a slot would look like a lost slot, so it goes next; an
interrupted `drop` is finished by the next one. All happens under the slot's advisory lock.

A slot that is left behind keeps WAL without end, so it goes also where the rest may not be done, and that is told, with
the SQL for who may. Only where the slot can't be dropped nothing is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final, Literal, LiteralString

from psycopg import sql

from cdc_outbox.errors import MissingRight
from cdc_outbox.event import quote
from cdc_outbox.postgres import publication, slot, witness
from cdc_outbox.postgres.connection import Connection, connect_control, execute
from cdc_outbox.postgres.server import MAY_REPLICATE
from cdc_outbox.postgres.slot import Slot
from cdc_outbox.postgres.witness import Witness

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence, Set

    from cdc_outbox.settings import PostgresSettings, Settings

APPLICATION_NAME: Final = "cdc-outbox drop"

_USERS: Final[LiteralString] = """
select w.slot from public.cdc_outbox_witness w
  join pg_catalog.pg_replication_slots s on s.slot_name = w.slot
  join pg_catalog.pg_publication p on p.oid::int8 = (w.publication::jsonb -> 'publication' ->> 0)::int8
 where w.slot <> all(%s) and p.pubname = %s and s.database = current_database()
 order by w.slot
"""
_MAY_REPLICATE: Final[LiteralString] = """
select {may_replicate} from pg_catalog.pg_roles r where r.rolname = session_user
""".replace("{may_replicate}", MAY_REPLICATE)
_MAY_FORGET: Final[LiteralString] = """
select coalesce(pg_catalog.has_table_privilege(w.oid, 'select') and pg_catalog.has_table_privilege(w.oid, 'delete'),
                true)
  from (select pg_catalog.to_regclass('public.cdc_outbox_witness')::oid) w (oid)
"""
_OWNS: Final[LiteralString] = """
select pg_catalog.pg_has_role(pubowner, 'usage'), pg_catalog.pg_get_userbyid(pubowner)::text
  from pg_catalog.pg_publication where pubname = %s
"""
_BEHIND: Final[LiteralString] = """
select greatest(0, pg_catalog.pg_wal_lsn_diff(case when pg_catalog.pg_is_in_recovery()
         then pg_catalog.pg_last_wal_replay_lsn() else pg_catalog.pg_current_wal_insert_lsn() end, %s::pg_lsn))::int8
"""
_RELAYS: Final[LiteralString] = """
select r.rolname::text from pg_catalog.pg_roles r
 where r.rolcanlogin and not r.rolsuper and {may_replicate}
   and (r.rolname = %s
        or r.oid in (select a.grantee from pg_catalog.pg_class c, pg_catalog.aclexplode(c.relacl) a
                      where c.oid = pg_catalog.to_regclass('public.cdc_outbox_witness') and a.grantee <> c.relowner))
   and not exists (select from pg_catalog.pg_shdepend d
                    where d.refclassid = 'pg_catalog.pg_authid'::pg_catalog.regclass and d.refobjid = r.oid
                      and d.deptype = 'o')
 order by 1
""".replace("{may_replicate}", MAY_REPLICATE)
"""The roles of relays: they keep the witness, may replicate and, as `init` makes them, own nothing in any database."""


@dataclass(frozen=True, slots=True)
class Removable:
    """What there is to remove.

    `name` is the publication's, whether there is one or not. `users`: the other slots for whose sake it stays.
    `unconfirmed`: bytes of WAL that the slot's reader hasn't confirmed.
    """

    slot: Slot | None
    pending: Slot | None
    witness: bool
    name: str
    publication: bool
    users: tuple[str, ...]
    unconfirmed: int | None

    @property
    def nothing(self) -> bool:
        kept = not self.publication or bool(self.users)
        return self.slot is None and self.pending is None and not self.witness and kept


async def drop(
    settings: Settings,
    *,
    confirm: Callable[[Removable], bool],
    told: Callable[[str], None],
) -> Removable:
    """Remove what there is, if `confirm` says so; what there was. `told` hears of each part that is gone, or stays.

    Raises SlotUnusable for a slot that can't be ours; SlotBusy, naming the process, while the slot is in use;
    MissingRight, with the SQL for the owner, before anything is removed where that is for the slot, else at the end.
    """
    postgres = settings.postgres
    relay = await connect_control(postgres, application_name=APPLICATION_NAME)
    try:
        owner = await connect_control(postgres, application_name=APPLICATION_NAME, admin=True)
        try:
            removable = await _look(relay, owner, postgres, named=_named(settings))
            if removable.nothing:
                return removable
            postgres = replace(postgres, publication=removable.name)
            lacking = await _lacking(relay, owner, postgres, removable)
            if lacking and lacking[0].part == "slot":
                raise _nothing_removed(lacking)
            if not confirm(removable):
                return removable
            async with slot.lock(relay, postgres.slot):
                await _drop(relay, owner, postgres, removable, {each.part for each in lacking}, told)
            if lacking:
                raise _left(lacking, removable)
        finally:
            await owner.close()
        return removable
    finally:
        await relay.close()


def _named(settings: Settings) -> bool:
    """Whether a person names this slot's publication; what file or environment says isn't about a slot by flag."""
    by, slot_by = (settings.origins[key] for key in ("postgres.publication", "postgres.slot"))
    return by.startswith("flag ") or (by != "default" and not slot_by.startswith("flag "))


async def _look(
    relay: Connection, owner: Connection, settings: PostgresSettings, *, named: bool
) -> Removable:
    there, pending = await slot.inspect_both(relay, settings.slot)
    unconfirmed = None
    for each in (there, pending):
        if each is None:
            continue
        slot.removable(each)
        if each.active:
            raise slot.in_use(each.name, each.active_pid)
    if there is not None and there.confirmed_flush_lsn is not None:
        ((unconfirmed,),) = await execute(relay, _BEHIND, (str(there.confirmed_flush_lsn),))
    users: tuple[str, ...] = ()
    try:
        row = await witness.read_by(relay, owner, settings.slot)
        noted = await witness.read_by(relay, owner, slot.pending_name(settings.slot))
        for known in (noted, row):
            if isinstance(known, Witness) and known.identity is not None and not named:
                name = await publication.name_of(relay, known.identity.publication.oid)
                settings = replace(settings, publication=name or settings.publication)
        users = await _users(relay, owner, settings)
        remembered = isinstance(row, Witness)
    except MissingRight:
        remembered = True
    found = await publication.exists(relay, settings.publication)
    return Removable(there, pending, remembered, settings.publication, found, users, unconfirmed)


@dataclass(frozen=True, slots=True)
class _Lacking:
    """A right that is missing for a part of the work: who lacks what, and the SQL that mends or does it."""

    part: Literal["slot", "witness", "publication"]
    what: str
    mend: str


async def _lacking(
    relay: Connection, owner: Connection, settings: PostgresSettings, removable: Removable
) -> list[_Lacking]:
    """The rights that are missing for what there is to remove, the slot's first."""
    role, name = quote(relay.info.user), quote(settings.publication)
    lacking: list[_Lacking] = []
    if removable.slot is not None or removable.pending is not None:
        ((may,),) = await execute(relay, _MAY_REPLICATE)
        if not may:
            what = f"{role} may not replicate, nor drop a slot"
            lacking.append(_Lacking("slot", what, f"alter role {role} replication;"))
    may_forget = [(await execute(conn, _MAY_FORGET))[0][0] for conn in (relay, owner)]
    if not any(may_forget):
        grant = f"grant select, insert, update, delete on {witness.TABLE} to {role};"
        lacking.append(_Lacking("witness", f"{role} may not delete the witness row", grant))
    # Who can't read the witness rows can't tell whether another relay uses the publication either.
    elif removable.publication and not await _users(relay, owner, settings):
        owned = await execute(owner, _OWNS, (settings.publication,))
        if owned and not owned[0][0]:
            what = f"{quote(owner.info.user)} doesn't own the publication {name}, which belongs to {quote(owned[0][1])}"
            lacking.append(_Lacking("publication", what, f"drop publication {name};"))
    return lacking


def _nothing_removed(lacking: Sequence[_Lacking]) -> MissingRight:
    return MissingRight(
        f"nothing was removed, for a right is missing: {', and '.join(each.what for each in lacking)}",
        next=f"name the owner's connection with --admin-dsn; or as the owner, with no relay at work: "
        f"{' '.join(each.mend for each in lacking)} then run the same command again",
    )


def _left(lacking: Sequence[_Lacking], removable: Removable) -> MissingRight:
    """What is left, where the slot is gone."""
    left = []
    if any(each.part == "witness" for each in lacking):
        left += ["its witness row"] if removable.witness else []
        left += [f"the publication {quote(removable.name)}"] if removable.publication else []
    else:
        left.append(f"the publication {quote(removable.name)}")
    return MissingRight(
        f"{' and '.join(left)} {'is' if len(left) == 1 else 'are'} left, for a right is missing: "
        f"{', and '.join(each.what for each in lacking)}; no slot is left, so no WAL is kept",
        next=f"name the owner's connection with --admin-dsn; or as the owner, with no relay at work: "
        f"{' '.join(each.mend for each in lacking)} then run the same command again",
    )


async def _drop(
    relay: Connection,
    owner: Connection,
    settings: PostgresSettings,
    removable: Removable,
    lacking: Set[str],
    told: Callable[[str], None],
) -> None:
    """Remove what isn't `lacking` a right, one after the other."""
    slot.require_own(settings.slot)
    for name in (settings.slot, slot.pending_name(settings.slot)):
        if await slot.drop(relay, name):
            told(f'removed slot "{name}"')
    if "witness" in lacking:
        return
    for name in (settings.slot, slot.pending_name(settings.slot)):
        await witness.by_who_may(relay, owner, partial(witness.delete, slot=name))
    if removable.witness:
        told(f'removed witness row "{settings.slot}"')
    if "publication" not in lacking and await publication.exists(owner, settings.publication):
        await _drop_publication(relay, owner, settings, told)
    await _tell_what_stays(relay, owner, told)


async def _drop_publication(
    relay: Connection, owner: Connection, settings: PostgresSettings, told: Callable[[str], None]
) -> None:
    if users := await _users(relay, owner, settings):
        told(f"kept publication {quote(settings.publication)}, which slot {', '.join(users)} uses")
        return
    statement = sql.SQL("drop publication if exists {}").format(sql.Identifier(settings.publication))
    try:
        await execute(owner, statement, stage="drop")
    except MissingRight as error:
        raise MissingRight(
            f"the role {quote(owner.info.user)} may not drop the publication {quote(settings.publication)}: "
            f"{error}",
            next=f"as its owner: drop publication {quote(settings.publication)}; or name the owner's connection "
            "with --admin-dsn",
        ) from error
    told(f"removed publication {quote(settings.publication)}")


async def _tell_what_stays(relay: Connection, owner: Connection, told: Callable[[str], None]) -> None:
    """What other slots may need as well: a person removes it, and how."""
    if not await witness.exists(relay):
        return
    roles = [quote(str(name)) for (name,) in await execute(owner, _RELAYS, (relay.info.user,))]
    also = f" and role{'s' if len(roles) > 1 else ''} {', '.join(roles)}" if roles else ""
    removing = [
        f"drop table {witness.TABLE};",
        *(f"drop owned by {role}; drop role {role};" for role in roles),
    ]
    told(f"kept table {witness.TABLE}{also}, for other slots; when there are none: {' '.join(removing)}")


async def _users(relay: Connection, owner: Connection, settings: PostgresSettings) -> tuple[str, ...]:
    """The slots of other relays on the same publication, as their witness rows say to the one or the other."""
    if not await witness.exists(relay):
        return ()
    wanted = ([settings.slot, slot.pending_name(settings.slot)], settings.publication)
    rows = await witness.by_who_may(relay, owner, lambda conn: execute(conn, _USERS, wanted))
    return tuple(str(name) for (name,) in rows)
