"""`health` on real servers of each version, asked by a role that may only log in and replicate."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from psycopg.sql import SQL, Identifier, Literal

from tests.integration.conftest import ALL_VERSIONS, Database
from tests.integration.examined import Examined
from tests.servers.ledger import create_outbox
from tests.servers.postgres import PostgresServer
from tests.servers.process import free_port
from tests.servers.relay import clean_environment, run_command
from tests.servers.wait import eventually
from tests.unit.health_schema import require_valid


@pytest.fixture
def bare(outbox: Database, slot: str) -> Iterator[Examined]:
    """An outbox table and a role, before `init`."""
    examined = Examined(outbox.server, outbox.name, slot)
    yield examined
    if examined.made:
        examined.sql(SQL("drop owned by {}").format(Identifier(examined.role)))
        examined.sql(SQL("drop role {}").format(Identifier(examined.role)))


@pytest.fixture
def ready(bare: Examined) -> Examined:
    """The same after `init`."""
    return bare.init()


class TestEachVersion:
    """What is asked of the server has other columns in each."""

    pytestmark = ALL_VERSIONS

    def test_a_fresh_slot_is_well(self, ready: Examined) -> None:
        seen = ready.look()
        assert (seen.code, seen.status) == (0, "ok")
        found = seen.document["slot"]
        assert (found["exists"], found["active"], found["plugin"]) == (True, False, "pgoutput")
        assert found["database"] == ready.database
        assert found["retained_bytes"] >= found["unconfirmed_bytes"] >= 0
        assert found["inactive_seconds"] is not None
        assert found["safe_wal_bytes"] is None
        assert seen.document["limits"]["max_slot_wal_keep_bytes"] is None
        assert seen.document["forecast"]["seconds_to_loss"] is None
        assert seen.document["delivery"]["oldest_unacknowledged_seconds"] is None
        assert seen.document["publication"] == {"name": "outbox_pub", "ok": True, "problem": None}
        assert seen.check("position")["status"] == "ok"
        assert "publication   outbox_pub: public.outbox, inserts only" in seen.text
        assert "advice        without max_slot_wal_keep_size" in seen.text
        assert seen.metric("slot_active", slot=ready.slot) == 0
        assert seen.metric("slot_time_to_loss_seconds", slot=ready.slot) is None
        assert seen.metric("publication_ok") == 1

    def test_a_slot_that_isnt_there(self, ready: Examined) -> None:
        seen = ready.look(slot="nowhere")
        assert (seen.code, seen.status) == (2, "critical")
        assert 'there is no replication slot "nowhere"' in seen.headline
        assert ready.slot in seen.headline
        assert seen.document["slot"]["exists"] is False
        by = 'export CDC_OUTBOX_ADMIN_DSN="$OWNER_DSN"'
        assert (
            seen.next == f"{by} && cdc-outbox init --slot nowhere, with the owner's connection in OWNER_DSN"
        )
        assert seen.metric("slot_active", slot="nowhere") == 0

    def test_a_slot_that_was_dropped_behind_the_relays_back(self, ready: Examined) -> None:
        ready.sql(SQL("select pg_drop_replication_slot({})").format(Literal(ready.slot)))
        seen = ready.look()
        assert seen.code == 2
        assert f"the replication slot {ready.slot} is gone; events were delivered up to" in seen.headline
        assert seen.next.startswith("recover")

    def test_a_physical_slot(self, ready: Examined) -> None:
        name = f"physical_{secrets.token_hex(3)}"
        ready.sql(SQL("select pg_create_physical_replication_slot({})").format(Literal(name)))
        try:
            seen = ready.look(slot=name)
        finally:
            ready.sql(SQL("select pg_drop_replication_slot({})").format(Literal(name)))
        assert seen.code == 2
        assert f'the slot "{name}" is a physical replication slot' in seen.headline

    def test_a_slot_of_another_database(self, ready: Examined) -> None:
        elsewhere = Examined(ready.server, "postgres", ready.slot, ready.role)
        seen = elsewhere.look()
        assert seen.code == 2
        assert f'the slot "{ready.slot}" belongs to the database "{ready.database}"' in seen.headline
        assert "connect to that database with --dsn" in seen.next

    def test_a_publication_that_was_dropped(self, ready: Examined) -> None:
        ready.sql(SQL("drop publication outbox_pub"))
        seen = ready.look()
        assert seen.code == 2
        assert "publication outbox_pub does not exist" in seen.headline
        assert seen.document["publication"]["ok"] is False
        assert seen.metric("publication_ok") == 0
        ready.sql(SQL("create publication outbox_pub for table outbox where (aggregate_type = 'x')"))
        seen = ready.look()
        assert seen.code == 2
        assert "row filter" in seen.headline

    def test_a_slot_that_debezium_made(self, bare: Examined) -> None:
        bare.make_role()
        bare.sql(
            SQL("create publication dbz_publication for all tables"),
            SQL("select pg_create_logical_replication_slot({}, 'pgoutput')").format(Literal(bare.slot)),
        )
        seen = bare.look()
        # Nobody reads from it, and before 17 nobody knows since when.
        assert seen.code == (0 if bare.server.major >= 17 else 3)
        assert seen.document["publication"] == {"name": None, "ok": None, "problem": None}
        assert "another tool's slot" in seen.text
        assert seen.check("position")["status"] == "unknown"
        named = bare.look("--publication", "dbz_publication", "--table", "public.outbox")
        assert named.document["publication"] == {"name": "dbz_publication", "ok": True, "problem": None}
        assert "inserts, updates, deletes, truncates" in named.text
        wrong = bare.look("--publication", "nowhere")
        assert wrong.code == 2
        assert "publication nowhere does not exist" in wrong.headline

    def test_what_happened_to_the_publication_until_it_is_accepted(self, ready: Examined) -> None:
        incident = json.dumps(
            [
                {
                    "kind": "altered",
                    "at": "2026-05-04T10:00:00+00:00",
                    "from_lsn": "0/10",
                    "to_lsn": "0/20",
                    "message": "publication outbox_pub was altered between 0/10 and 0/20",
                }
            ]
        )
        ready.sql(SQL("update cdc_outbox_witness set incidents = {}::jsonb").format(Literal(incident)))
        seen = ready.look()
        assert seen.code == 2
        assert "was altered between 0/10 and 0/20" in seen.headline
        assert len(seen.document["incidents"]) == 1
        assert seen.next.endswith(f": cdc-outbox health --slot {ready.slot} --accept")
        accepted = ready.run("--accept")
        assert accepted.returncode == 0, accepted
        assert ready.value("select incidents from cdc_outbox_witness") == []
        assert ready.look().code == 0


@pytest.mark.patient
def test_a_slot_that_the_server_gives_up_when_idle(make_postgres: Callable[..., PostgresServer]) -> None:
    """Hardly any WAL is kept, and the slot is about to be lost all the same."""
    server = make_postgres(18, settings={"idle_replication_slot_timeout": "20s"})
    create_outbox(server.dsn())
    examined = Examined(server, "postgres", "idle_slot").init()

    def warned() -> bool:
        return bool(examined.run().returncode == 2)

    eventually(warned, 60, lambda: examined.run().stdout)
    seen = examined.look()
    assert seen.document["forecast"]["basis"] == "idle_replication_slot_timeout"
    assert "by idle_replication_slot_timeout" in seen.headline or "at any moment" in seen.headline
    assert seen.next == "cdc-outbox start --slot idle_slot"

    def given_up() -> bool:
        examined.sql(SQL("checkpoint"))
        return bool(examined.value("select invalidation_reason = 'idle_timeout' from pg_replication_slots"))

    eventually(given_up, 60, "the slot is given up")
    examined.write_wal(8)
    seen = examined.look()
    assert 'the replication slot "idle_slot" is lost (idle_timeout)' in seen.headline
    # It has its restart_lsn still, and PostgreSQL keeps no WAL for it.
    assert seen.document["slot"]["restart_lsn"] is not None
    assert seen.document["slot"]["retained_bytes"] is None
    assert seen.metric("slot_retained_wal_bytes", slot="idle_slot") is None


def test_a_standby_that_carries_no_slot_sends_to_the_primary(
    make_postgres: Callable[..., PostgresServer],
) -> None:
    """Its witness rows came with the data, and prove no loss: nothing is to be made or recovered there."""
    primary = make_postgres(16)
    create_outbox(primary.dsn())
    examined = Examined(primary, "postgres", "carried_slot").init()
    with contextlib.closing(primary.standby()) as standby:
        there = Examined(standby, "postgres", examined.slot, examined.role)
        seen = there.look()
        assert "this server is a standby, and has no replication slot" in seen.headline
        assert seen.next.startswith("look at the primary: cdc-outbox health --slot carried_slot")
        every = run_command("health", "--all", env={"CDC_OUTBOX_DSN": there.dsn, "CDC_OUTBOX_HTTP": "off"})
        assert every.returncode == 3
        assert every.stderr.startswith("error: this server is a standby, and has none of the primary's slots")
        assert "next: look at the primary: cdc-outbox health --all" in every.stderr


def test_a_role_that_may_see_more(ready: Examined) -> None:
    """A role with pg_monitor sees how large pg_wal is, and needs a volume's size for a forecast all the same."""
    ready.sql(SQL("grant pg_monitor to {}").format(Identifier(ready.role)))
    ready.write_wal(3)
    seen = ready.look("--wal-volume-size", "100GiB")
    assert seen.document["limits"]["wal_volume_bytes"] == 100 << 30
    assert seen.document["limits"]["wal_directory_bytes"] > 1 << 20
    assert seen.document["forecast"]["basis"] == "the volume's size, and pg_wal's by pg_ls_waldir()"
    assert "no limit, on a volume of 100.0 GiB" in seen.headline


