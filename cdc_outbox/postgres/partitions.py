"""Partitions of an outbox table that are wholly old and wholly acknowledged: taken out whole.

Dropping a partition costs next to nothing where deleting its rows costs a lot. What it must not cost is a row: so the
partition is detached first, after which no row comes to it by way of the table, and only then, with the partition
locked against everybody, is it looked at for the last time. A row that came at the last moment and isn't acknowledged
brings the partition back. Where that look is broken off, the partition stays out, with whatever it holds: the error
has the statement that puts it back.

DETACH … CONCURRENTLY lets the application go on; PostgreSQL refuses it where the table has a default partition, and
then the whole table is locked for the moment that an ordinary DETACH takes. No lock is waited for longer than
`LOCK_WAIT`, for whoever comes after us would wait too; then we try again. A concurrent detachment that was broken off
is finished by the next run. So is all that comes after a detachment: its partition's comment says of which table it was
one, and where, from before it is taken out until it was looked at for the last time.

Only a table that is partitioned by range of the column that tells a row's age has such partitions. The default
partition, and one without an upper bound, are never touched.

https://www.postgresql.org/docs/current/sql-altertable.html#SQL-ALTERTABLE-DETACH-PARTITION
"""

from __future__ import annotations

import asyncio
import re
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, LiteralString

from psycopg import sql

from cdc_outbox import log
from cdc_outbox.errors import CdcOutboxError, MissingRight, SetupError
from cdc_outbox.event import TableName, quote
from cdc_outbox.postgres.connection import Connection, execute
from cdc_outbox.postgres.patience import patiently
from cdc_outbox.postgres.transaction import transaction
from cdc_outbox.table.values import INTEGERS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cdc_outbox.postgres.acknowledged import Acknowledged
    from cdc_outbox.table.values import Field

_log = log.get(__name__)

LOCK_WAIT: Final = 2.0
"""Seconds for which a lock is waited for."""

SCAN: Final = 600.0
"""Seconds that the last look through a partition may take, and putting it back."""

_KEY: Final[LiteralString] = """
select p.partstrat::text, p.partnatts, a.attname::text,
       exists (select from pg_catalog.pg_inherits i join pg_catalog.pg_class d on d.oid = i.inhrelid
                where i.inhparent = c.oid and pg_catalog.pg_get_expr(d.relpartbound, d.oid) = 'DEFAULT')
  from pg_catalog.pg_class c
  join pg_catalog.pg_namespace n on n.oid = c.relnamespace
  left join pg_catalog.pg_partitioned_table p on p.partrelid = c.oid
  left join pg_catalog.pg_attribute a on a.attrelid = c.oid and a.attnum = p.partattrs[0]
 where n.nspname = %s and c.relname = %s
"""

# An upper bound that is no time, MAXVALUE for one, isn't quoted in the expression.
# Only of this table's partitions is it known that their bounds are times: they are chosen before anything is cast.
_OLD: Final[LiteralString] = """
with part as materialized (
select n.nspname::text as schema, d.relname::text as name, i.inhdetachpending as pending,
       pg_catalog.pg_get_expr(d.relpartbound, d.oid) as bound
  from pg_catalog.pg_inherits i
  join pg_catalog.pg_class c on c.oid = i.inhparent
  join pg_catalog.pg_namespace m on m.oid = c.relnamespace
  join pg_catalog.pg_class d on d.oid = i.inhrelid and d.relkind in ('r', 'p')
  join pg_catalog.pg_namespace n on n.oid = d.relnamespace
 where m.nspname = %s and c.relname = %s)
select schema, name, bound, pending from part where {end} <= %s::timestamptz order by {end}, name
""".replace(
    "{end}",
    "substring(bound from $$ TO \\('([^']+)'\\)$$)::timestamptz",
)

