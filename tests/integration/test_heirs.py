"""A table that inherits from the outbox: another table, of which is told before anybody counts on it."""

from __future__ import annotations

import json
from typing import LiteralString

from tests.integration.backfilled import Backfilled, place
from tests.integration.conftest import ALL_VERSIONS
from tests.servers.relay import run_command

__all__ = ["place"]

TABLE: LiteralString = (
    "create table outbox (id bigint primary key, topic text, aggregate_id text, payload text,"
    " created_at timestamptz default now(), sent_at timestamptz);"
    ' create table "Outbox 11" (primary key (id)) inherits (outbox);'
    ' create table outbox_12 (primary key (id)) inherits ("Outbox 11")'
)
INSERT: LiteralString = "insert into {} (id, topic, aggregate_id, payload) values (%s, %s, 'k', 'v')"
TOLD = (
    'public."Outbox 11", public.outbox_12 inherit from public.outbox and are others: what is inserted there'
)


def command(place: Backfilled, *words: str) -> str:
    """What it says on both of its streams."""
    at = ("--slot", place.slot, "--bootstrap-servers", place.kafka.bootstrap)
    done = run_command(*words, *at, env={"CDC_OUTBOX_DSN": place.dsn})
    return f"{done.stdout}{done.stderr}"


@ALL_VERSIONS
def test_what_is_inserted_into_heirs_is_told_of_and_not_called_delivered(place: Backfilled) -> None:
    place.execute(TABLE)
    place.ok()
    place.execute(INSERT.format("outbox"), (1, place.topic))
    place.execute(INSERT.format("outbox_12"), (2, place.topic))
    log = place.relay()
    assert TOLD in log.replace("\\", "")
    assert "--table public.outbox_12" in log
    assert place.ids() == ["1"]
    checks = {check["name"]: check for check in json.loads(command(place, "doctor", "--json"))["checks"]}
    assert checks["inheritance"]["status"] == "warning"
    assert checks["inheritance"]["message"].startswith(TOLD)
    assert "delivered" in command(place, "find", "1")
    assert "no event with the id '2' is in public.outbox" in command(place, "find", "2")


def test_of_heirs_that_are_named_nothing_is_said(place: Backfilled) -> None:
    place.execute(TABLE)
    named = ("--table", "outbox", "--table", '"Outbox 11"', "--table", "outbox_12")
    place.ok(*named)
    place.execute(INSERT.format("outbox_12"), (2, place.topic))
    assert "inherit" not in place.relay(*named)
    assert place.ids() == ["2"]
    assert "inherit" not in command(place, "doctor", *named)


def test_rows_of_an_heir_that_is_named_are_read_from_it_alone(place: Backfilled) -> None:
    """Each of them as the stream would bring it, and not once more under the name of what it inherits from."""
    place.execute(TABLE)
    named = ("--table", "outbox", "--table", "outbox_12")
    place.ok(*named, "--only", "publication")
    for table, number in (("outbox", 1), ("outbox_12", 2), ('"Outbox 11"', 3)):
        place.execute(INSERT.format(table), (number, place.topic))
    done = place.run(*named)
    assert 'public."Outbox 11" inherits from public.outbox and is another table' in done.stderr.replace(
        "\\", ""
    )
    *_, error, _ = done.stderr.splitlines()
    assert error.startswith(
        "error: public.outbox holds 1 row and public.outbox_12 holds 1 row from before the slot"
    )
    assert place.backfill(*named).startswith("read 2 rows, published 2")
    assert place.ids() == ["1", "2"]
    place.execute(INSERT.format("outbox_12"), (4, place.topic))
    place.relay(*named)
    report = json.loads(command(place, "audit", *named, "--json"))
    assert (report["rows"]["read"], report["messages"]["read"], report["faults"]) == (3, 3, {})
    assert "public.outbox_12" in command(place, "find", "4", *named)
    assert "no event with the id '4' is in public.outbox" in command(place, "find", "4")
    replayed = command(place, "replay", "--yes", "--table", "outbox", "--since", "1h")
    assert "published 1 event" in replayed
    assert place.ids() == ["1", "2", "4", "1"]
