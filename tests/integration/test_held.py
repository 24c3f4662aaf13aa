"""Kafka's environment forbids delivery for a while: state `held`, nothing skipped, and on it goes by itself.

And the two budgets that keep a relay from harming others: its rate and its memory.
"""

from __future__ import annotations

import itertools
import json
import re
import time
from collections.abc import Callable
from datetime import datetime

import pytest

from tests.integration.conftest import Database
from tests.integration.passage import Passage, last_words, payloads
from tests.servers.kafka import Kafka, KafkaBroker, KafkaCluster
from tests.servers.ledger import read_all
from tests.servers.relay import RelayProcess
from tests.servers.security import client_settings
from tests.servers.wait import eventually


def streaming(relay: RelayProcess, passage: Passage, topic: str, count: int) -> None:
    """Wait until the relay streams and has delivered so many."""
    relay.wait_state("streaming")
    eventually(lambda: len(passage.read(topic)) == count, 60, relay.text)


def reason(relay: RelayProcess) -> str:
    code, body = relay.get("/readyz")
    assert code == 503, body
    return str(json.loads(body)["reason"])


@pytest.mark.parametrize("describes", [True, False], ids=["may describe", "may not describe"])
def test_a_right_withdrawn_and_given_back(
    database: Database, secure_kafka: KafkaBroker, slot: str, topics: str, describes: bool
) -> None:
    passage = Passage(
        *(database, secure_kafka, slot, topics),
        bootstrap=secure_kafka.address("SASL_PLAINTEXT"),
        client=client_settings("SASL_PLAINTEXT", "PLAIN"),
    )
    topic, other = passage.topic("withdrawn", 2), passage.topic("other")
    passage.table()
    for each in (topic, other):
        secure_kafka.allow("relay", "write", each)
    if describes:
        secure_kafka.allow("relay", "describe", topic)
    with passage.relay(env={"CDC_OUTBOX_RETRY_MAX": "300ms"}) as relay:
        passage.insert(topic, *((key, "0") for key in "abcd"))
        streaming(relay, passage, topic, 4)
        secure_kafka.withdraw("relay", "write", topic)
        for n in range(1, 10):
            passage.insert(topic, *((key, str(n)) for key in "abcd"))
        passage.insert(other, ("a", "after"))
        relay.wait_state("held")
        eventually(
            lambda: f"{'write to' if describes else 'see'} topic {topic}" in reason(relay), 60, relay.text
        )
        said = len(relay.records)
        walsenders: set[object] = set()

        def many_sessions() -> bool:
            assert relay.state() == "held"
            assert relay.get("/livez")[0] == 200
            walsenders.update(
                passage.sql("select active_pid from pg_replication_slots where slot_name = %s", slot)
            )
            return len(walsenders) > 2

        if describes:
            # Only a delivery tells whether it is allowed again; the log doesn't grow by trying.
            eventually(many_sessions, 60, relay.text)
            assert len(relay.records) - said < 10, relay.text()
        assert len(passage.read(topic)) == 4
        secure_kafka.allow("relay", "write", topic)
        relay.wait_state("streaming")
        eventually(lambda: payloads(passage.read(other)) == ["after"], 60, relay.text)
        assert relay.terminate()[0] == 0
    for key in "abcd":
        mine = [record for record in passage.read(topic) if record.key == key.encode()]
        assert payloads(mine) == [str(n) for n in range(10)]


def test_no_right_at_start(database: Database, secure_kafka: KafkaBroker, slot: str, topics: str) -> None:
    passage = Passage(
        *(database, secure_kafka, slot, topics),
        bootstrap=secure_kafka.address("SASL_PLAINTEXT"),
        client=client_settings("SASL_PLAINTEXT", "PLAIN", "stranger"),
    )
    topic, other = passage.topic("forbidden"), passage.topic("other")
    passage.table().insert(topic, ("a", "1"))
    error, remedy = last_words(passage.run(code=78))
    assert "doesn't allow us an idempotent producer" in error
    tool = f"kafka-acls.sh --bootstrap-server {passage.bootstrap} --command-config FILE --add"
    assert f"{tool} --allow-principal User:stranger --producer" in remedy
    # A right to write anywhere includes that to an idempotent producer.
    secure_kafka.allow("stranger", "write", other)
    with passage.relay() as relay:
        relay.wait_state("held")
        eventually(lambda: topic in reason(relay), 60, relay.text)
        said = relay.wait_for(lambda record: record.get("event") == "held")
        assert f"{tool} --allow-principal User:stranger" in said["next"]
        secure_kafka.allow("stranger", "write", topic)
        streaming(relay, passage, topic, 1)
    for each in (topic, other):
        secure_kafka.withdraw("stranger", "write", each)


