"""Does the server count us as a synchronous standby?

PostgreSQL takes every walsender whose application_name matches `synchronous_standby_names` as a
candidate, a logical one too. Then each COMMIT of the application waits for what we confirm, that is, for
Kafka. So we look, before streaming and all along, and leave when it is so. The setting is read, not
`sync_state`: a role without pg_read_all_stats sees NULL there, and everybody sees `async` until the first
confirmation.

https://www.postgresql.org/docs/current/runtime-config-replication.html#GUC-SYNCHRONOUS-STANDBY-NAMES
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, LiteralString

from cdc_outbox.errors import SynchronousStandby
from cdc_outbox.postgres.connection import execute

if TYPE_CHECKING:
    from cdc_outbox.postgres.connection import Connection

_SETTING: Final[LiteralString] = "select current_setting('synchronous_standby_names')"

# application_name is cut by the server to NAMEDATALEN - 1 bytes.
_NAME_BYTES: Final = 63

# The tokens of PostgreSQL's own scanner: a quoted name, a bare name or number, the star.
_TOKEN: Final = re.compile(r'"((?:[^"]|"")*)"|([^ \t\n\r\f\v,()"*]+)|(\*)')
_METHOD: Final = re.compile(r"\s*(?:(?:any|first)\s*)?[0-9]+\s*\(", re.IGNORECASE)


def names(synchronous_standby_names: str) -> list[str]:
    """The standby names in a value of the setting: of `a, b`, `2 (a, b)`, `FIRST 1 (a)` or `ANY 1 (*)`.

    The server has checked the value, so anything else isn't refused here.
    """
    method = _METHOD.match(synchronous_standby_names)
    listed = synchronous_standby_names[method.end() if method else 0 :]
    return [
        quoted.replace('""', '"') if quoted else bare or star for quoted, bare, star in _TOKEN.findall(listed)
    ]


def matches(synchronous_standby_names: str, application_name: str) -> str | None:
    """The name by which the server takes `application_name` as a synchronous standby, None if it doesn't.

    `*` matches all, also in quotes; case is ignored, for ASCII letters as the server does.
    """
    shown = _folded(application_name.encode()[:_NAME_BYTES].decode("utf-8", "ignore"))
    for name in names(synchronous_standby_names):
        if name == "*" or _folded(name) == shown:
            return name
    return None


async def require_not(conn: Connection, application_name: str) -> None:
    """Ask the server, and raise SynchronousStandby if it would take us as one. Raises what `execute` raises."""
    ((listed,),) = await execute(conn, _SETTING)
    require_none(str(listed), application_name)


def require_none(synchronous_standby_names: str, application_name: str) -> None:
    """Raise SynchronousStandby if the server would take us as one."""
    name = matches(synchronous_standby_names, application_name)
    if name is not None:
        by = f", by '{name}'" if name != synchronous_standby_names else ""
        raise SynchronousStandby(
            f"synchronous_standby_names = '{synchronous_standby_names}' makes this relay synchronous{by}:"
            " every COMMIT of the application would wait for Kafka",
            next="name your real standbys there: alter system set synchronous_standby_names = '…';"
            " select pg_reload_conf();",
        )


_LOWER: Final = {upper: upper + 32 for upper in range(ord("A"), ord("Z") + 1)}


def _folded(name: str) -> str:
    return name.translate(_LOWER)