class TestThresholds:
    def test_flag_before_environment_before_file(self, ready: Examined, tmp_path: Path) -> None:
        ready.write_wal(3)
        file = tmp_path / "cdc-outbox.toml"
        file.write_text(
            '[health.warning]\nretained_bytes = "1MiB"\n[health.critical]\nretained_bytes = "off"\n'
        )
        by_file = ready.run("--json", cwd=tmp_path)
        assert by_file.returncode == 1
        check = next(
            each for each in json.loads(by_file.stdout)["checks"] if each["name"] == "retained_bytes"
        )
        assert (check["status"], check["warning"], check["critical"]) == ("warning", 1 << 20, None)
        environment = {"CDC_OUTBOX_HEALTH_WARNING_RETAINED_BYTES": "1GiB"}
        assert ready.run(env=environment, cwd=tmp_path).returncode == 0
        critical = ready.run("--critical", "retained_bytes=2MiB", env=environment, cwd=tmp_path)
        assert critical.returncode == 2

    @pytest.mark.parametrize(
        ("flags", "message"),
        [
            (("--warning", "retaned=5%"), "unknown name 'retaned'"),
            (("--warning", "retained=150%"), "it must be a share"),
            (("--warning", "retained"), "not of the form SIGNAL=VALUE"),
            (("--wal-volume-size", "big"), "--wal-volume-size is 'big'"),
            (("--slot", "Bad"), "--slot is 'Bad'"),
            (("--all",), "contradict"),
            (("--watch", "--format", "nagios"), "--watch has no form for nagios"),
            (("--no-such-flag",), "no such option"),
        ],
    )
    def test_wrong_usage_is_unknown(self, flags: tuple[str, ...], message: str) -> None:
        done = run_command("health", "--slot", "any", *flags)
        assert done.returncode == 3
        assert (done.stdout == "") == ("nagios" not in flags)
        error, remedy = done.stderr.splitlines()
        assert error.startswith("error: ")
        assert message in error
        assert remedy.startswith("next: ")

    def test_wrong_usage_is_unknown_to_a_machine_too(self) -> None:
        wrong = ("health", "--slot", "any", "--warning", "retaned=5%")
        nagios = run_command(*wrong, "--format", "nagios")
        assert nagios.returncode == 3
        first, *evidence = nagios.stdout.splitlines()
        assert first.startswith("CDC-OUTBOX UNKNOWN - any: ")
        assert "unknown name 'retaned'" in first
        assert any("next step" in each for each in evidence)
        textfile = run_command(*wrong, "--format", "prometheus")
        assert 'cdc_outbox_slot_health{slot="any",status="unknown"} 1.0' in textfile.stdout
        for flags in (("--json",), ("--format=json",)):
            document = run_command(*wrong, *flags)
            assert (document.returncode, document.stderr.count("\n")) == (3, 2)
            told = json.loads(document.stdout)
            require_valid(told)
            assert (told["status"], told["slot"]["name"]) == ("unknown", "any")
            assert "unknown name 'retaned'" in told["summary"]
            assert document.stderr.splitlines()[1] == f"next: {told['next']}"

    def test_a_wrong_file_is_unknown(self, tmp_path: Path) -> None:
        (tmp_path / "cdc-outbox.toml").write_text('[health.warning]\nretained = "lots"\n')
        done = run_command("health", cwd=tmp_path)
        assert done.returncode == 3
        assert done.stderr.startswith("error: health.warning.retained in cdc-outbox.toml is 'lots'")


