"""The rows of the table that a person chose: by id, by aggregate, by when they were written; as conditions in SQL.

Values stand in the conditions as literals without a type, so that the server reads them as the column's. Whether it
can is asked before, since in the middle of a snapshot an error would end it.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, LiteralString

from psycopg import sql

from cdc_outbox.errors import CdcOutboxError, UsageError
from cdc_outbox.event import quote
from cdc_outbox.postgres import reading_right, sqlstate, table_rows
from cdc_outbox.postgres.connection import Connection, execute, reach_operators
from cdc_outbox.postgres.family import rows_of
from cdc_outbox.table.values import INTEGERS, Field

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from cdc_outbox.postgres.table_rows import Chunk
    from cdc_outbox.settings import OutboxSettings
    from cdc_outbox.table.plan import Plan

_NOW: Final[LiteralString] = "select (extract(epoch from clock_timestamp()) * 1000000)::int8"

LIMIT: Final = 120.0
"""Seconds for counting rows that are left out."""

NAMED: Final = 10
"""Ids that are told of rows that are left out."""

NAMES_TIME: Final = "--column created_at=NAME"
"""The flag that names the column which says when a row was written."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

_SECONDS_BELOW: Final = 100_000_000_000
"""Numbers below are seconds since 1970, as `table/values.py` has it."""


@dataclass(frozen=True, slots=True)
class Ago:
    """A moment so many seconds before now."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Chosen:
    """What a person asked for; all of it has to hold. Times are in UTC, or counted back from now."""

    ids: tuple[str, ...] = ()
    aggregate: str | None = None
    aggregate_type: str | None = None
    since: datetime | Ago | None = None
    until: datetime | Ago | None = None


@dataclass(frozen=True, slots=True)
class Window:
    """When rows were written: not before `since`, and before `until`."""

    since: datetime | None = None
    until: datetime | None = None

    def __bool__(self) -> bool:
        return self.since is not None or self.until is not None


async def window(conn: Connection, chosen: Chosen) -> Window:
    """The times that were asked for as moments, by the server's clock. Raises UsageError where none lies between."""
    ((now_us,),) = await execute(conn, _NOW)

    def moment(bound: datetime | Ago | None) -> datetime | None:
        if not isinstance(bound, Ago):
            return bound
        try:
            return _EPOCH + timedelta(microseconds=int(now_us)) - timedelta(seconds=bound.seconds)
        except OverflowError:
            return datetime.min.replace(tzinfo=UTC)

    found = Window(moment(chosen.since), moment(chosen.until))
    if found.since is not None and found.until is not None and found.since >= found.until:
        raise UsageError(
            "--since is not before --until",
            next="name the earlier time in --since; 2h means two hours ago, so --since 2h --until 1h",
        )
    return found


@dataclass(frozen=True, slots=True)
class Condition:
    """The rows that were chosen. `key` is what is left to compare in the message, where no column is the key.

    `missing` are ids that no row has; `window` is when the rows were written.
    """

    where: sql.Composable
    key: bytes | None
    missing: tuple[str, ...]
    window: Window


async def condition(
    conn: Connection, plan: Plan, settings: OutboxSettings, chosen: Chosen, *, otherwise: str
) -> Condition:
    """The rows of one table as SQL. `otherwise`: what else a person may do where the table has no time of writing.

    Raises UsageError for a value that its column can't hold, and for a column that there isn't; PostgresUnavailable.
    """
    conditions: list[sql.Composable] = []
    missing: tuple[str, ...] = ()
    if chosen.ids:
        field = plan.layout.id
        each = {id_: await _equal(conn, plan, field, id_, "--id") for id_ in chosen.ids}
        missing = tuple([id_ for id_, own in each.items() if not await _exists(conn, plan, own)])
        conditions.append(
            sql.SQL("{} in ({})").format(
                sql.Identifier(field.name), sql.SQL(", ").join(sql.Literal(id_) for id_ in each)
            )
        )
    key = None
    if chosen.aggregate is not None:
        column = _aggregate(plan, settings)
        if column is None and plan.layout.key is None:
            raise UsageError(
                f"the events of {plan.table} have no aggregate: their key is given up",
                next="choose rows by --id, --since or --until; or name the key with --key",
            )
        if column is None:
            key = chosen.aggregate.encode()
        else:
            conditions.append(await _equal(conn, plan, column, chosen.aggregate, "--aggregate"))
    if chosen.aggregate_type is not None:
        column = _column(plan, settings, "aggregate_type")
        if column is None:
            raise UsageError(
                f"table {plan.table} has no column that is recognised as aggregate type",
                next="name it with --column aggregate_type=NAME, or leave --aggregate-type out",
            )
        conditions.append(await _equal(conn, plan, column, chosen.aggregate_type, "--aggregate-type"))
    when = await window(conn, chosen)
    conditions += written(plan, when, otherwise=otherwise)
    return Condition(sql.SQL(" and ").join(conditions or [sql.SQL("true")]), key, missing, when)


