"""Can the rows of a table be marked as sent, and how? Asked of the catalogue before the first mark.

There have to be columns to write, which nothing else generates; none of them may decide in which partition a row lies,
for a row that moves arrives in the stream as an INSERT, and would be sent again; a unique index has to find the rows;
the role needs its rights on these columns, and no policy may hide rows from it. Each is refused by name, with its
remedy. A trigger is no reason to refuse, but to say so: it runs for each row that is marked.

https://www.postgresql.org/docs/current/ddl-priv.html
https://www.postgresql.org/docs/current/ddl-partitioning.html
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, LiteralString

from cdc_outbox.errors import MissingRight, SetupError
from cdc_outbox.event import quote
from cdc_outbox.postgres.connection import Connection, execute
from cdc_outbox.postgres.family import FAMILY
from cdc_outbox.postgres.named_words import literals
from cdc_outbox.table import doubt
from cdc_outbox.table.sent import SPELLED, folded
from cdc_outbox.table.values import TIMES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from cdc_outbox.event import TableName
    from cdc_outbox.table.mapping import Plan
    from cdc_outbox.table.sent import Mark, Sent
    from cdc_outbox.table.values import Field

NONE: Final = "--mark none"

SYSTEM_COLUMNS: Final = ("ctid", "tableoid", "xmin")
"""What a search for rows that were left unmarked reads beside the table's own columns."""

# A partition key makes each of its columns depend on its table, those within expressions too.
_COLUMNS: Final[LiteralString] = """
{family}
select a.attname::text, pg_catalog.format_type(a.atttypid, -1), a.attnotnull, a.attgenerated::text,
       (select array_agg(e.enumlabel::text order by e.enumsortorder)
          from pg_catalog.pg_enum e where e.enumtypid = a.atttypid),
       (select string_agg(pg_catalog.pg_get_constraintdef(k.oid), ' ') from pg_catalog.pg_constraint k
         where k.contype = 'c' and k.conrelid = a.attrelid and a.attnum = any(k.conkey)),
       exists (select from family f join pg_catalog.pg_class p on p.oid = f.relation and p.relkind = 'p'
                 join pg_catalog.pg_attribute m on m.attrelid = p.oid and m.attname = a.attname
                 join pg_catalog.pg_depend d on d.classid = 'pg_catalog.pg_class'::regclass and d.objid = p.oid
                  and d.objsubid = m.attnum and d.refclassid = d.classid and d.refobjid = p.oid
                  and d.refobjsubid = 0 and d.deptype = 'i'),
       pg_catalog.has_column_privilege(a.attrelid, a.attnum, 'select'),
       pg_catalog.has_column_privilege(a.attrelid, a.attnum, 'update')
  from named join pg_catalog.pg_attribute a on a.attrelid = named.relation and not a.attisdropped
 where a.attnum > 0 or a.attname in ('ctid', 'tableoid', 'xmin')
""".replace("{family}", FAMILY)

_KEYS: Final[LiteralString] = """
{family}
select i.indisprimary, array_agg(a.attname::text order by k.place)
  from named join pg_catalog.pg_index i on i.indrelid = named.relation
  cross join lateral pg_catalog.unnest(i.indkey::int2[]) with ordinality as k (attnum, place)
  left join pg_catalog.pg_attribute a on a.attrelid = i.indrelid and a.attnum = k.attnum
 where i.indisunique and i.indisvalid and i.indpred is null and i.indexprs is null and k.place <= i.indnkeyatts
 group by i.indexrelid, i.indisprimary
 order by i.indexrelid
""".replace("{family}", FAMILY)

# What ANALYZE has seen, the most frequent first, and then the column's default: no row is read for it.
_SAID: Final[LiteralString] = """
{family}
select value from (
    select value, sum(share) as share from family f
      join pg_catalog.pg_class c on c.oid = f.relation join pg_catalog.pg_namespace n on n.oid = c.relnamespace
      join pg_catalog.pg_stats s on s.schemaname = n.nspname and s.tablename = c.relname and s.attname = %s
     cross join lateral unnest(s.most_common_vals::text::text[], s.most_common_freqs) as u (value, share)
     group by value
     union all
    select substring(pg_catalog.pg_get_expr(d.adbin, d.adrelid) from $$^'([^']*)'::$$), -1
      from named join pg_catalog.pg_attribute a on a.attrelid = named.relation and a.attname = %s
      join pg_catalog.pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum) as said
 where value is not null order by share desc, value
""".replace("{family}", FAMILY)

# tgtype: 16 is UPDATE. https://github.com/postgres/postgres/blob/master/src/include/catalog/pg_trigger.h
_AROUND: Final[LiteralString] = """
{family}
select session_user::text, pg_catalog.has_schema_privilege(n.oid, 'usage'),
       pg_catalog.row_security_active(named.relation), c.relkind = 'p',
       array(select distinct t.tgname::text from family f join pg_catalog.pg_trigger t on t.tgrelid = f.relation
              where not t.tgisinternal and t.tgenabled in ('O', 'A') and t.tgtype & 16 <> 0
                and (t.tgattr = '' or exists (select from pg_catalog.unnest(t.tgattr::int2[]) as u (attnum)
                       join pg_catalog.pg_attribute a on a.attrelid = t.tgrelid and a.attnum = u.attnum
                      where a.attname = any(%s))))
  from named join pg_catalog.pg_class c on c.oid = named.relation
  join pg_catalog.pg_namespace n on n.oid = c.relnamespace
""".replace("{family}", FAMILY)


