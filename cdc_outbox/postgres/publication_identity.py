"""Which publication this is, and whether it is still the one that we knew. Pure.

`compare` tells a publication that was altered from one that was dropped and made again between two looks, by the OIDs
and the xmin of its catalogue rows: VACUUM FREEZE, VACUUM FULL and renaming leave both alone, ALTER gives a new xmin,
dropping and making again gives a new OID.
"""

from __future__ import annotations

import enum
import json
from dataclasses import dataclass


class Change(enum.Enum):
    """What became of a publication between two looks."""

    UNCHANGED = "unchanged"
    ALTERED = "altered"
    MADE_AGAIN = "made again"


@dataclass(frozen=True, slots=True)
class Row:
    """A catalogue row: its OID says which, its xmin says which version of it."""

    oid: int
    xmin: str


@dataclass(frozen=True, slots=True)
class Member:
    """How one table got into the publication.

    `rows` are the rows of pg_publication_rel for the table or a partition root of it, and of
    pg_publication_namespace for their schemas; empty for FOR ALL TABLES.
    """

    table: int
    schema: int
    rows: frozenset[Row]


@dataclass(frozen=True, slots=True)
class Identity:
    """Which publication this is. `str()` and `parse` are for the witness row."""

    publication: Row
    members: tuple[tuple[str, Member], ...]

    def since(self, horizon: int) -> bool:
        """Whether one of its rows is no older than the transaction `horizon`, 32 bits of it, as xmin has."""
        rows = [self.publication, *(row for _, member in self.members for row in member.rows)]
        return any((int(row.xmin) - horizon) % 2**32 < 2**31 for row in rows)

    def __str__(self) -> str:
        return json.dumps(
            {
                "publication": [self.publication.oid, self.publication.xmin],
                "tables": {
                    name: {
                        "oid": member.table,
                        "schema": member.schema,
                        "rows": sorted([row.oid, row.xmin] for row in member.rows),
                    }
                    for name, member in self.members
                },
            },
            separators=(",", ":"),
        )

    @classmethod
    def parse(cls, text: str) -> Identity:
        """Read what `str()` wrote. Raises ValueError on anything else."""
        try:
            whole = json.loads(text)
            oid, xmin = whole["publication"]
            members = tuple(
                (
                    str(name),
                    Member(
                        int(table["oid"]),
                        int(table["schema"]),
                        frozenset(Row(int(row[0]), str(row[1])) for row in table["rows"]),
                    ),
                )
                for name, table in whole["tables"].items()
            )
            return cls(Row(int(oid), str(xmin)), members)
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            raise ValueError(f"not the identity of a publication: {text!r}") from error


def compare(before: Identity, now: Identity) -> Change:
    """What became of the publication between two looks.

    MADE_AGAIN means that between them there may have been a time in which rows were skipped.
    """
    if before.publication.oid != now.publication.oid:
        return Change.MADE_AGAIN
    earlier = dict(before.members)
    later = dict(now.members)
    for name, new in later.items():
        old = earlier.get(name)
        if old is None:
            continue
        if old.table != new.table or old.schema != new.schema:
            return Change.MADE_AGAIN
        kept = {row.oid for row in old.rows} & {row.oid for row in new.rows}
        if not kept and (old.rows or new.rows):
            return Change.MADE_AGAIN
    return Change.UNCHANGED if before.publication == now.publication and earlier == later else Change.ALTERED
