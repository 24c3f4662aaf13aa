"""What a broker's refusal means: the row's fault, the environment's, or an unknown outcome.

Poison is a property of the row. Everything else is waited for: a right that was withdrawn or a full disk comes back,
and skipping would lose events. Codes: https://kafka.apache.org/protocol.html#protocol_error_codes
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aiokafka import errors as kafka

from cdc_outbox.errors import CdcOutboxError, Held, KafkaUnavailable, PoisonEvent
from cdc_outbox.kafka import tool, topics
from cdc_outbox.publisher import Unpublishable
from cdc_outbox.table.unfit import LEAVE_OUT

if TYPE_CHECKING:
    from cdc_outbox.settings import KafkaSettings


class InvalidRecord(kafka.BrokerResponseError):
    """A record breaks a rule of its topic; a compacted one takes none without a key."""

    errno = 87
    message = "INVALID_RECORD"
    description = "This record has failed the validation on broker and hence will be rejected."


# A client that doesn't know this code would call it an unknown server error.
_INVALID_RECORD: Final = kafka.kafka_errors.setdefault(InvalidRecord.errno, InvalidRecord)

_OF_RECORDS: Final[dict[type[kafka.KafkaError], tuple[str, str]]] = {
    kafka.MessageSizeTooLargeError: (
        "with {size} bytes as a Kafka record it is larger than the topic's max.message.bytes",
        (
            "raise max.message.bytes of topic {topic} to {size} or more: kafka-configs.sh {tool} --alter "
            "--topic {topic} --add-config max.message.bytes={size}; or {out}"
        ),
    ),
    kafka.RecordListTooLargeError: (
        "with {size} bytes as a Kafka record it is larger than a segment of the topic",
        "raise segment.bytes of topic {topic} to {size} or more, or {out}",
    ),
    kafka.InvalidTimestampError: (
        "its timestamp is outside of what the topic allows",
        "widen message.timestamp.before.max.ms and .after.max.ms of topic {topic}, or {out}",
    ),
    _INVALID_RECORD: (
        "it breaks a rule of the topic (a compacted one takes nothing without a key)",
        "check cleanup.policy of topic {topic}, or {out}",
    ),
}

_HELD: Final[dict[type[kafka.KafkaError], tuple[str, str]]] = {
    kafka.TopicAuthorizationFailedError: (
        "the cluster doesn't allow us to write to topic {topic}",
        (
            "grant it: kafka-acls.sh {tool} --add --allow-principal {user} --operation Write --operation Describe "
            "--topic {topic}"
        ),
    ),
    kafka.ClusterAuthorizationFailedError: (
        "the cluster doesn't allow us an idempotent producer",
        "grant Write on the topics: kafka-acls.sh {tool} --add --allow-principal {user} --producer --topic {topic}",
    ),
    kafka.InvalidTopicError: (
        "the cluster refuses the topic name {topic}",
        "check the topic on the cluster: kafka-topics.sh {tool} --describe --topic {topic}",
    ),
    kafka.PolicyViolationError: (
        "a policy of the cluster refuses what we write to topic {topic}",
        "ask who runs the cluster for its create and alter policies",
    ),
    kafka.NotLeaderForPartitionError: (
        "a partition of topic {topic} has no leader",
        "check the brokers: kafka-topics.sh {tool} --describe --unavailable-partitions",
    ),
    kafka.LeaderNotAvailableError: (
        "a partition of topic {topic} has no leader",
        "check the brokers: kafka-topics.sh {tool} --describe --unavailable-partitions",
    ),
}


def is_refusal(error: BaseException) -> bool:
    """Whether the broker says by it that it hasn't taken the batch. After any other error it may have."""
    if not isinstance(error, kafka.KafkaError):
        return False
    return concerns_records(error) or (isinstance(error, tuple(_HELD)) and not error.retriable)


def concerns_records(error: kafka.KafkaError) -> bool:
    """Whether a record of the batch is to blame, though the broker doesn't say which."""
    return isinstance(error, tuple(_OF_RECORDS))


def is_too_large(error: kafka.KafkaError) -> bool:
    """Whether a batch is over the topic's limit."""
    return isinstance(error, kafka.MessageSizeTooLargeError | kafka.RecordListTooLargeError)


def translate(error: kafka.KafkaError, topic: str, settings: KafkaSettings) -> CdcOutboxError:
    """The error of a delivery that failed for another reason than its records."""
    if isinstance(error, kafka.UnknownTopicOrPartitionError):
        return topics.missing(topic, settings)
    for known, (message, remedy) in _HELD.items():
        if isinstance(error, known):
            asked = {"topic": topic, "tool": tool.address(settings), "user": tool.principal(settings)}
            return Held(message.format(topic=topic), next=remedy.format(**asked))
    return KafkaUnavailable(
        f"a delivery to topic {topic} failed: {type(error).__name__}",
        next="nothing to do: a new producer starts again from the last confirmed LSN",
    )


def oversized(size: int, limit: int) -> str:
    """What is wrong with a record of `size` bytes that we don't send: our own limit is `limit`."""
    return f"it is {size} bytes as a Kafka record, and max.request.size is {limit}"


def room_for(topic: str, size: int, settings: KafkaSettings) -> str:
    """The next step for such a record: both limits have to let it through."""
    return (
        f"raise max.request.size under [kafka.client] to {size} or more, and the same for the topic: "
        f"kafka-configs.sh {tool.address(settings)} --alter --topic {topic} --add-config max.message.bytes={size}; "
        f"or {LEAVE_OUT}"
    )


def refused(
    error: kafka.KafkaError,
    topic: str,
    partition: int,
    lsn: int,
    seq: int,
    size: int,
    settings: KafkaSettings,
) -> PoisonEvent:
    """The error of a single record of `size` bytes that the broker refuses; which event it is, the reader knows."""
    what, remedy = next(words for known, words in _OF_RECORDS.items() if isinstance(error, known))
    return Unpublishable(
        f"{topic}[{partition}] refuses it: {what.format(size=size)}",
        next=remedy.format(topic=topic, out=LEAVE_OUT, size=size, tool=tool.address(settings)),
        reason="too_large" if is_too_large(error) else "refused",
        lsn=lsn,
        seq=seq,
    )
