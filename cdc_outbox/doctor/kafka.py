"""Kafka's side: reaching the cluster as `start` does, then the topics that rows are known to go to.

Those are the topics that the mapping names for all rows, and those that a few of the table's newest rows would go to.
Topics that only later rows name can't be known.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cdc_outbox.doctor.check import MAY_PASS
from cdc_outbox.errors import CdcOutboxError
from cdc_outbox.kafka import options
from cdc_outbox.kafka.inspection import Inspection, record_size

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cdc_outbox.doctor.check import Findings
    from cdc_outbox.doctor.outbox import Outbox
    from cdc_outbox.kafka.inspection import Topic
    from cdc_outbox.settings import KafkaSettings

MOST_TOPICS: Final = 50
"""Topics that are looked at."""

_NAMED: Final = 5


async def examine(settings: KafkaSettings, outbox: Outbox, findings: Findings) -> None:
    """All checks of this side."""
    _record_size(settings, outbox, findings)
    try:
        cluster = Inspection(settings)
    except CdcOutboxError as error:
        findings.refuse("connection", error)
        return
    try:
        await cluster.start()
        side = KafkaSide(settings, outbox, findings, cluster)
        await side.examine()
    except CdcOutboxError as error:
        findings.refuse("connection", error)
    finally:
        await cluster.stop()


def _record_size(settings: KafkaSettings, outbox: Outbox, findings: Findings) -> None:
    """The largest message that is known against our own limit."""
    limit = options.max_request_size(settings)
    largest = max(map(record_size, outbox.messages), default=0)
    name, option = "record_size", "max.request.size"
    if largest > limit:
        findings.fail(
            name,
            f"a row makes a record of {largest} bytes, and {option} is {limit}: rows like it are poison",
            f"set {option} = {_rounded(largest)} under [kafka.client], and each topic's max.message.bytes with it",
        )
    elif 2 * largest > limit:
        findings.warn(
            name,
            f"the largest known record has {largest} bytes, more than half of {option}, {limit}",
            f"set {option} = {_rounded(2 * largest)} under [kafka.client], and each topic's max.message.bytes with it",
        )
    else:
        known = f"the largest known record has {largest} bytes; " if largest else ""
        findings.ok(name, f"{known}{option} is {limit}")


def _rounded(size: int) -> int:
    """The power of two that leaves room for a record of this size."""
    return 1 << (size + 1024).bit_length()


def _some(names: Iterable[str]) -> str:
    """A few names for a message."""
    listed = list(names)
    more = f" and {len(listed) - _NAMED} more" if len(listed) > _NAMED else ""
    return ", ".join(listed[:_NAMED]) + more


def count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


class KafkaSide:
    """The cluster, and what is known of the rows that go there."""

    def __init__(
        self, settings: KafkaSettings, outbox: Outbox, findings: Findings, cluster: Inspection
    ) -> None:
        self.settings = settings
        self.outbox = outbox
        self.findings = findings
        self.cluster = cluster
        self.tool = f"--bootstrap-server {settings.bootstrap_servers.partition(',')[0].strip()}"
        self.principal = f"User:{settings.client.get('sasl.username') or 'NAME'}"
        self.sizes: dict[str, int] = {}
        for message in outbox.messages:
            self.sizes[message[0]] = max(self.sizes.get(message[0], 0), record_size(message))

    async def examine(self) -> None:
        """Raises KafkaUnavailable when the cluster falls silent."""
        await self.connection()
        await self.version()
        self.security()
        wanted = sorted({*self.outbox.fixed, *self.sizes})[:MOST_TOPICS]
        topics = await self.cluster.topics(wanted)
        await self.exist(topics)
        self.rights(topics)
        there = [topic for topic in topics if topic.exists]
        self.leaders(there)
        self.replication(there)
        self.message_size(there)
        self.compaction(there)
        self.partitioner()

    async def connection(self) -> None:
        unreached = await self.cluster.unreached()
        brokers = await self.cluster.brokers()
        listed = [address.strip() for address in self.settings.bootstrap_servers.split(",")]
        answering = [address for address in listed if address not in unreached]
        answering += [each.address for each in brokers if each.problem is None]
        if answering:
            self.tool = f"--bootstrap-server {answering[0]}"
        away = [f"{each.address} ({each.problem})" for each in brokers if each.problem is not None]
        away += [f"{address} ({why})" for address, why in unreached.items()]
        if brokers and all(each.problem is not None for each in brokers):
            self.findings.fail(
                "connection",
                f"the cluster answers, but its brokers can't be reached where it says they are: {_some(away)}",
                "set advertised.listeners of the brokers to addresses that this machine reaches",
                exit_code=MAY_PASS,
            )
        elif away:
            self.findings.warn(
                "connection",
                f"{count(len(brokers), 'broker')} known; what doesn't answer: {_some(away)}",
                "start those brokers, or take their addresses out of kafka.bootstrap_servers",
            )
        else:
            known = _some(each.address for each in brokers)
            self.findings.ok("connection", f"{count(len(brokers), 'broker')}: {known}")

    async def version(self) -> None:
        modern = await self.cluster.is_modern()
        if modern:
            self.findings.ok("version", "Kafka 4 or later")
        elif modern is None:
            self.findings.ok("version", "not told")
        else:
            self.findings.warn(
                "version", "older than Kafka 4, which is what is tested", "upgrade the brokers"
            )

    def security(self) -> None:
        options = self.settings.client
        protocol = options.get("security.protocol", "PLAINTEXT").upper()
        mechanism = options.get("sasl.mechanism", "PLAIN").upper() if protocol.startswith("SASL") else ""
        shown = f"{protocol} {mechanism}".strip()
        checks = options.get("ssl.endpoint.identification.algorithm", "https").lower()
        if protocol == "SASL_PLAINTEXT" and mechanism == "PLAIN":
            self.findings.warn(
                "security",
                f"{shown}: the password goes over the network as it is",
                "set security.protocol = SASL_SSL under [kafka.client], or sasl.mechanism = SCRAM-SHA-512",
            )
        elif protocol.endswith("SSL") and checks in ("", "none"):
            self.findings.warn(
                "security",
                f"{shown}, and the brokers' names aren't compared with their certificates",
                "take ssl.endpoint.identification.algorithm out of [kafka.client]",
            )
        else:
            who = f" as {options['sasl.username']}" if options.get("sasl.username") else ""
            self.findings.ok("security", shown + who)

    # Topics

    async def exist(self, topics: list[Topic]) -> None:
        if not topics:
            known = "each row names its own, and none is known yet"
            self.findings.ok("topics", known if self.outbox.mapping else "none is known without a mapping")
            return
        missing = [topic.name for topic in topics if not topic.exists and not topic.hidden]
        if not missing:
            self.findings.ok(
                "topics", _some(topic.name for topic in topics if topic.exists) or "none to be seen"
            )
        elif self.settings.topics.create:
            await self.creation(missing)
        else:
            fixed = [name for name in missing if name in self.outbox.fixed]
            what = f"the cluster has no topic {_some(fixed or missing)}"
            create = "\n".join(
                f"kafka-topics {self.tool} --create --topic {name} --partitions 12" for name in missing
            )
            remedy = f"{create}\nor start with --create-topics"
            if fixed:
                self.findings.fail("topics", f"{what}, where all rows go", remedy)
            elif self.settings.unknown_topic == "poison":
                self.findings.warn("topics", f"{what}, where rows go: they are poison", remedy)
            else:
                self.findings.warn("topics", f"{what}, where rows go: the relay waits for it", remedy)

    async def creation(self, missing: list[str]) -> None:
        """Ask whether missing topics could be made."""
        refused = {
            name: why for name in missing if (why := await self.cluster.why_not_created(name)) is not None
        }
        wanted = self.settings.topics
        if refused:
            name, why = next(iter(refused.items()))
            self.findings.fail(
                "topics",
                f"the cluster would not let us create {_some(refused)}: {why}",
                f"kafka-acls {self.tool} --add --allow-principal {self.principal} --operation Create --topic {name}\n"
                "or correct [kafka.topics]",
            )
        else:
            partitions = count(wanted.partitions, "partition")
            self.findings.ok("topics", f"start makes {_some(missing)}, of {partitions}")

    def rights(self, topics: list[Topic]) -> None:
        hidden = [topic.name for topic in topics if topic.hidden]
        forbidden = [topic.name for topic in topics if topic.may_write is False]
        if hidden or forbidden:
            what = (
                f"may not see {_some(hidden)}, or there is none"
                if hidden
                else f"may not write to {_some(forbidden)}"
            )
            self.findings.fail(
                "rights",
                f"{self.principal} {what}",
                "\n".join(
                    f"kafka-acls {self.tool} --add --allow-principal {self.principal} --producer --topic {name}"
                    for name in (*hidden, *forbidden)
                ),
            )
            return
        told = [topic for topic in topics if topic.may_write]
        self.findings.ok(
            "rights",
            "an idempotent producer is admitted"
            + (f", and may write to {_some(topic.name for topic in told)}" if told else "")
            + "; no transactional id is used",
        )

    def leaders(self, topics: list[Topic]) -> None:
        leaderless = [topic.name for topic in topics if topic.leaderless]
        short = [
            topic.name
            for topic in topics
            if topic.min_in_sync is not None and topic.in_sync < topic.min_in_sync
        ]
        if leaderless:
            self.findings.fail(
                "leaders",
                f"partitions without a leader: {_some(leaderless)}",
                f"kafka-topics {self.tool} --describe --unavailable-partitions",
                exit_code=MAY_PASS,
            )
        elif short and not any(topic.replicas < (topic.min_in_sync or 0) for topic in topics):
            self.findings.fail(
                "leaders",
                f"fewer replicas in sync than min.insync.replicas, so that nothing can be written: {_some(short)}",
                f"kafka-topics {self.tool} --describe --under-min-isr-partitions",
                exit_code=MAY_PASS,
            )
        elif topics:
            self.findings.ok("leaders", "all partitions have one")

    def replication(self, topics: list[Topic]) -> None:
        if not topics or not all(topic.replicas for topic in topics):
            return
        impossible = [topic for topic in topics if (topic.min_in_sync or 0) > topic.replicas]
        single = [topic.name for topic in topics if topic.replicas == 1]
        alone = [topic.name for topic in topics if topic.replicas > 1 and topic.min_in_sync == 1]
        if impossible:
            first = impossible[0]
            self.findings.fail(
                "replication",
                f"{_some(topic.name for topic in impossible)}: min.insync.replicas is {first.min_in_sync} and"
                f" {'there is 1 replica' if first.replicas == 1 else f'there are {first.replicas} replicas'}, so that"
                " nothing can be written",
                "\n".join(
                    self.configure(topic.name, "min.insync.replicas", max(1, topic.replicas - 1))
                    for topic in impossible
                ),
            )
        elif single:
            self.findings.warn(
                "replication",
                f"one replica: {_some(single)}; what a lost broker held is lost",
                f"kafka-reassign-partitions {self.tool} --reassignment-json-file FILE --execute",
            )
        elif alone:
            self.findings.warn(
                "replication",
                f"min.insync.replicas is 1: {_some(alone)}; acks=all may mean one broker then",
                "\n".join(self.configure(name, "min.insync.replicas", 2) for name in alone),
            )
        else:
            fewest = min(topic.replicas for topic in topics)
            known = [topic.min_in_sync for topic in topics if topic.min_in_sync is not None]
            told = f"min.insync.replicas {min(known)}" if known else "min.insync.replicas isn't told to us"
            self.findings.ok("replication", f"{fewest} replicas, {told}")

    def configure(self, topic: str, name: str, value: int | str) -> str:
        return (
            f"kafka-configs {self.tool} --alter --entity-type topics --entity-name {topic}"
            f" --add-config {name}={value}"
        )

    def message_size(self, topics: list[Topic]) -> None:
        if not topics:
            return
        limit = options.max_request_size(self.settings)
        known = [(topic.name, topic.max_bytes) for topic in topics if topic.max_bytes is not None]
        narrow = [(name, most) for name, most in known if most < self.sizes.get(name, 0)]
        tight = [(name, most) for name, most in known if most < limit]
        remedy = "\n".join(
            self.configure(name, "max.message.bytes", max(limit, self.sizes.get(name, 0)))
            for name, _ in tight or narrow
        )
        if narrow:
            name, most = narrow[0]
            self.findings.fail(
                "message_size",
                f"max.message.bytes of {name} is {most}, and a row makes a record of {self.sizes[name]} bytes: rows"
                " like it are poison",
                remedy,
            )
        elif tight:
            name, most = min(tight, key=lambda each: each[1])
            self.findings.warn(
                "message_size",
                f"max.message.bytes of {name} is {most}, below max.request.size: what is larger is poison",
                remedy,
            )
        elif known:
            self.findings.ok("message_size", f"max.message.bytes is at least max.request.size, {limit}")
        else:
            self.findings.ok(
                "message_size",
                "max.message.bytes isn't told to us: a limit is learnt from what is refused",
                "\n".join(
                    f"kafka-acls {self.tool} --add --allow-principal {self.principal} --operation DescribeConfigs"
                    f" --topic {topic.name}"
                    for topic in topics
                ),
            )

    def compaction(self, topics: list[Topic]) -> None:
        compacted = [topic.name for topic in topics if topic.compacted]
        if not compacted:
            return
        remedy = "\n".join(self.configure(name, "cleanup.policy", "delete") for name in compacted)
        if self.outbox.keyless:
            self.findings.fail(
                "compaction",
                f"{_some(compacted)} is compacted and takes nothing without a key, and key is none",
                f"{remedy}\nor name a key with --key",
            )
        else:
            self.findings.warn(
                "compaction",
                f"{_some(compacted)} is compacted: only the newest event of each key stays",
                remedy,
            )

    def partitioner(self) -> None:
        others = {
            "murmur2": "as Java's clients, not as librdkafka's",
            "crc32": "as librdkafka's clients, not as Java's",
        }
        how = self.settings.partitioner
        self.findings.ok("partitioner", f"{how}, {others[how]}")
