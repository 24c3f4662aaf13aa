"""A cut-over as a team does it: servers, their shop, their polling relay, and a shell with the documents' commands.

What is run is what stands in `docs/how-to/leave-a-polling-relay.md` and `docs/how-to/go-back-to-polling.md`, block by
block. The scene notes when each step was taken and how the table looked then, so that each event that came twice can
be laid to one of them.
"""

from __future__ import annotations

import secrets
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final, LiteralString

from tests.polling.books import Delivery, Entry, Verdict, judge
from tests.polling.process import PollingRelay
from tests.polling.shop import Shop
from tests.polling.table import Table
from tests.servers.cache import CHECKOUT
from tests.servers.kafka import Kafka
from tests.servers.ledger import Record, read_all
from tests.servers.postgres import PostgresServer
from tests.servers.process import directory, free_port
from tests.servers.relay import clean_environment
from tests.servers.shell import Running, Shell, blocks, path_of
from tests.servers.wait import PATIENCE, eventually

HOW_TO: Final = CHECKOUT / "docs" / "how-to"
LEAVE: Final = blocks((HOW_TO / "leave-a-polling-relay.md").read_text())
RETURN: Final = blocks((HOW_TO / "go-back-to-polling.md").read_text())

PARTITIONS: Final = 3
FAILED: Final = 5
FIRST: Final = "polling-1"
AGAIN: Final = "polling-2"
"""The names of the old relay, before the cut-over and after the way back."""


@dataclass(slots=True)
class Circumstances:
    """What happened, as far as it explains second deliveries. Times in s since the epoch."""

    slot_from: float = float("inf")
    """Before the slot was made: what is committed later, is in the stream."""
    open_at_stop: frozenset[str] = frozenset()
    """Events that the table showed as unsent when the old relay had ended."""
    backfills: int = 0
    open_at_return: frozenset[str] = frozenset()
    """Events that the table showed as unsent when our relay had ended, and the old one had not begun again."""

    def excuse(self, event_id: str, entry: Entry, first: Delivery, again: Delivery) -> str | None:
        """Why an event came again."""
        match first.sender, again.sender:
            case (x, "stream") if x in (FIRST, "backfill") and entry.committed_at >= self.slot_from:
                return (
                    f"committed after the slot was made, so in the stream too, and sent before by {_named(x)}"
                )
            case x, "backfill" if x == FIRST and event_id in self.open_at_stop:
                return "sent by the old relay, which was killed before it marked them, and by backfill"
            case "backfill", "backfill" if self.backfills > 1:
                return "sent by a backfill that was killed, and by the next one"
            case x, y if y == AGAIN and x != AGAIN and event_id in self.open_at_return:
                return f"sent by {_named(x)}, not marked when our relay ended, and by the old relay again"
        return None


def _named(sender: str) -> str:
    return {FIRST: "the old relay", "stream": "our relay"}.get(sender, sender)


@dataclass
class Step:
    """One step and how long it took."""

    name: str
    seconds: float


