"""A real Kafka broker (KRaft, one node that is broker and controller) that a test may break.

The jars come from Maven, once, into the cache; Java 17 or newer runs them. A log directory is formatted once
and copied for each broker. A broker keeps its port over restarts, and takes another one when asked.

A secure broker has four listeners beside the plain one, each demanding another proof of who the client is
(see `Security`), and denies everything that wasn't allowed.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
import shutil
import signal
import socket
import subprocess
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # re-exported without __all__
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from tests.servers import security
from tests.servers.cache import Missing, cache_root, cached, download, run
from tests.servers.docker import local_or_docker, run_container
from tests.servers.process import Process, directory, free_port, workspace
from tests.servers.wait import PATIENCE, eventually

if TYPE_CHECKING:
    from concurrent.futures import Future

VERSION = os.environ.get("CDC_OUTBOX_TEST_KAFKA_VERSION", "4.4.0")
HERE = Path(__file__).parent

# Small and quick to start: a test machine runs a broker, a database and the relay at once.
HEAP = ("-Xms128m", "-Xmx384m", "-XX:+UseSerialGC")
QUICK_START = ("-XX:TieredStopAtLevel=1",)

SETTINGS: Mapping[str, str] = {
    "auto.create.topics.enable": "false",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
    "num.network.threads": "2",
    "num.io.threads": "2",
    "background.threads": "2",
    # Rows of tests bear times long past: half a minute after the start, and each five, they would be removed.
    "log.retention.ms": "-1",
    "log.cleaner.threads": "1",
    "log.cleaner.dedupe.buffer.size": "4194304",
    "controlled.shutdown.enable": "true",
    # A killed broker's session ends quickly, so that its successor isn't refused as a duplicate.
    "broker.session.timeout.ms": "2000",
    "broker.heartbeat.interval.ms": "500",
}


@cache
def java() -> str:
    home = os.environ.get("JAVA_HOME")
    program = shutil.which(f"{home}/bin/java" if home else "java")
    if program is None:
        raise Missing("Kafka needs Java 17 or newer: there is no 'java' on this machine")
    shown = subprocess.run([program, "-version"], capture_output=True, text=True, check=False).stderr
    version = shown.partition('"')[2].partition('"')[0]
    if int(version.partition(".")[0] or 0) < 17:
        raise Missing(f"Kafka needs Java 17 or newer; {program} is {version or 'of unknown version'}")
    return program


def _install(draft: Path) -> None:
    download(
        ["mvn", "--quiet", "--batch-mode", "--file", HERE / "kafka.pom.xml", "dependency:copy-dependencies",
         "-DincludeScope=runtime", f"-DoutputDirectory={draft}", f"-Dbroker={VERSION}"],
        what=f"Kafka {VERSION}",
        cwd=draft,
    )  # fmt: skip


@cache
def classpath() -> str:
    return f"{cached(cache_root() / 'kafka' / VERSION, _install)}/*"


def _jvm(*options: str) -> list[str]:
    logging = f"-Dlog4j2.configurationFile=file:{HERE / 'kafka.log4j2.properties'}"
    # Where the libraries of the compressions are unpacked, and stay: our directory is removed at the end.
    temporary = f"-Djava.io.tmpdir={workspace()}"
    return [java(), *options, "-cp", classpath(), logging, temporary]


def _archive_classes(draft: Path) -> None:
    broker = KafkaBroker(jvm=(*HEAP, *QUICK_START, f"-XX:ArchiveClassesAtExit={draft / 'classes.jsa'}"))
    broker.start()
    broker.create_topic("warm")
    broker.stop()
    broker.close()


def _shared_classes() -> str:
    """The option that halves the broker's start: its classes, parsed and linked once, mapped into memory."""
    shown = subprocess.run([java(), "-version"], capture_output=True, text=True, check=True).stderr
    # Another build of Java can't use them, and would only be slow.
    build = hashlib.sha256(f"{shown}{classpath()}".encode()).hexdigest()[:12]
    archive = cached(cache_root() / "kafka" / f"classes-{VERSION}-{build}", _archive_classes)
    return f"-XX:SharedArchiveFile={archive / 'classes.jsa'}"


