"""The password that a function of the user's knows. It is asked for before each new connection, so that one which lives
for minutes, or was changed while we ran, is no reason to start again.
"""

from __future__ import annotations

import asyncio
import sys
from shlex import quote as quoted
from typing import TYPE_CHECKING, Final

from psycopg import pq

from cdc_outbox import hook
from cdc_outbox.errors import CdcOutboxError, ConfigError, PostgresUnavailable

if TYPE_CHECKING:
    from collections.abc import Mapping

SETTING: Final = "postgres.password_provider"
ARGUMENTS: Final = ("host", "port", "user")


async def ask(provider: str, parameters: Mapping[str, str], *, within: float) -> str:
    """The password for a connection with these parameters, from `module:callable`, which has `within` seconds.

    It is called with `host`, `port` and `user` by name, texts as libpq has them: of the parameters, else of its
    variables. The end of a line at the answer's end is no part of it.

    Raises ConfigError where there is no such callable, or where it raises one; PostgresUnavailable where it fails, is
    late, or answers no text.
    """
    function = hook.find(SETTING, provider, answers="password", by_name=ARGUMENTS)
    known = {each.keyword.decode(): (each.val or b"").decode() for each in pq.Conninfo.get_defaults()}
    told = {name: parameters.get(name) or known.get(name, "") for name in ARGUMENTS}
    limit = asyncio.timeout(within)
    try:
        async with limit:
            found = await hook.answer(function, **told)
    except ConfigError:
        raise
    except CdcOutboxError as error:
        raise PostgresUnavailable(f"there is no password for PostgreSQL: {error}", next=error.next) from error
    except Exception as error:
        late = f"{provider} did not answer within {within:g} s"
        raise _none(provider, told, late if limit.expired() else hook.why(provider, error)) from error
    if (unfit := _unfit(found)) is not None:
        raise _none(provider, told, f"{provider} answers {unfit}")
    return str(found).rstrip("\r\n")


def _unfit(answer: object) -> str | None:
    """What an answer is instead of a password, if so.

    Python gives bytes that aren't UTF-8, of a variable say, as text that has no encoding.
    """
    if not isinstance(answer, str):
        return "no text"
    if not answer.strip("\r\n"):
        return "an empty one"
    if "\0" in answer:
        return "a NUL"
    try:
        answer.encode()
    except UnicodeEncodeError:
        return "what is no text in UTF-8"
    return None


def _none(provider: str, told: Mapping[str, str], why: str) -> PostgresUnavailable:
    module, _, name = provider.partition(":")
    arguments = ", ".join(f"{each}={value!r}" for each, value in told.items())
    by_hand = quoted(f"import {module}; {module}.{name}({arguments})")
    return PostgresUnavailable(
        f"there is no password for PostgreSQL: {why}",
        next=f"see what it says when it is called by hand: {quoted(sys.executable)} -c {by_hand}",
    )
