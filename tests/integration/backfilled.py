"""A table with rows from before the slot, and `backfill` run on it as its users do."""

from __future__ import annotations

import contextlib
import os
import pty
import select
import subprocess
import sys
from pathlib import Path
from typing import LiteralString

import pytest

from tests.integration.conftest import Database
from tests.integration.initial import Set
from tests.servers.kafka import Kafka
from tests.servers.ledger import Record, read_all
from tests.servers.relay import RelayProcess, clean_environment, complaint, run_command
from tests.servers.wait import PATIENCE, eventually

TABLE_A: LiteralString = (
    "create table outbox (id bigserial primary key, aggregate_type text, aggregate_id text, topic text,"
    " payload jsonb, status text default 'pending', attempts int default 0, next_run_at timestamptz default now(),"
    " locked_by text, locked_at timestamptz, last_error text, created_at timestamptz default now(),"
    " sent_at timestamptz)"
)
TABLE_B: LiteralString = (
    "create table outbox (id bigserial primary key, event_id uuid unique default gen_random_uuid(), bus text,"
    " topic text, payload jsonb, status text default 'pending', attempts int default 0, last_error text,"
    " created_at timestamptz default now(), sent_at timestamptz)"
)
TABLE_C: LiteralString = (
    "create table outbox (id bigserial primary key, topic text, payload jsonb, sent_at timestamptz)"
)


class Backfilled(Set):
    """One database, one slot, one topic, and the commands on them."""

    def __init__(self, database: Database, slot: str, kafka: Kafka, topic: str) -> None:
        super().__init__(database, slot)
        self.kafka = kafka
        self.topic = topic

    def command(
        self, *flags: str, yes: bool = True, env: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        return run_command(
            *("backfill", "--slot", self.slot, "--bootstrap-servers", self.kafka.bootstrap),
            *(["--yes"] if yes else []),
            *flags,
            env={"CDC_OUTBOX_DSN": self.dsn, **(env or {})},
        )

    def backfill(self, *flags: str) -> str:
        """What it says on stdout when all went well."""
        done = self.command(*flags)
        assert done.returncode == 0, done.stderr
        assert self.slots() == [self.slot]
        return done.stdout

    def refuses(self, *flags: str, code: int = 78, yes: bool = True) -> tuple[str, str]:
        """What is wrong and what is next."""
        done = self.command(*flags, yes=yes)
        assert done.returncode == code, done.stdout + done.stderr
        return complaint(done)

    def asked(self, answer: str, code: int, *flags: str) -> str:
        """What it shows on a terminal on which a person types an answer to its question."""
        pid, terminal = pty.fork()
        if not pid:
            words = [sys.executable, "-m", "cdc_outbox", "backfill", "--slot", self.slot]
            words += ["--bootstrap-servers", self.kafka.bootstrap, *flags]
            os.execve(sys.executable, words, clean_environment({"CDC_OUTBOX_DSN": self.dsn}))
        shown, typed = "", False
        with contextlib.suppress(OSError):  # the end of a terminal
            while True:
                # Before it reads, a Ctrl-C isn't heard; a second one, while it ends, would end it another way.
                if not typed and "[y/N]" in shown and not select.select([terminal], [], [], 0.2)[0]:
                    if typed := _sleeps(pid):
                        os.write(terminal, answer.encode())
                elif text := os.read(terminal, 4096).decode(errors="replace"):
                    shown += text
                else:
                    break
        os.close(terminal)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == code, shown
        return shown

    def under_way(self, *flags: str, env: dict[str, str] | None = None) -> RelayProcess:
        """A backfill that runs, to be killed or told to stop."""
        return RelayProcess(
            self.dsn,
            self.kafka.bootstrap,
            slot=self.slot,
            flags=["--yes", *flags],
            env=env,
            http=False,
            command="backfill",
        )

    def held(self, step: str, file: Path, *flags: str) -> RelayProcess:
        """A backfill that stands still after a step."""
        process = self.under_way(*flags, env={"CDC_OUTBOX_FAULT_HOLD_BACKFILL": f"{step}:{file}"})
        eventually(file.exists, PATIENCE, lambda: f"the step {step}: {process.text()}")
        return process

    def relay(self, *flags: str) -> str:
        """Relay until caught up; its log."""
        done = run_command(
            *("start", "--slot", self.slot, "--bootstrap-servers", self.kafka.bootstrap, "--no-http"),
            *("--until-caught-up", *flags),
            env={"CDC_OUTBOX_DSN": self.dsn},
        )
        assert done.returncode == 0, done.stderr
        return done.stderr

    def records(self) -> list[Record]:
        return read_all(self.kafka.bootstrap, self.topic)

    def ids(self) -> list[str | None]:
        return [record.id for record in self.records()]


def _sleeps(pid: int) -> bool:
    """Whether a process waits for something, as for what is typed."""
    state = subprocess.run(
        ["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False
    ).stdout
    return state.startswith("S")


@pytest.fixture
def place(database: Database, slot: str, kafka: Kafka, topics: str) -> Backfilled:
    """A database with an empty topic, and nothing else yet."""
    kafka.create_topic(f"{topics}orders", 1)
    return Backfilled(database, slot, kafka, f"{topics}orders")