def _random_id() -> str:
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")


def _properties(settings: Mapping[str, str]) -> str:
    return "".join(f"{name}={value}\n" for name, value in settings.items())


def _format(draft: Path) -> None:
    home = directory("kafka-format-")
    settings = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": "1@127.0.0.1:9093",
        "listeners": "PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093",
        "controller.listener.names": "CONTROLLER",
        "log.dirs": str(draft / "data"),
    }
    (home / "server.properties").write_text(_properties(settings))
    command = [*_jvm(*HEAP, *QUICK_START), "kafka.tools.StorageTool", "format"]
    run(
        [*command, "--cluster-id", _random_id(), "--config", home / "server.properties"],
        what="formatting a Kafka log directory",
    )


class Kafka(ABC):
    """A Kafka cluster that the tests may use; how it runs is the subclass's matter."""

    @property
    @abstractmethod
    def bootstrap(self) -> str:
        """The address to give to clients."""

    def admin(self) -> AdminClient:
        """A client for the broker's administration, for one use."""
        return AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0, "socket.timeout.ms": 10_000})

    def create_topic(
        self, name: str, partitions: int = 1, config: Mapping[str, str] | None = None, *, replicas: int = 1
    ) -> None:
        """Make a topic; returns when every partition has a leader."""
        admin = self.admin()
        topic = NewTopic(name, partitions, replicas, config=dict(config or {}))
        _done(admin.create_topics([topic], request_timeout=20))

        def led() -> bool:
            shown = admin.list_topics(name, timeout=PATIENCE).topics[name]
            return len(shown.partitions) == partitions and all(
                partition.leader >= 0 for partition in shown.partitions.values()
            )

        eventually(led, PATIENCE, f"leaders for topic {name}")

    def create_partitions(self, name: str, partitions: int) -> None:
        """Raise a topic's number of partitions; returns when the broker tells its clients of them."""
        admin = self.admin()
        _done(admin.create_partitions([NewPartitions(name, partitions)], request_timeout=20))
        eventually(
            lambda: self.topics()[name] == partitions, PATIENCE, f"{partitions} partitions of topic {name}"
        )

    def delete_topic(self, name: str) -> None:
        """Remove a topic; returns when the broker doesn't list it any more."""
        admin = self.admin()
        _done(admin.delete_topics([name], operation_timeout=20))
        eventually(lambda: name not in self.topics(), PATIENCE, f"topic {name} gone")

    @contextlib.contextmanager
    def without(self, *names: str) -> Iterator[None]:
        """Remove topics of these names, which a document chose, at the end of the block if they came within it."""
        before = self.topics()
        try:
            yield
        finally:
            for name in self.topics().keys() & set(names) - before.keys():
                self.delete_topic(name)

    def topics(self) -> dict[str, int]:
        """The topics, without Kafka's own, with their number of partitions."""
        listed = self.admin().list_topics(timeout=PATIENCE).topics
        return {name: len(topic.partitions) for name, topic in listed.items() if not name.startswith("__")}

    def configure_topic(self, name: str, config: Mapping[str, str | None]) -> None:
        """Change a topic's configuration; None goes back to the default. Returns when the broker says so itself."""
        entries = [
            ConfigEntry(
                key,
                value or "",
                incremental_operation=AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET,
            )
            for key, value in config.items()
        ]
        admin = self.admin()
        resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=entries)
        _done(admin.incremental_alter_configs([resource]))

        def configured() -> bool:
            [asked] = admin.describe_configs([ConfigResource(ResourceType.TOPIC, name)]).values()
            found = asked.result(30)
            return all(
                found[key].is_default if value is None else found[key].value == value
                for key, value in config.items()
            )

        eventually(configured, PATIENCE, f"{config} of topic {name}")

    @abstractmethod
    def close(self) -> None:
        """End what the tests started for this cluster; nothing for one that was there before."""


