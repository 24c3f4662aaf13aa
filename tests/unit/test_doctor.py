"""What `doctor` makes of what it finds: its judgement of topics and servers, the exit code, the table."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Literal

import pytest

from cdc_outbox.doctor import relay, text
from cdc_outbox.doctor.check import MAY_PASS, SET_UP, Check, Findings, Status
from cdc_outbox.doctor.endurance import Endurance
from cdc_outbox.doctor.facts import Facts
from cdc_outbox.doctor.hosting import Signs, detect
from cdc_outbox.doctor.kafka import KafkaSide
from cdc_outbox.doctor.outbox import Outbox
from cdc_outbox.doctor.postgresql import PostgresSide
from cdc_outbox.doctor.report import Report
from cdc_outbox.errors import PostgresUnavailable, SlotMissing, UsageError
from cdc_outbox.event import Encoded
from cdc_outbox.kafka.inspection import Broker, Topic
from cdc_outbox.postgres import sqlstate
from cdc_outbox.postgres.slot import Slot
from cdc_outbox.settings.secret import Redactor
from tests.servers.cache import CHECKOUT
from tests.unit.kafka_settings import settings as kafka_settings


def findings(side: Literal["relay", "postgres", "kafka"] = "kafka") -> Findings:
    return Findings(side, Redactor(["s3cret-word"]).redact)


def only(found: Findings) -> Check:
    (check,) = found.checks
    return check


class TestCheck:
    def test_secrets_are_taken_out(self) -> None:
        found = findings()
        found.warn("x", "it is s3cret-word", "say s3cret-word")
        assert (only(found).message, only(found).remedy) == ("it is ***", "say ***")

    @pytest.mark.parametrize(
        ("error", "code"),
        [
            (PostgresUnavailable("away", next="wait"), MAY_PASS),
            (SlotMissing("gone", next="init"), SET_UP),
            (UsageError("malformed", next="mend"), SET_UP),
        ],
    )
    def test_an_error_s_exit_code(self, error: Any, code: int) -> None:
        found = findings()
        found.refuse("x", error)
        assert only(found).exit_code == code
        assert only(found).remedy == error.next

    def test_a_message_is_one_line(self) -> None:
        found = findings()
        found.ok("x", "two\n  lines")
        assert only(found).message == "two lines"

    def test_the_id_of_a_row_cant_move_the_cursor(self) -> None:
        found = findings()
        found.warn("rows", "the first (\x1b[2J42) because")
        assert only(found).message == "the first (\\x1b[2J42) because"


def report(*statuses: tuple[Status, int]) -> Report:
    return Report(
        tuple(Check(f"c{at}", "kafka", status, "m", "r", code) for at, (status, code) in enumerate(statuses)),
        {},
    )


class TestReport:
    @pytest.mark.parametrize(
        ("statuses", "status", "code"),
        [
            ([], "ok", 0),
            ([(Status.OK, 0)], "ok", 0),
            ([(Status.WARNING, 0), (Status.OK, 0)], "warning", 0),
            ([(Status.FAILED, MAY_PASS), (Status.WARNING, 0)], "failed", 1),
            ([(Status.FAILED, MAY_PASS), (Status.FAILED, SET_UP)], "failed", 78),
        ],
    )
    def test_the_worst_counts(self, statuses: list[tuple[Status, int]], status: str, code: int) -> None:
        made = report(*statuses)
        assert (made.status.value, made.exit_code) == (status, code)
        assert made.document()["status"] == status


LONG = "a message of many words that is far longer than a narrow terminal is wide, and goes on and on"


class TestText:
    made = Report(
        (
            Check("short", "relay", Status.OK, "fine"),
            Check("a_longer_name", "postgres", Status.WARNING, LONG, "first command;\nsecond command;"),
            Check("topics", "kafka", Status.FAILED, "there is none", "create " + "x" * 100, SET_UP),
        ),
        {"public.outbox": LONG},
    )

    def test_columns_are_aligned(self) -> None:
        shown = text.render(self.made, width=None, colour=False).splitlines()
        assert shown[:2] == ["relay", "  ok       short          fine"]
        assert "  warning  a_longer_name  a message" in shown[4]
        assert "  failed   topics         there is none" in shown

    def test_messages_are_wrapped_and_remedies_are_not(self) -> None:
        shown = text.render(self.made, width=70, colour=False).splitlines()
        assert "      create " + "x" * 100 in shown
        assert all(len(line) <= 70 for line in shown if "create" not in line)
        (first,) = (at for at, line in enumerate(shown) if line.startswith("  warning"))
        assert shown[first + 1].startswith(" " * 26)

    def test_what_a_row_holds_steers_no_terminal(self) -> None:
        check = Check("rows", "postgres", Status.WARNING, "the first", "see to a\x07\nthen go on")
        shown = text.render(Report((check,), {"a": "key from \x1b[31m"}), width=70, colour=False)
        assert "\x1b" not in shown
        assert r"      see to a\x07" + "\n      then go on" in shown
        assert r"  key from \x1b[31m" in shown

    def test_each_part_of_a_mapping_has_a_line(self) -> None:
        made = Report((), {"public.outbox": "id from id (recognised); key none; ignored: nothing"})
        shown = text.render(made, width=70, colour=False).splitlines()
        at = shown.index("public.outbox as messages")
        assert shown[at + 1 : at + 4] == ["  id from id (recognised)", "  key none", "  ignored: nothing"]

    def test_what_failed_comes_first_in_what_to_do(self) -> None:
        shown = text.render(self.made, width=None, colour=False)
        todo = shown.partition("what to do")[2]
        assert todo.index("Kafka topics: there is none") < todo.index("PostgreSQL a_longer_name")
        assert "      first command;\n      second command;\n" in todo

    def test_colour_changes_no_column(self) -> None:
        plain = text.render(self.made, width=70, colour=False)
        coloured = text.render(self.made, width=70, colour=True)
        assert "\x1b[31mfailed\x1b[0m" in coloured
        for code in ("\x1b[0m", "\x1b[1m", "\x1b[31m", "\x1b[32m", "\x1b[33m"):
            coloured = coloured.replace(code, "")
        assert coloured == plain

    def test_the_sum(self) -> None:
        assert (
            text.render(self.made, width=None, colour=False).splitlines()[-1] == "1 failed, 1 warning, 1 ok"
        )

    def test_nothing_to_do(self) -> None:
        made = Report((Check("short", "relay", Status.OK, "fine", "a suggestion"),), {})
        assert "what to do" not in text.render(made, width=None, colour=False)


def side(outbox: Outbox | None = None, options: Mapping[str, str] | None = None) -> KafkaSide:
    return KafkaSide(kafka_settings(**(options or {})), outbox or Outbox(), findings(), None)  # type: ignore[arg-type]


def topic(**more: Any) -> Topic:
    return Topic(**{"name": "t", "exists": True, "partitions": 3, "replicas": 3, "in_sync": 3, **more})


class TestTopics:
    @pytest.mark.parametrize(
        ("given", "status", "code", "words"),
        [
            (topic(min_in_sync=2), Status.OK, 0, "3 replicas, min.insync.replicas 2"),
            (topic(), Status.OK, 0, "isn't told to us"),
            (topic(replicas=1, in_sync=1, min_in_sync=1), Status.WARNING, 0, "one replica"),
            (topic(min_in_sync=1), Status.WARNING, 0, "min.insync.replicas is 1"),
            (topic(replicas=2, in_sync=2, min_in_sync=3), Status.FAILED, SET_UP, "nothing can be written"),
        ],
    )
    def test_replication(self, given: Topic, status: Status, code: int, words: str) -> None:
        made = side()
        made.topics().replication([given])
        check = only(made.findings)
        assert (check.status, check.exit_code) == (status, code)
        assert words in check.message
        assert check.remedy is None or check.remedy.split()[0].endswith(".sh")

    @pytest.mark.parametrize(
        ("given", "status", "words"),
        [
            (topic(min_in_sync=2), Status.OK, "all partitions"),
            (topic(min_in_sync=2, leaderless=(1,)), Status.FAILED, "without a leader: t"),
            (topic(min_in_sync=2, in_sync=1), Status.FAILED, "fewer replicas in sync"),
        ],
    )
    def test_leaders(self, given: Topic, status: Status, words: str) -> None:
        made = side()
        made.topics().leaders([given])
        check = only(made.findings)
        assert (check.status, check.exit_code) == (status, MAY_PASS if status is Status.FAILED else 0)
        assert words in check.message

    def test_many_are_named_in_short(self) -> None:
        made = side()
        made.topics().replication([topic(name=f"t{n}", min_in_sync=1) for n in range(9)])
        check = only(made.findings)
        assert "t0, t1, t2, t3, t4 and 4 more" in check.message
        assert len((check.remedy or "").splitlines()) == 9

    def test_sizes_count_for_the_topic_that_the_row_goes_to(self) -> None:
        large: Encoded = ("large", None, b"k", b"x" * 3000, 0, [])
        made = side(Outbox(messages=[large]))
        made.topics().message_size(
            [topic(name="small", max_bytes=2_000_000), topic(name="large", max_bytes=2500)]
        )
        check = only(made.findings)
        assert check.status is Status.FAILED
        assert "max.message.bytes of large is 2500" in check.message
        assert "--entity-name large --add-config max.message.bytes=1048576" in (check.remedy or "")

    @pytest.mark.parametrize(
        ("options", "status", "words"),
        [
            ({}, Status.OK, "PLAINTEXT"),
            ({"security__protocol": "SSL"}, Status.OK, "SSL"),
            ({"security__protocol": "SASL_SSL", "sasl__username": "u"}, Status.OK, "SASL_SSL PLAIN as u"),
            ({"security__protocol": "SASL_PLAINTEXT"}, Status.WARNING, "goes over the network as it is"),
            (
                {"security__protocol": "SSL", "ssl__endpoint__identification__algorithm": "none"},
                Status.WARNING,
                "aren't compared",
            ),
        ],
    )
    def test_security(self, options: dict[str, str], status: Status, words: str) -> None:
        made = side(options=options)
        made.security()
        check = only(made.findings)
        assert check.status is status
        assert words in check.message


class Scripted:
    """A cluster whose brokers can't all be reached."""

    def __init__(self, *problems: str | None, unreached: dict[str, str] | None = None) -> None:
        self._brokers = [Broker(f"b{at}:9092", problem) for at, problem in enumerate(problems)]
        self._unreached = unreached or {}

    async def unreached(self) -> dict[str, str]:
        return self._unreached

    async def brokers(self) -> list[Broker]:
        return self._brokers


