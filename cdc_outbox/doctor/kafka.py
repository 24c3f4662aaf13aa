"""Kafka's side: reaching the cluster as `start` does, then the topics that rows are known to go to.

Those are the topics that the mapping names for all rows, and those that a few of the table's newest rows would go to.
Topics that only later rows name can't be known.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cdc_outbox.doctor.check import MAY_PASS
from cdc_outbox.doctor.topics import Topics, count, some
from cdc_outbox.errors import CdcOutboxError
from cdc_outbox.kafka import options, tool
from cdc_outbox.kafka.inspection import Inspection
from cdc_outbox.kafka.records import size_of

if TYPE_CHECKING:
    from cdc_outbox.doctor.check import Findings
    from cdc_outbox.doctor.outbox import Outbox
    from cdc_outbox.settings import KafkaSettings

MOST_TOPICS: Final = 50
"""Topics that are looked at."""


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
    largest = max(map(size_of, outbox.messages), default=0)
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


class KafkaSide:
    """The cluster, and what is known of the rows that go there."""

    def __init__(
        self, settings: KafkaSettings, outbox: Outbox, findings: Findings, cluster: Inspection
    ) -> None:
        self.settings = settings
        self.outbox = outbox
        self.findings = findings
        self.cluster = cluster
        self.tool = tool.address(settings)
        self.sizes: dict[str, int] = {}
        for message in outbox.messages:
            self.sizes[message[0]] = max(self.sizes.get(message[0], 0), size_of(message))

    async def examine(self) -> None:
        """Raises KafkaUnavailable when the cluster falls silent."""
        await self.connection()
        await self.version()
        self.security()
        wanted = sorted({*self.outbox.fixed, *self.sizes})[:MOST_TOPICS]
        topics = await self.cluster.topics(wanted)
        await self.topics().examine(topics)
        self.partitioner()

    def topics(self) -> Topics:
        """The checks of topics, whose remedies go to a server that answers, as far as that is known by now."""
        return Topics(self.settings, self.outbox, self.findings, self.cluster, self.tool, self.sizes)

    async def connection(self) -> None:
        unreached = await self.cluster.unreached()
        brokers = await self.cluster.brokers()
        listed = [address.strip() for address in self.settings.bootstrap_servers.split(",")]
        answering = [address for address in listed if address not in unreached]
        answering += [each.address for each in brokers if each.problem is None]
        if answering:
            self.tool = tool.address(self.settings, answering[0])
        away = [f"{each.address} ({each.problem})" for each in brokers if each.problem is not None]
        away += [f"{address} ({why})" for address, why in unreached.items()]
        if brokers and all(each.problem is not None for each in brokers):
            self.findings.fail(
                "connection",
                f"the cluster answers, but its brokers can't be reached where it says they are: {some(away)}",
                "set advertised.listeners of the brokers to addresses that this machine reaches",
                exit_code=MAY_PASS,
            )
        elif away:
            self.findings.warn(
                "connection",
                f"{count(len(brokers), 'broker')} known; what doesn't answer: {some(away)}",
                "start those brokers, or take their addresses out of kafka.bootstrap_servers",
            )
        else:
            known = some(each.address for each in brokers)
            self.findings.ok("connection", f"{count(len(brokers), 'broker')}: {known}")

    async def version(self) -> None:
        supported = await self.cluster.is_supported()
        if supported:
            self.findings.ok("version", "Kafka 3.9 or later")
        elif supported is None:
            self.findings.ok("version", "not told")
        else:
            self.findings.warn(
                "version", "older than Kafka 3.9, the oldest that is tested", "upgrade the brokers"
            )

    def security(self) -> None:
        client = self.settings.client
        protocol = client.get("security.protocol", "PLAINTEXT").upper()
        mechanism = client.get("sasl.mechanism", "PLAIN").upper() if protocol.startswith("SASL") else ""
        shown = f"{protocol} {mechanism}".strip()
        checks = client.get("ssl.endpoint.identification.algorithm", "https").lower()
        if protocol == "SASL_PLAINTEXT" and mechanism == "PLAIN":
            self.findings.warn(
                "security",
                f"{shown}: the password goes over the network as it is",
                'set security.protocol = "SASL_SSL" under [kafka.client], or sasl.mechanism = "SCRAM-SHA-512"',
            )
        elif protocol.endswith("SSL") and checks in ("", "none"):
            self.findings.warn(
                "security",
                f"{shown}, and the brokers' names aren't compared with their certificates",
                "take ssl.endpoint.identification.algorithm out of [kafka.client]",
            )
        else:
            who = f" as {client['sasl.username']}" if client.get("sasl.username") else ""
            self.findings.ok("security", shown + who)

    def partitioner(self) -> None:
        others = {
            "murmur2": "as Java's clients, not as librdkafka's",
            "crc32": "as librdkafka's clients, not as Java's",
        }
        how = self.settings.partitioner
        self.findings.ok("partitioner", f"{how}, {others[how]}")
