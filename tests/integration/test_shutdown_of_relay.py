"""A relay that is told to end finishes what it began, confirms it, and stays within its limit.

SIGTERM reads on to the commit of the transaction under way, waits for Kafka, confirms, and exits 0: the next start
sends nothing twice. Where Kafka hangs, the drain limit bounds the wait (exit 1); a second signal ends it at once.
"""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, LiteralString

import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.sql import SQL

from cdc_outbox.faults import HOLD_CONFIRMATION
from tests.integration.conftest import Database
from tests.servers.kafka import Kafka, KafkaBroker
from tests.servers.ledger import Writer, create_outbox, verify
from tests.servers.pipeline import Pipeline
from tests.servers.postgres import PostgresServer
from tests.servers.proxy import Proxy
from tests.servers.wait import PATIENCE, eventually

PROVEN: Final[LiteralString] = """
select pg_snapshot_xmax(w.snapshot)::text::int8 > (select max(o.xmin::text::int8) from outbox o)
  from cdc_outbox_witness w where w.slot = %s
"""
"""Whether the snapshot of the witness row is from after the last row: what it can't prove, others keep it from."""


def test_a_stop_after_a_burst_sends_nothing_twice(
    outbox: Database, kafka: Kafka, make_pipeline: Callable[..., Pipeline]
) -> None:
    """F8: stopped again and again in the middle of a flood, and started again."""
    pipeline = make_pipeline(outbox, kafka).prepare(4).init()
    writer = pipeline.writer(rate=None, threads=2, rows_per_transaction=5).start()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGTERM):
        relay = pipeline.start()
        writer.wait_written(1_000)
        relay.signal(number)
        assert relay.wait() == 0
        assert relay.records[-1]["event"] == "stopped"
    assert_nothing_twice(pipeline, writer)


def assert_nothing_twice(pipeline: Pipeline, writer: Writer) -> None:
    """One more relay brings what is left, and none of what came before."""
    committed = writer.stop()
    relay = pipeline.start()
    pipeline.wait_confirmed(pipeline.end_of_wal())
    assert relay.terminate()[0] == 0
    assert verify(committed, pipeline.read()).duplicates == ()


@pytest.mark.parametrize("kind", ["walsender", "client backend"])
def test_a_stop_just_after_a_connection_was_lost_sends_nothing_twice(
    outbox: Database, kafka: Kafka, make_pipeline: Callable[..., Pipeline], kind: str
) -> None:
    """What Kafka has confirmed meanwhile is confirmed by one more session."""
    pipeline = make_pipeline(outbox, kafka).prepare(4).init()
    writer = pipeline.writer(rate=2_000).start()
    for pause in (0.0, 0.05):
        relay = pipeline.start()
        writer.wait_written(2_000)
        outbox.server.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where application_name = %s and backend_type = %s",
            (f"cdc-outbox/{pipeline.slot}", kind),
        )
        time.sleep(pause)  # the stop is to meet the relay at different places
        relay.signal(signal.SIGTERM)
        assert relay.wait() == 0, relay.records[-4:]
        assert relay.records[-1]["event"] == "stopped"
    assert_nothing_twice(pipeline, writer)


def test_a_stop_just_after_a_connection_was_lost_reads_on_to_the_commit_too(
    outbox: Database, kafka: Kafka, make_pipeline: Callable[..., Pipeline], tmp_path: Path
) -> None:
    """A part of the transaction has arrived, and what came before it is yet to be confirmed."""
    pipeline = make_pipeline(outbox, kafka).prepare(3).init()
    hold = tmp_path / "hold"
    hold.touch()
    relay = pipeline.start("--max-events-per-second", "5000", env={HOLD_CONFIRMATION: str(hold)})
    writer, consumer = pipeline.writer(), pipeline.consumer()
    consumer.wait_ids(writer.write(10))
    writer.write(20_000, rows_per_transaction=20_000)
    consumer.wait_count(1_000)
    pipeline.terminate_walsender()
    hold.unlink()
    relay.signal(signal.SIGTERM)
    assert relay.wait() == 0, relay.text()
    assert_nothing_twice(pipeline, writer)


@pytest.fixture
def behind(
    outbox: Database, make_proxy: Callable[[str, int], Proxy], make_pipeline: Callable[..., Pipeline]
) -> Callable[[Kafka], tuple[Proxy, Pipeline]]:
    """Makes a pipeline whose relay reaches PostgreSQL by a proxy, with that."""

    def make(kafka: Kafka) -> tuple[Proxy, Pipeline]:
        address = conninfo_to_dict(outbox.dsn)
        proxy = make_proxy(str(address["host"]), int(str(address["port"])))
        way = make_conninfo(outbox.dsn, host="127.0.0.1", port=proxy.port)
        return proxy, make_pipeline(outbox, kafka, way=way)

    return make


