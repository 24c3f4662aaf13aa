"""The example files: each is accepted, the whole one names every setting, and each fits the table that it is for."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from cdc_outbox.event import TableName
from cdc_outbox.postgres.pgoutput import Column, Relation
from cdc_outbox.settings import SETTINGS, Settings, load
from cdc_outbox.settings.entries import Entries
from cdc_outbox.settings.schema import document
from cdc_outbox.table.mapping import Mapping
from tests.unit.libraries import LIBRARIES, Library
from tests.unit.mapped import (
    JSONB,
    LSN,
    TABLE_A,
    TABLE_B,
    TABLE_C,
    TEXT,
    TIMESTAMPTZ,
    UUID,
    VARCHAR,
    relation,
)
from tests.unit.scripted import COMMIT_US

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
DEBEZIUM = {"id": UUID, "aggregatetype": VARCHAR, "aggregateid": VARCHAR, "type": VARCHAR, "payload": JSONB}
OWN = {
    "eventUuid": UUID,
    "entityKind": TEXT,
    "entityRef": TEXT,
    "eventKind": TEXT,
    "document": JSONB,
    "deliveryState": TEXT,
    "writtenAt": TIMESTAMPTZ,
}


def example(name: str) -> Settings:
    return load("start", {"config": name}, {}, EXAMPLES)


def uncommented() -> str:
    text = (EXAMPLES / "cdc-outbox.toml").read_text(encoding="utf-8")
    return re.sub(r'^#(?=[a-z"\[])', "", text, flags=re.MULTILINE)


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.toml")), ids=lambda path: path.stem)
def test_is_accepted(path: Path) -> None:
    assert not example(path.name).notices


def test_the_whole_file_names_every_setting(tmp_path: Path) -> None:
    (tmp_path / "cdc-outbox.toml").write_text(uncommented(), encoding="utf-8")
    settings = load("start", {}, {}, tmp_path)
    from_file = {one.key for one in settings.shown if one.origin == "file cdc-outbox.toml"}
    for setting in SETTINGS:
        assert any(key == setting.key or key.startswith(setting.key + ".") for key in from_file), setting.key


def test_the_whole_file_names_every_client_option() -> None:
    refused = {"acks", "enable.idempotence", "linger.ms"}
    client = next(setting.kind for setting in SETTINGS if setting.key == "kafka.client")
    assert isinstance(client, Entries)
    for name in set(client.names or ()) - refused:
        assert re.search(
            rf"^#{re.escape(name)} = ", (EXAMPLES / "cdc-outbox.toml").read_text(), re.MULTILINE
        ), name


def test_the_whole_file_shows_the_defaults() -> None:
    contents = tomllib.loads(uncommented())
    for setting in SETTINGS:
        if isinstance(setting.kind, Entries) or setting.default is None or setting.secret:
            continue
        value: object = contents
        for part in setting.key.split("."):
            assert isinstance(value, dict)
            value = value[part]
        assert value == setting.kind.show(setting.default), setting.key


@pytest.mark.parametrize(
    ("name", "table", "key"),
    [
        ("table-a.toml", TABLE_A, "aggregate_id"),
        ("table-b.toml", TABLE_B, "payload:/order_id"),
        ("table-c.toml", TABLE_C, "payload:/order_id"),
        ("table-own.toml", OWN, "entityRef"),
        ("debezium.toml", DEBEZIUM, "aggregateid"),
    ],
)
def test_fits_its_table(name: str, table: dict[str, int], key: str) -> None:
    settings = example(name)
    plan = Mapping(settings.outbox, settings.postgres.slot).plan(relation(table))
    assert plan.summary["key"][0] == key


@pytest.mark.parametrize("library", LIBRARIES, ids=lambda library: library.profile)
def test_fits_the_table_of_its_library(library: Library) -> None:
    settings = example(f"{library.profile}.toml")
    [table] = settings.outbox.tables
    assert table == TableName(library.schema, library.table)
    columns = tuple(Column(name, oid, -1, False) for name, oid in library.columns.items())
    mapping = Mapping(settings.outbox, settings.postgres.slot)
    plan = mapping.plan(Relation(1, table.schema, table.name, "d", columns))
    assert f"profile {library.profile}" in plan.summary
    row = [text.encode() if (text := library.row.get(name)) is not None else None for name in library.columns]
    encoded = plan.encode(row, LSN, 0, COMMIT_US)
    assert not isinstance(encoded, str)
    assert encoded[2] == library.key


def test_the_schema_knows_every_setting() -> None:
    schema = document()
    for setting in SETTINGS:
        node: object = schema
        for part in setting.key.split("."):
            assert isinstance(node, dict)
            node = node["properties"][part]
        assert isinstance(node, dict)
        assert node["description"] == setting.help
