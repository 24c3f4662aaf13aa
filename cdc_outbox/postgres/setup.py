"""The steps of `init`: table, witness, publication, grants, slot; each made if it is missing.

What this guarantees:

- The publication is there before the slot, for decoding sees the catalogue as it was at each position.
- The slot appears last, and only when it is known what stands before it (`first_slot.py`).
- What no step can mend (wal_level, a missing table) is found before anything is made, and all of it told at once.
- What a role may not do is told as SQL for who may, and what was done before stays.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, LiteralString

from psycopg import sql

from cdc_outbox.errors import (
    CdcOutboxError,
    MappingError,
    MissingRight,
    PublicationWrong,
    SetupError,
    numbered,
)
from cdc_outbox.event import quote
from cdc_outbox.postgres import (
    cleanup_grants,
    mark_grants,
    outbox,
    publication,
    slip,
    slot,
    sqlstate,
    steps,
    witness,
)
from cdc_outbox.postgres.blocker import Blocker
from cdc_outbox.postgres.catalogue import preview
from cdc_outbox.postgres.connection import Connection, connect_control, execute, leads_somewhere
from cdc_outbox.postgres.first_slot import FirstSlot, Uncounted
from cdc_outbox.postgres.remedy import accept_gap, by_relay, by_superuser
from cdc_outbox.postgres.server import (
    MAY_REPLICATE,
    Server,
    identity,
    require_able,
    require_one_database,
    require_primary,
    wrong_wal_level,
)
from cdc_outbox.postgres.slot import APPLICATION_NAME, WAIT, Slot
from cdc_outbox.postgres.steps import InitOptions, Statements, Step, StepName, StepStatus
from cdc_outbox.settings import BY_KEY
from cdc_outbox.settings.units import format_duration
from cdc_outbox.table import mapping as table_mapping

if TYPE_CHECKING:
    from typing import TypeVar

    from cdc_outbox.event import TableName
    from cdc_outbox.settings import Settings

    Answer = TypeVar("Answer")

# Two processes that create the same thing at once: one of them gets one of these.
_MADE_MEANWHILE: Final = frozenset({"42P07", "42710", "23505"})

_SCHEMA: Final[LiteralString] = "select from pg_catalog.pg_namespace where nspname = %s"
_WAL_LEVEL: Final[LiteralString] = "select pg_catalog.current_setting('wal_level')"
_RIGHTS: Final[LiteralString] = """
select pg_catalog.has_database_privilege(current_database(), 'create'),
       pg_catalog.has_schema_privilege('public', 'create'),
       coalesce(bool_and(pg_catalog.has_schema_privilege(n.oid, 'create')) filter (where c.oid is null), true),
       coalesce(bool_and(pg_catalog.pg_has_role(c.relowner, 'usage')) filter (where c.oid is not null), true)
  from unnest(%s::text[], %s::text[]) as wanted (schema, name)
  left join pg_catalog.pg_namespace n on n.nspname = wanted.schema
  left join pg_catalog.pg_class c on c.relnamespace = n.oid and c.relname = wanted.name
"""
_SESSION_ROLE: Final[LiteralString] = "select session_user::text"
_GRANTED: Final[LiteralString] = """
select bool_and(pg_catalog.has_table_privilege(r.oid, 'public.cdc_outbox_witness', p))
       and pg_catalog.has_schema_privilege(r.oid, 'public', 'usage')
       and pg_catalog.has_database_privilege(r.oid, current_database(), 'connect')
  from pg_catalog.pg_roles r, unnest(array['select', 'insert', 'update', 'delete']) p
 where r.rolname = %s
 group by r.oid
"""
_ROLE: Final[LiteralString] = "select from pg_catalog.pg_roles where rolname = %s"
_ABLE: Final[LiteralString] = """
select r.rolcanlogin and {may_replicate} from pg_catalog.pg_roles r where r.rolname = %s
""".replace("{may_replicate}", MAY_REPLICATE)
_WITNESS_OWNER: Final[LiteralString] = """
select pg_catalog.pg_get_userbyid(relowner)::text from pg_catalog.pg_class
 where oid = pg_catalog.to_regclass('public.cdc_outbox_witness')
"""
_SUPERUSER: Final = "a superuser to make a role that may replicate"
_OWN_WITNESS: Final = f"to own {witness.TABLE}"
_RELAY_ROLE: Final = "outbox_relay"
"""The name for a relay's role, where no person has given one."""


