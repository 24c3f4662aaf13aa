"""All that is wrong with the settings is told by one run."""

from __future__ import annotations

from pathlib import Path

import pytest

from cdc_outbox.errors import ConfigError, UsageError
from cdc_outbox.settings import load

FILE = """
[postgres]
slto = "s"
guard_interval = "soon"
[outbox.columns]
payload = 7
aggregat_id = "key"
[kafka.client]
acks = "1"
"""


def test_each_wrong_value_of_the_file_is_told_with_its_step(tmp_path: Path) -> None:
    (tmp_path / "cdc-outbox.toml").write_text(FILE)
    with pytest.raises(ConfigError) as told:
        load("start", {}, {}, tmp_path)
    said, step = str(told.value), told.value.next
    assert said.startswith("5 settings are wrong: (1) unknown key 'postgres.slto' in cdc-outbox.toml (2) ")
    for words in ("postgres.guard_interval", "outbox.columns.payload", "outbox.columns.aggregat_id", "acks"):
        assert words in said
    assert step.count("(") >= 5
    assert "'postgres.slot'" in step.partition("(2)")[0]


def test_flags_environment_and_file_are_told_together(tmp_path: Path) -> None:
    (tmp_path / "cdc-outbox.toml").write_text('[postgres]\nslot = "A-B"\n')
    environ = {"CDC_OUTBOX_LOG_LEVEL": "loud", "CDC_OUTBOX_KAFKA_ACKS": "1", "CDC_OUTBOX_HTTP": "here"}
    with pytest.raises(ConfigError) as told:
        load("start", {"key": "payload:x", "table": ["a.b.c"]}, environ, tmp_path)
    said = str(told.value)
    assert said.startswith("6 settings are wrong: ")
    for words in (
        "--key",
        "--table",
        "CDC_OUTBOX_LOG_LEVEL",
        "CDC_OUTBOX_KAFKA_ACKS",
        "CDC_OUTBOX_HTTP",
        "slot",
    ):
        assert words in said


def test_flags_alone_are_wrong_usage(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as told:
        load("start", {"key": "payload:x", "slot": "A-B"}, {}, tmp_path)
    assert str(told.value).startswith("2 settings are wrong: (1) --slot is 'A-B'")


def test_a_file_that_cannot_be_read_hides_no_wrong_flag(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as told:
        load("start", {"config": "gone.toml", "slot": "A-B"}, {}, tmp_path)
    assert "gone.toml" in str(told.value)
    assert "--slot" in str(told.value)