@pytest.mark.parametrize(
    ("cluster", "status", "words"),
    [
        (Scripted(None, None), Status.OK, "2 brokers: b0:9092, b1:9092"),
        (Scripted(None), Status.OK, "1 broker: b0:9092"),
        (
            Scripted(None, "no answer"),
            Status.WARNING,
            "2 brokers known; what doesn't answer: b1:9092",
        ),
        (
            Scripted(None, unreached={"old:9092": "refused"}),
            Status.WARNING,
            "1 broker known; what doesn't answer: old:9092",
        ),
        (Scripted("no answer"), Status.FAILED, "can't be reached where it says they are"),
    ],
)
def test_brokers_where_they_say_they_are(cluster: Scripted, status: Status, words: str) -> None:
    made = KafkaSide(kafka_settings(), Outbox(), findings(), cluster)  # type: ignore[arg-type]  # what is asked of it
    asyncio.run(made.connection())
    check = only(made.findings)
    assert check.status is status
    assert words in check.message


def test_remedies_go_to_a_broker_that_answers() -> None:
    listed = replace(kafka_settings(), bootstrap_servers="old:9092, b1:9092")
    cluster = Scripted(None, unreached={"old:9092": "connection refused"})
    made = KafkaSide(listed, Outbox(), findings(), cluster)  # type: ignore[arg-type]  # what is asked of it
    asyncio.run(made.connection())
    assert made.topics().configure("t", "a", 1).startswith("kafka-configs.sh --bootstrap-server b1:9092 ")


