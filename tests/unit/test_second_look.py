"""A second look for ids of which some are nothing that the column can hold."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import cast

import pytest
from psycopg.errors import InvalidTextRepresentation

from cdc_outbox.errors import SetupError
from cdc_outbox.postgres import lookup
from cdc_outbox.postgres.connection import Connection
from cdc_outbox.postgres.lookup import Found
from cdc_outbox.repair import second_look as module
from cdc_outbox.table.mapping import Mapping
from tests.unit.mapped import TEXT, relation, settings


class Table:
    """It has every id that is lower case, and its column can hold no other."""

    async def find(self, ids: Sequence[str]) -> dict[str, list[Found]]:
        if any(not each.islower() for each in ids):
            raise SetupError("not of the type", next="mend it") from InvalidTextRepresentation()
        return {each: [] for each in ids}


def test_one_id_that_the_column_cannot_hold_hides_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    columns = {"id": TEXT, "topic": TEXT, "aggregate_id": TEXT, "payload": TEXT}
    plan = Mapping(settings(), "s", source="replay").plan(relation(columns))
    monkeypatch.setattr(lookup, "Lookup", lambda *_: Table())
    look = module.SecondLook(cast("Connection", None), plan)
    wanted = {b"id-%c" % letter for letter in b"abcdefg"}
    assert asyncio.run(look.find(wanted | {b"ID", b"Id-b"})) == wanted
