"""The key from inside the payload or the headers, by JSON pointer (RFC 6901).

The document is parsed for this only, and never written back. A number comes out as the payload spells it:
where the fast parser would have to round one, the text is parsed again in a way that keeps it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Final

import orjson

from cdc_outbox.table.unfit import Unfit

_INDEX: Final = re.compile(r"0|[1-9][0-9]{0,8}")
_BAD_ESCAPE: Final = re.compile(r"~(?![01])")
_REMEDY: Final = "name another source with --key, or give up keys with --key none"


class _Number(str):
    """A number in the spelling of the document."""

    __slots__ = ()


def _refuse(_word: str) -> object:
    raise ValueError("not JSON")


_exact: Final = json.JSONDecoder(parse_float=_Number, parse_int=_Number, parse_constant=_refuse)


def parse(pointer: str) -> tuple[str, ...]:
    """The reference tokens of a pointer such as `/order/id`; `~1` is a slash, `~0` a tilde.

    Raises ValueError on text that isn't a pointer.
    """
    if pointer and not pointer.startswith("/"):
        raise ValueError(f"a JSON pointer begins with a slash: {pointer!r}")
    if _BAD_ESCAPE.search(pointer):
        raise ValueError(f"a tilde in a JSON pointer is written ~0, and a slash ~1: {pointer!r}")
    return tuple(token.replace("~1", "/").replace("~0", "~") for token in pointer.split("/")[1:])


def compile(  # noqa: A001 - as in re.compile
    pointer: str, role: str = "payload"
) -> Callable[[bytes], bytes | None]:
    """A function from a JSON text to what the pointer shows in it. `role`: what the text is, for a person.

    Text comes out as UTF-8, numbers and booleans as JSON writes them, a missing member and null as None.
    Objects and arrays, and text that isn't JSON, raise Unfit.
    """
    tokens = parse(pointer)

    def find(raw: bytes) -> bytes | None:
        try:
            found = _walk(orjson.loads(raw), tokens)
        except ValueError:
            return _find_exactly(raw, tokens, role)
        if isinstance(found, str):
            return found.encode()
        if isinstance(found, float) or (found == 0 and found is not False):
            return _find_exactly(raw, tokens, role)  # 1e2, 12345678901234567890123 and -0 keep their spelling
        return _spell(found, role)

    return find


def _walk(document: object, tokens: tuple[str, ...]) -> object:
    for token in tokens:
        if isinstance(document, dict):
            document = document.get(token)
        elif isinstance(document, list) and _INDEX.fullmatch(token):
            index = int(token)
            document = document[index] if index < len(document) else None
        else:
            return None
    return document


def _find_exactly(raw: bytes, tokens: tuple[str, ...], role: str) -> bytes | None:
    try:
        # In a SQL_ASCII database a text may hold any bytes; they pass as they are.
        found = _walk(_exact.decode(raw.decode("utf-8", "surrogateescape")), tokens)
        if isinstance(found, str):
            return found.encode("utf-8", "surrogateescape")
    except UnicodeError:
        problem = f"the member of the {role} that should be the key isn't valid Unicode"
    except (ValueError, RecursionError):
        problem = f"there is no JSON in the {role} that a key can be taken from"
    else:
        return _spell(found, role)
    raise Unfit("key", problem, _REMEDY)


def _spell(found: object, role: str) -> bytes | None:
    if found is None:
        return None
    if isinstance(found, bool):
        return b"true" if found else b"false"
    if isinstance(found, int):
        return b"%d" % found
    raise Unfit("key", f"the member of the {role} that should be the key is an object or an array", _REMEDY)
