"""A password that a function of the user's knows: what it is told, what its answer may be, and what is said of it."""

from __future__ import annotations

import asyncio
import subprocess
import threading
from pathlib import Path

import pytest

from cdc_outbox import hook
from cdc_outbox.errors import CdcOutboxError, ConfigError, PostgresUnavailable, Unavailable
from cdc_outbox.postgres import password

SECRET = "planted-secret"  # nothing that is printed may hold it
FREE = threading.Event()


def told(*, host: str, port: str, user: str) -> str:
    return f"{user} at {host}:{port}"


async def waiting(**said: str) -> str:
    return told(**said)


def of_a_file(**_: str) -> str:
    return f"{SECRET}\r\n"


def broken(**_: str) -> str:
    raise LookupError(SECRET)


def slow_server(**_: str) -> str:
    raise TimeoutError(SECRET)


def ours(**_: str) -> str:
    raise Unavailable("the safe is shut", next="open it")


def misused(**_: str) -> str:
    raise ConfigError("the safe isn't named", next="name it")


def nothing(**_: str) -> None: ...


def empty(**_: str) -> str:
    return "\n"


def odd(**_: str) -> str:
    return f"{SECRET}\0"


def of_another_encoding(**_: str) -> str:
    return f"{SECRET}é".encode("latin-1").decode(errors="surrogateescape")


def hangs(**_: str) -> str:
    FREE.wait(60)
    return SECRET


async def hangs_too(**_: str) -> str:
    await asyncio.sleep(60)
    return SECRET


def takes_nothing() -> str:
    return SECRET


def ask(name: str, *, within: float = 10.0, **parameters: str) -> str:
    return asyncio.run(password.ask(f"{__name__}:{name}", parameters, within=within))


def refused(name: str, *, within: float = 10.0) -> CdcOutboxError:
    with pytest.raises(CdcOutboxError) as raised:
        ask(name, within=within, host="db", user="relay")
    assert SECRET not in f"{raised.value} {raised.value.next}"
    return raised.value


@pytest.mark.parametrize("name", ["told", "waiting"])
def test_it_is_told_where_the_connection_goes(name: str) -> None:
    assert ask(name, host="db", port="6543", user="relay", dbname="app") == "relay at db:6543"


def test_what_the_dsn_leaves_out_is_libpqs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGHOST", "elsewhere")
    monkeypatch.setenv("PGUSER", "relay")
    monkeypatch.delenv("PGPORT", raising=False)
    assert ask("told") == "relay at elsewhere:5432"


def test_the_end_of_a_line_is_no_part_of_a_password() -> None:
    assert ask("of_a_file") == SECRET


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("broken", "failed with LookupError"),
        ("slow_server", "failed with TimeoutError"),
        ("nothing", "answers no text"),
        ("empty", "answers an empty one"),
        ("odd", "answers a NUL"),
        ("of_another_encoding", "answers what is no text in UTF-8"),
    ],
)
def test_one_that_fails_is_tried_again_and_can_be_called_by_hand(name: str, words: str) -> None:
    error = refused(name)
    assert isinstance(error, PostgresUnavailable)
    assert words in str(error)
    command = error.next.partition("by hand: ")[2]
    done = subprocess.run(
        command, shell=True, capture_output=True, text=True, cwd=Path(__file__).parents[2], check=False
    )
    assert "SyntaxError" not in done.stderr
    assert ("LookupError" in done.stderr) == (name == "broken")


def test_those_that_hang_are_not_added_to_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hook, "_room", threading.BoundedSemaphore(2))
    FREE.clear()
    try:
        for _ in range(2):
            assert "did not answer" in str(refused("hangs", within=0.05))
        assert str(refused("hangs", within=10)).endswith("calls of it hang")
    finally:
        FREE.set()
    for thread in threading.enumerate():
        if thread.name == "hook":
            thread.join(10)
    assert ask("hangs") == SECRET


@pytest.mark.parametrize("name", ["hangs", "hangs_too"])
def test_one_that_hangs_is_given_up(name: str) -> None:
    FREE.clear()
    try:
        error = refused(name, within=0.05)
        assert isinstance(error, PostgresUnavailable)
        assert "did not answer within 0.05 s" in str(error)
    finally:
        FREE.set()
    for thread in threading.enumerate():
        if thread.name == "hook":
            thread.join(10)


def test_the_words_of_our_own_errors_are_said() -> None:
    error = refused("ours")
    assert isinstance(error, PostgresUnavailable)
    assert str(error).endswith("the safe is shut")
    assert error.next == "open it"


def test_what_no_other_try_mends_is_no_outage() -> None:
    assert isinstance(refused("misused"), ConfigError)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("absent", "can't be imported"),
        ("SECRET", "can't be called"),
        ("takes_nothing", "can't be called so: got an unexpected keyword argument 'host'"),
    ],
)
def test_one_that_cant_be_called_is_a_wrong_setting(name: str, words: str) -> None:
    error = refused(name)
    assert isinstance(error, ConfigError)
    assert f"{password.SETTING} is " in str(error)
    assert words in str(error)
    assert "takes host, port and user by name" in error.next
