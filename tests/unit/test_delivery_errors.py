"""What each error of a broker means for a delivery: the row's fault, the environment's, or none; and the next step."""

from __future__ import annotations

import re

import pytest
from aiokafka import errors as kafka

from cdc_outbox.errors import Held, KafkaUnavailable
from cdc_outbox.kafka import delivery_errors
from cdc_outbox.kafka.delivery_errors import InvalidRecord
from cdc_outbox.publisher import TopicMissing, Unpublishable
from tests.unit.kafka_settings import settings

OURS = settings("k1:9092, k2:9092")
SECURED = settings(
    "k1:9092",
    security__protocol="SASL_SSL",
    sasl__mechanism="PLAIN",
    sasl__username="relay",
    sasl__password="p",
)

OF_RECORDS = [
    kafka.MessageSizeTooLargeError,
    kafka.RecordListTooLargeError,
    kafka.InvalidTimestampError,
    InvalidRecord,
]
OF_THE_ENVIRONMENT: dict[type[kafka.KafkaError], str] = {
    kafka.TopicAuthorizationFailedError: "doesn't allow us to write to topic t",
    kafka.ClusterAuthorizationFailedError: "idempotent producer",
    kafka.InvalidTopicError: "refuses the topic name t",
    kafka.PolicyViolationError: "policy",
    kafka.NotLeaderForPartitionError: "no leader",
    kafka.LeaderNotAvailableError: "no leader",
}
UNKNOWN_OUTCOME = [
    kafka.OutOfOrderSequenceNumber,
    kafka.InvalidProducerEpoch,
    kafka.UnknownProducerId,
    kafka.CorruptRecordException,
    kafka.UnknownError,
    kafka.BrokerNotAvailableError,
    kafka.RequestTimedOutError,
    kafka.KafkaTimeoutError,
    kafka.KafkaConnectionError,
    kafka.ProducerFenced,
    kafka.UnsupportedForMessageFormatError,
]


@pytest.mark.parametrize("kind", OF_RECORDS)
def test_a_record_to_blame(kind: type[kafka.KafkaError]) -> None:
    error = kind()
    assert delivery_errors.concerns_records(error)
    poison = delivery_errors.refused(error, "t", 3, 0x16B374D848, 7, 1234, OURS)
    assert isinstance(poison, Unpublishable)
    assert "t[3] refuses it: " in str(poison)
    assert "at 16/B374D848, row 7" in str(poison)
    assert (poison.lsn, poison.seq, poison.exit_code) == (0x16B374D848, 7, 70)
    assert "topic t" in poison.next
    if delivery_errors.is_too_large(error):
        assert "with 1234 bytes" in str(poison)
        assert "1234" in poison.next
    assert poison.reason == ("too_large" if delivery_errors.is_too_large(error) else "refused")


@pytest.mark.parametrize("kind", OF_THE_ENVIRONMENT)
def test_the_environment_is_never_poison(kind: type[kafka.KafkaError]) -> None:
    assert not delivery_errors.concerns_records(kind())
    error = delivery_errors.translate(kind(), "t", OURS)
    assert isinstance(error, Held)
    assert OF_THE_ENVIRONMENT[kind] in str(error)
    assert error.next
    assert error.retriable


def test_a_topic_that_went_away() -> None:
    assert isinstance(
        delivery_errors.translate(kafka.UnknownTopicOrPartitionError(), "t", OURS), TopicMissing
    )


@pytest.mark.parametrize("kind", UNKNOWN_OUTCOME)
def test_everything_else_is_sent_again_by_a_new_producer(kind: type[kafka.KafkaError]) -> None:
    assert not delivery_errors.concerns_records(kind())
    error = delivery_errors.translate(kind(), "t", OURS)
    assert isinstance(error, KafkaUnavailable)
    assert kind.__name__ in str(error)


def test_every_code_of_the_protocol_is_one_of_these() -> None:
    for kind in kafka.kafka_errors.values():
        error = kind()
        if not delivery_errors.concerns_records(error):
            assert delivery_errors.translate(error, "t", OURS).retriable


def test_the_client_knows_what_an_invalid_record_is() -> None:
    assert delivery_errors.concerns_records(kafka.for_code(87)())


def test_a_tool_of_the_remedy_goes_to_the_cluster_with_what_it_demands() -> None:
    error = kafka.TopicAuthorizationFailedError()
    rest = "--operation Write --operation Describe --topic t"
    assert delivery_errors.translate(error, "t", OURS).next == (
        f"grant it: kafka-acls.sh --bootstrap-server k1:9092 --add --allow-principal User:NAME {rest}"
    )
    assert delivery_errors.translate(error, "t", SECURED).next == (
        "grant it: kafka-acls.sh --bootstrap-server k1:9092 --command-config FILE --add --allow-principal User:relay "
        + rest
    )


@pytest.mark.parametrize("kind", [*OF_RECORDS, *OF_THE_ENVIRONMENT])
def test_no_tool_is_named_without_its_cluster(kind: type[kafka.KafkaError]) -> None:
    if delivery_errors.concerns_records(kind()):
        remedies = [delivery_errors.refused(kind(), "t", 3, 1, 7, 1234, OURS).next]
    else:
        remedies = [delivery_errors.translate(kind(), "t", OURS).next]
    for remedy in (*remedies, delivery_errors.room_for("t", 1234, OURS)):
        assert remedy.count("--bootstrap-server k1:9092 ") == len(re.findall(r"kafka-[a-z]+\.sh ", remedy))
