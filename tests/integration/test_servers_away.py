"""Servers that are away: a relay says so once and goes on trying, a command that is run once ends."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from tests.integration.started import SECRET, Start, ready, start
from tests.servers.postgres import PASSWORD
from tests.servers.process import free_port
from tests.servers.relay import RelayProcess, run_command
from tests.servers.wait import eventually

__all__ = ["ready", "start"]


class Deaf:
    """Takes connections, closes them, and counts them."""

    def __init__(self) -> None:
        self.connections = 0
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        self._thread = threading.Thread(target=self._take, daemon=True)
        self._thread.start()

    def _take(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._server.accept()
                connection.close()
                self.connections += 1

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self._thread.join(10)


@pytest.fixture
def deaf() -> Iterator[Deaf]:
    server = Deaf()
    yield server
    server.close()


@pytest.mark.patient
@pytest.mark.parametrize("which", ["postgres", "kafka"])
def test_an_outage_is_said_in_two_lines_once(
    which: str, ready: Start, deaf: Deaf, make_relay: Callable[..., RelayProcess]
) -> None:
    away = f"127.0.0.1:{deaf.port}"
    relay = make_relay(
        f"postgresql://app:{SECRET}@{away}/app" if which == "postgres" else ready.database.dsn,
        away if which == "kafka" else ready.bootstrap,
        slot=ready.slot,
        flags=["--log-format", "text"],
    )
    eventually(lambda: deaf.connections > 8, 60, lambda: f"a few tries\n{relay.text()}")
    code, _ = relay.terminate()
    assert code == 0
    errors = [line for line in relay.stray if line.startswith("error: ")]
    remedies = [line for line in relay.stray if line.startswith("next: ")]
    assert len(errors) == len(remedies) == 1, relay.text()
    assert away in errors[0]
    assert remedies[0].endswith("; the relay goes on trying")
    text = "\n".join(relay.stray)
    assert SECRET not in text
    assert PASSWORD not in text
    assert "Traceback" not in text


def test_one_off_commands_do_not_wait(start: Start) -> None:
    dsn = f"postgresql://app:{SECRET}@127.0.0.1:{free_port()}/app"
    for command in (["init"], ["peek"], ["peek", "--follow"], ["drop", "--yes"]):
        done = run_command(*command, env=start.environment({"CDC_OUTBOX_DSN": dsn}))
        assert done.returncode == 1, done.stderr
        *_, error, remedy = done.stderr.splitlines()
        assert error.startswith("error: ")
        assert remedy.startswith("next: ")
        assert "relay" not in remedy, "which isn't what was run"
        assert SECRET not in done.stderr
