"""Where PostgreSQL runs, by the signs that each provider leaves, and how things are changed there."""

from __future__ import annotations

import json
import shlex

import pytest

from cdc_outbox.doctor.hosting import (
    FUNCTIONS,
    LOGICAL,
    PREFIXES,
    ROLES,
    Hosting,
    Setting,
    Signs,
    change,
    detect,
    direct,
    let_in,
    let_replicate,
)

LIMIT = Setting("max_slot_wal_keep_size", "16GB", "16384")


def signs(*, prefixes: str = "", roles: str = "", functions: str = "") -> Signs:
    return Signs(frozenset(prefixes.split()), frozenset(roles.split()), frozenset(functions.split()))


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (signs(), Hosting.SELF_HOSTED),
        (signs(prefixes="rds", roles="rds_superuser"), Hosting.RDS),
        (signs(roles="rds_superuser"), Hosting.RDS),
        (signs(prefixes="rds", roles="rds_superuser", functions="aurora_version"), Hosting.AURORA),
        (signs(prefixes="cloudsql"), Hosting.CLOUD_SQL),
        (signs(roles="cloudsqlsuperuser"), Hosting.CLOUD_SQL),
        (signs(prefixes="azure"), Hosting.AZURE),
        (signs(roles="azure_pg_admin"), Hosting.AZURE),
        (signs(roles="supabase_admin"), Hosting.SUPABASE),
        (signs(prefixes="neon", roles="neon_superuser"), Hosting.NEON),
        (signs(prefixes="cnpg", roles="streaming_replica"), Hosting.CLOUDNATIVEPG),
        (signs(roles="streaming_replica"), Hosting.CLOUDNATIVEPG),
    ],
)
def test_each_provider_is_told_by_its_signs(shown: Signs, expected: Hosting) -> None:
    assert detect(shown) is expected


def test_every_sign_is_of_somebody() -> None:
    for prefix in PREFIXES:
        assert detect(signs(prefixes=prefix)) is not Hosting.SELF_HOSTED
    for role in ROLES:
        assert detect(signs(roles=role)) is not Hosting.SELF_HOSTED
    for function in FUNCTIONS:
        assert detect(signs(functions=function)) is not Hosting.SELF_HOSTED


@pytest.mark.parametrize(
    ("hosting", "words", "restart"),
    [
        (Hosting.SELF_HOSTED, "alter system set wal_level = 'logical';", "restart PostgreSQL"),
        (Hosting.RDS, "ParameterName=rds.logical_replication", "reboot-db-instance"),
        (Hosting.AURORA, "modify-db-cluster-parameter-group", "reboot-db-instance"),
        (Hosting.CLOUD_SQL, "--database-flags=cloudsql.logical_decoding=on", None),
        (Hosting.AZURE, "--name wal_level --value 'logical'", "flexible-server restart"),
        (Hosting.SUPABASE, "--config wal_level='logical'", None),
        (Hosting.NEON, "enable_logical_replication", None),
        (Hosting.CLOUDNATIVEPG, '"wal_level": "logical"', None),
    ],
)
def test_logical_decoding_is_switched_on_in_the_provider_s_own_way(
    hosting: Hosting, words: str, restart: str | None
) -> None:
    first, *rest = change(hosting, LOGICAL).splitlines()
    assert words in first
    assert len(rest) == (restart is not None)
    if restart is not None:
        assert restart in rest[0]


def test_a_setting_that_takes_no_restart() -> None:
    assert change(Hosting.SELF_HOSTED, LIMIT).splitlines() == [
        "alter system set max_slot_wal_keep_size = '16GB';",
        "select pg_reload_conf();",
    ]
    assert "ApplyMethod=immediate" in change(Hosting.RDS, LIMIT)
    assert "reboot" not in change(Hosting.RDS, LIMIT)


@pytest.mark.parametrize("hosting", [Hosting.RDS, Hosting.AURORA, Hosting.CLOUD_SQL, Hosting.AZURE])
def test_consoles_want_numbers_in_the_base_unit(hosting: Hosting) -> None:
    assert "16384" in change(hosting, LIMIT)
    assert "16GB" not in change(hosting, LIMIT)


@pytest.mark.parametrize("hosting", list(Hosting))
@pytest.mark.parametrize("setting", [LOGICAL, LIMIT])
def test_commands_are_commands_to_a_shell(hosting: Hosting, setting: Setting) -> None:
    first = change(hosting, setting).splitlines()[0]
    assert "\n" not in first
    if hosting not in (Hosting.SELF_HOSTED, Hosting.NEON):
        words = shlex.split(first)
        assert words[0] in {"aws", "gcloud", "az", "supabase", "kubectl"}
        for word in words:
            if word.startswith("{"):
                json.loads(word)


@pytest.mark.parametrize("hosting", list(Hosting))
def test_the_right_to_replicate(hosting: Hosting) -> None:
    remedy = let_replicate(hosting, "Relay")
    assert '"Relay"' in remedy
    assert ("rds_replication" in remedy) == (hosting in (Hosting.RDS, Hosting.AURORA))


@pytest.mark.parametrize("hosting", list(Hosting))
def test_ways_in_are_named(hosting: Hosting) -> None:
    assert let_in(hosting, "relay", "app")
    assert direct(hosting)
    assert ("pg_hba" in let_in(hosting, "relay", "app")) == (
        hosting in (Hosting.SELF_HOSTED, Hosting.CLOUDNATIVEPG)
    )


def test_names_in_pg_hba_are_quoted_where_they_must_be() -> None:
    assert 'hostssl "App" relay ADDRESS/32' in let_in(Hosting.SELF_HOSTED, "relay", "App")
