"""The key: a column, a template over columns, a member of a document by JSON pointer, or none.

Order holds per key, so where a table has no aggregate id a person names one, or gives up order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from cdc_outbox.errors import MappingError
from cdc_outbox.event import Values
from cdc_outbox.table import pointer, template
from cdc_outbox.table.values import BYTEA, DOCUMENTS, FIRST_USER_TYPE, Field

if TYPE_CHECKING:
    from cdc_outbox.table.recognise import Shape
    from cdc_outbox.table.roles import Roles

_POINTED: Final = {"payload:": "payload", "headers:": "headers"}
"""The roles that a key can be taken from by JSON pointer, by what stands before it."""


class NoKey(MappingError):
    """The table has no aggregate id, and no other key is named or given up.

    `payload`: the column in whose members a key could be found. `besides`: what else is to be done, a step before that
    of the key. `columns`: those that could be the key.
    """

    def __init__(
        self,
        message: str,
        *,
        advice: str,
        besides: str = "",
        columns: tuple[str, ...] = (),
        payload: Field | None = None,
    ) -> None:
        """`advice`: how the key is named."""
        super().__init__(message, next=f"{besides}; {advice}" if besides else advice)
        self.besides = besides
        self.columns = columns
        self.payload = payload

    @classmethod
    def of(cls, roles: Roles, message: str, *, besides: str = "") -> NoKey:
        """The error for a table, with its profile's advice where there is one; what comes with `besides` has named the
        columns.
        """
        advice = roles.profile.key_advice if roles.profile is not None else ""
        payload = roles.look("payload")
        columns = roles.shape.names
        among = "" if besides else f", one of {', '.join(columns)}"
        return cls(
            message,
            advice=advice
            or f"name the key with --key COLUMN{among}, or by JSON pointer, as --key payload:/order_id; "
            "or give up order with --key none",
            besides=besides,
            columns=columns,
            payload=payload[0] if payload is not None and not advice else None,
        )


def is_lacking(roles: Roles) -> bool:
    """Whether the table has nothing for a key, and none is named."""
    return (
        roles.settings.key is None
        and roles.look("aggregate_id") is None
        and (roles.profile is None or roles.profile.key is None)
    )


def compile(  # noqa: A001 - as in re.compile
    roles: Roles, identity: Field
) -> tuple[Field | Callable[[Values], bytes | None] | None, str]:
    """Where each row's key comes from, and the same in words: a column, a function of the row, or None for no key.

    `identity`: the event's id, which is the key where a profile's document has none. Raises NoKey, and MappingError
    for what `outbox.key` names and can't be had.
    """
    text = roles.settings.key
    if text is None:
        field = roles.take("aggregate_id", needed=True)
        if field is not None:
            roles.summary["key"] = (field.name, roles.summary.pop("aggregate_id")[1])
            return field, field.name
        roles.check_gone("aggregate_id")
        if roles.profile is None or roles.profile.key is None:
            raise NoKey.of(
                roles, f"table {roles.table} has no aggregate id column, so its events have no key"
            )
        described = f"{roles.profile.key}, else {identity.name}"
        roles.summary["key"] = (described, f"profile {roles.profile.name}")
        return _pointed(roles, roles.profile.key, identity)
    text = _first(text, roles.shape)
    if text == "none":
        roles.summary["key none"] = ("", "configured")
        return None, "none"
    roles.summary["key"] = (text, "configured")
    if text.startswith(tuple(_POINTED)):
        return _pointed(roles, text)
    if "{" not in text and "}" not in text:
        field = roles.column(text, "outbox.key")
        roles.claim("key", field, needed=True)
        return field, field.name
    try:
        parts = template.resolve(text, roles.placeholder("outbox.key", "key"))
    except ValueError as error:
        raise MappingError(
            f"outbox.key is wrong: {error}",
            next="put columns in braces, as in --key '{tenant}-{aggregate_id}'",
        ) from None
    if not any(isinstance(part, Field) for part in parts):
        raise MappingError(
            f"outbox.key is the same for all rows: {text!r}",
            next="name a column of each row, as in --key '{tenant}-{aggregate_id}', or use --key none",
        )
    if len(parts) == 1 and isinstance(parts[0], Field):
        return parts[0], parts[0].name
    return template.compose(parts, empty=True), f"a value of {text}"


def _first(text: str, shape: Shape) -> str:
    """The first of several keys that the table has; all but the last are columns: `customer,payload:/order_id`."""
    rest = text
    while "," in rest and not _is_made(rest) and shape.find(rest) is None:
        name, _, rest = (part.strip() for part in rest.partition(","))
        if shape.find(name) is not None:
            return name
    return rest if _is_made(rest) else text


def _pointed(
    roles: Roles, text: str, otherwise: Field | None = None
) -> tuple[Callable[[Values], bytes | None], str]:
    """The key from inside of a document; `otherwise`: the column that is the key where the member is missing."""
    before = text[: text.index(":") + 1]
    role = _POINTED[before]
    try:
        find = pointer.compile(text[len(before) :], role)
    except ValueError as error:
        raise MappingError(
            f"outbox.key is wrong: {error}", next=f"write a JSON pointer, as in --key {before}/order/id"
        ) from None
    document = roles.need(role, "the key is to be taken from it")
    if document.type_oid not in DOCUMENTS | {BYTEA} and document.type_oid < FIRST_USER_TYPE:
        raise MappingError(
            f"the key {text} can't come from column {document.name} of {roles.table}: it is not json, jsonb, text "
            "or bytea with a JSON document",
            next="name the key by a column, as in --key COLUMN",
        )
    at, read = document.at, document.read

    def pointed(values: Values) -> bytes | None:
        raw = values[at]
        if raw is None:
            return None
        return find(raw if read is None else read(raw))

    if otherwise is None:
        return pointed, text
    other, read_other = otherwise.at, otherwise.read

    def pointed_or_other(values: Values) -> bytes | None:
        found = pointed(values) or values[other]
        return found if found is None or read_other is None else read_other(found)

    return pointed_or_other, f"{text} and {otherwise.name}"


def _is_made(key: str) -> bool:
    """Whether a key isn't the name of a column, or of several."""
    return key == "none" or key.startswith(tuple(_POINTED)) or "{" in key.partition(",")[0]