@pytest.mark.parametrize(
    ("outbox", "words"),
    [(Outbox(), "without a mapping"), (Outbox(mapping={"t": "w"}), "names its own")],
    ids=["none", "of the table"],
)
def test_no_topic_is_known_without_a_mapping(outbox: Outbox, words: str) -> None:
    made = side(outbox)
    asyncio.run(made.topics().exist([]))
    assert words in only(made.findings).message


FACTS = Facts(
    role="relay",
    database="app",
    pid=7,
    at=1000.0,
    settings={},
    slots=0,
    walsenders=0,
    standbys=0,
    physical={},
    lazy=(),
    signs=Signs(),
)


def endurance(version: int = 180004, found: Slot | None = None, **facts: Any) -> Endurance:
    known = Facts(**{**{name: getattr(FACTS, name) for name in Facts.__slots__}, **facts})
    return Endurance(known, findings("postgres"), detect(known.signs), version, "outbox_slot", found)


def server(version: int = 180004, host: str = "db", pid: int = 7, **facts: Any) -> PostgresSide:
    """PostgreSQL's side with a connection of which only these are known."""
    conn = SimpleNamespace(
        info=SimpleNamespace(server_version=version, host=host, port=5432, backend_pid=pid)
    )
    known = Facts(**{**{name: getattr(FACTS, name) for name in Facts.__slots__}, **facts})
    settings = SimpleNamespace(
        postgres=SimpleNamespace(slot="outbox_slot"), outbox=SimpleNamespace(topic=None, tables=())
    )
    return PostgresSide(settings, findings("postgres"), conn, known)  # type: ignore[arg-type]  # as above


