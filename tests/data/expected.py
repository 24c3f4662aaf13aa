"""What the scenario of `record.py` arrives as, step by step: the same on every version of PostgreSQL."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import TypeAlias

from cdc_outbox.lsn import LSN
from cdc_outbox.postgres.pgoutput import (
    AnyMessage,
    Begin,
    Column,
    Commit,
    Delete,
    Insert,
    Message,
    Origin,
    Relation,
    Truncate,
    Type,
    Unchanged,
    Update,
)

Change: TypeAlias = tuple[object, ...]
Transaction: TypeAlias = list[Change]

OUTBOX = (
    "id*:2950 aggregate_type:25 aggregate_id:25 event_type:25 event_version:23 payload:3802 headers:3802"
    " created_at:1184"
)
EVERY_TYPE = (
    "id*:23 small:21 big:20 exact:1700/786439 single:700 double:701 flag:16 words:25 short:1043/24"
    " padded:1042/9 js:114 jsb:3802 raw:17 uid:2950 local:1114 zoned:1184 day:1082 clock:1083 span:1186"
    " tags:1009 mood:own"
)
PARTS = "id*:20 day*:1082 payload:25"
CHANGING: Change = ("relation", "public.changing", "d", "id*:23 A:25")
WHOLE: Change = ("relation", "public.whole", "f", "id*:23 note*:25")
BIG = "".join(hashlib.md5(str(n).encode()).hexdigest() for n in range(1, 151)).encode()


def changing(*values: bytes | None) -> Change:
    """An insert into the table of that name."""
    return ("insert", "public.changing", list(values))


# What each step of the scenario arrives as. Columns are written `name*:type oid/type modifier`, with a star
# for a part of the replica identity.
EVERYTHING: dict[str, list[Transaction]] = {
    "rows of one transaction": [
        [
            (
                "relation",
                "public.outbox",
                "d",
                OUTBOX,
            ),
            (
                "insert",
                "public.outbox",
                [
                    b"00000000-0000-4000-8000-000000000001",
                    b"order",
                    b"42",
                    b"OrderCreated",
                    b"1",
                    b'{"note": "a \\"quoted\\" word", "lines": [1, 2], "total": 12.50}',
                    b'{"traceparent": "00-01"}',
                    b"2024-01-17 13:14:10.25+00",
                ],
            ),
            (
                "insert",
                "public.outbox",
                [
                    b"00000000-0000-4000-8000-000000000002",
                    b"order",
                    b"42",
                    b"OrderPaid",
                    None,
                    None,
                    None,
                    b"2024-01-17 13:14:11+00",
                ],
            ),
            (
                "insert",
                "public.outbox",
                [
                    b"00000000-0000-4000-8000-000000000003",
                    b"Kunde",
                    b"",
                    "KundeGelöscht".encode(),
                    b"-1",
                    b"{}",
                    b"{}",
                    b"2024-01-17 13:14:12.000001+00",
                ],
            ),
        ]
    ],
    "quoted and mixed-case names": [
        [
            ("relation", 'Shop.Out "box', "d", "Id*:20 Größe:25 select:25"),
            ("insert", 'Shop.Out "box', [b"9007199254740993", "größer".encode(), b"x"]),
        ]
    ],
    "every type": [
        [
            ("type", "public.mood"),
            (
                "relation",
                "public.every_type",
                "d",
                EVERY_TYPE,
            ),
            (
                "insert",
                "public.every_type",
                [
                    b"2147483647",
                    b"-32768",
                    b"-9223372036854775808",
                    b"123.400",
                    b"0.1",
                    b"1e-300",
                    b"t",
                    b"tab\tline\n\\ end",
                    "naïve 🎉".encode(),
                    b"ab   ",
                    b'{"b":1,  "a":[1,2]}',
                    b'{"a": [1, 2], "b": 1}',
                    b"\\x00ff5c6e",
                    b"a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11",
                    b"2024-01-17 13:14:10.25",
                    b"2024-01-17 07:44:10.25+00",
                    b"2024-02-29",
                    b"23:59:59.999999",
                    b"1 year 2 mons 3 days 04:05:06",
                    b'{"a,b",NULL,""}',
                    b"busy",
                ],
            ),
        ]
    ],
    "all null": [[("insert", "public.every_type", [b"0", *[None] * 20])]],
    "empty and extreme": [
        [
            (
                "insert",
                "public.every_type",
                [
                    b"-1",
                    None,
                    None,
                    b"NaN",
                    b"Infinity",
                    b"-Infinity",
                    b"f",
                    b"",
                    b"",
                    b"     ",
                    None,
                    None,
                    b"\\x",
                    None,
                    b"infinity",
                    b"-infinity",
                    b"0044-03-15 BC",
                    None,
                    None,
                    b"{}",
                    None,
                ],
            ),
        ]
    ],
    # The leaves announce themselves too, but all rows name the root.
    "partitions through their root": [
        [
            ("relation", "public.parts", "d", PARTS),
            ("relation", "public.parts_old", "d", PARTS),
            ("insert", "public.parts", [b"1", b"2023-05-05", b"old"]),
            ("relation", "public.parts", "d", PARTS),
            ("relation", "public.parts_new", "d", PARTS),
            ("insert", "public.parts", [b"2", b"2024-05-05", b"new"]),
            ("insert", "public.parts", [b"3", b"2023-06-06", b"old again"]),
        ]
    ],
    "a row that moves to another partition": [
        [
            ("delete", "public.parts", "key", [b"1", b"2023-05-05", None]),
            ("insert", "public.parts", [b"1", b"2024-05-06", b"old"]),
        ]
    ],
    "ddl between inserts": [
        [
            ("relation", "public.changing", "d", "id*:23 a:25"),
            changing(b"1", b"one"),
            ("relation", "public.changing", "d", "id*:23 a:25 b:1043/14"),
            changing(b"2", b"two", b"zwei"),
            CHANGING,
            changing(b"3", b"three"),
        ]
    ],
    "ddl that rolls back": [[CHANGING, changing(b"4", b"vier")]],
    "savepoints": [
        [
            CHANGING,
            changing(b"5", b"kept"),
            changing(b"8", b"kept after"),
            changing(b"9", b"kept in a savepoint"),
        ]
    ],
    "insert and delete": [
        [changing(b"10", b"short life"), ("delete", "public.changing", "key", [b"10", None])],
    ],
    "rolled back": [],
    "big and rolled back": [],
    "big and rolled back in a savepoint": [[changing(b"12", b"before"), changing(b"13", b"after")]],
    "a table that isn't published": [],
    "big values": [
        [
            ("relation", "public.big", "d", "id*:23 note:25 payload:25"),
            ("insert", "public.big", [b"1", b"big", BIG]),
        ]
    ],
    "update beside a big value": [
        [("update", "public.big", None, None, [b"1", b"changed", Unchanged.UNCHANGED])],
    ],
    "update of a key": [[("update", "public.changing", "key", [b"1", None], [b"20", None])]],
    "update of a whole row": [
        [
            WHOLE,
            ("insert", "public.whole", [b"1", None]),
            ("insert", "public.whole", [b"2", b"two"]),
            ("update", "public.whole", "row", [b"1", None], [b"1", b"one"]),
            ("delete", "public.whole", "row", [b"2", b"two"]),
        ]
    ],
    "insert or update": [
        [
            ("update", "public.changing", None, None, [b"2", b"conflict"]),
            changing(b"21", b"new"),
        ]
    ],
    "delete by key": [[("delete", "public.changing", "key", [b"3", None])]],
    "truncate": [[CHANGING, WHOLE, ("truncate", 3, ["public.changing", "public.whole"])]],
    "many at once": [[CHANGING, changing(b"30", b"n30"), changing(b"31", b"n31"), changing(b"32", b"n32")]],
    "messages": [
        [
            changing(b"40", b"before the message"),
            ("message", True, "cdc", b"inside"),
            changing(b"41", b"behind the message"),
        ],
        [("message", False, "cdc", b"\x00\xff")],
        [("message", True, "", b"")],
    ],
    "from elsewhere": [
        [("origin", "upstream", LSN.parse("0/ABCDEF")), changing(b"50", b"from elsewhere")],
    ],
    "the end": [[changing(b"99", b"the end")]],
}


def inserts_only(transactions: Iterable[Transaction]) -> list[Transaction]:
    """What a publication of inserts leaves: other changes are gone, and transactions without rows too."""
    kept = [
        [change for change in changes if change[0] not in ("update", "delete", "truncate", "message")]
        for changes in transactions
    ]
    return [changes for changes in kept if any(change[0] == "insert" for change in changes)]


def spell(column: Column) -> str:
    kind = str(column.type_oid) if column.type_oid < 16384 else "own"
    modifier = f"/{column.typmod}" if column.typmod != -1 else ""
    return f"{column.name}{'*' if column.key else ''}:{kind}{modifier}"


def transactions_of(messages: Iterable[AnyMessage]) -> list[Transaction]:
    """The changes of each transaction that has any, with tables by name; a message outside stands alone."""
    tables: dict[int, str] = {}
    transactions: list[Transaction] = []
    for message in messages:
        match message:
            case Begin():
                transactions.append([])
            case Commit() if transactions[-1] == []:
                transactions.pop()
            case Commit():
                pass
            case Relation(oid, namespace, name, identity, columns):
                tables[oid] = f"{namespace}.{name}"
                transactions[-1].append(("relation", tables[oid], identity, " ".join(map(spell, columns))))
            case Type(_, namespace, name):
                transactions[-1].append(("type", f"{namespace}.{name}"))
            case Insert(oid, values):
                transactions[-1].append(("insert", tables[oid], values))
            case Update(oid, old, old_is_key, new):
                kind = None if old is None else "key" if old_is_key else "row"
                transactions[-1].append(("update", tables[oid], kind, old, new))
            case Delete(oid, values, old_is_key):
                transactions[-1].append(("delete", tables[oid], "key" if old_is_key else "row", values))
            case Truncate(options, oids):
                transactions[-1].append(("truncate", options, [tables[oid] for oid in oids]))
            case Origin(lsn, name):
                transactions[-1].append(("origin", name, lsn))
            case Message(transactional, _, prefix, content):
                if not transactional:
                    transactions.append([])
                transactions[-1].append(("message", transactional, prefix, content))
            case _:
                raise AssertionError(f"unknown message {message}")
    return transactions
