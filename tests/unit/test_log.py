"""What a log line looks like, and what never stands in one."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import warnings
from collections.abc import Iterator
from enum import Enum
from pathlib import Path

import pytest

from cdc_outbox import log
from cdc_outbox.lsn import LSN

SECRET = "s3cr3t-Passw0rd"


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    """Leave Python's logging as it was."""
    root, ours = logging.getLogger(), logging.getLogger(log.OURS)
    before = root.handlers[:], root.level, ours.level
    yield
    root.handlers[:], level, own = before
    root.setLevel(level)
    ours.setLevel(own)
    logging.captureWarnings(False)


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, object]]:
    return [json.loads(line) for line in capsys.readouterr().err.splitlines()]


class State(Enum):
    STREAMING = "streaming"


def test_json_line(capsys: pytest.CaptureFixture[str]) -> None:
    log.set_up("info", "json")
    log.get("cdc_outbox.relay").info(
        "streaming",
        slot="outbox_slot",
        lsn=LSN(0x16_0000_0001),
        events=3,
        ratio=0.5,
        ok=True,
        none=None,
        at=Path("/x"),
    )
    (line,) = lines(capsys)
    ts = line.pop("ts")
    assert isinstance(ts, str)
    assert ts.endswith("Z")
    assert list(line.items()) == [
        ("level", "info"),
        ("event", "streaming"),
        ("slot", "outbox_slot"),
        ("lsn", "16/1"),
        ("events", 3),
        ("ratio", 0.5),
        ("ok", True),
        ("none", None),
        ("at", "/x"),
    ]


def test_nested_and_odd_values(capsys: pytest.CaptureFixture[str]) -> None:
    log.set_up("info", "json")
    log.get("cdc_outbox.relay").info(
        "detected",
        mapping={"key": ("aggregate_id", "recognised")},
        state=State.STREAMING,
        huge=2**70,
        lone="\udcff",
        event="field",
        ts=1,
    )
    (line,) = lines(capsys)
    assert line["mapping"] == {"key": ["aggregate_id", "recognised"]}
    assert line["huge"] == 2**70
    assert line["lone"] == "\udcff"
    assert (line["event"], line["event_"], line["ts_"]) == ("detected", "field", 1)


def test_text_line(capsys: pytest.CaptureFixture[str]) -> None:
    log.set_up("info", "text")
    log.get("cdc_outbox.relay").warning("held", slot="s", reason='no "right" here', lsn=LSN(1), empty="")
    (line,) = capsys.readouterr().err.splitlines()
    assert line.partition(" ")[2] == 'warning held  slot=s reason="no \\"right\\" here" lsn=0/1 empty=""'


def test_a_list_in_a_text_line_is_not_quoted_twice(capsys: pytest.CaptureFixture[str]) -> None:
    log.set_up("info", "text")
    log.get("cdc_outbox.relay").info("streaming", tables=["a.b"])
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith('streaming  tables=["a.b"]')


def test_a_mapping_stands_under_its_line_part_by_part(capsys: pytest.CaptureFixture[str]) -> None:
    log.set_up("info", "text")
    mapping = {"a.b": "id from id (recognised); ignored: x", 'a."\n"': "\x1b[31m"}
    log.get("cdc_outbox.relay").info("streaming", mapping=mapping, slot="s")
    first, *below = capsys.readouterr().err.splitlines()
    assert first.endswith("streaming  slot=s")
    assert below == [
        "    mapping a.b",
        "      id from id (recognised)",
        "      ignored: x",
        '    mapping "a.\\"\\n\\""',
        '      "\\u001b[31m"',
    ]


def test_a_line_stays_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    for chosen in ("text", "json"):
        log.set_up("info", chosen)
        log.get("cdc_outbox.relay").error("stopped", error="one\ntwo\r\x1b[31m")
    assert len(capsys.readouterr().err.splitlines()) == 2