def test_a_broker_that_is_frozen_shows_in_the_state(
    database: Database, own_kafka: KafkaBroker, slot: str, topics: str
) -> None:
    passage = Passage(database, own_kafka, slot, topics).table()
    topic = passage.topic("events")
    with passage.relay() as relay:
        passage.insert(topic, ("a", "0"))
        streaming(relay, passage, topic, 1)
        own_kafka.pause()
        passage.insert(topic, ("a", "1"))
        relay.wait_state("held")
        assert relay.get("/livez")[0] == 200
        own_kafka.resume()
        streaming(relay, passage, topic, 2)


@pytest.mark.patient
def test_a_partition_without_a_leader_shows_in_the_state_while_others_deliver(
    database: Database, own_cluster: KafkaCluster, slot: str, topics: str
) -> None:
    """What another partition confirms is no sign that this one is delivered to: the oldest batch counts."""
    alone = {"min.insync.replicas": "1"}
    names = [f"{topics}{number}" for number in range(12)]  # Kafka places each where it likes
    for name in names:
        own_cluster.create_topic(name, 1, alone, replicas=1)
    stuck = own_cluster.leader(names[0])
    healthy = next(name for name in names if own_cluster.leader(name) is not stuck)
    around = ",".join(broker.bootstrap for broker in own_cluster.brokers if broker is not stuck)
    passage = Passage(database, own_cluster, slot, topics, bootstrap=around).table()

    def delivered() -> list[str]:
        return payloads(read_all(around, healthy))

    with passage.relay() as relay:
        passage.insert(names[0], ("a", "0"))
        passage.insert(healthy, ("a", "0"))
        relay.wait_state("streaming")
        eventually(lambda: len(passage.read(*names)) == 2, 60, relay.text)
        stuck.pause()
        passage.insert(names[0], ("a", "1"))
        sent = itertools.count(1)
        states: list[str | None] = []

        def goes_on() -> bool:
            """Deliver one row more to the other partition, then look."""
            passage.insert(healthy, ("a", str(number := next(sent))))
            eventually(lambda: delivered()[-1] == str(number), 60, relay.text)
            states.append(relay.state())
            return states[-20:] == ["held"] * 20

        eventually(goes_on, 90, lambda: f"held for 20 deliveries in a row: {states}\n{relay.text()}")
        first = states.index("held")
        assert set(states[:first]) <= {"streaming"}
        assert set(states[first:]) == {"held"}
        stuck.resume()
        relay.wait_state("streaming")
        eventually(lambda: payloads(passage.read(names[0])) == ["0", "1"], 60, relay.text)
        assert relay.terminate()[0] == 0
    assert delivered() == [str(number) for number in range(len(states) + 1)]


@pytest.mark.patient
def test_an_end_with_the_broker_frozen_takes_no_longer_than_the_drain(
    database: Database, own_kafka: KafkaBroker, slot: str, topics: str
) -> None:
    passage = Passage(database, own_kafka, slot, topics).table()
    topic = passage.topic("events")
    with passage.relay(env={"CDC_OUTBOX_LIMITS_DRAIN": "1s"}) as relay:
        passage.insert(topic, ("a", "0"))
        streaming(relay, passage, topic, 1)
        own_kafka.pause()
        passage.insert(topic, *(("a", "x" * 1000) for _ in range(1000)))
        relay.wait_state("held")
        code, seconds = relay.terminate()
        assert (code, seconds < 10) == (1, True), seconds
        assert "drain limit of 1 s" in relay.records[-1]["error"]
        own_kafka.resume()
    passage.run()
    assert len(set(passage.read(topic))) >= 1001


@pytest.mark.patient
def test_a_start_with_the_broker_frozen_is_bounded(
    database: Database, own_kafka: KafkaBroker, slot: str, topics: str
) -> None:
    passage = Passage(database, own_kafka, slot, topics).table()
    own_kafka.pause()
    error, _ = last_words(passage.run("--fail-fast", code=1))
    assert "doesn't answer" in error
    own_kafka.resume()


