"""PostgreSQL's side: from the way to the server to the slot, in the order in which `start` would stumble.

Everything is looked at as the relay's own role, and nothing is changed. What `start` itself asks for is asked here by
the same functions, so that the answers are the same.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Final, LiteralString

from cdc_outbox.doctor import facts, hosting, outbox
from cdc_outbox.doctor.check import MAY_PASS
from cdc_outbox.doctor.endurance import Endurance
from cdc_outbox.doctor.hosting import Hosting, Setting
from cdc_outbox.doctor.outbox import Outbox
from cdc_outbox.errors import (
    CdcOutboxError,
    MissingRight,
    PublicationWrong,
    SetupError,
    SlotMissing,
    SynchronousStandby,
)
from cdc_outbox.event import quote
from cdc_outbox.postgres import publication, server, slip, slot, sqlstate, synchronous, witness
from cdc_outbox.postgres.admission import Admission, Memory
from cdc_outbox.postgres.connection import connect_control, connect_replication, execute
from cdc_outbox.postgres.guard import Finding
from cdc_outbox.postgres.remedy import complete_for, recover
from cdc_outbox.postgres.witness import Absent, Witness

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from cdc_outbox.doctor.check import Findings
    from cdc_outbox.doctor.facts import Facts
    from cdc_outbox.postgres.connection import Connection
    from cdc_outbox.postgres.server import Server
    from cdc_outbox.postgres.slot import Slot
    from cdc_outbox.settings import Settings

WITHIN: Final = 5.0
"""Seconds for one question to the server, and for reaching it (each host of a list)."""

APPLICATION_NAME: Final = "cdc-outbox doctor"

OLDEST, NEWEST = 15, 18
_WITNESS_RIGHTS: Final[LiteralString] = """
select r.kind from unnest(array['select', 'insert', 'update', 'delete']) as r (kind)
 where not pg_catalog.has_table_privilege('public.cdc_outbox_witness'::regclass, r.kind)
    or not pg_catalog.has_schema_privilege('public', 'usage')
"""


async def examine(settings: Settings, findings: Findings) -> Outbox:
    """All checks of this side; what Kafka's side has to know of the tables, as far as it was found."""
    began = time.time()
    try:
        conn = await connect_control(settings.postgres, application_name=APPLICATION_NAME, timeout=WITHIN)
    except CdcOutboxError as error:
        findings.refuse("connection", error)
        return Outbox.guessed(settings)
    try:
        try:
            began = time.time()
            known = await facts.gather(conn, within=WITHIN)
            ended = time.time()
        except CdcOutboxError as error:
            findings.refuse("connection", error)
            return Outbox.guessed(settings)
        side = PostgresSide(settings, findings, conn, known)
        try:
            await side.examine(began, ended)
        except CdcOutboxError as lost:
            findings.refuse("connection", lost)
        return side.outbox
    finally:
        await conn.close()