def test_an_error_and_its_step_are_two_lines_whatever_they_hold(capsys: pytest.CaptureFixture[str]) -> None:
    log.set_up("info", "text")
    log.get("cdc_outbox.relay").warning("waiting", error="one\ntwo\x1b[31m", next="see\x07 it")
    assert capsys.readouterr().err == "error: one two\\x1b[31m\nnext: see\\x07 it\n"


def test_colour_only_on_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    log.set_up("info", "text")
    own = log.get("cdc_outbox.relay")
    own.error("plain")
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    own.error("coloured")
    monkeypatch.setenv("TERM", "dumb")
    own.error("can't")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    own.error("asked not to")
    plain, coloured, dumb, asked = capsys.readouterr().err.splitlines()
    assert "\x1b[31m" in coloured
    assert "\x1b" not in plain + dumb + asked


def test_the_format_follows_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert log.stderr_format() == "json"
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    assert log.stderr_format() == "text"
    assert not capsys.readouterr().err


def test_levels(capsys: pytest.CaptureFixture[str]) -> None:
    log.set_up("warning", "json")
    own = log.get("cdc_outbox.relay")
    own.debug("a")
    own.info("b")
    own.warning("c")
    own.error("d")
    assert [line["event"] for line in lines(capsys)] == ["c", "d"]
    log.set_up("debug", "json")
    own.debug("e")
    assert [line["event"] for line in lines(capsys)] == ["e"]


def test_off_costs_no_record(monkeypatch: pytest.MonkeyPatch) -> None:
    log.set_up("info", "json")
    made: list[object] = []
    monkeypatch.setattr(logging.Logger, "makeRecord", lambda *args, **_: made.append(args))
    log.get("cdc_outbox.relay").debug("received", lsn=LSN(1))
    assert not made


def test_setting_up_again_replaces(capsys: pytest.CaptureFixture[str]) -> None:
    log.set_up("info", "text")
    log.set_up("info", "json")
    log.get("cdc_outbox.relay").info("once")
    assert len(lines(capsys)) == 1


@pytest.mark.parametrize("chosen", ["text", "json"])
def test_secrets_are_taken_out_everywhere(capsys: pytest.CaptureFixture[str], chosen: log.Format) -> None:
    log.set_up("debug", chosen, lambda text: text.replace(SECRET, "***"))
    own = log.get("cdc_outbox.relay")
    own.info("connecting", dsn=f"password={SECRET}", nested=[{SECRET: (SECRET,)}], error=ValueError(SECRET))
    logging.getLogger("aiokafka.conn").warning("can't log in with %s", SECRET)
    try:
        raise ValueError(SECRET)
    except ValueError:
        logging.getLogger("asyncio").exception("Task exception was never retrieved")
    said = capsys.readouterr().err
    assert SECRET not in said
    assert said.count("***") == 6