def _done(futures: Mapping[Any, Future[Any]]) -> None:
    for future in futures.values():
        future.result(30)


def _rule(user: str, operation: str, topic: str) -> AclBinding:
    return AclBinding(
        ResourceType.TOPIC,
        topic,
        ResourcePatternType.LITERAL,
        f"User:{user}",
        "*",
        AclOperation[operation.upper()],
        AclPermissionType.ALLOW,
    )


def _same(rule: AclBinding) -> AclBindingFilter:
    return AclBindingFilter(
        rule.restype,
        rule.name,
        rule.resource_pattern_type,
        rule.principal,
        rule.host,
        rule.operation,
        rule.permission_type,
    )


class GivenKafka(Kafka):
    """A cluster that was there before the tests."""

    def __init__(self, bootstrap: str, end: Callable[[], object] | None = None) -> None:
        """`end` is called by `close()`, where the tests did start the cluster somehow."""
        self._bootstrap = bootstrap
        self._end = end

    @property
    def bootstrap(self) -> str:
        return self._bootstrap

    def close(self) -> None:
        if self._end is not None:
            self._end()


class KafkaBroker(Kafka):
    """A broker of the test's own on 127.0.0.1, to stop, kill, freeze and start again."""

    def __init__(
        self,
        *,
        settings: Mapping[str, str] | None = None,
        jvm: Sequence[str] = (*HEAP, *QUICK_START),
        secure: bool = False,
    ) -> None:
        """Format a log directory; `start()` starts the broker.

        `settings` go over SETTINGS. `secure` opens the listeners of security.py beside the plain one.
        """
        self._prepare(1, settings, jvm)
        self.secure = secure
        self._voters = f"1@127.0.0.1:{self.controller_port}"
        self._replicas = 1
        if secure:
            self.ports.update((name, free_port()) for name in security.LISTENERS)
        self._make_log_directory(_random_id())

    def _prepare(self, node: int, settings: Mapping[str, str] | None, jvm: Sequence[str]) -> None:
        self.node = node
        self.ports = {"PLAINTEXT": free_port()}
        self.controller_port = free_port()
        self.home = directory(f"kafka{node}-")
        self.log = self.home / "server.log"
        self.settings = {**SETTINGS, **(settings or {})}
        self.secure = False
        self._jvm_options = tuple(jvm)
        self._process: Process | None = None

    def _make_log_directory(self, cluster: str) -> None:
        template = cached(cache_root() / "kafka" / f"template-{VERSION}", _format)
        shutil.copytree(template / "data", self.home / "data")
        identity = {
            "version": "1",
            "cluster.id": cluster,
            "node.id": str(self.node),
            "directory.id": _random_id(),
        }
        (self.home / "data" / "meta.properties").write_text(_properties(identity))

    @property
    def port(self) -> int:
        """The plain listener's port."""
        return self.ports["PLAINTEXT"]

    @property
    def bootstrap(self) -> str:
        return self.address()

    def address(self, listener: str = "PLAINTEXT") -> str:
        """The address of one of the listeners, for clients."""
        return f"127.0.0.1:{self.ports[listener]}"

    @property
    def pid(self) -> int:
        """The broker's process id."""
        assert self._process is not None, "the broker isn't running"
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.running

    def _server_settings(self) -> dict[str, str]:
        replicas = str(self._replicas)
        clients = ",".join(f"{name}://127.0.0.1:{port}" for name, port in self.ports.items())
        return {
            **(security.server_settings() if self.secure else {}),
            **self.settings,
            "process.roles": "broker,controller",
            "node.id": str(self.node),
            "controller.quorum.voters": self._voters,
            "controller.listener.names": "CONTROLLER",
            "listeners": f"{clients},CONTROLLER://127.0.0.1:{self.controller_port}",
            "advertised.listeners": clients,
            "listener.security.protocol.map": ",".join(f"{name}:{name}" for name in self.ports)
            + ",CONTROLLER:PLAINTEXT",
            "inter.broker.listener.name": "PLAINTEXT",
            "log.dirs": str(self.home / "data"),
            "offsets.topic.replication.factor": replicas,
            "transaction.state.log.replication.factor": replicas,
            "transaction.state.log.min.isr": "1",
            "share.coordinator.state.topic.replication.factor": replicas,
            "share.coordinator.state.topic.min.isr": "1",
        }

    def start(self, timeout: float = 60) -> KafkaBroker:
        """Start the broker and wait until it answers clients."""
        self.launch()
        self.wait_ready(timeout)
        if self.secure:
            self._make_scram_users()
        return self

    def _make_scram_users(self) -> None:
        admin = self.admin()
        for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
            information = ScramCredentialInfo(mechanism, 4096)
            _done(
                admin.alter_user_scram_credentials(
                    [
                        UserScramCredentialUpsertion(user, information, password.encode())
                        for user, password in security.USERS.items()
                    ]
                )
            )

    def allow(self, user: str, operation: str, topic: str) -> None:
        """Allow `user` an operation, such as "write" or "describe", on a topic; "*" for all topics.

        Returns when the broker goes by it: the controller answers before that.
        """
        rule, admin = _rule(user, operation, topic), self.admin()
        _done(admin.create_acls([rule]))
        eventually(lambda: self._goes_by(rule), PATIENCE, f"{user} may {operation} {topic}")

    def withdraw(self, user: str, operation: str, topic: str) -> None:
        """End what `allow` gave, word for word the same; returns when the broker goes by that."""
        rule, admin = _rule(user, operation, topic), self.admin()
        _done(admin.delete_acls([_same(rule)]))
        eventually(lambda: not self._goes_by(rule), PATIENCE, f"{user} may no more {operation} {topic}")

    def _goes_by(self, rule: AclBinding) -> bool:
        admin = self.admin()
        return bool(admin.describe_acls(_same(rule)).result(30))

    def launch(self) -> None:
        """Start the broker's process without waiting."""
        assert not self.running, "the broker runs already"
        file = self.home / "server.properties"
        file.write_text(_properties(self._server_settings()))
        options = self._jvm_options
        if not any("Archive" in option for option in options):
            options = (*options, _shared_classes())
        self._process = Process([*_jvm(*options), "kafka.Kafka", file], log=self.log, cwd=self.home)

    def wait_ready(self, timeout: float = 60) -> None:
        """Wait until the broker answers clients."""
        eventually(self._listens, timeout, lambda: f"Kafka listens:\n{self.log_text()[-2000:]}")
        admin = self.admin()

        def answers() -> bool:
            assert self.running, f"Kafka ended at start:\n{self.log_text()[-2000:]}"
            with contextlib.suppress(KafkaException):
                return self.node in admin.list_topics(timeout=2).brokers
            return False

        eventually(answers, timeout, lambda: f"Kafka ready:\n{self.log_text()[-2000:]}")

    def _listens(self) -> bool:
        assert self.running, f"Kafka ended at start:\n{self.log_text()[-2000:]}"
        try:
            socket.create_connection(("127.0.0.1", self.port), 1).close()
        except OSError:
            return False
        return True

    def stop(self, timeout: float = 60) -> float:
        """End the broker with SIGTERM; the seconds that it took."""
        assert self._process is not None, "the broker isn't running"
        began = time.monotonic()
        self._process.send(signal.SIGTERM)
        self._process.wait(timeout)
        return time.monotonic() - began

    def kill(self) -> None:
        """`kill -9`."""
        if self._process is not None:
            self._process.kill()

    def restart(self) -> float:
        """Stop and start on the same port; the seconds until it answers again."""
        began = time.monotonic()
        self.stop()
        self.start()
        return time.monotonic() - began

    def move(self) -> None:
        """Take other ports at the next start. The old addresses are dead from then on."""
        assert not self.running, "the broker must be down to move"
        self.ports = {name: free_port() for name in self.ports}

    def pause(self) -> None:
        """Freeze the broker; its kernel still acknowledges what clients send."""
        assert self._process is not None, "the broker isn't running"
        self._process.send(signal.SIGSTOP)

    def resume(self) -> None:
        """Let a frozen broker go on."""
        assert self._process is not None, "the broker isn't running"
        self._process.send(signal.SIGCONT)

    def log_text(self) -> str:
        """What the broker logged: warnings and errors."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def close(self) -> None:
        """Kill the broker and remove its data."""
        self.kill()
        shutil.rmtree(self.home, ignore_errors=True)


class KafkaCluster(Kafka):
    """Three brokers of the test's own, each broker and controller; topics have three replicas by default."""

    def __init__(self, *, size: int = 3, settings: Mapping[str, str] | None = None) -> None:
        """Format the log directories; `start()` starts the brokers. `settings` go over SETTINGS."""
        self.brokers: list[KafkaBroker] = []
        for node in range(1, size + 1):
            broker = KafkaBroker.__new__(KafkaBroker)
            broker._prepare(node, {"min.insync.replicas": "2", **(settings or {})}, (*HEAP, *QUICK_START))
            self.brokers.append(broker)
        voters = ",".join(f"{each.node}@127.0.0.1:{each.controller_port}" for each in self.brokers)
        cluster = _random_id()
        for broker in self.brokers:
            broker._voters = voters
            broker._replicas = size
            broker._make_log_directory(cluster)

    @property
    def bootstrap(self) -> str:
        return ",".join(broker.bootstrap for broker in self.brokers)

    def start(self, timeout: float = 90) -> KafkaCluster:
        """Start the brokers and wait until each answers clients."""
        for broker in self.brokers:
            broker.launch()
        for broker in self.brokers:
            broker.wait_ready(timeout)
        return self

    def create_topic(
        self, name: str, partitions: int = 1, config: Mapping[str, str] | None = None, *, replicas: int = 3
    ) -> None:
        super().create_topic(name, partitions, config, replicas=replicas)

    def leader(self, topic: str, partition: int = 0) -> KafkaBroker:
        """The broker that leads a partition, once one does."""
        admin = self.admin()

        def found() -> KafkaBroker | None:
            known = admin.list_topics(topic, timeout=PATIENCE).topics[topic].partitions.get(partition)
            return next(
                (
                    broker
                    for broker in self.brokers
                    if known and broker.node == known.leader and broker.running
                ),
                None,
            )

        broker = eventually(found, PATIENCE, f"a leader of {topic}/{partition}")
        assert broker is not None
        return broker

    def close(self) -> None:
        for broker in self.brokers:
            broker.close()


