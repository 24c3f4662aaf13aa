"""The rows of one relation, read by a function that is made for its columns.

A row has its values one behind the other, each with its length, so that a reader has to walk over all of them, once
per event. A loop costs a third more than the same steps written out for the columns at hand; so they are written
out, as `dataclasses` does for a class. What goes into the source are numbers alone, never a name from outside.

Whatever isn't as expected is left to `pgoutput.insert_values_at`, which says what is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from struct import Struct, error
from typing import Final, TypeAlias

from cdc_outbox.postgres import pgoutput

ReadValues: TypeAlias = Callable[[bytes, int], list[pgoutput.Value]]
"""From a message and the index of its tag to the values; see `pgoutput.insert_values_at`."""

MOST_COLUMNS: Final = 64
"""Columns from which on the steps aren't written out."""

_COUNT = Struct(">H").unpack_from
_LENGTH = Struct(">I").unpack_from

_HEAD: Final = """
def read(data, at):
    first = at
    try:
        if data[at + 5] != 78 or count(data, at + 6)[0] != {count}:
            return otherwise(data, first)
        at += 8
"""
_WANTED: Final = """
        if data[at] == 116:
            start = at + 5
            at = start + length(data, at + 1)[0]
            v{at} = data[start:at]
        elif data[at] == 110:
            v{at} = None
            at += 1
        else:
            return otherwise(data, first)
"""
_PASSED: Final = """
        if data[at] == 116:
            at += 5 + length(data, at + 1)[0]
        elif data[at] == 110:
            at += 1
        else:
            return otherwise(data, first)
"""
_TAIL: Final = """
    except (IndexError, error):
        return otherwise(data, first)
    if at != len(data):
        return otherwise(data, first)
    return [{values}]
"""


def reader(count: int, wanted: Collection[int]) -> ReadValues:
    """A function that reads the Insert messages of a relation of `count` columns.

    Values of columns that aren't `wanted`, by their place, may be None. A row of another number of columns is read
    whole; ProtocolViolation is raised for what is no row.
    """
    if count > MOST_COLUMNS:
        return pgoutput.insert_values_at
    steps = [(_WANTED if at in wanted else _PASSED).replace("{at}", str(at)) for at in range(count)]
    values = ", ".join(f"v{at}" if at in wanted else "None" for at in range(count))
    source = "".join((_HEAD.format(count=count), *steps, _TAIL.format(values=values)))
    names = {
        "count": _COUNT,
        "length": _LENGTH,
        "error": error,
        "otherwise": pgoutput.insert_values_at,
    }
    exec(source, names)  # noqa: S102 - made of the lines above and of numbers
    made: ReadValues = names["read"]  # type: ignore[assignment]  # exec put it there
    return made
