"""Times without a time zone: `timestamp` doesn't say whose clock it shows, and is read as UTC.

An application that leaves the column to `now()`, or writes the time of its own place, means another clock, and a window
over it holds other rows than a person meant, or none. Nobody can tell from the column. What the zone of the database
is can be told, for that is the one in which `now()` is written unless a session has set another. Where a time decides
whether a row may be published yet, the later of the two moments counts: that costs a question at worst.

https://www.postgresql.org/docs/current/datatype-datetime.html#DATATYPE-TIMEZONES
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, LiteralString

from psycopg import sql

from cdc_outbox import log
from cdc_outbox.event import quote
from cdc_outbox.postgres.connection import Connection, execute
from cdc_outbox.table.values import TIMESTAMP

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cdc_outbox.postgres.chosen import Window
    from cdc_outbox.table.plan import Plan
    from cdc_outbox.table.values import Field

_log = log.get(__name__)

# What RESET would bring back is the zone of the role and the database; the session's own is ours.
_CLOCKS: Final[LiteralString] = """
select s.reset_val, pg_catalog.to_char(moment at time zone s.reset_val, 'YYYY-MM-DD"T"HH24:MI:SS'),
       extract(epoch from (moment at time zone s.reset_val) - (moment at time zone 'UTC'))::int4
  from pg_catalog.pg_settings s, pg_catalog.unnest(%s::timestamptz[]) with ordinality as asked (moment, at)
 where s.name = 'TimeZone' order by at
"""

_LATEST: Final[LiteralString] = """
greatest({column} at time zone 'UTC', {column} at time zone (
         select reset_val from pg_catalog.pg_settings where name = 'TimeZone'))
"""

_OTHER: Final[LiteralString] = """
select reset_val from pg_catalog.pg_settings where name = 'TimeZone' and exists (
       select from pg_catalog.unnest(array['2024-01-01', '2024-07-01']::timestamptz[]) as moment
        where moment at time zone reset_val <> moment at time zone 'UTC')
"""


async def tell_of_due(conn: Connection, plans: Sequence[Plan]) -> None:
    """Log where a stream may take rows as due at another time than they are."""
    doubtful = [(plan.table, field) for plan in plans if (field := plan.optional.get("due")) is not None]
    doubtful = [(table, field) for table, field in doubtful if field.type_oid == TIMESTAMP]
    found = await execute(conn, _OTHER) if doubtful else []
    for (zone,), (table, field) in itertools.product(found, doubtful):
        _log.warning(
            "times without a zone are read as UTC, and the database's clock is another: a row for later may be sent at "
            "once, or a row that is due stop the relay",
            table=str(table),
            column=field.name,
            zone=str(zone),
            next='where no row is inserted before it is due: outbox.scheduled = "ignore"; else make the column '
            "timestamptz",
        )


def latest(field: Field) -> sql.Composable:
    """The latest moment that a column of type timestamp or timestamptz may mean, in SQL."""
    column = sql.Identifier(field.name)
    return sql.SQL(_LATEST).format(column=column) if field.type_oid == TIMESTAMP else column


def doubt(field: Field) -> str:
    """The column's name for a person, with what makes its times doubtful."""
    if field.type_oid != TIMESTAMP:
        return quote(field.name)
    return f"{quote(field.name)}, whose times have no time zone: by UTC, or by the database's own clock"


@dataclass(frozen=True, slots=True)
class Zoneless:
    """A window over a column whose times have no zone.

    `zone` is the database's own, whose clock is `ahead` of UTC by so many seconds (negative: behind); `meant` are the
    flags that ask for the same window by that clock, empty where the two clocks are one.
    """

    column: str
    zone: str
    ahead: int
    meant: str

    def __str__(self) -> str:
        said = f"the times in {self.column} have no time zone, and are read as UTC"
        if not self.meant:
            return said
        return f"{said}; if they go by the clock of {self.zone}, the database's own, ask with {self.meant}"


async def zoneless(conn: Connection, plan: Plan, window: Window) -> Zoneless | None:
    """What to know of a window over the plan's time of writing.

    None without a window, and where times have a zone.
    """
    field = plan.optional.get("created_at")
    bounds = {
        flag: at for flag, at in (("--since", window.since), ("--until", window.until)) if at is not None
    }
    if field is None or field.type_oid != TIMESTAMP or not bounds:
        return None
    clocks = await execute(conn, _CLOCKS, (list(bounds.values()),))
    shifts = [int(shift) for *_, shift in clocks]
    meant = " ".join(f"{flag} {shown}" for flag, (_, shown, _) in zip(bounds, clocks, strict=True))
    return Zoneless(
        f"{field.name} of {plan.table}", str(clocks[0][0]), max(shifts), meant if any(shifts) else ""
    )
