"""`doctor` as its users run it: all well, nothing there, a side away, on a terminal."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import subprocess
import sys
import time
from collections.abc import Callable

from psycopg.sql import SQL, Identifier

from tests.integration.conftest import ALL_VERSIONS
from tests.integration.consultation import NOWHERE, ROW, Doctor, as_relay, doctor, worse
from tests.servers.kafka import Kafka
from tests.servers.postgres import PostgresServer
from tests.servers.process import free_port
from tests.servers.relay import RelayProcess, clean_environment

__all__ = ["as_relay", "doctor"]


@ALL_VERSIONS
def test_all_is_well_and_stays_as_it_was(
    as_relay: Doctor, kafka: Kafka, aggregate_type: str, outbox_topic: str
) -> None:
    kafka.create_topic(outbox_topic, 2)
    as_relay.execute(f"{ROW} values (%s, '1', 'placed', '{{}}')", (aggregate_type,))
    watched = (
        "select (select confirmed_flush_lsn::text from pg_replication_slots where slot_name = %s),"
        " (select to_jsonb(w)::text from cdc_outbox_witness w)"
    )
    before = as_relay.execute(watched, (as_relay.slot,))
    checks = as_relay.look()
    # The tests' servers have no limit for WAL, and one broker.
    assert worse(checks) == {"postgres.retention": "warning", "kafka.replication": "warning"}
    assert "1 row waits" in checks["postgres.waiting"]["message"]
    assert as_relay.execute(watched, (as_relay.slot,)) == before
    as_relay.execute(SQL("grant select on outbox to {}").format(Identifier(as_relay.slot)))
    seen = as_relay.look()
    assert worse(seen) == worse(checks)
    assert "1 would be sent" in seen["postgres.rows"]["message"]
    assert outbox_topic in seen["kafka.rights"]["message"]
    done = as_relay.command("start", "--until-caught-up", "--no-http")
    assert done.returncode == 0, done.stderr
    assert worse(as_relay.look()) == worse(seen)


def test_the_mapping_in_words(as_relay: Doctor) -> None:
    document = json.loads(as_relay.command("doctor", "--json").stdout)
    assert document["mapping"].keys() == {"public.outbox"}
    assert "key from aggregate_id (recognised)" in document["mapping"]["public.outbox"]
    (line,) = [each["message"] for each in document["checks"] if ": key from " in each["message"]]
    assert "type from event_type, headers from headers, all recognised" in line


@ALL_VERSIONS
def test_from_nothing_by_the_remedies_alone(doctor: Doctor) -> None:
    checks = doctor.look(code=78)
    assert worse(checks) == {
        "postgres.table": "failed",
        "postgres.slot": "failed",
        "postgres.retention": "warning",
    }
    doctor.follow(checks["postgres.table"])
    assert worse(doctor.look()) == {"postgres.retention": "warning"}


def test_a_relay_that_runs_is_no_trouble(
    as_relay: Doctor, kafka: Kafka, make_relay: Callable[..., RelayProcess]
) -> None:
    relay = make_relay(as_relay.owner, kafka.bootstrap, slot=as_relay.slot)
    relay.wait_state("streaming")
    slot = as_relay.look("--http", f"127.0.0.1:{relay.http_port}")
    assert "start would wait as a hot standby" in slot["postgres.slot"]["message"]
    assert worse(slot) == {"postgres.retention": "warning"}
    assert "is the relay's that runs here" in slot["relay.http"]["message"]
    assert slot["relay.running"]["message"] == "the relay that runs here is streaming"


def test_the_wrong_password_hides_nothing_of_kafka(doctor: Doctor) -> None:
    wrong = doctor.server.dsn(doctor.database, password="wrong-secret")
    checks = doctor.look(code=78, CDC_OUTBOX_DSN=wrong)
    assert [name for name in checks if name.startswith("postgres.")] == ["postgres.connection"]
    connection = checks["postgres.connection"]
    assert "refuses the connection" in connection["message"]
    assert "wrong-secret" not in json.dumps(checks)
    assert checks["kafka.connection"]["status"] == "ok"


def test_servers_that_are_away(doctor: Doctor) -> None:
    doctor.init("--create-table")
    gone = f"postgresql://postgres@127.0.0.1:{free_port()}/app"
    checks = doctor.look(code=1, CDC_OUTBOX_DSN=gone)
    assert worse(checks) == {"postgres.connection": "failed"}
    checks = doctor.look(code=1, CDC_OUTBOX_BOOTSTRAP_SERVERS=f"127.0.0.1:{free_port()}")
    assert worse(checks) == {"postgres.retention": "warning", "kafka.connection": "failed"}
    assert "connection refused" in checks["kafka.connection"]["message"]
    checks = doctor.look(code=1, CDC_OUTBOX_DSN=gone, CDC_OUTBOX_BOOTSTRAP_SERVERS=NOWHERE)
    assert {*worse(checks)} == {"postgres.connection", "kafka.connection"}


def test_servers_that_freeze(own_postgres: PostgresServer, kafka: Kafka, slot: str) -> None:
    doctor = Doctor(own_postgres, "postgres", slot, kafka.bootstrap)
    own_postgres.pause()
    began = time.monotonic()
    try:
        checks = doctor.look(code=1)
    finally:
        own_postgres.resume()
    assert time.monotonic() - began < 30
    assert worse(checks) == {"postgres.connection": "failed"}


def test_several_tables(doctor: Doctor) -> None:
    doctor.init("--create-table", "--table", "one", "--table", "two")
    document = json.loads(doctor.command("doctor", "--json", "--table", "one", "--table", "two").stdout)
    assert document["mapping"].keys() == {"public.one", "public.two"}
    assert [check["name"] for check in document["checks"]].count("mapping") == 2


def on_a_terminal(doctor: Doctor, columns: int, **environment: str) -> str:
    """What the command prints on a terminal of that width."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "cdc_outbox", "doctor"],
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=subprocess.DEVNULL,
        env=clean_environment(
            {**doctor.environment, "COLUMNS": str(columns), "TERM": "xterm", **environment}
        ),
    )
    os.close(theirs)
    printed = b""
    while select.select([ours], [], [], 60)[0]:
        try:
            more = os.read(ours, 65536)
        except OSError:
            break
        if not more:
            break
        printed += more
    os.close(ours)
    process.wait(30)
    return printed.decode().replace("\r\n", "\n")


def test_on_a_terminal(as_relay: Doctor) -> None:
    coloured = on_a_terminal(as_relay, 80)
    assert "\x1b[32mok\x1b[0m" in coloured
    plain = on_a_terminal(as_relay, 80, NO_COLOR="1")
    assert "\x1b" not in plain
    assert re.sub(r"\x1b\[\d+m", "", coloured) == plain
    table = plain.partition("what to do")[0]
    assert max(map(len, table.splitlines())) <= 80
    starts = {
        line.index(line.split()[1]) for line in table.splitlines() if line.startswith(("  ok", "  warning"))
    }
    assert len(starts) == 1
    assert plain.splitlines()[-1].endswith("ok")
    assert "alter system set max_slot_wal_keep_size = '16GB';" in [
        line.strip() for line in plain.splitlines()
    ]
