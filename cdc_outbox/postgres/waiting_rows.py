"""The rows of one table that are to be published from it: which, and in which order.

Which: by the marks that the old relay leaves in the table, or by a person's condition. In which order: in the one in
which they were written (`written_order.py`).
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from psycopg import sql

from cdc_outbox.errors import CdcOutboxError, SetupError
from cdc_outbox.event import quote
from cdc_outbox.postgres import table_rows, zoneless
from cdc_outbox.postgres.by_value import counted, telling
from cdc_outbox.postgres.connection import Connection
from cdc_outbox.postgres.transaction import transaction
from cdc_outbox.postgres.unsent import among, disputed, given_up, has_failed, is_unknown, unsent
from cdc_outbox.postgres.written_order import written_order
from cdc_outbox.table.doubt import doubtful, remedy
from cdc_outbox.table.values import INTEGERS, TIMES

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable
    from contextlib import AbstractAsyncContextManager

    from cdc_outbox.event import TableName
    from cdc_outbox.postgres.slot import Slot
    from cdc_outbox.postgres.table_rows import Chunk
    from cdc_outbox.table.mapping import Plan


@dataclass(frozen=True, slots=True)
class Choice:
    """What a person says of the rows.

    `where`: a condition in SQL, instead of the table's marks. `everything`: all rows. `failed`: what becomes of rows
    that the old relay failed to send; None where nothing was said. `order_by`: columns, as SQL has them behind ORDER
    BY.
    """

    where: str | None = None
    everything: bool = False
    failed: Literal["publish", "skip"] | None = None
    order_by: str | None = None

    @property
    def asks_the_table(self) -> bool:
        """Whether the table's own marks decide."""
        return self.where is None and not self.everything and self.failed is None


@dataclass(frozen=True, slots=True)
class Waiting:
    """The rows of one table, to be read through a snapshot. `rule` and `ordered` say which and how, in words.

    `whole`: no row is left out that may be unsent. `by_value` are the rows by what the table says of them, in
    words, where it says anything; `besides` how many rows that may be unsent don't fulfil a person's condition, and
    `known_by` how they are known to be. `left_out`: the condition of rows that a person leaves out and that may be
    unsent; None where there are none. `restored`: that of those among them which are published all the same.
    """

    plan: Plan
    rule: str
    ordered: str
    where: sql.Composable | None
    order: sql.Composable
    whole: bool
    by_value: str = ""
    besides: int = 0
    known_by: str = ""
    left_out: sql.Composable | None = None
    restored: sql.Composable | None = None

    def in_order_with(self, slot: Slot, ended: int | None) -> Waiting:
        """The same rows and, of those that a person leaves out, the ones that the slot may bring: each in its place.

        The stream would bring them after newer rows of their key. Every transaction below `ended`, where that was
        noted, or the slot's catalog_xmin had ended when the slot was made, and nothing moves it before somebody
        streams; but a slot begins with the catalog_xmin of the oldest that there is. A row that was changed since has
        the number of the change, and is taken for one that the slot brings.
        """
        if self.left_out is None or self.where is None or slot.catalog_xmin is None:
            return self
        restored = sql.SQL("{} and pg_catalog.age({}.xmin) <= least({})").format(
            table_rows.bracketed(self.left_out),
            sql.Identifier(self.table.schema, self.table.name),
            sql.SQL(", ").join(
                sql.SQL("pg_catalog.age({}::pg_catalog.xid8::pg_catalog.xid)").format(sql.Literal(str(each)))
                for each in (slot.catalog_xmin, ended)
                if each is not None
            ),
        )
        where = sql.SQL("{} or {}").format(table_rows.bracketed(self.where), table_rows.bracketed(restored))
        return replace(self, where=where, restored=restored)

    @property
    def table(self) -> TableName:
        return self.plan.table

    @property
    def missed(self) -> sql.Composable | None:
        """What holds for rows that are not published; None where it holds for no row that may be unsent."""
        if self.whole or self.where is None:
            return None
        return sql.SQL("not coalesce({}, false)").format(table_rows.bracketed(self.where))

    async def count(self, conn: Connection) -> int:
        """How many there are."""
        return await table_rows.count(conn, self.table, self.where)

    async def count_restored(self, conn: Connection) -> int:
        """How many of them a person has left out."""
        return 0 if self.restored is None else await table_rows.count(conn, self.table, self.restored)

    def rows(self, conn: Connection) -> AsyncIterator[Chunk]:
        """Read them, in order."""
        plan = self.plan
        return table_rows.rows(
            conn, self.table, plan.shape.names, wanted=plan.read, where=self.where, order=self.order
        )


