"""The steps of `init`, and the SQL that each of them is. Pure.

`--print-sql` shows the same statements that are run, so that whoever has the rights can run them instead.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from psycopg import sql

from cdc_outbox import ddl
from cdc_outbox.postgres import cleanup_grants, mark_grants
from cdc_outbox.postgres.slot import WAIT, creation
from cdc_outbox.settings import BY_KEY

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cdc_outbox.event import TableName
    from cdc_outbox.settings import Settings

Statements: TypeAlias = sql.SQL | sql.Composed
StepStatus: TypeAlias = Literal["created", "existed", "failed"]
StepName: TypeAlias = Literal["table", "witness", "publication", "grants", "slot"]
ONLY: Final[tuple[StepName, ...]] = ("table", "witness", "publication", "slot")
"""The steps that can be asked for alone."""

_COLUMN: Final = re.compile(r"^  ([a-z_]+) ", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class InitOptions:
    """What `init` may do.

    `backfill` false: rows that are there now are left out. `only`: these steps alone, all if empty. `role`: make
    this role for the relay. `wait`: seconds, for open transactions and for others at the same work.
    """

    create_table: bool = False
    backfill: bool = True
    failover: bool = True
    only: frozenset[StepName] = frozenset()
    role: str | None = None
    wait: float = WAIT


@dataclass(frozen=True, slots=True)
class Step:
    """What became of one step: `object` is what it is about, `sql` what makes it, `note` what a person should know."""

    name: StepName
    object: str
    status: StepStatus
    sql: str
    note: str = ""


def script(settings: Settings, options: InitOptions) -> str:
    """Everything that `init` would do to an empty database, as SQL that psql runs as it is.

    A table that a person named has its own columns, so that it is made only where that was asked for.
    """
    chosen = chosen_by(options)
    parts: list[str] = []
    own = settings.outbox.tables != BY_KEY["outbox.table"].default
    if "table" in options.only or ("table" in chosen and (options.create_table or not own)):
        parts += [text(table(name)) for name in settings.outbox.tables]
    if "witness" in chosen:
        parts.append(text(witness(settings)))
    if "publication" in chosen:
        parts.append(text(publication(settings)))
    if "grants" in chosen and options.role is not None:
        parts.append(text(role(settings, options.role)))
    if "slot" in chosen:
        parts.append(text(slot(settings, options)))
    return "\n\n".join(parts) + "\n"


def chosen_by(options: InitOptions) -> frozenset[StepName]:
    """The steps that are to be done."""
    if not options.only:
        return frozenset({*ONLY, "grants"})
    return options.only | {"grants"} if options.role is not None else options.only


def table(name: TableName) -> sql.Composed:
    """The default outbox table."""
    return sql.SQL(ddl.read("outbox")).format(table=sql.Identifier(name.schema, name.name))


def default_columns() -> tuple[str, ...]:
    """The names of its columns."""
    return tuple(_COLUMN.findall(ddl.read("outbox")))


def witness(settings: Settings) -> sql.Composed:
    """The witness table, in the hands of the tables' owner."""
    tables = sql.Literal([str(table) for table in settings.outbox.tables])
    owner = sql.SQL(ddl.read("witness_owner")).format(tables=tables)
    return sql.SQL("\n").join([sql.SQL(ddl.read("witness")), owner])


def publication(settings: Settings) -> sql.Composed:
    """The publication of the tables, and of none that inherit from them."""
    tables = [
        sql.SQL("only {}").format(sql.Identifier(table.schema, table.name))
        for table in settings.outbox.tables
    ]
    return sql.SQL(ddl.read("publication")).format(
        name=sql.Literal(settings.postgres.publication),
        tables=sql.Literal(sql.SQL(", ").join(tables).as_string()),
    )


def role(settings: Settings, name: str) -> sql.Composed:
    """The role for the relay, with its grants."""
    beside = [each.statements(settings, name) for each in (mark_grants, cleanup_grants)]
    return together([login(name), grants(name), *beside])


def login(role_name: str) -> sql.Composed:
    """The role itself, which may log in and replicate."""
    return _of_role("role", role_name)


def grants(role_name: str) -> sql.Composed:
    """What a role needs to keep its witness."""
    return _of_role("grants", role_name)


def together(parts: Sequence[sql.Composed]) -> sql.Composed:
    """All the statements, without the parts that have none."""
    return sql.SQL("\n").join([each for each in parts if each.as_string()])


def _of_role(file: str, name: str) -> sql.Composed:
    return sql.SQL(ddl.read(file)).format(role=sql.Identifier(name), role_name=sql.Literal(name))


def slot(settings: Settings, options: InitOptions) -> sql.Composed:
    """The slot, under its own name."""
    return creation(
        settings.postgres.slot,
        failover=options.failover,
        within=options.wait,
        publication=settings.postgres.publication,
    )


def text(statements: Statements) -> str:
    """Statements as psql reads them."""
    return statements.as_string().strip()