async def _exists(conn: Connection, plan: Plan, own: sql.Composable) -> bool:
    query = sql.SQL("select exists (select from {} where {})").format(await rows_of(conn, plan.table), own)
    try:
        ((there,),) = await execute(conn, query, within=60.0)
    except CdcOutboxError as error:
        raise reading_right.named(error, plan.table, conn.info.user) from error
    return bool(there)


def _aggregate(plan: Plan, settings: OutboxSettings) -> Field | None:
    """The column that holds the key, or the aggregate id where the key is given up."""
    key = plan.layout.key
    if isinstance(key, Field):
        return key
    return _column(plan, settings, "aggregate_id") if key is None else None


def _column(plan: Plan, settings: OutboxSettings, role: str) -> Field | None:
    name = settings.columns.get(role)
    return plan.shape.find(name) if name is not None else plan.shape.recognise(role)


async def _equal(conn: Connection, plan: Plan, field: Field, value: str, flag: str) -> sql.Composable:
    """The column has this value. Raises UsageError where it never can."""
    condition = sql.SQL("{} = {}").format(sql.Identifier(field.name), sql.Literal(value))
    query = sql.SQL("select 1 from {} where {} limit 0").format(
        sql.Identifier(plan.table.schema, plan.table.name), condition
    )
    await reach_operators(conn, field.type_oid)
    try:
        if "\0" in value:
            raise UsageError(f"{flag} holds a zero byte", next="name a value that the table has")
        await execute(conn, query)
    except CdcOutboxError as error:
        if not sqlstate.of(error).startswith("22"):
            raise reading_right.named(error, plan.table, conn.info.user) from error
        raise UsageError(
            f"{flag} {value[:100]!r} is nothing that column {quote(field.name)} of {plan.table} can hold",
            next=f"name a value as column {quote(field.name)} has them",
        ) from None
    return condition


def written(plan: Plan, window: Window, *, otherwise: str) -> list[sql.Composable]:
    """The rows of a window as SQL. `otherwise` as for `condition`; raises UsageError like it."""
    if not window:
        return []
    field = plan.optional.get("created_at")
    if field is None:
        raise UsageError(
            f"table {plan.table} has no column that is recognised as the time of writing, which --since and --until "
            "go by",
            next=f"name it with {NAMES_TIME}; or {otherwise}",
        )
    bounds = ((">=", window.since), ("<", window.until))
    return [_compared(field, operator, at) for operator, at in bounds if at is not None]


def _compared(field: Field, operator: str, at: datetime) -> sql.Composable:
    column = sql.Identifier(field.name)
    compare = sql.SQL(">=") if operator == ">=" else sql.SQL("<")
    if field.type_oid in INTEGERS:
        milliseconds = sql.SQL("(case when abs({0}) < {1} then {0}::int8 * 1000 else {0} end)").format(
            column, sql.Literal(_SECONDS_BELOW)
        )
        since_epoch = (at - _EPOCH) // timedelta(milliseconds=1)
        return sql.SQL("{} {} {}").format(milliseconds, compare, sql.Literal(since_epoch))
    # A column without a time zone is in UTC, and the server passes over the offset.
    moment = at.astimezone(UTC).isoformat(sep=" ", timespec="microseconds")
    return sql.SQL("{} {} {}").format(column, compare, sql.Literal(moment))


class ChosenRows:
    """The rows of one table that were chosen, to be read through a snapshot.

    `proven`: a condition that holds for rows which were surely delivered. Where it is given, only those are read.
    """

    def __init__(
        self, plan: Plan, chosen: Condition, order: sql.Composable, proven: sql.Composable | None
    ) -> None:
        self.plan = plan
        self._where = table_rows.bracketed(chosen.where)
        self._order = order
        self._proven = proven

    def rows(self, conn: Connection) -> AsyncIterator[Chunk]:
        """Read them, in order."""
        plan, where = self.plan, self._where
        if self._proven is not None:
            where = sql.SQL("{} and {}").format(where, self._proven)
        return table_rows.rows(
            conn, plan.table, plan.shape.names, wanted=plan.read, where=where, order=self._order
        )

    async def unproven(self, conn: Connection) -> tuple[int, list[str]]:
        """How many rows are left out since nothing proves that they were delivered, and the ids of the first."""
        if self._proven is None:
            return 0, []
        plan = self.plan
        left = sql.SQL("{} and not {}").format(self._where, self._proven)
        count = await table_rows.count(conn, plan.table, left, within=LIMIT)
        if not count:
            return 0, []
        query = sql.SQL("select pg_catalog.format('%s', {}) from {} where {} order by {} limit {}").format(
            sql.Identifier(plan.layout.id.name),
            await rows_of(conn, plan.table),
            left,
            self._order,
            sql.Literal(NAMED),
        )
        return count, [str(id_) for (id_,) in await execute(conn, query, within=LIMIT)]