async def waiting(conn: Connection, plan: Plan, choice: Choice) -> Waiting:
    """The rows that wait in the plan's table.

    Raises UsageError or SetupError for a condition or an order that can't be, and SetupError where the old relay has
    given rows up and nobody has said what is to become of them, where the table says of rows what nobody understands,
    or where no row fulfils a person's condition and some may be unsent; MissingRight; PostgresUnavailable.
    """
    order, ordered = await written_order(conn, plan, choice.order_by)
    rule, where = await _rule(conn, plan, choice)
    failed = plan.bookkeeping.failed
    if failed is not None and choice.failed == "skip":
        left = sql.SQL("not {}").format(has_failed(failed))
        where = left if where is None else sql.SQL("{} and {}").format(table_rows.bracketed(where), left)
        rule = f"{rule}, without those that failed"
    elif failed is not None and failed.given_up and choice.asks_the_table:
        await _require_none_given_up(conn, plan, given_up(failed), where)
    ours = among(plan.selected)
    besides = 0
    if choice.where is not None and where is not None:
        besides = await _require_fulfilled(conn, plan, where, ours)
    elif not choice.everything:
        await _require_known(conn, plan, ours)
    skipped = failed is not None and choice.failed == "skip"
    if choice.where is None and not choice.everything:
        await _require_none_scheduled(conn, plan, where)
    told = telling(plan.shape, plan.ignored, plan.bookkeeping)
    by_value = ""
    if told is not None:
        async with _read_only(conn):
            counts = await counted(conn, plan.table, told, [*ours, *([where] if where is not None else [])])
        by_value = f"by {quote(told.name)}: {counts or 'none'}"
    return Waiting(
        plan,
        rule,
        ordered,
        where,
        order,
        whole=choice.where is None and not skipped,
        by_value=by_value,
        besides=besides,
        known_by=_known_by(plan),
        left_out=_all(_left_out(plan, where))
        if choice.where is not None or choice.failed == "skip"
        else None,
    )


def _left_out(plan: Plan, where: sql.Composable | None) -> list[sql.Composable]:
    """Conditions of the rows that may be unsent and don't fulfil another one."""
    sent = plan.bookkeeping.sent
    missed = [] if where is None else [sql.SQL("not coalesce({}, false)").format(table_rows.bracketed(where))]
    return [*among(plan.selected), *([unsent(sent)] if sent is not None else []), *missed]


def _read_only(conn: Connection) -> AbstractAsyncContextManager[None]:
    """A transaction in which a condition from outside can change nothing."""
    return transaction(conn, begin="begin transaction read only", end="rollback")


async def _require_known(conn: Connection, plan: Plan, ours: list[sql.Composable]) -> None:
    """Raise SetupError where it is not for us to say which rows were sent."""
    table, book = plan.table, plan.bookkeeping
    await _require_agreement(conn, plan, ours)
    unknown = is_unknown(book)
    if unknown is not None and book.status is not None:
        column = quote(book.status.name)
        counts = await counted(conn, table, book.status, [*ours, unknown])
        error = f"column {column} of {table} holds words whose meaning nobody has said: {counts}"
        named = "--status sent=WORD (or failed, given_up, taken, waiting)"
    elif book.sent is None and not book.deleted:
        looks = doubtful(plan.shape, plan.ignored, book)
        if looks is None:
            return
        column = quote(looks.name)
        counts = await counted(conn, table, looks, ours)
        error = f"nobody has said which rows of {table} were sent, and its column {column} looks as if it did: {counts}"
        named = remedy(looks)
    else:
        return
    if counts:
        raise SetupError(
            error,
            next=f"name its words, under [outbox.status] or with {named}; or say which rows are to be sent: "
            "cdc-outbox backfill --where SQL; or send all rows: cdc-outbox backfill --all",
        )


async def _require_agreement(conn: Connection, plan: Plan, ours: list[sql.Composable]) -> None:
    """Raise SetupError where the status of a row says that it was sent, and the time beside it that it wasn't."""
    sent, either = plan.bookkeeping.sent, disputed(plan.bookkeeping)
    if sent is None or sent.beside is None or either is None:
        return
    counts = await counted(conn, plan.table, sent.field, [*ours, either])
    if counts:
        status, time = quote(sent.field.name), quote(sent.beside.name)
        raise SetupError(
            f"column {status} of {plan.table} looks as if it said that rows were sent whose {time} is NULL: {counts}",
            next=f"say which of them tells it: --column sent_at={sent.beside.name}, if rows wait while that is NULL; "
            f"or --status column={sent.field.name}; or say which rows are to be sent: cdc-outbox backfill --where SQL",
        )