@dataclass(frozen=True, slots=True)
class KeyColumn:
    """A column of the unique key: its name and its type, as SQL spells it."""

    name: str
    type: str


@dataclass(frozen=True, slots=True)
class Written:
    """A column that is written: a word, or the time and `seconds` on top."""

    name: str
    word: str | None = None
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Markable:
    """How rows of a table are found and marked.

    `identity` are the columns of `identity()`. `given_up` are words of `status` that say of a row that the old relay
    won't send it. `triggers` run for each marked row. `behind` is a column that looks like a status and stays as it is.
    """

    table: TableName
    key: tuple[KeyColumn, ...]
    written: tuple[Written, ...]
    sent: Sent
    status: Field | None
    given_up: frozenset[str]
    triggers: tuple[str, ...]
    identity: tuple[KeyColumn, ...] = ()
    partitioned: bool = False
    behind: Field | None = None

    def __str__(self) -> str:
        written = (
            each.name if each.word is None else f"{each.name} = '{each.word}'" for each in self.written
        )
        return f"{', '.join(written)}, found by {', '.join(column.name for column in self.key)}"

    @property
    def read(self) -> tuple[str, ...]:
        """The columns that marking reads, beside those that decide whether a row is sent at all."""
        names = [column.name for column in (*self.key, *self.identity)]
        names += [each.name for each in self.written]
        names += [
            *(field.name for field in self.sent.fields),
            *([self.status.name] if self.status is not None else []),
        ]
        return tuple(dict.fromkeys(names))


@dataclass(frozen=True, slots=True)
class _Column:
    type: str
    not_null: bool
    generated: str
    labels: Sequence[str] | None
    checks: str | None
    partitions: bool
    may_read: bool
    may_write: bool


async def examine(conn: Connection, plan: Plan, *, deciding: Iterable[str] = ()) -> Markable:
    """How the rows of the plan's table are marked by the role of `conn`.

    `deciding`: columns that decide whether a row is sent at all. Raises SetupError and MissingRight.
    """
    table, book = plan.table, plan.bookkeeping
    if book.sent is None or not book.marks:
        kept = "its old relay deletes what it has sent" if book.deleted else "it has no such column"
        raise SetupError(
            f"nothing in {table} says that a row was sent, so --mark update has nothing to write: {kept}",
            next=f"leave it out: {NONE}",
        )
    names = (table.schema, table.name)
    columns = await _columns(conn, table)
    written = tuple([_written(table, mark, columns, await _said(conn, table, mark)) for mark in book.marks])
    _require_writable(table, written, columns)
    keys = await _unique(conn, table)
    key = _key(plan, columns, keys)
    marked = [each.name for each in written]
    ((role, usage, hidden, partitioned, triggers),) = await execute(conn, _AROUND, (*names, marked))
    failed, taken = book.failed, book.taken
    found = Markable(
        table=table,
        key=key,
        written=written,
        sent=book.sent,
        status=next((each.field for each in (failed, taken) if each is not None), None),
        given_up=failed.given_up if failed is not None else frozenset(),
        triggers=tuple(str(name) for name in triggers),
        identity=_identity(columns, keys),
        partitioned=bool(partitioned),
        behind=doubt.unmarked(plan),
    )
    read = dict.fromkeys((*found.read, *deciding, *SYSTEM_COLUMNS))
    _require_rights(table, str(role), bool(usage), read, marked, columns)
    if hidden:
        raise SetupError(
            f"row-level security hides rows of {table} from the role {quote(str(role))}, and they would stay unmarked",
            next=f"as a superuser: alter role {quote(str(role))} bypassrls; or leave marking out: {NONE}",
        )
    return found


async def identity(conn: Connection, table: TableName) -> tuple[KeyColumn, ...]:
    """The columns that tell a row of the table from all others, as long as it is there; none where it has no key.

    That is the primary key, else a unique one on columns that are never NULL, whatever plays which part in a message.
    """
    return _identity(await _columns(conn, table), await _unique(conn, table))


async def _columns(conn: Connection, table: TableName) -> dict[str, _Column]:
    found = await execute(conn, _COLUMNS, (table.schema, table.name))
    return {str(row[0]): _Column(*row[1:]) for row in found}


async def _unique(conn: Connection, table: TableName) -> list[tuple[bool, list[str]]]:
    """Columns of unique indexes, and whether it is the primary key."""
    found = await execute(conn, _KEYS, (table.schema, table.name))
    return [(bool(primary), list(names)) for primary, names in found]


def _identity(
    columns: Mapping[str, _Column], keys: Iterable[tuple[bool, list[str]]]
) -> tuple[KeyColumn, ...]:
    usable = [(primary, names) for primary, names in keys if all(columns[name].not_null for name in names)]
    _, chosen = min(usable, key=lambda each: not each[0], default=(False, []))
    return tuple(KeyColumn(name, columns[name].type) for name in chosen)


