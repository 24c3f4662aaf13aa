"""A pipeline, and `audit` run on it as its users do."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Producer

from tests.integration.conftest import Database
from tests.servers.kafka import Kafka
from tests.servers.pipeline import Pipeline
from tests.servers.relay import run_command


class Audited:
    """A pipeline, and the audit of it."""

    def __init__(self, pipeline: Pipeline, *, topic: str | None = None) -> None:
        self.pipeline = pipeline
        self.topic = topic or pipeline.topic
        self.producer = Producer(
            {"bootstrap.servers": pipeline.kafka.bootstrap, "linger.ms": 0, "log_level": 0}
        )

    def run(self, *flags: str) -> subprocess.CompletedProcess[str]:
        """Run `cdc-outbox audit FLAGS`."""
        environment = {
            "CDC_OUTBOX_DSN": self.pipeline.dsn,
            "CDC_OUTBOX_SLOT": self.pipeline.slot,
            "CDC_OUTBOX_BOOTSTRAP_SERVERS": self.pipeline.kafka.bootstrap,
        }
        return run_command("audit", *flags, env=environment)

    def audit(self, *flags: str, code: int = 0) -> dict[str, Any]:
        """The report. Its exit code has to fit."""
        done = self.run("--json", *flags)
        assert done.returncode == code, f"{done.returncode}\n{done.stdout}\n{done.stderr}"
        assert done.stdout, done.stderr
        report = json.loads(done.stdout)
        assert report["schema_version"] == 1
        assert (report["status"] == "unclean") is bool(report["faults"])
        assert code == 0 or report["status"] != "clean"
        return dict(report)

    def put(
        self,
        event: str | None,
        *,
        key: str = "k",
        partition: int = 0,
        ms: int | None = None,
        headers: tuple[tuple[str, str], ...] = (),
        value: str = "{}",
    ) -> None:
        """A message of somebody else's."""
        own = [] if event is None else [("id", event)]
        self.producer.produce(
            self.topic,
            key=key,
            value=value,
            partition=partition,
            headers=[*own, *headers],
            timestamp=ms or time.time_ns() // 1_000_000,
        )
        assert self.producer.flush(30) == 0

    def insert(self, key: str = "k", *, ago: str = "0s") -> str:
        """A row, by its id."""
        return str(
            self.pipeline.value(
                "insert into outbox (aggregate_type, aggregate_id, event_type, payload, created_at)"
                " values (%s, %s, 'Planted', '{}', now() - %s::interval) returning id::text",
                (self.pipeline.aggregate_type, key, ago),
            )
        )

    def proven(self, event: str) -> bool:
        """Whether the witness proves the row delivered."""
        return bool(
            self.pipeline.value(
                "select pg_snapshot_xmin(w.snapshot)::text::int8 > o.xmin::text::int8"
                " from cdc_outbox_witness w, outbox o where w.slot = %s and o.id = %s",
                (self.pipeline.slot, event),
            )
        )

    def created(self, event: str) -> str:
        """When a row was written, as the report has it."""
        return str(
            self.pipeline.value(
                """select to_char(created_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') from outbox"""
                " where id = %s",
                (event,),
            )
        )


@pytest.fixture
def audited(make_pipeline: Callable[..., Pipeline], outbox: Database, kafka: Kafka) -> Audited:
    """A pipeline without a relay yet."""
    return Audited(make_pipeline(outbox, kafka).prepare().init())


def ids(report: dict[str, Any], kind: str) -> list[str]:
    return sorted(each["id"] for each in report[kind]["events"])