# Only of tables of the same owner, who could drop both: anybody may say what they like of their own.
_OUT: Final[LiteralString] = """
select n.nspname::text, d.relname::text, s.description
  from pg_catalog.pg_class c
  join pg_catalog.pg_namespace m on m.oid = c.relnamespace
  join pg_catalog.pg_class d on d.relowner = c.relowner and d.relkind in ('r', 'p') and not d.relispartition
  join pg_catalog.pg_namespace n on n.oid = d.relnamespace
  join pg_catalog.pg_description s on s.objoid = d.oid and s.objsubid = 0
   and s.classoid = 'pg_catalog.pg_class'::pg_catalog.regclass
 where m.nspname = %s and c.relname = %s and s.description like '%%' || %s || '%%'
 order by 1, 2
"""
_IS_OLD: Final[LiteralString] = """
select substring(%s from $$ TO \\('([^']+)'\\)$$)::timestamptz <= %s::timestamptz
"""
_COMMENT: Final[LiteralString] = "select pg_catalog.obj_description(pg_catalog.to_regclass(%s), 'pg_class')"

_NOTED: Final = "cdc-outbox cleanup has taken it out of "
_NOTE: Final = re.compile(
    rf"\n?{_NOTED}(.+) (FOR VALUES FROM \((?:MINVALUE|'[^'\\]*')\) TO \('[^'\\]*'\)) to look at it once more\Z"
)
"""What is behind a partition's own comment: its table, and its place there, which becomes SQL and is read strictly."""