async def _said(conn: Connection, table: TableName, mark: Mark) -> list[str]:
    """What rows hold in the column of a mark, as far as it is known; nothing where a word is named for it."""
    if mark.words != SPELLED:
        return []
    name = mark.field.name
    return [str(value) for (value,) in await execute(conn, _SAID, (table.schema, table.name, name, name))]


def _written(table: TableName, mark: Mark, columns: Mapping[str, _Column], said: Sequence[str]) -> Written:
    name, column = mark.field.name, columns.get(mark.field.name)
    if column is None:
        raise SetupError(
            f"column {quote(name)} of {table} is gone", next="start again, or leave marking out: " + NONE
        )
    if not mark.words:
        if mark.field.type_oid not in TIMES:
            raise SetupError(
                f"column {quote(name)} of {table} is {column.type}, and a mark would write a time",
                next=f"leave marking out: {NONE}",
            )
        return Written(name, None, mark.seconds)
    word = _word(mark.words, column, said)
    if word is None:
        raise SetupError(
            f"column {quote(name)} of {table} takes none of the words that say sent: {', '.join(mark.words)}",
            next=f"name its word with --status sent=WORD, or leave marking out: {NONE}",
        )
    return Written(name, word)


def _word(words: Sequence[str], column: _Column, said: Sequence[str]) -> str | None:
    """The first word that the column takes: an enum's label, or one that its constraints name, if any do.

    Where it takes all, the one that rows have, or the first as the others are spelled that they have.
    """
    if column.labels is not None:
        labels = {folded(label): label for label in reversed(column.labels)}
        return next((labels[folded(word)] for word in words if folded(word) in labels), None)
    allowed = literals(column.checks or "")
    spelled = {folded(text): text for text in reversed(allowed)} | {text: text for text in allowed}
    found = (spelled.get(word) or spelled.get(folded(word)) for word in words)
    taken = next((word for word in found if word is not None), None)
    return taken or next((value for value in said if folded(value) in words), None) or _like(words[0], said)


def _like(word: str, others: Sequence[str]) -> str:
    """The word in capitals where all others are, or with one where they have one."""
    if others and all(map(str.isupper, others)):
        return word.upper()
    return word.title() if others and all(other[:1].isupper() for other in others) else word


def _require_writable(table: TableName, written: Iterable[Written], columns: Mapping[str, _Column]) -> None:
    for name in (each.name for each in written):
        if columns[name].generated:
            raise SetupError(
                f"column {quote(name)} of {table} is generated, and can't be written by a mark",
                next=f"leave marking out: {NONE}",
            )
        if columns[name].partitions:
            raise SetupError(
                f"{table} is partitioned by {quote(name)}, which a mark would write: a row that moves to another "
                "partition arrives as an INSERT and is sent again",
                next=f"leave marking out: {NONE}; or partition the table by its time of insertion",
            )


def _key(
    plan: Plan, columns: Mapping[str, _Column], keys: Iterable[tuple[bool, list[str]]]
) -> tuple[KeyColumn, ...]:
    """The columns by which a row is found: the event id where it is unique, else the primary key, else another key.

    All of them arrive in the stream, and none is ever NULL.
    """
    event_id = plan.layout.id.name
    arriving = set(plan.shape.names)
    usable: list[tuple[int, tuple[str, ...]]] = []
    for primary, names in keys:
        if all(name in arriving and columns[name].not_null for name in names):
            rank = 0 if names == [event_id] else 1 if primary else 2
            usable.append((rank, tuple(names)))
    if not usable:
        raise SetupError(
            f"{plan.table} has no primary key and no unique index on columns that are never NULL: to mark a row as "
            "sent, the whole table would have to be searched for it",
            next=f"alter table {plan.table} add primary key ({quote(event_id)}); or leave marking out: {NONE}",
        )
    _, chosen = min(usable)
    return tuple(KeyColumn(name, columns[name].type) for name in chosen)


def _require_rights(
    table: TableName,
    role: str,
    usage: bool,
    read: Iterable[str],
    written: Iterable[str],
    columns: Mapping[str, _Column],
) -> None:
    known = [name for name in read if name in columns]
    lacking = [f"select ({quote(name)})" for name in known if not columns[name].may_read]
    lacking += [f"update ({quote(name)})" for name in written if not columns[name].may_write]
    if not lacking and usage:
        return
    schema = "" if usage else f"grant usage on schema {quote(table.schema)} to {quote(role)}; "
    grant = (
        f"grant select ({', '.join(map(quote, known))}), update ({', '.join(map(quote, written))})"
        f" on {table} to {quote(role)};"
    )
    missing = ", ".join([*([] if usage else [f"usage of schema {quote(table.schema)}"]), *lacking])
    raise MissingRight(
        f"the role {quote(role)} may not mark rows of {table}: it lacks {missing}",
        next=f"as its owner: {schema}{grant} or leave marking out: {NONE}",
    )