async def _require_fulfilled(
    conn: Connection, plan: Plan, where: sql.Composable, ours: list[sql.Composable]
) -> int:
    """How many rows that may be unsent a person's condition leaves out.

    Raises SetupError where it leaves out all of them, and takes no other.
    """
    table = plan.table
    async with _read_only(conn):
        fulfilled = await table_rows.count(conn, table, _all([*ours, where]))
        besides = await table_rows.count(conn, table, _all(_left_out(plan, where)))
    if fulfilled or not besides:
        return besides
    rows = f"{besides} {'row' if besides == 1 else 'rows'}"
    raise SetupError(
        f"no row of {table} fulfils --where, and {rows} {'is' if besides == 1 else 'are'} {_known_by(plan)}",
        next="mend the condition: cdc-outbox backfill --where SQL; or leave all of them out: "
        "cdc-outbox init --no-backfill",
    )


def _all(conditions: Iterable[sql.Composable]) -> sql.Composable:
    return sql.SQL(" and ").join(map(table_rows.bracketed, conditions))


def _known_by(plan: Plan) -> str:
    sent = plan.bookkeeping.sent
    return f"unsent by {quote(sent.field.name)}" if sent is not None else "not known to be sent"


async def _rule(conn: Connection, plan: Plan, choice: Choice) -> tuple[str, sql.Composable | None]:
    if choice.where is not None:
        own = await table_rows.condition(conn, plan.table, choice.where, flag="--where")
        await _require_lasting(conn, plan, own)
        return "rows that fulfil --where", own
    sent = plan.bookkeeping.sent
    if choice.everything:
        return "all rows", None
    if sent is None:
        why = (
            "its relay deletes what it has sent"
            if plan.bookkeeping.deleted
            else "no column says what was sent"
        )
        return f"all rows, for {why}", None
    column = quote(sent.field.name)
    if sent.by == "time":
        return f"rows whose {column} is NULL", unsent(sent)
    return f"rows whose {column} is none of {', '.join(sorted(sent.words))}", unsent(sent)


async def _require_lasting(conn: Connection, plan: Plan, own: sql.Composable) -> None:
    """Raise SetupError for a condition that may choose other rows each time: those that are read once to be counted,
    once to be published, and once to remember what is left behind.
    """
    volatile = False
    async with _read_only(conn):
        with suppress(CdcOutboxError):  # what is wrong with it is told where it is asked of the rows
            volatile = await table_rows.is_volatile(conn, plan.table, own)
    if volatile:
        raise SetupError(
            "--where calls a function that may say something else of a row each time (VOLATILE), so nobody would know "
            "which rows are left out",
            next="mend the condition: now() stays the same for the whole run, where clock_timestamp() doesn't; a "
            "function of your own that says the same each time may say so: alter function … stable;",
        )


async def _require_none_given_up(
    conn: Connection, plan: Plan, condition: sql.Composable, where: sql.Composable | None
) -> None:
    if where is not None:
        condition = sql.SQL("{} and {}").format(condition, table_rows.bracketed(where))
    count = await table_rows.count(conn, plan.table, condition)
    if count:
        raise SetupError(
            f"the old relay has failed to send {count} {'row' if count == 1 else 'rows'} of {plan.table} and has given "
            "up: nobody has said what is to become of them",
            next="publish them too: cdc-outbox backfill --failed publish; or leave them out: "
            "cdc-outbox backfill --failed skip",
        )


async def _require_none_scheduled(conn: Connection, plan: Plan, where: sql.Composable | None) -> None:
    """Rows that wait for their first attempt on purpose: sent now, they would be sent too early.

    Raises SetupError for them, also where it depends on whose clock a time without a zone shows.
    """
    due, failed = plan.optional.get("due"), plan.bookkeeping.failed
    if due is None or due.type_oid not in TIMES:
        return
    conditions = [sql.SQL("{} > clock_timestamp()").format(zoneless.latest(due))]
    if where is not None:
        conditions.append(table_rows.bracketed(where))
    if failed is not None:
        conditions.append(sql.SQL("not {}").format(has_failed(failed)))
    attempts = plan.shape.find("attempts")
    if attempts is not None and attempts.type_oid in INTEGERS:
        conditions.append(sql.SQL("coalesce({}, 0) = 0").format(sql.Identifier(attempts.name)))
    count = await table_rows.count(conn, plan.table, sql.SQL(" and ").join(conditions))
    if count:
        raise SetupError(
            f"{count} {'row' if count == 1 else 'rows'} of {plan.table} that nobody has tried to send yet "
            f"{'is' if count == 1 else 'are'} to be sent later, by {zoneless.doubt(due)}",
            next="let the old relay send them when they are due; or send them at once: "
            "CDC_OUTBOX_OUTBOX_SCHEDULED=ignore cdc-outbox backfill; or say with --where which rows are to be sent",
        )
