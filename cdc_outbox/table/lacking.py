"""All roles that a table has no column for, in one error: each mended alone would lead to the next.

One role that is missing is told where it is needed, with the reason why.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cdc_outbox.errors import MappingError
from cdc_outbox.table import key

if TYPE_CHECKING:
    from cdc_outbox.table.roles import Roles


def require_not_several(roles: Roles) -> None:
    """Raise MappingError where two or more roles are played by nothing: NoKey where the key is one of them."""
    named: list[str] = []
    steps: list[str] = []
    flags = {role: f"--column {role}=NAME" for role in ("id", "payload") if roles.look(role) is None}
    named += flags
    advice = ""
    if roles.settings.topic is None and not any(map(roles.look, ("topic", "aggregate_type"))):
        named.append("topic or aggregate type")
        advice = roles.profile.topic_advice if roles.profile is not None else ""
        if not advice:
            flags["topic"] = "--topic TEMPLATE or --column aggregate_type=NAME"
    keyless = key.is_lacking(roles)
    if keyless:
        named.append("aggregate id")
    if len(named) < 2:
        return
    if flags:
        steps.append(f"name {'them' if len(flags) > 1 else 'it'} with {', '.join(flags.values())}")
    if advice:
        steps.append(advice)
    message = (
        f"table {roles.table} has no column that is recognised as {', as '.join(named[:-1])}, or as {named[-1]}; "
        f"its columns are {', '.join(roles.shape.names)}"
    )
    if keyless:
        raise key.NoKey.of(roles, message, besides="; ".join(steps))
    raise MappingError(message, next="; ".join(steps))
