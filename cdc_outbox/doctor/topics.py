"""The topics that rows go to: whether they are there, may be written to, and take and keep what is sent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cdc_outbox.doctor.check import MAY_PASS
from cdc_outbox.kafka import options
from cdc_outbox.kafka import tool as tools

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cdc_outbox.doctor.check import Findings
    from cdc_outbox.doctor.outbox import Outbox
    from cdc_outbox.kafka.inspection import Inspection, Topic
    from cdc_outbox.settings import KafkaSettings

_NAMED: Final = 5


def some(names: Iterable[str]) -> str:
    """A few names for a message."""
    listed = list(names)
    more = f" and {len(listed) - _NAMED} more" if len(listed) > _NAMED else ""
    return ", ".join(listed[:_NAMED]) + more


def count(number: int, noun: str) -> str:
    """A number of things in words: `1 broker`, `2 brokers`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


class Topics:
    """What the cluster has for the rows that are known. `tool`: the option that tells Kafka's tools where it is.

    `sizes`: the largest known record in bytes, by topic.
    """

    def __init__(
        self,
        settings: KafkaSettings,
        outbox: Outbox,
        findings: Findings,
        cluster: Inspection,
        tool: str,
        sizes: dict[str, int],
    ) -> None:
        self.settings = settings
        self.outbox = outbox
        self.findings = findings
        self.cluster = cluster
        self.tool = tool
        self.sizes = sizes
        self.principal = tools.principal(settings)

    async def examine(self, topics: list[Topic]) -> None:
        """All checks of these topics. Raises KafkaUnavailable when the cluster falls silent."""
        await self.exist(topics)
        self.rights(topics)
        there = [topic for topic in topics if topic.exists]
        self.leaders(there)
        self.replication(there)
        self.message_size(there)
        self.compaction(there)

    async def exist(self, topics: list[Topic]) -> None:
        if not topics:
            known = "each row names its own, and none is known yet"
            self.findings.ok("topics", known if self.outbox.mapping else "none is known without a mapping")
            return
        missing = [topic.name for topic in topics if not topic.exists and not topic.hidden]
        if not missing:
            self.findings.ok(
                "topics", some(topic.name for topic in topics if topic.exists) or "none to be seen"
            )
        elif self.settings.topics.create:
            await self.creation(missing)
        else:
            fixed = [name for name in missing if name in self.outbox.fixed]
            what = f"the cluster has no topic {some(fixed or missing)}"
            create = "\n".join(tools.create(self.tool, name) for name in missing)
            remedy = f"{create}\nor have it made: --create-topics"
            if fixed:
                self.findings.fail("topics", f"{what}, where all rows go", remedy)
            elif self.settings.unknown_topic == "poison":
                self.findings.fail("topics", f"{what}, where rows go: they are poison", remedy)
            else:
                self.findings.fail(
                    "topics",
                    f"{what}, where rows go: the relay is held until there is one",
                    remedy,
                    exit_code=MAY_PASS,
                )

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
                f"the cluster would not let us create {some(refused)}: {why}",
                f"kafka-acls.sh {self.tool} --add --allow-principal {self.principal} --operation Create"
                f" --topic {name}\n"
                "or correct [kafka.topics]",
            )
        else:
            partitions = count(wanted.partitions, "partition")
            self.findings.ok("topics", f"start makes {some(missing)}, of {partitions}")

    def rights(self, topics: list[Topic]) -> None:
        hidden = [topic.name for topic in topics if topic.hidden]
        forbidden = [topic.name for topic in topics if topic.may_write is False]
        if hidden or forbidden:
            what = (
                f"may not see {some(hidden)}, or there is none"
                if hidden
                else f"may not write to {some(forbidden)}"
            )
            self.findings.fail(
                "rights",
                f"{self.principal} {what}",
                "\n".join(
                    f"kafka-acls.sh {self.tool} --add --allow-principal {self.principal} --producer --topic {name}"
                    for name in (*hidden, *forbidden)
                ),
            )
            return
        told = [topic for topic in topics if topic.may_write]
        self.findings.ok(
            "rights",
            "an idempotent producer is admitted"
            + (f", and may write to {some(topic.name for topic in told)}" if told else "")
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
                f"partitions without a leader: {some(leaderless)}",
                f"kafka-topics.sh {self.tool} --describe --unavailable-partitions",
                exit_code=MAY_PASS,
            )
        elif short and not any(topic.replicas < (topic.min_in_sync or 0) for topic in topics):
            self.findings.fail(
                "leaders",
                f"fewer replicas in sync than min.insync.replicas, so that nothing can be written: {some(short)}",
                f"kafka-topics.sh {self.tool} --describe --under-min-isr-partitions",
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
                f"{some(topic.name for topic in impossible)}: min.insync.replicas is {first.min_in_sync} and"
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
                f"one replica: {some(single)}; what a lost broker held is lost",
                f"kafka-reassign-partitions.sh {self.tool} --reassignment-json-file FILE --execute",
            )
        elif alone:
            self.findings.warn(
                "replication",
                f"min.insync.replicas is 1: {some(alone)}; acks=all may mean one broker then",
                "\n".join(self.configure(name, "min.insync.replicas", 2) for name in alone),
            )
        else:
            fewest = min(topic.replicas for topic in topics)
            known = [topic.min_in_sync for topic in topics if topic.min_in_sync is not None]
            told = f"min.insync.replicas {min(known)}" if known else "min.insync.replicas isn't told to us"
            self.findings.ok("replication", f"{fewest} replicas, {told}")

    def configure(self, topic: str, name: str, value: int | str) -> str:
        """The command that sets an option of a topic."""
        return (
            f"kafka-configs.sh {self.tool} --alter --entity-type topics --entity-name {topic}"
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
                    f"kafka-acls.sh {self.tool} --add --allow-principal {self.principal} --operation DescribeConfigs"
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
                f"{some(compacted)} is compacted and takes nothing without a key, and key is none",
                f"{remedy}\nor name a key with --key",
            )
        else:
            self.findings.warn(
                "compaction",
                f"{some(compacted)} is compacted: only the newest event of each key stays",
                remedy,
            )
