"""Fixtures with real servers.

Shared servers (`postgres`, `kafka`, `postgres_version`) are started once and left in order by their users:
each test has a `database`, a `slot` and a `topics` prefix of its own. Whoever breaks a server asks for one
of its own (`own_postgres`, `own_kafka`), which costs about a second.

A test that asks for a server is marked `postgres` or `kafka` by that.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import pytest
from psycopg.sql import SQL, Identifier, Literal

from tests.integration.passage import Passage
from tests.servers.kafka import Kafka, KafkaBroker, KafkaCluster, shared_kafka
from tests.servers.ledger import Consumer, Writer, create_outbox
from tests.servers.pipeline import Pipeline
from tests.servers.postgres import MAJORS, PASSWORD, Postgres, PostgresServer, shared_postgres
from tests.servers.proxy import Proxy
from tests.servers.relay import RelayProcess
from tests.servers.shell import Running, Shell


class Closing(Protocol):
    def close(self) -> None: ...


Closable = TypeVar("Closable", bound=Closing)

POSTGRES_FIXTURES = {"postgres", "postgres_version", "own_postgres", "make_postgres"}
KAFKA_FIXTURES = {"kafka", "own_kafka", "make_kafka", "secure_kafka", "own_cluster"}

ALL_VERSIONS = pytest.mark.usefixtures("postgres_version")
"""For a test whose `database` is to be on each supported version in turn."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        fixtures = set(getattr(item, "fixturenames", ()))
        if fixtures & POSTGRES_FIXTURES and not item.get_closest_marker("postgres"):
            item.add_marker(pytest.mark.postgres)
        if fixtures & KAFKA_FIXTURES:
            item.add_marker(pytest.mark.kafka)


@dataclass(frozen=True)
class Database:
    """A fresh database on a shared server."""

    server: Postgres
    name: str

    @property
    def dsn(self) -> str:
        """The superuser's connection string."""
        return self.server.dsn(self.name)

    @property
    def major(self) -> int:
        return self.server.major


@pytest.fixture(scope="session")
def shared_servers() -> Iterator[Callable[[int], Postgres]]:
    """The shared server of a version, started when first asked for."""
    running: dict[int, Postgres] = {}

    def of(major: int) -> Postgres:
        if major not in running:
            running[major] = shared_postgres(major)
        return running[major]

    try:
        yield of
    finally:
        for server in running.values():
            server.close()


@pytest.fixture(scope="session")
def postgres(shared_servers: Callable[[int], Postgres]) -> Postgres:
    """The shared PostgreSQL 18. Don't stop it or change its settings."""
    return shared_servers(18)


@pytest.fixture(params=MAJORS, ids=lambda major: f"pg{major}")
def postgres_version(request: pytest.FixtureRequest, shared_servers: Callable[[int], Postgres]) -> Postgres:
    """The shared server of each supported version in turn."""
    return shared_servers(request.param)


@pytest.fixture
def database(request: pytest.FixtureRequest) -> Iterator[Database]:
    """A fresh database on `postgres_version` if the test asks for that, else on `postgres`."""
    name = "postgres_version" if "postgres_version" in request.fixturenames else "postgres"
    server: Postgres = request.getfixturevalue(name)
    database = f"test_{secrets.token_hex(4)}"
    server.create_database(database)
    try:
        yield Database(server, database)
    finally:
        server.drop_database(database)


@pytest.fixture
def outbox(database: Database) -> Database:
    """A fresh database with the project's default table `public.outbox`."""
    create_outbox(database.dsn)
    return database


@pytest.fixture
def slot() -> str:
    """A slot name that no other test uses."""
    return f"slot_{secrets.token_hex(4)}"


@pytest.fixture
def plain_role(database: Database, slot: str) -> Iterator[str]:
    """A role that may log in and replicate, and owns nothing."""
    database.server.execute(
        SQL("create role {} login replication password {}").format(Identifier(slot), Literal(PASSWORD))
    )
    yield slot
    database.server.execute(SQL("drop owned by {}").format(Identifier(slot)), dbname=database.name)
    database.server.execute(SQL("drop role {}").format(Identifier(slot)))


@pytest.fixture
def topics() -> str:
    """A prefix for topic names that no other test uses, with its dot."""
    return f"test-{secrets.token_hex(4)}."


@pytest.fixture
def aggregate_type() -> str:
    """An aggregate type that no other test uses; its events' default topic is `outbox_topic`."""
    return f"test-{secrets.token_hex(4)}"


@pytest.fixture
def outbox_topic(aggregate_type: str) -> str:
    """The default topic of `aggregate_type`; not made yet."""
    return f"outbox.event.{aggregate_type}"


@pytest.fixture(scope="session")
def kafka() -> Iterator[Kafka]:
    """The shared broker. Don't stop it; topics don't make themselves on it."""
    broker = shared_kafka()
    try:
        yield broker
    finally:
        broker.close()