_IN_THE_WAY: Final[LiteralString] = """
select exists (select from {partition} as r where not ({delivered} and {ours}))
"""


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition whose rows are all old. `bound` is its place in the table, as ATTACH takes it."""

    name: TableName
    bound: str
    pending: bool
    """Whether a detachment of it was begun and not finished."""
    out: bool = False
    """Whether an earlier run has detached it, and was broken off before the last look."""


class Partitions:
    """The partitions of one table that end before a moment."""

    def __init__(
        self,
        conn: Connection,
        acknowledged: Acknowledged,
        *,
        time: Field,
        before: str,
        ours: sql.Composable | None = None,
    ) -> None:
        self._conn = conn
        self.acknowledged = acknowledged
        self.table = acknowledged.table
        self._delivered = acknowledged.condition(sql.Identifier("r"))
        self._ours = ours or sql.SQL("true")
        self._column = time.name
        self._number = time.type_oid in INTEGERS
        self._before = before
        self._concurrently = True

    async def old(self) -> list[Partition]:
        """The partitions whose rows are all from before, the oldest first.

        Raises SetupError where the table isn't partitioned by range of the column.
        """
        wanted = (self.table.schema, self.table.name)
        ((strategy, columns, column, default),) = await execute(self._conn, _KEY, wanted)
        if strategy != "r" or columns != 1 or column != self._column or self._number:
            how = (
                "not partitioned"
                if strategy is None
                else f"not partitioned by range of the time {quote(self._column)} alone"
            )
            raise SetupError(
                f"{self.table} is {how}, so no partition is known to be old",
                next="remove its rows in batches, without --partitions",
            )
        self._concurrently = not default
        rows = await execute(self._conn, _OLD, (*wanted, self._before))
        there = [Partition(TableName(schema, name), bound, pending) for schema, name, bound, pending in rows]
        return [*await self._out(), *there]

    async def _out(self) -> list[Partition]:
        """Partitions that a run which was broken off has taken out, and whose rows are all from before."""
        found = []
        for schema, name, comment in await execute(
            self._conn, _OUT, (self.table.schema, self.table.name, _NOTED)
        ):
            note = _NOTE.search(comment)
            if note is None or note[1] != str(self.table):
                continue
            partition = Partition(TableName(schema, name), note[2], pending=False, out=True)
            _log.warning(
                "a cleanup was broken off, and its partition is out of the table",
                partition=str(partition.name),
                next="nothing to do if its rows are old enough for this run, which goes on with it; to put it back: "
                f"{self._attach(partition).as_string()};",
            )
            ((old,),) = await execute(self._conn, _IS_OLD, (partition.bound, self._before))
            if old:
                found.append(partition)
        return found

    async def detach(self, partition: Partition) -> bool:
        """Take it out of the table; it stays as a table of its own. False where a row came that isn't acknowledged.

        Raises MissingRight for who doesn't own both, PostgresUnavailable while somebody's lock is in the way.
        """
        return await self._taken_out(partition, drop=False)

    async def drop(self, partition: Partition) -> bool:
        """Take it out of the table and drop it; as `detach`."""
        return await self._taken_out(partition, drop=True)

    async def put_back(self, partition: Partition) -> None:
        """Attach one that an earlier run has taken out. Raises as `detach`."""
        await self._take_time()
        with self._outside(partition):
            await patiently(lambda _: self._put_back(partition))

    async def _taken_out(self, partition: Partition, *, drop: bool) -> bool:
        await self._take_time()
        if not partition.out:
            await self._take_out(partition)
        with self._outside(partition):
            if await patiently(lambda _: self._end(partition, drop=drop)):
                return True
            await patiently(lambda _: self._put_back(partition))
        return False

    async def _take_time(self) -> None:
        limits = (sql.Literal(int(seconds * 1000)) for seconds in (LOCK_WAIT, SCAN))
        await execute(
            self._conn, sql.SQL("set lock_timeout = {}; set statement_timeout = {}").format(*limits)
        )

    async def _take_out(self, partition: Partition) -> None:
        owner = self._conn
        try:
            await patiently(lambda _: self._say(partition, out=True))
            await patiently(lambda attempt: self._detach(partition, again=attempt > 1))
        except BaseException as error:
            if not owner.closed:
                with suppress(CdcOutboxError):
                    await self._say(partition, out=False)
            if not isinstance(error, MissingRight):
                raise
            raise MissingRight(
                f"the role {quote(owner.info.user)} doesn't own {self.table} and {partition.name}: {error}",
                next="name the owner's connection with --admin-dsn; or remove rows in batches, without --partitions",
            ) from error

    @contextmanager
    def _outside(self, partition: Partition) -> Iterator[None]:
        """What breaks off now leaves the partition out, and has to say so."""
        attach = self._attach(partition).as_string()
        try:
            yield
        except CdcOutboxError as error:
            raise type(error)(
                f"{partition.name} was taken out of {self.table}, and not looked at to the end: {error}",
                next=f"put it back, then start again: {attach};",
            ) from error
        except asyncio.CancelledError:
            _log.warning("a partition stays out of its table", next=f"put it back: {attach};")
            raise

    def _attach(self, partition: Partition) -> sql.Composed:
        return sql.SQL("alter table {} attach partition {} {}").format(
            _identifier(self.table),
            _identifier(partition.name),
            sql.SQL(partition.bound),
        )

    async def _put_back(self, partition: Partition) -> None:
        async with transaction(self._conn):
            await execute(self._conn, self._attach(partition), within=SCAN)
            await self._say(partition, out=False)

    async def _say(self, partition: Partition, *, out: bool) -> None:
        """Have the partition's comment end with the note that it is out, or without it."""
        ((comment,),) = await execute(self._conn, _COMMENT, (str(partition.name),))
        own = _NOTE.sub("", comment or "")
        note = f"{_NOTED}{self.table} {partition.bound} to look at it once more"
        said = "\n".join(filter(None, (own, note))) if out else own
        if said != (comment or ""):
            await execute(
                self._conn,
                sql.SQL("comment on table {} is {}").format(
                    _identifier(partition.name), sql.Literal(said or None)
                ),
            )

    async def _detach(self, partition: Partition, *, again: bool) -> None:
        """Detach it, unless an attempt before, which failed in the middle, has done so in the end."""
        pending = partition.pending
        if again:
            now = [each for each in await self.old() if each.name == partition.name]
            if not now:
                return
            pending = now[0].pending
        how = "finalize" if pending else "concurrently" if self._concurrently else ""
        statement = sql.SQL("alter table {} detach partition {} " + how).format(
            _identifier(self.table), _identifier(partition.name)
        )
        # Concurrently it waits for those who use the table; a transaction that is open for long is in its way.
        await execute(self._conn, statement, within=30)

    async def _end(self, partition: Partition, *, drop: bool) -> bool:
        """Look at it for the last time, with nobody else at it, and drop it; False if a row isn't acknowledged."""
        owner, name = self._conn, _identifier(partition.name)
        async with transaction(owner):
            await execute(owner, sql.SQL("lock table {} in access exclusive mode").format(name))
            ((in_the_way,),) = await execute(
                owner,
                sql.SQL(_IN_THE_WAY).format(partition=name, delivered=self._delivered, ours=self._ours),
                within=SCAN + 5,
            )
            if in_the_way:
                return False
            if drop:
                await execute(owner, sql.SQL("drop table {}").format(name))
            else:
                await self._say(partition, out=False)
        return True


def _identifier(table: TableName) -> sql.Identifier:
    return sql.Identifier(table.schema, table.name)