class TestUnreachable:
    def test_nothing_listens(self) -> None:
        examined = run_command(
            "health",
            "--json",
            env={"CDC_OUTBOX_DSN": f"postgresql://app:s3cr3t-word@127.0.0.1:{free_port()}/app"},
        )
        assert examined.returncode == 2
        document = json.loads(examined.stdout)
        require_valid(document)
        assert document["status"] == "critical"
        assert document["slot"]["exists"] is None
        assert "s3cr3t-word" not in examined.stdout + examined.stderr

    def test_a_wrong_password_is_unknown(self, ready: Examined) -> None:
        dsn = ready.server.dsn(ready.database, user=ready.role, password="wrong-pass")
        seen = ready.look(env={"CDC_OUTBOX_DSN": dsn})
        assert (seen.code, seen.status) == (3, "unknown")
        assert "wrong-pass" not in seen.text


class TestSeveral:
    def test_repeated_and_all(self, ready: Examined) -> None:
        both = ready.run("--slot", "nowhere", "--json")
        assert both.returncode == 2
        document = json.loads(both.stdout)
        require_valid(document)
        assert [each["slot"]["name"] for each in document["slots"]] == [ready.slot, "nowhere"]
        assert [each["status"] for each in document["slots"]] == ["ok", "critical"]
        every = run_command("health", "--all", "--json", env={"CDC_OUTBOX_DSN": ready.dsn})
        assert every.returncode == 0
        document = json.loads(every.stdout)
        require_valid(document)
        assert [each["slot"]["name"] for each in document["slots"]] == [ready.slot]

    def test_each_slot_is_judged_by_the_publication_and_tables_that_its_own_witness_names(
        self, ready: Examined, tmp_path: Path
    ) -> None:
        """One whose rows are hidden was well by another's publication, and a good one bad by another's table."""
        ready.sql(SQL("create schema shop"), SQL("create table shop.events (like outbox including all)"))
        own = ("--slot", f"{ready.slot}_b", "--table", "shop.events", "--publication", "shop_pub")
        made = run_command("init", *own, "--role", ready.role, env={"CDC_OUTBOX_DSN": ready.owner})
        assert made.returncode == 0, made.stderr

        def every(*flags: str) -> dict[str, Any]:
            environment = {"CDC_OUTBOX_DSN": ready.dsn, "CDC_OUTBOX_HTTP": "off"}
            done = run_command("health", "--all", "--json", *flags, env=environment, cwd=tmp_path)
            return {each["slot"]["name"]: each for each in json.loads(done.stdout)["slots"]}

        other = f"{ready.slot}_b"
        ready.sql(SQL("drop table outbox cascade"), SQL("alter publication outbox_pub set (publish = '')"))
        assert ready.look(slot=other).code == 0, "though there is no outbox in public"
        seen = every()
        assert (seen[ready.slot]["status"], seen[other]["status"]) == ("critical", "ok")
        ready.sql(SQL("alter publication shop_pub rename to mall_pub"))
        assert every()[other]["publication"] == {"name": "mall_pub", "ok": True, "problem": None}
        ready.sql(SQL("alter publication mall_pub set (publish = 'delete')"))
        seen = every()
        assert seen[other]["publication"]["problem"] == "publication mall_pub does not publish inserts"
        (tmp_path / "cdc-outbox.toml").write_text('[postgres]\npublication = "outbox_pub"\n')
        assert every()[other]["status"] == "critical", "the file speaks of one slot"
        assert every("--publication", "outbox_pub")[other]["publication"]["name"] == "outbox_pub"
        ready.sql(SQL("drop publication mall_pub"))
        assert "was read through is gone" in every()[other]["summary"]

    def test_the_next_step_names_the_publication_and_the_tables_of_its_slot(self, ready: Examined) -> None:
        ready.sql(SQL("create schema shop"), SQL("create table shop.events (like outbox including all)"))
        other = f"{ready.slot}_b"
        own = ("--table", "shop.events", "--publication", "shop_pub")
        made = run_command(
            *("init", "--slot", other, *own, "--role", ready.role), env={"CDC_OUTBOX_DSN": ready.owner}
        )
        assert made.returncode == 0, made.stderr
        ready.sql(SQL("select pg_drop_replication_slot({})").format(Literal(other)))
        by = 'export CDC_OUTBOX_ADMIN_DSN="$OWNER_DSN"'
        assert ready.look(slot=other).next.endswith(
            f": {by} && cdc-outbox drop --publication shop_pub --yes --slot {other} && "
            f"cdc-outbox init --publication shop_pub --table shop.events --no-backfill --slot {other} && "
            f"cdc-outbox audit --publication shop_pub --table shop.events --slot {other}"
        )

    def test_the_next_step_has_the_config_that_was_named(self, ready: Examined, tmp_path: Path) -> None:
        file = tmp_path / "shop.toml"
        file.write_text('[outbox]\ntable = "shop.events"\n')
        ready.sql(
            SQL("create schema shop"),
            SQL("alter table outbox set schema shop"),
            SQL("alter table shop.outbox rename to events"),
            SQL("select pg_drop_replication_slot({})").format(Literal(ready.slot)),
        )
        step = ready.look("--config", str(file)).next
        assert step.count("cdc-outbox ") == step.count(f"--config {file}") == 3
        at_hand = ready.look("--config", str(file), env={"CDC_OUTBOX_ADMIN_DSN": ready.owner}).next
        assert "OWNER_DSN" not in at_hand

    def test_a_publication_that_is_missing_for_a_table_that_was_named(self, bare: Examined) -> None:
        """A slot that was made without its publication is no other tool's, and no event goes through it."""
        bare.make_role()
        bare.sql(SQL("select pg_create_logical_replication_slot({}, 'pgoutput')").format(Literal(bare.slot)))
        seen = bare.look("--table", "public.outbox")
        assert seen.code == 2
        assert "publication outbox_pub does not exist" in seen.headline

    def test_all_has_a_pending_slot_by_the_name_that_it_will_have(self, bare: Examined) -> None:
        """By its own name it would be called well, and a start from it be the next step, which is refused."""
        bare.make_role()
        pending = f"{bare.slot}_pending"
        bare.sql(SQL("select pg_create_logical_replication_slot({}, 'pgoutput')").format(Literal(pending)))
        done = run_command("health", "--all", env={"CDC_OUTBOX_DSN": bare.dsn, "CDC_OUTBOX_HTTP": "off"})
        assert done.returncode == 2
        assert done.stdout.startswith(f'{bare.slot}  CRITICAL  only "{pending}" exists')
        assert f"cdc-outbox backfill --slot {bare.slot}" in done.stdout
        named = bare.look(slot=pending)
        assert named.code == 2
        assert f'is how the slot "{bare.slot}" is called until it is ready' in named.headline

    def test_all_misses_one_that_was_dropped_by_another_hand(self, ready: Examined) -> None:
        """Beside another it was passed over, and all was well; alone it was nobody's."""
        ready.sql(
            SQL("select pg_create_logical_replication_slot({}, 'pgoutput')").format(
                Literal(f"{ready.slot}_b")
            ),
            SQL("select pg_drop_replication_slot({})").format(Literal(ready.slot)),
        )
        environment = {"CDC_OUTBOX_DSN": ready.dsn, "CDC_OUTBOX_HTTP": "off"}
        both = json.loads(run_command("health", "--all", "--json", env=environment).stdout)
        require_valid(both)
        assert [each["slot"]["name"] for each in both["slots"]] == [f"{ready.slot}_b", ready.slot]
        ready.sql(SQL("select pg_drop_replication_slot({})").format(Literal(f"{ready.slot}_b")))
        alone = run_command("health", "--all", env=environment)
        assert alone.returncode == 2
        assert alone.stdout.startswith(
            f"{ready.slot}  CRITICAL  the replication slot {ready.slot} is gone; events were delivered up to"
        )
        # A copy of the table in another cluster tells of no slot of that one.
        ready.sql(SQL("update cdc_outbox_witness set system_identifier = '1'"))
        assert run_command("health", "--all", env=environment).returncode == 3

    def test_all_of_none(self, bare: Examined) -> None:
        bare.make_role()
        done = run_command("health", "--all", env={"CDC_OUTBOX_DSN": bare.dsn})
        assert done.returncode == 3
        assert done.stderr.startswith("error: this database has no slot that a relay could read")