class TestServer:
    @pytest.mark.parametrize(
        ("host", "pid", "roles", "status"),
        [
            ("db", 7, "", Status.OK),
            ("db", 8, "", Status.WARNING),
            ("ep-x-pooler.eu.neon.tech", 8, "neon_superuser", Status.WARNING),
            ("ep-x.eu.neon.tech", 8, "neon_superuser", Status.OK),
        ],
    )
    def test_a_pooler(self, host: str, pid: int, roles: str, status: Status) -> None:
        made = server(host=host, pid=pid, signs=Signs(roles=frozenset(roles.split())))
        made.pooler()
        assert only(made.findings).status is status

    @pytest.mark.parametrize(
        ("version", "status"),
        [(140010, Status.WARNING), (150001, Status.OK), (180004, Status.OK), (190000, Status.WARNING)],
    )
    def test_versions(self, version: int, status: Status) -> None:
        made = server(version)
        made.connection()
        assert only(made.findings).status is status

    @pytest.mark.parametrize(
        ("began", "ended", "words"),
        [
            (999.5, 1000.5, "agree"),
            (995.0, 999.5, "agree"),
            (990.0, 995.0, "5.0 s ahead of ours"),
            (1003.0, 1004.0, "3.0 s behind ours"),
        ],
    )
    def test_clocks(self, began: float, ended: float, words: str) -> None:
        made = endurance()
        made.clock(began, ended)
        assert words in only(made.findings).message

    @pytest.mark.parametrize(
        ("names", "status", "words"),
        [
            ("", Status.WARNING, "synchronized_standby_slots is empty"),
            ('"here" , here', Status.OK, "behind here, here"),
            ("here, away, gone", Status.FAILED, "waits for away, gone,"),
        ],
    )
    def test_standbys_that_delivery_waits_for(self, names: str, status: Status, words: str) -> None:
        settings = {"synchronized_standby_slots": names}
        made = endurance(settings=settings, physical={"here": True, "away": False})
        made.synchronized()
        found = only(made.findings)
        assert found.status is status
        assert words in found.message

    @pytest.mark.parametrize(
        ("state", "words", "remedy"),
        [
            ("28000", "no pg_hba.conf entry for host", "hostssl app relay ADDRESS/32"),
            ("08P01", "unsupported startup parameter: replication", "not a pooler's"),
            ("42501", "permission denied to start WAL sender", "alter role relay replication;"),
            ("53300", "number of requested standby connections exceeds max_wal_senders", None),
        ],
    )
    def test_a_replication_connection_that_is_refused(
        self, state: str, words: str, remedy: str | None
    ) -> None:
        told = server().way_in(sqlstate.error(state, "connect", words, role="relay"))
        assert (told is None) if remedy is None else (remedy in (told or ""))

    def test_a_provider_s_own_ways(self) -> None:
        made = endurance(
            settings={"max_slot_wal_keep_size": "-1"}, signs=Signs(roles=frozenset({"neon_superuser"}))
        )
        made.retention()
        assert "Neon removes a slot" in only(made.findings).message
        made = endurance(physical={"s": True}, signs=Signs(functions=frozenset({"aurora_version"})))
        made.failover()
        assert only(made.findings).status is Status.OK

    def test_wal_level_is_changed_in_the_provider_s_own_way(self) -> None:
        made = server(settings={"wal_level": "replica"}, signs=Signs(roles=frozenset({"rds_superuser"})))
        made.wal_level()
        check = only(made.findings)
        assert check.exit_code == SET_UP
        assert "rds.logical_replication" in (check.remedy or "")


