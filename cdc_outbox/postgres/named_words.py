"""Can a status column hold the words that a person has named for it? Asked of the catalogue before anything is decided.

An enum takes its labels only, a column with a CHECK that lists its values only those. A word that can't be is a
spelling mistake, and the rows that it was meant for would be taken for others.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, LiteralString

from cdc_outbox.errors import MappingError
from cdc_outbox.event import quote
from cdc_outbox.postgres.connection import Connection, execute
from cdc_outbox.table.sent import folded

if TYPE_CHECKING:
    from cdc_outbox.event import TableName
    from cdc_outbox.settings import OutboxSettings
    from cdc_outbox.table.sent import Bookkeeping

_SHOWN: Final = 12

_TAKES: Final[LiteralString] = """
select pg_catalog.format_type(a.atttypid, -1),
       array(select e.enumlabel::text from pg_catalog.pg_enum e where e.enumtypid = a.atttypid
              order by e.enumsortorder),
       array(select pg_catalog.pg_get_constraintdef(k.oid) from pg_catalog.pg_constraint k
              where k.contype = 'c' and (k.contypid = a.atttypid
                    or k.conrelid = a.attrelid and k.conkey = array[a.attnum]))
  from pg_catalog.pg_attribute a join pg_catalog.pg_class c on c.oid = a.attrelid
  join pg_catalog.pg_namespace n on n.oid = c.relnamespace
 where n.nspname = %s and c.relname = %s and a.attname = %s and not a.attisdropped
"""


async def require_words(
    conn: Connection, table: TableName, settings: OutboxSettings, bookkeeping: Bookkeeping
) -> None:
    """Raise MappingError for a word of `[outbox.status]` that the table's column can't hold."""
    named, field = settings.status.words, bookkeeping.status
    if not named or field is None:
        return
    found = await execute(conn, _TAKES, (table.schema, table.name, field.name))
    if not found:
        return
    ((type_, labels, checks),) = found
    takes = [str(label) for label in labels] or [
        value for check in checks if " = ANY (" in str(check) for value in literals(str(check))
    ]
    if not takes:
        return
    known = {folded(value) for value in takes}
    for meaning, words in named.items():
        for word in words:
            if folded(word) not in known:
                what = f"the enum {type_}" if labels else "a constraint"
                shown = ", ".join(takes[:_SHOWN]) + (", …" if len(takes) > _SHOWN else "")
                raise MappingError(
                    f"outbox.status.{meaning} names the word {word!r}, which column {quote(field.name)} of {table} "
                    f"never holds, for {what} allows others",
                    next=f"name one of {shown} under [outbox.status], or with --status {meaning}=WORD",
                )


def literals(constraint: str) -> list[str]:
    """The texts that a constraint's definition holds in quotes."""
    return [text.replace("''", "'") for text in re.findall(r"'((?:[^']|'')*)'", constraint)]