@pytest.fixture(scope="session")
def secure_kafka() -> Iterator[KafkaBroker]:
    """A shared broker with TLS, SASL and access control (servers/security.py). Don't stop it."""
    broker = KafkaBroker(secure=True)
    try:
        yield broker.start()
    finally:
        broker.close()


@pytest.fixture
def make_postgres() -> Iterator[Callable[..., PostgresServer]]:
    """Makes and starts servers of the test's own: `make_postgres(17, settings={...})`."""
    with contextlib.ExitStack() as stack:

        def make(major: int = 18, **options: Any) -> PostgresServer:
            return _closed_by(stack, PostgresServer(major, **options)).start()

        yield make


@pytest.fixture
def own_postgres(make_postgres: Callable[..., PostgresServer]) -> PostgresServer:
    """A PostgreSQL 18 of the test's own, to be broken."""
    return make_postgres()


@pytest.fixture
def make_kafka() -> Iterator[Callable[..., KafkaBroker]]:
    """Makes and starts brokers of the test's own: `make_kafka(settings={...})`."""
    with contextlib.ExitStack() as stack:

        def make(**options: Any) -> KafkaBroker:
            return _closed_by(stack, KafkaBroker(**options)).start()

        yield make


@pytest.fixture
def own_kafka(make_kafka: Callable[..., KafkaBroker]) -> KafkaBroker:
    """A broker of the test's own, to be broken."""
    return make_kafka()


@pytest.fixture
def own_cluster() -> Iterator[KafkaCluster]:
    """Three brokers of the test's own, to be broken one by one."""
    cluster = KafkaCluster()
    try:
        yield cluster.start()
    finally:
        cluster.close()


@pytest.fixture
def make_proxy() -> Iterator[Callable[[str, int], Proxy]]:
    """Makes proxies: `make_proxy("127.0.0.1", own_postgres.port)`."""
    with contextlib.ExitStack() as stack:
        yield lambda host, port: stack.enter_context(Proxy((host, port)))


@pytest.fixture
def make_relay() -> Iterator[Callable[..., RelayProcess]]:
    """Starts relays: `make_relay(dsn, bootstrap, slot=slot, flags=["--init"])`."""
    with contextlib.ExitStack() as stack:

        def make(*arguments: Any, **options: Any) -> RelayProcess:
            return _closed_by(stack, RelayProcess(*arguments, **options))

        yield make


@pytest.fixture
def make_pipeline(slot: str, aggregate_type: str) -> Iterator[Callable[..., Pipeline]]:
    """Puts a server or database, relays and a broker together: `make_pipeline(outbox, kafka).prepare().init()`."""
    with contextlib.ExitStack() as stack:

        def make(where: Postgres | Database, kafka: Kafka, **options: Any) -> Pipeline:
            server, dbname = (
                (where.server, where.name) if isinstance(where, Database) else (where, "postgres")
            )
            named = {"slot": slot, "aggregate_type": aggregate_type, "dbname": dbname}
            return _closed_by(stack, Pipeline(server, kafka, **{**named, **options}))

        yield make


@pytest.fixture
def pipeline(outbox: Database, kafka: Kafka, make_pipeline: Callable[..., Pipeline]) -> Pipeline:
    """Publication, witness, slot and topic for the default table, and no relay yet."""
    return make_pipeline(outbox, kafka).prepare().init()


@pytest.fixture
def passage(database: Database, kafka: Kafka, slot: str, topics: str) -> Passage:
    """A slot's name and a prefix of topics in an empty database."""
    return Passage(database, kafka, slot, topics)


@pytest.fixture
def make_writer(aggregate_type: str) -> Iterator[Callable[..., Writer]]:
    """Makes writers: `make_writer(dsn, rate=500).start()`."""
    with contextlib.ExitStack() as stack:

        def make(dsn: str, **options: Any) -> Writer:
            return _closed_by(stack, Writer(dsn, **{"aggregate_type": aggregate_type, **options}))

        yield make


@pytest.fixture
def make_consumer() -> Iterator[Callable[..., Consumer]]:
    """Starts consumers: `make_consumer(kafka.bootstrap, outbox_topic)`."""
    with contextlib.ExitStack() as stack:

        def make(bootstrap: str, *topics: str, **options: Any) -> Consumer:
            return _closed_by(stack, Consumer(bootstrap, *topics, **options))

        yield make


@pytest.fixture
def launched() -> Iterator[Callable[[Shell, str], Running]]:
    """Launches commands in a person's shell, and ends them with the test."""
    with contextlib.ExitStack() as stack:
        yield lambda shell, commands: _closed_by(stack, shell.launch(commands))


def _closed_by(stack: contextlib.ExitStack, made: Closable) -> Closable:
    stack.callback(made.close)
    return made