class Scene:
    """One cut-over on a table, on a server of its own; the broker may be shared."""

    def __init__(
        self,
        table: Table,
        kafka: Kafka,
        *,
        seed: int,
        rate: float = 60,
        slowness: float = 0.02,
        major: int = 18,
    ) -> None:
        self.table = table
        self.kafka = kafka
        self.circumstances = Circumstances()
        self.steps: list[Step] = []
        self.killed_at: list[str] = []
        """When each backfill was killed, in words."""
        self.undelivered: frozenset[str] = frozenset()
        self._slowness = slowness
        with ExitStack() as stack:
            self.server = PostgresServer(major).start()
            stack.callback(self.server.close)
            self.dsn = self.server.create_database("app")
            table.make(self.dsn)
            prefix = f"cut-over-{secrets.token_hex(4)}"
            self.topics = [f"{prefix}.orders", f"{prefix}.parcels"]
            for topic in self.topics:
                kafka.create_topic(topic, PARTITIONS)
            self.shop = Shop(table, self.dsn, self.topics, seed=seed, rate=rate).open()
            stack.callback(self.shop.close)
            self.old = self._polling(FIRST)
            stack.callback(self._end_old)
            self.ours: Running | None = None
            stack.callback(self._end_ours)
            self.shell = self._shell()
            self._closing = stack.pop_all()

    def _polling(self, name: str) -> PollingRelay:
        return PollingRelay(
            self.table, self.dsn, self.kafka.bootstrap, name=name, slowness=self._slowness, lease=600
        )

    def _shell(self) -> Shell:
        home = directory("team-")
        (home / "docs").symlink_to(CHECKOUT / "docs")
        self.password = secrets.token_hex(8)
        environment = {
            "PATH": path_of(Path(sys.prefix)),
            "OWNER_DSN": self.dsn,
            "RELAY_DSN": self.server.dsn("app", user="outbox_relay", password=self.password),
            "KAFKA": self.kafka.bootstrap,
            "OLD_RELAY": str(self.old.pid),
            "TABLE": self.table.letter,
            "TRIAL": "3s",
            "OUTBOX": "public.outbox",
            "UNSENT": self.table.unsent,
            "CDC_OUTBOX_HTTP": f"127.0.0.1:{free_port()}",
            "CDC_OUTBOX_LOG_FORMAT": "text",
        }
        return Shell(home, clean_environment(environment))

    def run(
        self, block: str, *, code: int | None = 0, page: Mapping[str, str] = LEAVE, typed: str = ""
    ) -> subprocess.CompletedProcess[str]:
        """Run one block of a document; the exit code has to be `code`, None for any. `typed`: at a terminal."""
        began = time.monotonic()
        try:
            return self.shell.run(page[block], code=code, typed=typed)
        except subprocess.TimeoutExpired:
            log = "" if self.ours is None else self.ours.log.read_text()
            raise AssertionError(f"{block} doesn't end; our relay said:\n{log}") from None
        finally:
            self.steps.append(Step(block, time.monotonic() - began))
            self.shop.check()

    def fail_some(self) -> None:
        """Let there be rows that the old relay failed to send; what it has given up, nobody is asked to send."""
        if self.table.letter == "c":
            return
        failed = self.shop.given_up("failed", FAILED)
        if self.table.letter == "b":
            self.undelivered = failed

    def launch(self, block: str, *, page: Mapping[str, str] = LEAVE) -> Running:
        """Run one block of a document of which the last command stays: our relay."""
        assert self.ours is None or not self.ours.process.running, "our relay runs already"
        self.ours = self.shell.launch(page[block])
        return self.ours

    def stop_ours(self) -> None:
        """SIGTERM to our relay, which has to end well."""
        assert self.ours is not None
        code = self.ours.terminate()
        assert code == 0, f"our relay ended with {code}:\n{self.ours.log.read_text()}"

    def kill_ours(self) -> None:
        """`kill -9` to our relay."""
        assert self.ours is not None
        self.ours.process.kill()

    def poll_on(self) -> None:
        """Start the old relay again, as if it had never been stopped."""
        self.old = self._polling(FIRST)
        self.shell.export(OLD_RELAY=str(self.old.pid))

    def poll_again(self) -> None:
        """Start the old relay again."""
        self.circumstances.open_at_return = self.unsent()
        self.old = self._polling(AGAIN)

    def slots(self) -> set[str]:
        """The slots that there are."""
        return {str(name) for (name,) in self.server.execute("select slot_name from pg_replication_slots")}

    def wait_proven(self) -> None:
        """Wait until our relay has proof of rows that it has delivered, without which an audit is patient."""
        query: LiteralString = "select bool_and(snapshot is not null) from cdc_outbox_witness"
        eventually(lambda: self.server.value(query, dbname="app"), PATIENCE, "a proof of delivery")

    def wait_streamed(self) -> None:
        """Wait until our relay has confirmed all that is committed now."""
        end = self.server.value("select pg_current_wal_insert_lsn()::text")
        # What follows the last event is confirmed only when there is enough of it.
        self.server.value(
            "select pg_logical_emit_message(false, 'noise', repeat('x', 70000))::text", dbname="app"
        )
        assert self.ours is not None
        self.ours.wait(
            lambda: self.server.value(
                "select bool_or(confirmed_flush_lsn >= %s) from pg_replication_slots"
                " where slot_name = 'outbox_slot'",
                (end,),
            )
        )

    def unsent(self) -> frozenset[str]:
        """Events that the table shows as unsent now."""
        return self.table.events(self.dsn, self.table.unsent)

    def wait_sent(self, timeout: float = 60) -> None:
        """Wait until the table shows every event as sent. The shop has to be closed."""
        eventually(lambda: not self.unsent(), timeout, lambda: f"all sent; unsent are {len(self.unsent())}")

    def records(self) -> list[Record]:
        """All that the topics hold now."""
        return read_all(self.kafka.bootstrap, *self.topics)

    def verdict(self) -> Verdict:
        """What became of every event; the shop has to be closed, and everything delivered."""
        return judge(
            self.shop.books,
            self.records(),
            ids=dict(self.table.rows(self.dsn)),
            excuse=self.circumstances.excuse,
            undelivered=self.undelivered,
        )

    def _end_old(self) -> None:
        self.old.close()

    def _end_ours(self) -> None:
        if self.ours is not None and self.ours.process.running:
            self.ours.process.kill()

    def close(self) -> None:
        """End everything, and remove the topics."""
        self._closing.close()
        for topic in self.topics:
            self.kafka.delete_topic(topic)

    def __enter__(self) -> Scene:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
