"""Commands in remedies name what the person named, so that pasting them goes for nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from cdc_outbox.postgres.remedy import accept_gap, complete, recover, repeat
from cdc_outbox.settings import Settings, load

OWN = {"slot": "shop_slot", "publication": "shop_pub", "table": ["shop.events"]}
FLAGS = "--publication shop_pub --table shop.events"


def settings(**flags: object) -> Settings:
    return load("start", flags, {}, Path("/nowhere"))


@pytest.mark.parametrize(
    ("text", "completed"),
    [
        ("cdc-outbox init --slot shop_slot", f"cdc-outbox init {FLAGS} --slot shop_slot"),
        (
            "cdc-outbox init --create-table, or name your table with --table SCHEMA.NAME",
            f"cdc-outbox init --slot shop_slot {FLAGS} --create-table, or name your table with --table SCHEMA.NAME",
        ),
        (
            "cdc-outbox start --slot shop_slot --table a.b --table shop.events; or else",
            "cdc-outbox start --publication shop_pub --slot shop_slot --table a.b --table shop.events; or else",
        ),
        (
            "the SQL of cdc-outbox init --print-sql as one",
            f"the SQL of cdc-outbox init --slot shop_slot {FLAGS} --print-sql as one",
        ),
        (
            "cdc-outbox drop --yes --slot shop_slot",
            "cdc-outbox drop --publication shop_pub --yes --slot shop_slot",
        ),
        (
            "cdc-outbox init --publication ANOTHER --slot ANOTHER",
            "cdc-outbox init --publication ANOTHER --slot ANOTHER",
        ),
        ("cdc-outbox start --slot other_slot", "cdc-outbox start --slot other_slot"),
        ("cdc-outbox demo", "cdc-outbox demo"),
        ("mend it in --dsn or CDC_OUTBOX_DSN", "mend it in --dsn or CDC_OUTBOX_DSN"),
    ],
)
def test_commands_name_what_the_person_named(text: str, completed: str):
    ours = settings(**OWN)
    assert complete(text, ours) == completed
    assert complete(completed, ours) == completed


def test_each_command_of_a_remedy_is_completed():
    assert complete(recover("shop_slot"), settings(**OWN)).count("--publication shop_pub") == 2
    assert complete(accept_gap("shop_slot"), settings(**OWN)) == (
        f"cdc-outbox start {FLAGS} --slot shop_slot --accept-gap"
    )


def test_defaults_need_no_words():
    text = f"{recover('outbox_slot')}; cdc-outbox init --create-table"
    assert complete(text, settings()) == text


def test_a_name_that_the_shell_would_take_apart_is_quoted():
    assert complete("cdc-outbox init", settings(table=['shop."My events"'])) == (
        """cdc-outbox init --table 'shop."My events"'"""
    )


GIVEN = [("--where", "state = 'NEW'"), ("--failed", "skip"), ("--yes", None), ("--key", "id"), ("--dsn", "x")]


@pytest.mark.parametrize(
    ("text", "repeated"),
    [
        (
            "cdc-outbox backfill --order-by id, or",
            "cdc-outbox backfill --order-by id --where 'state = '\"'\"'NEW'\"'\"'' --failed skip --yes --key id, or",
        ),
        (
            "cdc-outbox backfill --failed publish --where SQL",
            "cdc-outbox backfill --failed publish --where SQL --yes --key id",
        ),
        ("cdc-outbox backfill --all", "cdc-outbox backfill --all --failed skip --yes --key id"),
        ("cdc-outbox start --slot s", "cdc-outbox start --slot s --key id"),
        ("cdc-outbox drop --yes", "cdc-outbox drop --yes"),
    ],
)
def test_a_command_that_is_to_be_run_again_drops_no_condition(text: str, repeated: str):
    assert repeat(text, "backfill", GIVEN) == repeated