class TestLibraries:
    def test_come_the_same_way(self, capsys: pytest.CaptureFixture[str]) -> None:
        log.set_up("debug", "json")
        logging.getLogger("psycopg.pool").info("too quiet")
        logging.getLogger("psycopg.pool").warning("server %s is away", "s1")
        (line,) = lines(capsys)
        del line["ts"]
        assert line == {
            "level": "warning",
            "event": "library message",
            "logger": "psycopg.pool",
            "message": "server s1 is away",
        }

    def test_once_a_minute_per_template(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        clock = [1000.0]
        monkeypatch.setattr(log, "monotonic", lambda: clock[0])
        log.set_up("info", "json")
        theirs, own = logging.getLogger("psycopg.pool"), log.get("cdc_outbox.relay")
        for attempt in range(5):
            theirs.warning("attempt %d failed", attempt)
        theirs.warning("another")
        own.warning("ours")
        own.warning("ours")
        assert len(lines(capsys)) == 4
        clock[0] += 59
        theirs.warning("attempt %d failed", 6)
        assert not lines(capsys)
        clock[0] += 2
        theirs.warning("attempt %d failed", 7)
        (line,) = lines(capsys)
        assert (line["message"], line["held_back"]) == ("attempt 7 failed", 5)

    @pytest.mark.parametrize(
        "name", ["aiokafka", "aiokafka.conn", "opentelemetry.exporter.otlp.proto.http.metric_exporter"]
    )
    def test_what_the_kafka_client_meets_is_told_in_lines_of_ours(
        self, capsys: pytest.CaptureFixture[str], name: str
    ) -> None:
        theirs = logging.getLogger(name)
        for level, shown in (("info", []), ("debug", [("debug", "no broker"), ("debug", "try again")])):
            log.set_up(level, "json")
            theirs.error("no broker")
            theirs.warning("try again")
            assert [(line["level"], line["message"]) for line in lines(capsys)] == shown
        log.set_up("info", "json")
        try:
            raise RuntimeError("inside")
        except RuntimeError:
            theirs.exception("unexpected")
        (line,) = lines(capsys)
        assert (line["level"], line["message"]) == ("warning", "unexpected")

    def test_memory_is_bounded(self, capsys: pytest.CaptureFixture[str]) -> None:
        log.set_up("info", "json")
        theirs = logging.getLogger("psycopg")
        for number in range(1000):
            theirs.warning(f"template {number}")
        (handler,) = [one for one in logging.getLogger().handlers if type(one).__name__ == "_Stderr"]
        *_, limit = handler.filters
        assert len(limit._seen) <= 256  # type: ignore[union-attr]  # our own filter
        assert len(lines(capsys)) == 1000

    @pytest.mark.parametrize(("level", "frames"), [("info", False), ("debug", True)])
    def test_traceback_only_in_debug(
        self, capsys: pytest.CaptureFixture[str], level: str, frames: bool
    ) -> None:
        log.set_up(level, "json")
        try:
            raise RuntimeError("inside")
        except RuntimeError:
            logging.getLogger("asyncio").exception("a task failed")
        (line,) = lines(capsys)
        assert "RuntimeError: inside" in str(line["exception"])
        assert ("Traceback" in str(line["exception"])) is frames

    def test_warnings_of_python(self, capsys: pytest.CaptureFixture[str]) -> None:
        log.set_up("info", "json")
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            logging.captureWarnings(False)
            logging.captureWarnings(True)
            warnings.warn("deprecated thing", DeprecationWarning, stacklevel=1)
        (line,) = lines(capsys)
        assert line["logger"] == "py.warnings"
        assert "deprecated thing" in str(line["message"])


def test_a_message_of_a_library_whose_values_dont_fit(capsys: pytest.CaptureFixture[str]) -> None:
    """The call of it goes on, as with the handlers of Python's own."""
    log.set_up(format="json")
    root = logging.getLogger()
    root.handlers[:] = [each for each in root.handlers if isinstance(each, log._Stderr)]
    logging.getLogger("somebody").error("%d of %d", *["one"])
    assert [line["message"] for line in lines(capsys)] == ["%d of %d"]


def test_nobody_reads_stderr(monkeypatch: pytest.MonkeyPatch) -> None:
    class Closed:
        def write(self, _text: str) -> None:
            raise BrokenPipeError

        def isatty(self) -> bool:
            return False

    log.set_up("info", "json")
    monkeypatch.setattr("sys.stderr", Closed())
    log.get("cdc_outbox.relay").info("streaming")


def test_what_python_would_print_by_itself() -> None:
    """An exception in a finaliser, one in a thread: lines like the others."""
    code = """
import threading
from cdc_outbox import log
log.set_up("info", "json")
class Finaliser:
    def __del__(self):
        raise RuntimeError("in a finaliser")
Finaliser()
thread = threading.Thread(target=lambda: 1 / 0)
thread.start()
thread.join()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    finaliser, thread = (json.loads(line) for line in done.stderr.splitlines())
    assert (finaliser["logger"], finaliser["level"]) == ("python", "warning")
    assert "in a finaliser" in finaliser["exception"]
    assert thread["exception"] == "ZeroDivisionError: division by zero"