@dataclass(frozen=True, slots=True)
class InitReport:
    """All steps in order, and the slot as it is now (None where it wasn't asked for).

    `unfit`: why `start` with the same settings would refuse a table.
    """

    steps: tuple[Step, ...]
    slot: Slot | None
    unfit: tuple[MappingError, ...] = ()


async def init(
    settings: Settings,
    options: InitOptions,
    *,
    told: Callable[[Step], None] = lambda step: None,
    waiting: Callable[[Sequence[Blocker]], None] | None = None,
) -> InitReport:
    """Create what is missing. Safe to run twice, and by several processes at once.

    `told` hears of each step when it is done or has failed; `waiting` of the transactions that the creation
    of the slot waits for.

    Raises MissingRight after all steps that don't need the missing ones; SetupError and its kin for what a
    person must mend first; SlotBlocked when open transactions hold the slot up for too long; SlotBusy when
    another process is at it; TableWanted; PostgresUnavailable.
    """
    owner = await connect_control(settings.postgres, application_name=APPLICATION_NAME, admin=True)
    try:
        return await _Init(settings, options, owner, told, waiting).run()
    finally:
        await owner.close()


@dataclass(slots=True)
class _Init:
    """One run. `owner` is the connection for what needs an owner; the slot is made on the relay's own."""

    settings: Settings
    options: InitOptions
    owner: Connection
    told: Callable[[Step], None]
    waiting: Callable[[Sequence[Blocker]], None] | None
    steps: list[Step] = field(default_factory=list)
    """What was done so far."""
    needs: list[str] = field(default_factory=list)
    """What it takes to give the rights that couldn't be given."""
    refused: MissingRight | None = None
    unfit: list[MappingError] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The slot's own."""
        return self.settings.postgres.slot

    async def run(self) -> InitReport:
        chosen = steps.chosen_by(self.options)
        server = await identity(self.owner)
        require_primary(server)
        if "slot" in chosen:
            await self.look()
            await self.check(chosen)
            if self.settings.postgres.admin_dsn:
                await self.meet()
        if "table" in chosen:
            for table in self.settings.outbox.tables:
                await self.table(table)
        if "witness" in chosen:
            await self.witness()
        if "publication" in chosen:
            await self.publication()
        relay: Connection | None = None
        try:
            if "grants" in chosen and self.options.role is not None:
                await self.grants(self.options.role)
            if "slot" in chosen and self.refused is None:
                relay = await connect_control(self.settings.postgres, application_name=APPLICATION_NAME)
                await require_one_database(self.owner, relay)
                if "grants" in chosen and self.options.role is None:
                    await self.own_grants(relay)
            if self.refused is not None:
                raise self.refused
            made = await self.slot(relay, server) if relay is not None else None
        finally:
            if relay is not None:
                await relay.close()
        return InitReport(tuple(self.steps), made, tuple(self.unfit))

    async def look(self) -> None:
        """Refuse before anything is done what no step can mend."""
        there, pending = await slot.inspect_both(self.owner, self.name)
        if there is not None:
            slot.require(there, self.name)
        elif pending is not None:
            slot.usable(pending)

    async def meet(self) -> None:
        """Refuse before anything is made a relay's connection that leads nowhere, or elsewhere than the owner's.

        One whose role isn't let in passes: a step may make that, and a person give it a password afterwards.
        """
        postgres = self.settings.postgres
        try:
            relay = await connect_control(postgres, application_name=APPLICATION_NAME)
        except SetupError:
            if leads_somewhere(postgres.dsn):
                return
            raise
        try:
            await require_one_database(self.owner, relay)
        finally:
            await relay.close()

    async def check(self, chosen: frozenset[StepName]) -> None:
        """Refuse before anything is made what no step can mend; all at once, with what would be in the way next."""
        gaps: list[CdcOutboxError] = []
        ((wal_level,),) = await execute(self.owner, _WAL_LEVEL)
        if wal_level != "logical":
            gaps.append(wrong_wal_level(str(wal_level)))
        mapping = table_mapping.Mapping(self.settings.outbox, self.name)
        for table in self.settings.outbox.tables:
            try:
                if await outbox.columns(self.owner, table) is None:
                    await self.require_makeable(table)
                    continue
                await preview(self.owner, mapping, table, self.settings.postgres.publication)
            except MappingError as error:
                self.unfit.append(error)
            except SetupError as error:
                gaps.append(error)
        if gaps:
            gaps += self.unfit
            if failing := await self.not_allowed(chosen):
                gaps.append(self.missing_right(failing))
            raise _together(gaps)

    async def require_makeable(self, table: TableName) -> None:
        """Raise SetupError for a table that there isn't, unless it may be made and can be."""
        tables = self.settings.outbox.tables
        if not self.options.create_table and "table" not in self.options.only:
            raise await slip.no_table(
                self.owner,
                table,
                tables,
                otherwise="cdc-outbox init --create-table, or name your table with --table SCHEMA.NAME",
            )
        there = await slip.table(self.owner, table, tables)
        if there is not None and slip.is_case_alone(table, there):
            raise SetupError(
                f"table {table} does not exist, and there is {there}, whose name has to be quoted: a second table "
                "would get no rows",
                next=slip.instead(table, there, tables),
            )
        columns = steps.default_columns()
        for role, column in self.settings.outbox.columns.items():
            if column not in columns:
                raise SetupError(
                    f"the table that --create-table makes has no column {quote(column)}, which the {role} would come "
                    "from",
                    next=f"leave out --column {role}={column}, for it has {', '.join(columns)}; or make the table "
                    "yourself",
                )
        if not await execute(self.owner, _SCHEMA, (table.schema,)):
            raise SetupError(
                f"schema {quote(table.schema)} does not exist", next=f"create schema {quote(table.schema)};"
            )

    async def not_allowed(self, chosen: frozenset[StepName]) -> list[StepName]:
        """The steps that are to be done and that the owner's role may not do."""
        tables = self.settings.outbox.tables
        names = ([table.schema for table in tables], [table.name for table in tables])
        ((database, public, schemas, owned),) = await execute(self.owner, _RIGHTS, names)
        wanted: dict[StepName, bool] = {
            "table": bool(schemas),
            "witness": public or await witness.exists(self.owner),
            "publication": (database and owned)
            or await publication.exists(self.owner, self.settings.postgres.publication),
        }
        return [name for name, may in wanted.items() if name in chosen and not may]

    async def table(self, table: TableName) -> None:
        statements = steps.table(table)
        if await outbox.columns(self.owner, table) is not None:
            self.done("table", str(table), "existed", statements)
            return
        await self.require_makeable(table)
        await self.make("table", str(table), statements)

    async def witness(self) -> None:
        statements = steps.witness(self.settings)
        if await witness.exists(self.owner):
            self.done("witness", witness.TABLE, "existed", statements)
        else:
            await self.make("witness", witness.TABLE, statements)

    async def publication(self) -> None:
        name = self.settings.postgres.publication
        statements = steps.publication(self.settings)
        if self.refused is not None and any(
            step.name == "table" and step.status == "failed" for step in self.steps
        ):
            self.done("publication", name, "failed", statements)
            return
        if not await publication.exists(self.owner, name):
            if await slot.inspect(self.owner, self.name) is not None:
                state = await slip.look(self.owner, self.settings.postgres, self.settings.outbox.tables)
                raise PublicationWrong(
                    f'the publication {quote(name)} does not exist, but the slot "{self.name}" does: '
                    "what is written without it is skipped",
                    next=state.next.replace(accept_gap(), accept_gap(self.name)),
                )
            await self.make("publication", name, statements)
            return
        tables = self.settings.outbox.tables
        (await publication.look(self.owner, name, tables)).require()
        besides = await publication.passed_over(self.owner, name, tables, self.name)
        if besides is not None and not besides.fed:
            raise besides.refusal(self.name, tables, "init")
        self.done("publication", name, "existed", statements)

    async def grants(self, role: str) -> None:
        """Make the role that was asked for, with its rights."""
        await self.give(role, able=await self.is_able(role))

    async def is_able(self, role: str) -> bool:
        """Whether the role is there, and may log in and replicate."""
        found = await execute(self.owner, _ABLE, (role,))
        return bool(found and found[0][0])

    async def own_grants(self, relay: Connection) -> None:
        """Where the relay's role isn't the owner, it needs rights on the witness though no role was named."""
        ((role,),) = await execute(relay, _SESSION_ROLE)
        if await self.lacking(str(role)):
            await self.give(str(role), able=True)

    async def give(self, role: str, *, able: bool) -> None:
        """Give the role what it lacks, part by part, so that what the owner may give doesn't wait for the rest.

        `able`: as `is_able` has it.
        """
        failed: list[tuple[str, sql.Composed]] = []
        first: MissingRight | None = None
        made = not able
        known = bool(await execute(self.owner, _ROLE, (role,)))
        if not able:
            try:
                await self.run_part("grants", role, steps.login(role))
            except MissingRight as error:
                first = error
                failed.append((_SUPERUSER, steps.login(role)))
        there = bool(await execute(self.owner, _ROLE, (role,)))
        note = "" if known or not there else _without_password(role)
        for needs, statements in await self.lacking(role) if there else self.rights(role):
            made = True
            try:
                if not there and first is not None:
                    raise first
                if (
                    self.refused is not None
                    and needs == _OWN_WITNESS
                    and not await witness.exists(self.owner)
                ):
                    raise self.refused
                await self.run_part("grants", role, statements)
            except MissingRight as error:
                first = first or error
                failed.append((needs, statements))
        if first is not None:
            self.needs = [await self.in_words(needs) for needs, _ in failed]
            statements = steps.together([statements for _, statements in failed])
            self.done("grants", role, "failed", statements, note)
            self.refuse(first)
            return
        status: StepStatus = "created" if made else "existed"
        self.done("grants", role, status, steps.role(self.settings, role), note)

    async def in_words(self, needs: str) -> str:
        """What it takes to give a right, with who has it where that isn't told by what it is."""
        if needs != _OWN_WITNESS:
            return needs
        owner = await execute(self.owner, _WITNESS_OWNER)
        return f"{needs}, which is {quote(owner[0][0])}'s" if owner else f"{witness.TABLE} to be there"

    def rights(self, role: str) -> list[tuple[str, sql.Composed]]:
        """The parts of a relay's rights: what it takes to give them, and the statements."""
        tables = ", ".join(map(str, self.settings.outbox.tables))
        beside = [each.statements(self.settings, role) for each in (mark_grants, cleanup_grants)]
        return [
            (_OWN_WITNESS, steps.grants(role)),
            *((f"to own {tables}", statements) for statements in beside if statements.as_string()),
        ]

    async def lacking(self, role: str) -> list[tuple[str, sql.Composed]]:
        """Those of `rights` that a role, which there is, hasn't got."""
        keeps = await witness.exists(self.owner) and all((await execute(self.owner, _GRANTED, (role,)))[0])
        has = [keeps] + [
            await each.granted(self.owner, self.settings, role)
            for each in (mark_grants, cleanup_grants)
            if each.statements(self.settings, role).as_string()
        ]
        return [part for part, there in zip(self.rights(role), has, strict=True) if not there]

    async def run_part(self, name: StepName, object_: str, statements: Statements) -> bool:
        """Run statements; False where others at the same work were faster.

        Raises MissingRight; any other failure is the step's.
        """
        try:
            await execute(self.owner, statements, stage="create", within=WAIT)
        except MissingRight:
            raise
        except CdcOutboxError as error:
            if sqlstate.of(error) in _MADE_MEANWHILE:
                return False
            self.done(name, object_, "failed", statements)
            raise
        return True

    async def slot(self, relay: Connection, server: Server) -> Slot:
        statements = steps.slot(self.settings, self.options)
        try:
            await require_able(relay)
        except MissingRight as error:
            self.done("slot", self.name, "failed", statements)
            if relay.info.user != self.owner.info.user:
                raise
            raise await self.relay_needed(error) from error
        try:
            async with slot.lock(relay, self.name, within=self.options.wait):
                existed = await slot.inspect(relay, self.name) is not None
                first = FirstSlot(self.settings, self.options, self.owner, relay, self.unfit, self.waiting)
                made = await first.named(server)
        except Uncounted:
            raise
        except MissingRight:
            self.done("slot", self.name, "failed", statements)
            raise
        self.done("slot", self.name, "existed" if existed else "created", statements)
        return made

    async def relay_needed(self, error: MissingRight) -> MissingRight:
        """The error for an owner who may not replicate: it is the relay that has to, and owns nothing."""
        role = self.options.role or _RELAY_ROLE
        superuser = (
            "" if await self.is_able(role) else f"{by_superuser(self.printing(['witness'], role))}; then "
        )
        return MissingRight(
            f"{error}, as who makes a slot and streams from it has to; a role for the relay may, and owns nothing",
            next=f"{superuser}{by_relay(role, self.name)}",
        )

    async def make(self, name: StepName, object_: str, statements: Statements) -> None:
        """Run a step's statements. A missing right is kept for the end."""
        try:
            made = await self.run_part(name, object_, statements)
        except MissingRight as error:
            self.done(name, object_, "failed", statements)
            self.refuse(error)
        else:
            self.done(name, object_, "created" if made else "existed", statements)

    def refuse(self, error: MissingRight) -> None:
        failed = [step.name for step in self.steps if step.status == "failed"]
        first = self.refused.__cause__ if self.refused is not None else error
        grantee = next((step.object for step in self.steps if step.name == "grants"), None)
        done = [step.name for step in self.steps if step.status != "failed"]
        self.refused = self.missing_right(failed, grantee=grantee, done=done)
        self.refused.__cause__ = first

    def missing_right(
        self, steps: Sequence[StepName], *, grantee: str | None = None, done: Sequence[StepName] = ()
    ) -> MissingRight:
        """The error for steps that the owner's role may not do, with the command that prints them for who may."""
        # Grants come with the role; they belong to the witness, which may be made twice.
        alone = [step for step in steps if step != "grants"] or ["witness"]
        words = self.printing(alone, grantee if "grants" in steps else None)
        return MissingRight(
            f"the role {quote(self.owner.info.user)} may not make: {', '.join(steps)}; "
            + "; ".join(f"{step} needs {self.right(step)}" for step in steps)
            + (f"; done: {', '.join(dict.fromkeys(done))}" if done else ""),
            next="name a role that may with --admin-dsn; or "
            + by_superuser(words, ", then run the same command again"),
        )

    def printing(self, alone: Sequence[StepName], role: str | None) -> list[str]:
        """The words of the command that prints these steps, with a role's rights where one is named."""
        settings = self.settings
        words = ["cdc-outbox", "init", "--print-sql"]
        named = {"slot": self.name, "publication": settings.postgres.publication}
        for flag, name in named.items():
            words += [f"--{flag}", name] if name != BY_KEY[f"postgres.{flag}"].default else []
        if settings.outbox.tables != BY_KEY["outbox.table"].default:
            for table in settings.outbox.tables:
                words += ["--table", str(table)]
        for step in alone:
            words += ["--only", step]
        if role is not None:
            words += ["--role", role]
            words += ["--mark", "update"] if settings.outbox.mark == "update" else []
            if (age := settings.cleanup.older_than) is not None:
                words += ["--cleanup-older-than", format_duration(age)]
        return words

    def right(self, step: StepName) -> str:
        """What a role needs for a step, in words.

        https://www.postgresql.org/docs/current/sql-createpublication.html, …/sql-createrole.html
        """
        tables = self.settings.outbox.tables
        database = quote(self.owner.info.dbname)
        return {
            "table": f"create on schema {', '.join(sorted({quote(table.schema) for table in tables}))}",
            "witness": "create on schema public",
            "publication": f"create on database {database}, and to own {', '.join(map(str, tables))}",
            "grants": " and ".join(dict.fromkeys(self.needs)),
            "slot": "replication",
        }[step]

    def done(
        self,
        name: StepName,
        object_: str,
        status: StepStatus,
        statements: Statements,
        note: str = "",
    ) -> None:
        step = Step(name, object_, status, steps.text(statements), note)
        self.steps.append(step)
        self.told(step)


def _without_password(role: str) -> str:
    told = quote(role)
    password = shlex.quote(rf"\password {told}")
    return (
        f"the role {told} was made: it may log in and replicate, and has no password yet; whoever may make roles gives "
        f'it one, with a connection in OWNER_DSN: psql "$OWNER_DSN" -c {password}'
    )


def _together(gaps: Sequence[CdcOutboxError]) -> CdcOutboxError:
    """One error for all that is in the way; a single one stays as it is."""
    if len(gaps) == 1:
        return gaps[0]
    return SetupError(
        f"{len(gaps)} things are in the way: {numbered(map(str, gaps))}",
        next=numbered(gap.next for gap in gaps),
    )
