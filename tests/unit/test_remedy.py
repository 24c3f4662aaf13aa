"""Commands in remedies name what the person named, so that pasting them goes for nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from cdc_outbox.postgres.remedy import accept_gap, again, by_owner, complete, once_more, recover, repeat
from cdc_outbox.settings import Settings, load

OWN = {"slot": "shop_slot", "publication": "shop_pub", "table": ["shop.events"]}
FLAGS = "--publication shop_pub --table shop.events"
BY = 'export CDC_OUTBOX_ADMIN_DSN="$OWNER_DSN" &&'


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
        ("cdc-outbox health --slot other_slot", "cdc-outbox health --slot other_slot"),
        ("mend it in --dsn or CDC_OUTBOX_DSN", "mend it in --dsn or CDC_OUTBOX_DSN"),
    ],
)
def test_commands_name_what_the_person_named(text: str, completed: str):
    ours = settings(**OWN)
    assert complete(text, ours) == completed
    assert complete(completed, ours) == completed


def test_each_command_of_a_remedy_is_completed():
    assert complete(recover("shop_slot"), settings(**OWN)).count("--publication shop_pub") == 3
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


def test_what_only_an_owner_can_do_names_the_owners_connection():
    by, drop, init, audit = (words.strip() for words in recover("s").rpartition(": ")[2].split("&&"))
    assert f"{by} &&" == BY
    assert drop == "cdc-outbox drop --yes --slot s"
    assert init == "cdc-outbox init --no-backfill --slot s"
    assert audit == "cdc-outbox audit --slot s"
    assert by_owner("cdc-outbox backfill --slot s; or cdc-outbox init") == (
        f"{BY} cdc-outbox backfill --slot s; or {BY} cdc-outbox init"
        ", with the owner's connection in OWNER_DSN"
    )


def test_an_owners_connection_that_is_at_hand_needs_no_word():
    environ = {"CDC_OUTBOX_ADMIN_DSN": "postgresql://owner@db/app"}
    said = complete(recover("s"), load("start", {"slot": "s"}, environ, Path("/nowhere")))
    assert said.endswith(
        ": cdc-outbox drop --yes --slot s && cdc-outbox init --no-backfill --slot s && cdc-outbox audit --slot s"
    )
    assert "OWNER_DSN" not in said
    by_flag = settings(slot="s", admin_dsn="postgresql://owner@db/app")
    assert complete(recover("s"), by_flag) == recover("s")


GIVEN = [
    ("--where", "state = 'NEW'"),
    ("--failed", "skip"),
    ("--yes", None),
    ("--key", "id"),
    ("--dsn", "postgresql://a:secret@b/c"),
    ("--kafka", "SASL.Password=secret"),
    ("--kafka", "client.id=ours"),
    ("--log-level", "debug"),
]
TAKES = {
    "backfill": {"--where", "--all", "--failed", "--yes", "--key", "--dsn", "--kafka", "--log-level"},
    "start": {"--key", "--dsn", "--kafka", "--log-level"},
    "drop": {"--yes", "--dsn"},
    "audit": {"--key", "--twice-ok", "--since"},
}


@pytest.mark.parametrize(
    ("text", "repeated"),
    [
        (
            "cdc-outbox backfill --order-by id, or",
            (
                "cdc-outbox backfill --order-by id --where 'state = '\"'\"'NEW'\"'\"'' --failed skip --yes --key id"
                " --kafka client.id=ours, or"
            ),
        ),
        (
            "cdc-outbox backfill --failed publish --where SQL",
            "cdc-outbox backfill --failed publish --where SQL --yes --key id --kafka client.id=ours",
        ),
        (
            "cdc-outbox backfill --all",
            "cdc-outbox backfill --all --failed skip --yes --key id --kafka client.id=ours",
        ),
        ("cdc-outbox start --slot s", "cdc-outbox start --slot s --key id --kafka client.id=ours"),
        (
            "cdc-outbox drop --yes && cdc-outbox start",
            "cdc-outbox drop --yes && cdc-outbox start --key id --kafka client.id=ours",
        ),
        ("cdc-outbox audit", "cdc-outbox audit --key id"),
    ],
)
def test_a_command_has_the_flags_that_were_given_and_that_it_takes(text: str, repeated: str):
    assert repeat(text, "backfill", GIVEN, TAKES.__getitem__) == repeated
    assert repeat(repeated, "backfill", GIVEN, TAKES.__getitem__) == repeated


def test_an_owners_connection_that_was_given_is_named_and_not_shown():
    given = [("--admin-dsn", "postgresql://owner:secret@db/app"), ("--key", "id")]
    takes = {"replay": {"--admin-dsn", "--key"}, "peek": {"--admin-dsn"}}.__getitem__
    assert repeat("cdc-outbox replay --id 1", "audit", given, takes) == (
        f"{BY} cdc-outbox replay --id 1 --key id"
    )
    assert once_more(again(("--slot", "s")), "peek", given) == (f"{BY} cdc-outbox peek --key id --slot s")


def test_an_audit_that_is_to_be_run_again_asks_for_the_same():
    given = [("--twice-ok", None), ("--since", "2h"), ("--key", "id")]
    assert repeat("cdc-outbox audit --since 3h", "audit", given, TAKES.__getitem__) == (
        "cdc-outbox audit --since 3h --twice-ok --key id"
    )


def test_the_same_command_is_written_out_with_what_is_to_be_another():
    text = again(("--table", 'shop."Events"'), ("--table", "shop.b"))
    given = [("--limit", "5"), ("--table", "shop.Events"), ("--table", "shop.b"), *GIVEN[3:]]
    assert once_more(f"{text}; or else", "peek", given) == (
        "cdc-outbox peek --limit 5 --key id --kafka client.id=ours --table 'shop.\"Events\"' --table shop.b; or else"
    )


def test_a_comma_in_a_value_ends_no_command():
    given = [("--table", "a"), ("--table", "c"), ("--key", "id,payload:/id")]
    ours = settings(table=["a", "c"], slot="s")
    for text in (
        again(("--table", "a"), ("--table", "b")),
        "cdc-outbox audit --twice-ok --table a --table b",
    ):
        whole = once_more(complete(text, ours), "audit", given)
        whole = complete(repeat(whole, "audit", given, lambda _name: {"--key", "--table"}), ours)
        assert whole.count("--table") == 2
        assert whole.count("--key 'id,payload:/id'") == 1


def test_what_names_the_owner_names_it_once():
    for step in (recover("s"), by_owner("cdc-outbox init --slot s")):
        assert by_owner(step).count("cdc-outbox") == step.count("cdc-outbox")
        assert by_owner(step).count(BY) == step.count(BY)
    given = [("--admin-dsn", "postgresql://owner@db/app")]
    assert (
        repeat(f"{BY} cdc-outbox drop", "audit", given, lambda _name: {"--admin-dsn"})
        == f"{BY} cdc-outbox drop"
    )