def test_the_rate_limit(database: Database, kafka: Kafka, slot: str, topics: str) -> None:
    """A broker that stands still for a moment appends at once what came meanwhile: bursts are told by the relay."""
    limit, bucket = 300, 30
    passage = Passage(database, kafka, slot, topics).table()
    topic = passage.topic("paced", 4, {"message.timestamp.type": "LogAppendTime"})
    passage.insert(topic, *((f"k{n}", str(n)) for n in range(900)))
    looks: list[tuple[float, float, float]] = []
    with passage.relay("--max-events-per-second", str(limit)) as relay:
        streams = relay.wait_for(lambda record: record.get("state") == "streaming")
        began = datetime.fromisoformat(streams["ts"]).timestamp()

        def taken() -> float:
            """How many rows the relay has taken, as it said a moment ago at most: for so long it keeps its answer."""
            asked = time.monotonic()
            code, body = relay.get("/metrics")
            told = time.monotonic()
            assert code == 200
            (count,) = re.findall(r"^cdc_outbox_events_received_total (\S+)$", body, re.MULTILINE)
            looks.append((asked, float(count), told))
            return float(count)

        eventually(lambda: taken() == 900, 60, relay.text)
        assert relay.terminate()[0] == 0
    appended = sorted(record.timestamp for record in passage.read(topic))
    assert len(appended) == 900
    rate = (len(appended) - 1) / ((appended[-1] - appended[0]) / 1000)
    assert rate > 100, f"{rate:.0f} events/s"
    for number, at in enumerate(appended, 1):
        seconds = (at + 1) / 1000 - began
        assert number <= limit * seconds + bucket, f"{number} after {seconds:.3f} s"
    # No burst: between any two moments come a tenth of a second's more at most. A number that is new was counted after
    # the look before had been asked for.
    news = [
        (since, count, told)
        for (since, was, _), (_, count, told) in itertools.pairwise(looks)
        if count != was
    ]
    for (since, before, _), (_, after, told) in itertools.combinations(news, 2):
        seconds = told - since
        assert after - before <= limit * seconds + bucket, f"{after - before} within {seconds:.3f} s"


def test_memory_is_bounded_by_the_budget_whatever_the_rows_hold(
    database: Database, make_kafka: Callable[..., KafkaBroker], slot: str, topics: str
) -> None:
    """Also where the bytes are in headers."""
    broker = make_kafka()
    passage = Passage(database, broker, slot, topics)
    passage.sql("create table outbox (id bigserial, aggregate_id text, payload text, headers json)")
    passage.init()
    topic = passage.topic("heavy", 8)
    with passage.relay("--topic", topic, env={"CDC_OUTBOX_LIMITS_INFLIGHT_BYTES": "2MiB"}) as relay:
        passage.sql("insert into outbox (aggregate_id, payload, headers) values ('a', '', null)")
        streaming(relay, passage, topic, 1)
        before = relay.rss()
        broker.pause()
        passage.sql(
            "insert into outbox (aggregate_id, payload, headers)"
            " select n, '', json_build_object('big', repeat('x', 10000)) from generate_series(1, 6000) n"
        )
        relay.wait_state("held")
        assert relay.peak_rss() - before < 24 << 20, f"{(relay.peak_rss() - before) >> 20} MiB more"
        broker.resume()
        streaming(relay, passage, topic, 6001)
        assert relay.peak_rss() - before < 24 << 20, f"{(relay.peak_rss() - before) >> 20} MiB more"


def test_a_request_is_no_larger_than_it_may_be(
    database: Database, make_kafka: Callable[..., KafkaBroker], slot: str, topics: str
) -> None:
    """A broker hangs up on a larger one, each time anew; and the client puts all partitions into one."""
    broker = make_kafka(settings={"socket.request.max.bytes": "300000"})
    passage = Passage(database, broker, slot, topics).table()
    topic = passage.topic("wide", 16)
    passage.sql(
        "insert into outbox (topic, aggregate_id, payload)"
        " select %s, mod(n, 100), repeat('x', 1000) from generate_series(1, 6000) n",
        topic,
    )
    passage.run("--kafka", "max.request.size=250000")
    assert len(passage.read(topic)) == 6000