def test_a_stop_between_two_sessions_reads_on_to_the_commit_too(
    kafka: Kafka, behind: Callable[[Kafka], tuple[Proxy, Pipeline]]
) -> None:
    """A part of the transaction has arrived, and all that came before it is confirmed."""
    proxy, pipeline = behind(kafka)
    pipeline.prepare(3).init()
    # The transaction lasts for seven seconds, and a few rounds have to be over before.
    quickly = {"CDC_OUTBOX_POSTGRES_GUARD_INTERVAL": "200ms"}
    relay = pipeline.start("--max-events-per-second", "3000", env=quickly)
    writer, consumer = pipeline.writer(), pipeline.consumer()
    writer.write(20_000, rows_per_transaction=20_000)
    consumer.wait_count(1_000)
    for _ in range(3):  # one confirms what came before, and the next one sees it
        pipeline.wait_round()
    proxy.refuse_new()
    proxy.cut()
    relay.wait_state("connecting")
    relay.signal(signal.SIGTERM)
    relay.wait_for(lambda record: record["event"] == "confirming what was delivered before", 30)
    proxy.resume()
    assert relay.wait() == 0, relay.text()
    assert_nothing_twice(pipeline, writer)


def test_a_stop_as_the_next_session_begins_reads_on_to_the_commit_too(
    kafka: Kafka, behind: Callable[[Kafka], tuple[Proxy, Pipeline]]
) -> None:
    """A part of the transaction has arrived, and nothing of it has come a second time yet."""
    proxy, pipeline = behind(kafka)
    pipeline.prepare(3).init()
    relay = pipeline.start("--max-events-per-second", "3000")
    writer, consumer = pipeline.writer(), pipeline.consumer()
    writer.write(20_000, rows_per_transaction=20_000)
    consumer.wait_count(1_000)
    before = len(relay.records)
    proxy.cut()
    relay.wait_for(lambda record: record.get("state") == "streaming", since=before)
    relay.signal(signal.SIGTERM)
    assert relay.wait() == 0, relay.text()
    assert_nothing_twice(pipeline, writer)


@pytest.mark.parametrize("state", ["connecting", "held"])
def test_a_stop_after_a_session_broke_is_not_clean_where_kafka_may_have_more(
    own_kafka: KafkaBroker, behind: Callable[[Kafka], tuple[Proxy, Pipeline]], state: str
) -> None:
    """All that it confirmed is confirmed to PostgreSQL, and it has more in its socket, which it may take later."""
    proxy, pipeline = behind(own_kafka)
    pipeline.prepare().init()
    relay = pipeline.start()
    writer, consumer = pipeline.writer(), pipeline.consumer()
    consumer.wait_ids(writer.write(10))
    pipeline.wait_confirmed()
    for _ in range(6):  # one sees it; the watch of the slot asks there as well
        pipeline.wait_round()
    own_kafka.pause()
    writer.write(1)
    eventually(lambda: json.loads(relay.get("/status")[1])["inflight"]["events"], PATIENCE, relay.text)
    proxy.refuse_new()
    proxy.cut()
    relay.wait_state("connecting")
    if state == "held":  # the next session knows nothing of what the broker had from the one before
        own_kafka.kill()
        proxy.resume()
        relay.wait_state("held")
    code, _ = relay.terminate()
    assert code == 1, relay.text()
    assert "Kafka didn't say before the stream broke" in relay.records[-1]["error"]
    if own_kafka.running:
        own_kafka.resume()
    else:
        own_kafka.start()
    proxy.resume()
    pipeline.start()
    print(pipeline.books(writer, consumer))


def test_a_stop_owes_nothing_where_all_was_confirmed_before_postgres_went(
    own_postgres: PostgresServer, kafka: Kafka, make_pipeline: Callable[..., Pipeline]
) -> None:
    pipeline = make_pipeline(own_postgres, kafka).prepare(2).init()
    relay, writer = pipeline.start(), pipeline.writer()
    writer.write(10)
    pipeline.wait_confirmed(pipeline.end_of_wal())
    own_postgres.stop()
    relay.wait_state("connecting")
    code, seconds = relay.terminate()
    assert code == 0, relay.text()
    assert seconds < 5
    own_postgres.start()
    assert_nothing_twice(pipeline, writer)