class TestWatch:
    @contextlib.contextmanager
    def watching(
        self, ready: Examined, *flags: str, every: bool = False, **options: Any
    ) -> Iterator[subprocess.Popen[bytes]]:
        which = ("--all",) if every else ("--slot", ready.slot)
        with subprocess.Popen(
            [sys.executable, "-m", "cdc_outbox", "health", "--watch", *which, *flags],
            env=clean_environment({"CDC_OUTBOX_DSN": ready.dsn, "CDC_OUTBOX_HTTP": "off", "TERM": "xterm"}),
            **options,
        ) as process:
            try:
                yield process
            finally:
                process.kill()

    def test_lines_where_there_is_no_terminal(self, ready: Examined) -> None:
        with self.watching(ready, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            assert process.stdout is not None
            lines = [process.stdout.readline().decode() for _ in range(3)]
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=30)
        assert (process.returncode, errors) == (0, b"")
        assert all(f"  {ready.slot}  OK  inactive for" in each for each in lines)
        assert len({each[:20] for each in lines}) == 3

    def test_a_document_a_line(self, ready: Examined) -> None:
        with self.watching(ready, "--json", stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            for _ in range(2):
                require_valid(json.loads(process.stdout.readline()))
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0

    def test_a_table_in_place_on_a_terminal(self, ready: Examined) -> None:
        ours, theirs = pty.openpty()
        shown = b""

        def read() -> bool:
            nonlocal shown
            try:
                part = os.read(ours, 65536)
            except OSError:
                part = b""
            shown += part
            return bool(part)

        with self.watching(ready, stdout=theirs, stderr=theirs) as process:
            os.close(theirs)
            eventually(lambda: read() and shown.count(b"\x1b[J") >= 2, 60, lambda: shown)
            process.send_signal(signal.SIGINT)
            assert process.wait(30) == 0
        while read():
            pass
        os.close(ours)
        assert b"Traceback" not in shown
        assert shown.startswith(b"\x1b[?25l\r\x1b[J")
        assert b"A\r\x1b[J" in shown
        assert shown.rstrip().endswith(b"\x1b[?25h")
        assert ready.slot.encode() in shown

    def test_a_witness_table_that_goes_meanwhile_is_missed_and_nothing_else(self, ready: Examined) -> None:
        def position(document: dict[str, Any]) -> str:
            return next(str(each["status"]) for each in document["checks"] if each["name"] == "position")

        with self.watching(ready, "--json", stdout=subprocess.PIPE) as process:
            said = process.stdout
            assert said is not None
            assert position(json.loads(said.readline())) == "ok"
            ready.sql(SQL("drop table cdc_outbox_witness"))
            document = eventually(
                lambda: (each := json.loads(said.readline())) and position(each) == "unknown" and each, 60
            )
            assert document
            assert document["status"] == "ok"
            process.send_signal(signal.SIGINT)
            assert process.wait(30) == 0

    def test_a_server_that_goes_and_comes_back(
        self, make_postgres: Callable[..., PostgresServer], slot: str
    ) -> None:
        server = make_postgres(18)
        database = "app"
        server.create_database(database)
        create_outbox(server.dsn(database))
        ready = Examined(server, database, slot).init()
        with self.watching(ready, "--json", stdout=subprocess.PIPE) as process:
            said = process.stdout
            assert said is not None

            def tells(status: str) -> bool:
                return bool(json.loads(said.readline())["status"] == status)

            eventually(lambda: tells("ok"), 60)
            server.stop()
            eventually(lambda: tells("critical"), 60)
            with self.watching(ready, "--json", every=True, stdout=subprocess.PIPE) as late:
                said_late = late.stdout
                assert said_late is not None
                assert json.loads(said_late.readline())["status"] == "critical"
                server.start()
                eventually(lambda: tells("ok"), 60)

                def names() -> list[str]:
                    return [each["slot"]["name"] for each in json.loads(said_late.readline())["slots"]]

                eventually(lambda: names() == [slot], 60, "all slots of a server that was away at first")
                server.value(
                    "select pg_create_logical_replication_slot('newcomer', 'pgoutput')::text", dbname=database
                )
                eventually(lambda: names() == [slot, "newcomer"], 60, "one that was made meanwhile")
                late.send_signal(signal.SIGINT)
                assert late.wait(30) == 0
            process.send_signal(signal.SIGINT)
            assert process.wait(30) == 0
