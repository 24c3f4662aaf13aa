"""Decoding that meets rows from before the publication ends there; what the remedy says loses none of them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable

import pytest
from psycopg.sql import SQL

from tests.integration.conftest import ALL_VERSIONS, Database
from tests.servers.kafka import Kafka
from tests.servers.pipeline import Pipeline
from tests.servers.relay import run_command
from tests.servers.wait import PATIENCE


@pytest.mark.parametrize("postgres_version", [17], indirect=True, ids=["pg17"])
@ALL_VERSIONS
def test_a_slot_that_is_older_than_its_publication_and_has_delivered_nothing(
    outbox: Database, kafka: Kafka, make_pipeline: Callable[..., Pipeline]
) -> None:
    """The rows that it can't decode may be those that a backfill has just sent."""
    pipeline = make_pipeline(outbox, kafka).prepare()
    env = {"CDC_OUTBOX_DSN": pipeline.dsn, "CDC_OUTBOX_BOOTSTRAP_SERVERS": kafka.bootstrap}
    writer, consumer = pipeline.writer(), pipeline.consumer()
    writer.write(5)
    assert run_command("init", "--slot", pipeline.slot, env=env).returncode == 78
    done = run_command("backfill", "--yes", "--slot", pipeline.slot, env=env)
    assert done.returncode == 0, done.stderr
    pipeline.sql(SQL("drop publication outbox_pub"))
    writer.write(5)
    pipeline.sql(SQL("create publication outbox_pub for table outbox with (publish = 'insert')"))
    late = writer.write(5)
    # A person has taken it as it is, and decoding goes no further all the same.
    for flags in (["--accept-gap"], []):
        relay = pipeline.start(*flags, state=None, http=False)
        assert relay.wait() == 78, relay.text()
    assert "42704" in str(relay.records[-1]["error"])
    remedy = str(relay.records[-1]["next"])
    assert "--no-backfill" not in remedy
    for command in re.findall(r"cdc-outbox [^;,]*", remedy):
        _, name, *flags = shlex.split(command)
        done = run_command(name, *(["--yes"] if name == "backfill" else []), *flags, env=env)
        assert done.returncode == (78 if name == "init" else 0), done.stderr
    consumer.wait_ids(late, PATIENCE)
    relay = pipeline.start()
    consumer.wait_ids(writer.write(5), PATIENCE)
    consumer.wait_ids(writer.committed, PATIENCE)