def _in_docker() -> GivenKafka:
    port = free_port()
    settings = {
        **SETTINGS,
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": "1@localhost:9093",
        "controller.listener.names": "CONTROLLER",
        "listeners": "PLAINTEXT://:9092,CONTROLLER://:9093",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
        "offsets.topic.replication.factor": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
    }
    env = {f"KAFKA_{name.upper().replace('.', '_')}": value for name, value in settings.items()}
    kafka = GivenKafka(
        f"127.0.0.1:{port}", run_container(f"apache/kafka:{VERSION}", env=env, ports={9092: port})
    )
    admin = kafka.admin()

    def answers() -> bool:
        with contextlib.suppress(KafkaException):
            return bool(admin.list_topics(timeout=2).brokers)
        return False

    eventually(answers, 90, "Kafka in Docker")
    return kafka


def shared_kafka() -> Kafka:
    """A running broker for many tests.

    The one that `CDC_OUTBOX_TEST_KAFKA` names, else one from the cache's jars, else one in Docker;
    `CDC_OUTBOX_TEST_DOCKER=first` swaps the last two, `no` forbids Docker.
    """
    given = os.environ.get("CDC_OUTBOX_TEST_KAFKA")
    if given:
        return GivenKafka(given)
    return local_or_docker(lambda: KafkaBroker().start(), _in_docker)