def test_a_stop_owes_nothing_where_postgres_goes_at_the_same_time(
    own_postgres: PostgresServer, kafka: Kafka, make_pipeline: Callable[..., Pipeline]
) -> None:
    """As with a machine, or a composition of containers, that is shut down."""
    pipeline = make_pipeline(own_postgres, kafka).prepare(2).init()
    writer = pipeline.writer()
    for pause in (0.0, 0.02, 0.1):
        relay = pipeline.start()
        writer.write(10)
        pipeline.wait_confirmed(pipeline.end_of_wal())
        for _ in range(2):  # the next one begins when the relay has seen what that one shows
            pipeline.wait_round()
        writer.stop()  # its connection ends
        ending = threading.Thread(target=own_postgres.stop)
        ending.start()
        time.sleep(pause)  # the stop is to meet the relay at different places
        code, _ = relay.terminate()
        ending.join()
        assert code == 0, relay.text()
        own_postgres.start()
    assert_nothing_twice(pipeline, writer)


def test_a_stop_while_it_is_asked_whose_a_table_is(
    own_postgres: PostgresServer,
    kafka: Kafka,
    make_proxy: Callable[[str, int], Proxy],
    make_pipeline: Callable[..., Pipeline],
) -> None:
    """The question is cut, and the connection with it: the drain asks once more, for the rows behind it."""
    proxy = make_proxy("127.0.0.1", own_postgres.port)
    pipeline = make_pipeline(
        own_postgres, kafka, way=own_postgres.dsn(host="127.0.0.1", port=proxy.port)
    ).prepare(2)
    pipeline.sql(SQL("create publication outbox_pub for all tables"))
    pipeline.init()
    relay = pipeline.start()
    since = pipeline.value("select clock_timestamp()")
    proxy.delay(0.5)  # for so long at least the question is what its session was asked last
    with own_postgres.connect(autocommit=False) as connection:
        connection.execute("create table other (n int)")
        connection.execute("insert into other values (1)")
        connection.execute(
            "insert into outbox (aggregate_type, aggregate_id, event_type)"
            " select %s, n::text, 'made' from generate_series(1, 10) n",
            (pipeline.aggregate_type,),
        )
    asked = (
        "select count(*) from pg_stat_activity"
        " where query like '%%relation::int8 from family%%' and query_start > %s and pid <> pg_backend_pid()"
    )
    eventually(lambda: pipeline.value(asked, (since,)), 30, "the question")
    relay.signal(signal.SIGTERM)
    relay.wait_for(lambda record: record.get("state") == "draining", 30)
    proxy.delay(0)
    assert relay.wait() == 0, relay.text()
    assert len(pipeline.read()) == 10
    pipeline.start()
    pipeline.wait_confirmed(pipeline.end_of_wal())
    assert len(pipeline.read()) == 10


def test_a_stop_within_a_transaction_reads_on_to_its_commit(
    outbox: Database, kafka: Kafka, make_pipeline: Callable[..., Pipeline]
) -> None:
    """Half of a transaction is out and can't be confirmed without the rest: stopping there would send it again."""
    rows = 20_000
    pipeline = make_pipeline(outbox, kafka).prepare(3).init()
    relay = pipeline.start("--max-events-per-second", "2000")  # ten seconds, unless the stop hurries it
    consumer = pipeline.consumer()
    writer = pipeline.writer()
    writer.write(rows, rows_per_transaction=rows)
    end = pipeline.end_of_wal()
    behind = writer.write(10)
    consumer.wait_count(1_000)
    relay.signal(signal.SIGTERM)
    assert len(consumer.records) < rows, "the transaction was over before the stop"
    assert relay.wait() == 0
    arrived = {record.id for record in pipeline.read()}
    assert len(arrived) == rows
    assert arrived.isdisjoint(behind)
    assert pipeline.confirmed() <= end
    pipeline.start()
    assert pipeline.books(writer).duplicates == ()


def test_a_hanging_broker_ends_the_drain_at_its_limit(
    own_postgres: PostgresServer, own_kafka: KafkaBroker, make_pipeline: Callable[..., Pipeline]
) -> None:
    """F8: exit 1 within the limit, nothing confirmed that Kafka hasn't, everything there afterwards."""
    pipeline = make_pipeline(own_postgres, own_kafka).prepare(2).init()
    relay = pipeline.start("--drain", "2s")
    writer = pipeline.writer()
    writer.write(100)
    pipeline.wait_confirmed(pipeline.end_of_wal())
    confirmed = pipeline.end_of_wal()
    own_kafka.pause()
    writer.write(100)
    pipeline.wait_heard(pipeline.end_of_wal())
    code, seconds = relay.terminate()
    assert code == 1
    assert "drain limit" in relay.records[-1]["error"]
    assert seconds < 5
    assert pipeline.confirmed() <= confirmed
    own_kafka.resume()
    pipeline.start()
    pipeline.books(writer)