class PostgresSide:
    """The connection, what it showed, and the checks that go by it."""

    def __init__(self, settings: Settings, findings: Findings, conn: Connection, known: Facts) -> None:
        self.settings = settings
        self.findings = findings
        self.conn = conn
        self.facts = known
        self.hosting = hosting.detect(known.signs)
        self.outbox = Outbox.guessed(settings)
        self.name = settings.postgres.slot
        self.found: Slot | None = None
        self.pending: Slot | None = None
        self.row: Witness | Absent = Absent.ROW
        self.able = True
        """Whether server and role are fit for replication at all."""

    async def examine(self, began: float, ended: float) -> None:
        """Raises the error that ended the connection, if one did."""
        self.connection()
        self.pooler()
        self.synchronous_standby()
        here = await self.server()
        self.wal_level()
        self.found, self.pending = await slot.inspect_both(self.conn, self.name, within=WITHIN)
        if self.walsenders() and await self.replication_right():
            await self.replication_connection(here)
        self.slots()
        self.outbox = await outbox.examine(
            self.conn, self.settings, self.findings, self.facts.role, within=WITHIN
        )
        await self.attempt("publication", self.publication)
        await self.attempt("slot", partial(self.slot, here))
        await self.attempt("witness", self.witness)
        version = self.conn.info.server_version
        endurance = Endurance(self.facts, self.findings, self.hosting, version, self.name, self.found)
        endurance.examine(began, ended)

    async def attempt(self, name: str, look: Callable[[], Awaitable[None]]) -> None:
        """One check, whose error is its result unless the server is gone."""
        try:
            await look()
        except CdcOutboxError as error:
            if self.conn.closed:
                raise
            self.findings.refuse(name, error)

    def change(self, setting: Setting) -> str:
        return hosting.change(self.hosting, setting)

    def connection(self) -> None:
        version = self.conn.info.server_version
        major = version // 10000
        where = (
            f"PostgreSQL {major}.{version % 10000} ({self.hosting.value}), database {self.facts.database}, as"
            f" {self.facts.role}"
        )
        if OLDEST <= major <= NEWEST:
            self.findings.ok("connection", where)
        else:
            self.findings.warn(
                "connection",
                f"{where}: tested are {OLDEST} to {NEWEST}",
                f"use PostgreSQL {OLDEST} to {NEWEST}",
            )

    def pooler(self) -> None:
        host = self.conn.info.host
        # Neon's proxy answers for every connection with numbers of its own; its pooler has a name of its own.
        if self.hosting is Hosting.NEON:
            pooled = "-pooler" in host.partition(".")[0]
        else:
            pooled = self.facts.pid != self.conn.info.backend_pid
        if pooled:
            self.findings.warn(
                "pooler",
                f"a pooler answers at {host}:{self.conn.info.port}: it may hide a shutdown of the server, and session"
                " settings may get lost",
                hosting.direct(self.hosting),
            )
        else:
            self.findings.ok("pooler", "none in between")

    def synchronous_standby(self) -> None:
        """Before all whose remedy is a COMMIT: that would wait for the standby that isn't there."""
        names = self.facts.settings.get("synchronous_standby_names", "")
        try:
            synchronous.require_none(names, f"cdc-outbox/{self.name}")
        except SynchronousStandby as error:
            real = "NAMES_OF_REAL_STANDBYS" if self.facts.standbys or self.facts.physical else ""
            self.findings.refuse(
                "synchronous_standby", error, self.change(Setting("synchronous_standby_names", real))
            )
            return
        shown = f"'{names}' doesn't match us" if names else "none: we never count as one"
        self.findings.ok("synchronous_standby", shown)

    async def server(self) -> Server:
        here = await server.identity(self.conn, within=WITHIN)
        if here.in_recovery:
            self.able = False
            self.findings.fail(
                "primary",
                f"{here.place} is a standby: start waits until it is promoted",
                "name the primary in the DSN, or several hosts with target_session_attrs=read-write",
                exit_code=MAY_PASS,
            )
        else:
            self.findings.ok("primary", f"system {here.system_identifier}, timeline {here.timeline}")
        return here

    def wal_level(self) -> None:
        level = self.facts.settings.get("wal_level")
        if level == "logical":
            self.findings.ok("wal_level", "logical")
        else:
            self.able = False
            self.findings.fail(
                "wal_level", f"wal_level is {level}, and decoding needs logical", self.change(hosting.LOGICAL)
            )

    def walsenders(self) -> bool:
        """Whether there is one to try."""
        most, used = self.facts.number("max_wal_senders"), self.facts.walsenders
        active = self.found is not None and self.found.active
        if used < most or active:
            self.findings.ok("walsenders", f"{used} of {most} in use")
            return used < most
        self.findings.fail(
            "walsenders",
            f"all {most} of max_wal_senders are in use",
            self.change(Setting("max_wal_senders", str(most + 10), restart=True)),
            exit_code=MAY_PASS,
        )
        return False

    async def replication_right(self) -> bool:
        """Whether it is worth trying."""
        role = self.facts.role
        try:
            await server.require_able(self.conn, within=WITHIN)
        except MissingRight as error:
            self.able = False
            self.findings.refuse("replication_right", error, hosting.let_replicate(self.hosting, role))
            return False
        except SetupError:
            return True  # wal_level, which was named; the attempt tells of the role
        self.findings.ok("replication_right", f"{role} may replicate")
        return True

    async def replication_connection(self, here: Server) -> None:
        """Open one for real: only so does one learn what pg_hba.conf or a pooler has to say."""
        try:
            other = await connect_replication(
                self.settings.postgres, application_name=APPLICATION_NAME, timeout=WITHIN, like=self.conn
            )
            try:
                there = await server.identify(other, within=WITHIN)
            finally:
                await other.close()
            server.require_same(here, there)
        except CdcOutboxError as error:
            self.findings.refuse("replication_connection", error, self.way_in(error))
            return
        self.findings.ok("replication_connection", f"{there.place} admits it")

    def way_in(self, error: CdcOutboxError) -> str | None:
        """The remedy for a replication connection that was refused while an ordinary one wasn't."""
        if isinstance(error, MissingRight):
            return hosting.let_replicate(self.hosting, self.facts.role)
        if str(error).startswith(sqlstate.POOLER.clause):
            return hosting.direct(self.hosting)
        if str(error).startswith(sqlstate.NOT_LET_IN.clause):
            return hosting.let_in(self.hosting, self.facts.role, self.facts.database)
        return None

    def slots(self) -> None:
        most, used = self.facts.number("max_replication_slots"), self.facts.slots
        # init makes the slot under another name first, and copies it.
        need = 0 if self.found is not None else 1 if self.pending is not None else 2
        if most - used >= need:
            self.findings.ok("slots", f"{used} of {most} in use")
        else:
            self.findings.fail(
                "slots",
                f"{used} of {most} in use, and init needs {need} free",
                "drop one that nobody needs: select pg_drop_replication_slot('NAME');\n"
                + self.change(Setting("max_replication_slots", str(most + 10), restart=True)),
            )

    async def publication(self) -> None:
        wanted, tables = self.settings.postgres.publication, self.settings.outbox.tables
        state = await slip.look(self.conn, self.settings.postgres, tables, within=WITHIN)
        if not self.outbox.whole:
            return  # a table that isn't there was named
        if state.problem is not None and state.identity is None and self.found is None:
            self.findings.fail(
                "publication", state.problem, f"cdc-outbox init --publication {wanted} --slot {self.name}"
            )
            return
        if state.problem is not None and state.identity is None and self.found and not self.found.here:
            init = complete_for("cdc-outbox init --slot ANOTHER", "ANOTHER", wanted, tables)
            step = f"the slot {self.name} belongs to another database: choose another name for this one's, and {init}"
            self.findings.fail("publication", state.problem, step)
            return
        others = await publication.passed_over(self.conn, wanted, tables, self.name, within=WITHIN)
        besides = await outbox.published_besides(self.conn, self.settings, others, within=WITHIN)
        messages, remedies = list(besides), list(besides.values())
        if state.problem is not None:
            wrong = Finding(state.problem, state.next).wrong(self.name)
            messages, remedies = [str(wrong), *messages], [wrong.next, *remedies]
        message, remedy = "; ".join(messages), "\n".join(remedies)
        if state.problem is not None or (others is not None and not others.fed):
            self.findings.fail("publication", message, remedy)
        elif besides:
            self.findings.warn("publication", message, remedy)
        else:
            names = ", ".join(str(table) for table in tables)
            self.findings.ok("publication", f"{wanted}: inserts on {names}, whole")

    async def slot(self, here: Server) -> None:
        found, pending = self.found, self.pending
        try:
            self.row = await witness.read(self.conn, self.name, within=WITHIN)
        except MissingRight:
            self.row = Absent.ROW  # the witness's own check names it
        if found is None and pending is None and here.in_recovery:
            raise slot.not_carried_over(self.name)
        if found is not None or pending is not None or isinstance(self.row, Absent):
            await slip.require_slot(
                self.conn, found, self.settings.postgres, self.settings.outbox.tables, pending=pending
            )
        notes = await self.rehearse() if self.able and not (found and pending) else []
        if found is None:
            raise SlotMissing(f'the replication slot "{self.name}" is gone', next=recover(self.name))
        use = (
            f"walsender {found.active_pid} streams: start would wait as a hot standby"
            if found.active
            else "free"
        )
        shown = f"{self.name}: {found.plugin}, wal_status {found.wal_status}, {use}"
        self.findings.ok("slot", "; ".join([shown, *notes]))

    async def rehearse(self) -> list[str]:
        """The very check of `start`, in a transaction that is rolled back; what it would tell of beside.

        Raises what `start` would, but for what has a check of its own here.
        """
        memory = Memory()
        tables = self.settings.outbox.tables
        admission = Admission(self.settings.postgres, tables, memory)
        try:
            await admission.open()
            await admission.control.run(partial(execute, query="begin", within=WITHIN))
            await admission.check()
        except (PublicationWrong, SynchronousStandby, MissingRight):
            pass
        finally:
            await admission.close()
        told = (
            *(absent.value for absent in Absent),
            f"publication {self.settings.postgres.publication} also has",
        )
        return sorted(note for note in memory.noticed if not note.startswith(told))

    async def witness(self) -> None:
        role = quote(self.facts.role)
        if self.row is Absent.TABLE and self.found is None:
            self.findings.ok("witness", f"no table {witness.TABLE} yet: init makes it with the slot")
            return
        if self.row is Absent.TABLE:
            self.findings.warn(
                "witness",
                f"there is no table {witness.TABLE}: start goes on, and can't notice a slot that somebody else moves",
                f"cdc-outbox init --slot {self.name}",
            )
            return
        lacking = [str(kind) for (kind,) in await execute(self.conn, _WITNESS_RIGHTS, within=WITHIN)]
        if lacking:
            self.findings.fail(
                "witness",
                f"{self.facts.role} lacks {', '.join(lacking)} on {witness.TABLE}",
                f"grant usage on schema public to {role};\n"
                f"grant select, insert, update, delete on {witness.TABLE} to {role};",
            )
        elif isinstance(self.row, Witness):
            self.findings.ok("witness", f"delivered up to {self.row.position}")
        else:
            self.findings.ok("witness", "no row yet: start writes it")
