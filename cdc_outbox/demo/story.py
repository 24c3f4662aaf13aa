"""The story: a shop's orders go two ways to Kafka, through a rollback, an outage and two kills."""

from __future__ import annotations

import json
import shlex
import time
from contextlib import ExitStack
from typing import Any, Final

from cdc_outbox.demo import relay as relays
from cdc_outbox.demo import shop as shops
from cdc_outbox.demo.account import Account, Chapter, arrived, draw_up
from cdc_outbox.demo.broker import Broker
from cdc_outbox.demo.postgres import EmbeddedPostgres, place
from cdc_outbox.demo.relay import RelayProcess
from cdc_outbox.demo.stage import Stage
from cdc_outbox.demo.subscriber import Subscriber
from cdc_outbox.demo.teller import Teller
from cdc_outbox.errors import CdcOutboxError

ORDERS: Final = 20

OUTAGE: Final = 2.0
"""Seconds for which the broker stays away, once the naive publish has given up."""


def tell(teller: Teller) -> Account:
    """Tell it from beginning to end, and answer the account.

    Raises CdcOutboxError when a server fails to start, or when the relay doesn't keep its word.
    """
    with Stage(place()) as stage, ExitStack() as ending:
        return _Story(teller, stage, ending).tell()


class _Story:
    def __init__(self, teller: Teller, stage: Stage, ending: ExitStack) -> None:
        self._teller = teller
        self._stage = stage
        self._ending = ending
        self._chapters: list[Chapter] = []

    def tell(self) -> Account:
        self._teller.open(
            "A shop's orders go two ways to Kafka: by an outbox and cdc-outbox, and the naive way, published by "
            "the shop after its commit. It takes about 10 seconds and leaves nothing behind. Ctrl-C ends it."
        )
        self._set_up()
        self._commit()
        self._roll_back()
        self._lose_the_broker()
        self._kill()
        return self._draw_up()

    def _set_up(self) -> None:
        say = self._teller.say
        self._teller.heading("Servers start")
        self._postgres = EmbeddedPostgres(self._stage)
        self._ending.callback(self._postgres.close)
        self._postgres.execute(shops.TABLE)
        say(f"PostgreSQL {self._postgres.version}, a real one, in {self._stage.home}, until the demo ends.")
        self._broker = Broker(self._stage, shops.RELAYED, shops.NAIVE)
        say(
            f"A broker on {self._broker.address}. It is a stand-in that speaks Kafka's protocol and keeps its "
            "records in memory: librdkafka's mock cluster."
        )
        self._relay = RelayProcess(self._stage, self._postgres.dsn, self._broker.address)
        self._run(relays.FIRST)
        say("The relay has made outbox table, publication and slot, and streams.")
        self._shop = self._stage.python(
            "the shop", "-m", "cdc_outbox.demo.shop", self._postgres.dsn, self._broker.address
        )
        self._shop.hear_json("open", what="open")
        self._subscriber = Subscriber(self._broker.address, shops.RELAYED, shops.NAIVE)
        self._ending.callback(self._subscriber.close)

    def _commit(self) -> None:
        say = self._teller.say
        self._teller.heading("Orders commit")
        say(
            f"The shop takes {ORDERS} orders. Each is a row in its table and a row in the outbox, in one "
            "transaction. After the commit it also publishes the event itself, the naive way."
        )
        chapter = self._orders("all is well")
        self._wait_for(chapter)
        say(f"By the outbox {self._relayed(chapter)} arrived, the naive way {self._naively(chapter)}.")

    def _roll_back(self) -> None:
        self._teller.heading("Orders roll back")
        self._teller.say(
            f"Of {ORDERS} more orders every other payment is refused, after the rows were written: rollback."
        )
        chapter = self._orders("rollback", refuse_every=2)
        self._wait_for(chapter)
        ghosts = arrived(chapter.rolled_back, self._subscriber.arrivals[shops.RELAYED])
        self._teller.say(
            f"Of the {len(chapter.committed)} that committed {self._relayed(chapter)} arrived, "
            f"of the {len(chapter.rolled_back)} that rolled back {ghosts}."
        )

    def _lose_the_broker(self) -> None:
        say = self._teller.say
        self._teller.heading("The broker goes down")
        self._broker.stop()
        say(f"It refuses connections. The shop goes on, and commits {ORDERS} orders.")
        chapter = self._orders("broker down")
        say(
            f"The naive publish gives up after {shops.GIVES_UP_AFTER:.0f} s. Yours may try for longer; but then "
            "outages may last longer, and a retry in memory ends with its process."
        )
        self._subscriber.read_for(OUTAGE)
        say(f"The relay waits: the events are in PostgreSQL's log. {self._relayed(chapter)} arrived so far.")
        self._broker.start()
        back = time.monotonic()
        self._wait_for(chapter)
        seconds = time.monotonic() - back
        self._subscriber.read_all()
        say(
            f"The broker is back. {seconds:.1f} s later {self._relayed(chapter)} have arrived by the outbox, "
            f"and {self._naively(chapter)} the naive way."
        )

    def _kill(self) -> None:
        say = self._teller.say
        self._teller.heading("Shop and relay are killed")
        self._wait_confirmed(self._chapters[-1])
        self._relay.hold_confirmation()
        say(
            "The relay's crash window lies between the broker's confirmation and its own to PostgreSQL. It is "
            "two seconds at most; here it is held open, so that the kill hits it."
        )
        chapter = Chapter("kill -9")
        self._chapters.append(chapter)
        self._tell_shop(orders=ORDERS, stop_before_last_publish=True)
        self._listen(chapter, "about_to_publish")
        self._stage.kill(self._shop)
        say(
            f"The shop commits {ORDERS} orders, and is killed (kill -9) after the last commit, before it "
            "publishes that one."
        )
        self._wait_for(chapter)
        self._relay.kill()
        say(f"By the outbox {self._relayed(chapter)} have arrived. The relay is killed too: kill -9.")
        self._run(relays.AGAIN)
        self._wait_confirmed(chapter)
        self._subscriber.read_all()
        line = self._account().lines[-1]
        say(
            f"It has sent {line.relayed.again} events again, each with the id that it had. A consumer that "
            f"remembers ids sees each once. Of the naive publishes {line.naive.arrived} arrived."
        )

    def _draw_up(self) -> Account:
        account = self._account()
        self._teller.heading("What became of the orders")
        self._teller.table(account)
        total = account.total
        if not account.kept:
            raise CdcOutboxError(
                f"the relay lost {total.relayed.lost} events, sent {total.relayed.ghosts} that rolled back and "
                f"{account.strangers} of an unknown id, and {'kept' if account.in_order else 'lost'} the order",
                next="please report this with the table above",
            )
        self._teller.say(
            f"The relay lost none of {total.committed} events and kept each customer's in order; "
            f"{total.relayed.again} came twice, with the same id. Publishing after the commit lost "
            f"{total.naive.lost}, and nothing knows which."
        )
        return account

    def _run(self, command: tuple[str, ...]) -> None:
        self._teller.command(shlex.join(["cdc-outbox", *command]))
        self._relay.start(command)

    def _orders(self, name: str, *, refuse_every: int = 0) -> Chapter:
        chapter = Chapter(name)
        self._chapters.append(chapter)
        self._tell_shop(orders=ORDERS, refuse_every=refuse_every)
        self._listen(chapter, "confirmed")
        return chapter

    def _tell_shop(self, **command: Any) -> None:
        self._shop.tell(json.dumps(command))

    def _listen(self, chapter: Chapter, last: str) -> None:
        """Note what the shop says, up to its last word."""
        while True:
            said = self._shop.hear_json("committed", "rolled_back", last, what="done with its orders")
            if "committed" in said:
                chapter.committed.append(said["committed"])
                chapter.lsn = said["lsn"]
            elif "rolled_back" in said:
                chapter.rolled_back.append(said["rolled_back"])
            else:
                return

    def _wait_for(self, chapter: Chapter) -> None:
        self._subscriber.read_until(
            lambda: self._relayed(chapter) == len(chapter.committed),
            f"the arrival of all orders of chapter {chapter.name!r}",
        )
        self._subscriber.read_all()

    def _wait_confirmed(self, chapter: Chapter) -> None:
        """Until PostgreSQL knows that everything up to there has been delivered."""
        self._subscriber.read_until(
            lambda: self._postgres.confirms(relays.SLOT, chapter.lsn),
            "the relay's confirmation to PostgreSQL",
        )

    def _relayed(self, chapter: Chapter) -> int:
        return arrived(chapter.committed, self._subscriber.arrivals[shops.RELAYED])

    def _naively(self, chapter: Chapter) -> int:
        return arrived(chapter.committed, self._subscriber.arrivals[shops.NAIVE])

    def _account(self) -> Account:
        arrivals = self._subscriber.arrivals
        return draw_up(self._chapters, arrivals[shops.RELAYED], arrivals[shops.NAIVE])