def test_signals_that_come_when_all_is_confirmed_change_nothing(
    outbox: Database, kafka: Kafka, make_pipeline: Callable[..., Pipeline]
) -> None:
    """From the moment on at which the relay calls itself stopped, until its interpreter has ended."""
    pipeline = make_pipeline(outbox, kafka).prepare(3).init()
    writer, sent = pipeline.writer(), 0
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGTERM, signal.SIGTERM):
        relay = pipeline.start()
        writer.write(200)
        end = pipeline.end_of_wal()
        pipeline.wait_heard(end)
        relay.signal(number)
        relay.wait_for(lambda record: record.get("state") == "stopped", 30)
        while relay.running:
            relay.signal(number)
            sent += 1
        assert relay.wait() == 0, relay.text()
        assert relay.records[-1]["event"] == "stopped"
        assert pipeline.confirmed() >= end
    assert sent > 10
    assert verify(writer.stop(), pipeline.read()).duplicates == ()


def test_a_second_signal_ends_at_once(
    own_postgres: PostgresServer, own_kafka: KafkaBroker, make_pipeline: Callable[..., Pipeline]
) -> None:
    pipeline = make_pipeline(own_postgres, own_kafka).prepare(2).init()
    relay = pipeline.start()
    writer = pipeline.writer()
    own_kafka.pause()
    writer.write(50)
    pipeline.wait_round()
    relay.signal(signal.SIGTERM)
    relay.wait_state("draining")
    began = time.monotonic()
    relay.signal(signal.SIGTERM)
    assert relay.wait() == 1
    assert time.monotonic() - began < 4
    assert "a second time" in relay.records[-1].get("error", ""), relay.text()
    eventually(lambda: pipeline.walsender() is None, PATIENCE, "the slot free")
    own_kafka.resume()
    pipeline.start()
    pipeline.books(writer)


@pytest.mark.parametrize("away", ["postgres", "kafka", "both"])
def test_a_relay_that_waits_for_its_servers_stops_at_once(
    own_postgres: PostgresServer, own_kafka: KafkaBroker, away: str, make_pipeline: Callable[..., Pipeline]
) -> None:
    create_outbox(own_postgres.dsn())
    pipeline = make_pipeline(own_postgres, own_kafka).init()
    if away != "kafka":
        own_postgres.stop()
    if away != "postgres":
        own_kafka.kill()
    relay = pipeline.start(state=None)
    relay.wait_for(lambda record: record.get("event") == "waiting", 60)
    code, seconds = relay.terminate()
    assert code == 0
    assert seconds < 3


def test_a_standby_stops_at_once(
    outbox: Database, kafka: Kafka, make_pipeline: Callable[..., Pipeline]
) -> None:
    pipeline = make_pipeline(outbox, kafka).init()
    active = pipeline.start()
    standby = pipeline.start(state=None)
    standby.wait_state("standby")
    code, seconds = standby.terminate()
    assert code == 0
    assert seconds < 3
    assert active.state() == "streaming"
    assert active.terminate()[0] == 0
    eventually(lambda: pipeline.walsender() is None, PATIENCE, "the slot free")


def test_caught_up_is_an_end_too(
    outbox: Database, kafka: Kafka, make_pipeline: Callable[..., Pipeline]
) -> None:
    """`--until-caught-up` exits 0 once all that was committed before is confirmed, and sends nothing twice.

    By then the witness proves it, as far as other transactions let it: nobody would do so afterwards.
    """
    pipeline = make_pipeline(outbox, kafka).prepare(3).init()
    writer = pipeline.writer()
    for _ in range(2):
        writer.write(500)
        end = pipeline.end_of_wal()
        relay = pipeline.start("--until-caught-up", state=None)
        assert relay.wait(60) == 0
        assert pipeline.confirmed() >= end
        assert pipeline.value(PROVEN, (pipeline.slot,)), pipeline.witness()
    idle = pipeline.start("--until-caught-up", state=None)
    assert idle.wait(60) == 0
    assert verify(writer.stop(), pipeline.read()).duplicates == ()
