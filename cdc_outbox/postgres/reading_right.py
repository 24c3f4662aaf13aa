"""The right to read the outbox table, and what to do where it is missing: worded once for all who read it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, LiteralString

from cdc_outbox.errors import CdcOutboxError, MissingRight
from cdc_outbox.event import quote

if TYPE_CHECKING:
    from cdc_outbox.event import TableName

ALL_ROWS: Final[LiteralString] = "set row_security = off"
"""For a session: where a policy would hide rows of a table from the role, to read it is an error from now on.

https://www.postgresql.org/docs/current/ddl-rowsecurity.html
"""

_AS_OWNER: Final = 'export CDC_OUTBOX_ADMIN_DSN="$OWNER_DSN", then run this again'


def named(error: CdcOutboxError, table: TableName, role: str) -> CdcOutboxError:
    """The error with the right that `role` lacks on `table`, where it is about one; else as it is."""
    if not isinstance(error, MissingRight):
        return error
    policy, to = "row-level security" in str(error), quote(role)
    of_schema = table.schema != "public" or "for schema" in str(error)
    usage = f"grant usage on schema {quote(table.schema)} to {to}; " if of_schema else ""
    step = (
        f"read it as a role that the policy doesn't bind, with its connection in OWNER_DSN: {_AS_OWNER}"
        if policy
        else f"read it as its owner, with the owner's connection in OWNER_DSN: {_AS_OWNER}; or as its owner: "
        f"{usage}grant select on {table} to {to};"
    )
    return MissingRight(f"the role {to} may not read all of {table}: {error}", next=step)