class TestRelay:
    @pytest.mark.parametrize(
        ("implementation", "status"),
        [("binary", Status.OK), ("c", Status.OK), ("python", Status.WARNING)],
    )
    def test_the_driver(self, implementation: str, status: Status, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("psycopg.pq.__impl__", implementation)
        found = findings("relay")
        relay.examine(SimpleNamespace(http=SimpleNamespace(listen=None)), found)  # type: ignore[arg-type]
        driver, port = found.checks
        assert driver.status is status
        assert implementation in driver.message
        assert "libpq" in driver.message
        assert port.message == "off: no probes"

    def test_a_port_that_is_taken_has_a_free_one_beside_it_that_probes_can_be_told(self) -> None:
        found = findings("relay")
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            http = SimpleNamespace(listen=("127.0.0.1", port), explicit=True, token_file=None)
            settings = SimpleNamespace(http=http, postgres=SimpleNamespace(slot="outbox_slot"))
            relay.examine(settings, found)  # type: ignore[arg-type]  # what is asked of it
        check = found.checks[1]
        assert check.status is Status.WARNING
        told = int((check.remedy or "").rpartition("--http 127.0.0.1:")[2])
        assert port < told < port + relay.NEAR

    def test_an_address_that_is_not_ours(self) -> None:
        found = findings("relay")
        http = SimpleNamespace(listen=("192.0.2.1", 9464), explicit=True)
        relay.examine(SimpleNamespace(http=http), found)  # type: ignore[arg-type]
        assert found.checks[1].status is Status.FAILED
        assert "192.0.2.1:9464" in found.checks[1].message


def test_the_reference_knows_every_check() -> None:
    sources = "\n".join(path.read_text() for path in (CHECKOUT / "cdc_outbox" / "doctor").glob("*.py"))
    made = {*re.findall(r"(?:findings\.\w+|self\.attempt)\(\s*\"(\w+)\"", sources), "record_size"}
    reference = (CHECKOUT / "docs" / "reference" / "doctor.md").read_text()
    told = re.findall(r"^\| `(\w+)` \|", reference, re.MULTILINE)
    assert {*told} == made
    assert len(told) == len({*told}) + 1  # both sides have a connection
