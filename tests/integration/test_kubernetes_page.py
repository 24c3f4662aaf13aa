"""The page on Kubernetes, gone from the role to the end, with each pod's command run here instead of in a cluster.

What the manifests are is tests/unit/test_kubernetes.py's; here is that their settings, secrets and arguments do it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from psycopg.sql import SQL, Literal

from tests.servers import kubectl
from tests.servers.cache import CHECKOUT
from tests.servers.kafka import Kafka, KafkaBroker
from tests.servers.ledger import read_all
from tests.servers.pod import Manifest, Pod
from tests.servers.postgres import PASSWORD, PostgresServer
from tests.servers.process import free_port
from tests.servers.relay import run_command
from tests.servers.security import USERS, certificates
from tests.servers.shell import Running, Shell, blocks, path_of, shell_of_checkout

PAGE = (CHECKOUT / "docs" / "how-to" / "run-on-kubernetes.md").read_text()
BLOCKS = blocks(PAGE)
TOPIC = "outbox.event.order"


class Cluster:
    """The page's shell, and what the cluster would have after each step."""

    def __init__(self, shell: Shell) -> None:
        self.shell = shell
        self._pods = 0

    def pod(self, kind: str, overlay: str) -> Pod:
        """The pod of the overlay's workload of this kind, with the secrets that were made."""
        made = list(yaml.safe_load_all(self.shell.run(f"kubectl kustomize {overlay}").stdout))
        (workload,) = (each for each in made if each["kind"] == kind)
        secrets: list[Manifest] = [
            yaml.safe_load(file.read_text())
            for file in Path(self.shell.run('echo "$SECRETS"').stdout.strip()).glob("*.yaml")
        ]
        self._pods += 1
        return Pod(workload, [*made, *secrets], self.shell.home / f"pod-{self._pods}")

    def job(self, overlay: str, *, code: int = 0) -> subprocess.CompletedProcess[str]:
        """The job of the overlay, run to its end."""
        pod = self.pod("Job", overlay)
        done = run_command(*pod.arguments, env=pod.environment)
        assert done.returncode == code, done.stdout + done.stderr
        assert PASSWORD not in done.stdout + done.stderr
        return done


@pytest.fixture
def server(own_postgres: PostgresServer) -> PostgresServer:
    own_postgres.create_database("app")
    own_postgres.execute(SQL("create role app_owner login password {}").format(Literal(PASSWORD)))
    return own_postgres


@pytest.fixture
def cluster(server: PostgresServer, tmp_path: Path) -> Cluster:
    shutil.copytree(CHECKOUT / "docker" / "kubernetes", tmp_path / "docker" / "kubernetes")
    (tmp_path / "tmp").mkdir()
    shell = shell_of_checkout(
        tmp_path,
        PATH=os.pathsep.join((path_of(Path(sys.prefix)), str(kubectl.directory()))),
        TMPDIR=str(tmp_path / "tmp"),
        SUPERUSER_DSN=server.dsn("app"),
        OWNER_DSN=server.dsn("app", user="app_owner"),
        DATABASE=f"127.0.0.1:{server.port}/app",
        IMAGE="registry.example.org/cdc-outbox",
        TAG="0.1.0",
    )
    return Cluster(shell)


def prepared(cluster: Cluster, address: str) -> None:
    """Steps 2 to 4."""
    shell = cluster.shell
    shell.export(KAFKA=address)
    shell.run(BLOCKS["role"])
    shell.run(f'psql --set ON_ERROR_STOP=1 "$SUPERUSER_DSN" <<"END"\n{BLOCKS["rights"]}END')
    shell.run(BLOCKS["secrets"])
    shell.run(BLOCKS["overlay"])


def sent(
    cluster: Cluster, launched: Callable[[Shell, str], Running], bootstrap: str, partitions: Callable[[], int]
) -> None:
    """Steps 6 and 7: the relay brings the row to a topic that it made, and `health` in its pod is content."""
    pod = cluster.pod("Deployment", "deploy")
    assert pod.arguments == ["start"]
    cluster.shell.export(**pod.environment, CDC_OUTBOX_HTTP=f"127.0.0.1:{free_port()}")
    running = launched(cluster.shell, "cdc-outbox start")
    cluster.shell.run(BLOCKS["event"])
    running.wait(lambda: "first event confirmed" in running.log.read_text())
    assert [record.key for record in read_all(bootstrap, TOPIC)] == [b"42"]
    assert partitions() == 12
    cluster.shell.run("cdc-outbox health")
    assert running.terminate() == 0
    assert not any(secret in running.log.read_text() for secret in (PASSWORD, *USERS.values()))


def test_from_the_role_to_the_removal(
    cluster: Cluster, server: PostgresServer, kafka: Kafka, launched: Callable[[Shell, str], Running]
) -> None:
    with kafka.without(TOPIC):
        prepared(cluster, kafka.bootstrap)
        assert "created" in cluster.job("deploy/init").stdout
        assert "created" not in cluster.job("deploy/init").stdout
        sent(cluster, launched, kafka.bootstrap, lambda: kafka.topics()[TOPIC])
    once = "[start, --accept-gap, --no-http, --until-caught-up]"
    assert once in PAGE
    cluster.shell.run(BLOCKS["drop"].replace("[drop, --yes]", once))
    cluster.job("deploy/command")
    cluster.shell.run(BLOCKS["drop"])
    assert "drop role outbox_relay" in cluster.job("deploy/command").stdout
    assert server.execute("select slot_name from pg_replication_slots") == []


def test_rows_from_before_are_published_by_another_job(cluster: Cluster, kafka: Kafka) -> None:
    with kafka.without(TOPIC):
        prepared(cluster, kafka.bootstrap)
        pod = cluster.pod("Job", "deploy/init")
        assert run_command(*pod.arguments, "--only", "table", env=pod.environment).returncode == 0
        cluster.shell.run(BLOCKS["event"])
        assert "backfill" in cluster.job("deploy/init", code=78).stderr
        assert "[backfill, --yes]" in PAGE
        cluster.shell.run(BLOCKS["drop"].replace("[drop, --yes]", "[backfill, --yes]"))
        cluster.job("deploy/command")
        assert [record.key for record in read_all(kafka.bootstrap, TOPIC)] == [b"42"]


def test_with_a_secured_kafka(
    cluster: Cluster, secure_kafka: KafkaBroker, launched: Callable[[Shell, str], Running]
) -> None:
    shell = cluster.shell
    for operation in ("create", "write"):
        secure_kafka.allow("relay", operation, TOPIC)
    try:
        with secure_kafka.without(TOPIC):
            prepared(cluster, secure_kafka.address("SASL_SSL"))
            shell.run(f'cp {certificates() / "ca.pem"} "$SECRETS/kafka_ca.pem"')
            shell.export(KAFKA_PASSWORD=USERS["relay"])
            shell.run('echo "$KAFKA_PASSWORD" > "$SECRETS/kafka_password"')
            shell.run(BLOCKS["secured"])
            cluster.job("deploy/init")
            sent(cluster, launched, secure_kafka.bootstrap, lambda: secure_kafka.topics()[TOPIC])
    finally:
        for operation in ("create", "write"):
            secure_kafka.withdraw("relay", operation, TOPIC)


def test_what_a_person_has_to_mend_ends_the_job(cluster: Cluster) -> None:
    """A table of one's own that isn't there, without the patch that makes it: the job isn't tried again."""
    prepared(cluster, "127.0.0.1:9")
    toml = cluster.shell.home / "deploy" / "settings" / "cdc-outbox.toml"
    toml.write_text(f'[outbox]\ntable = "shop.events"\n{toml.read_text()}')
    file = cluster.shell.home / "deploy" / "init" / "kustomization.yaml"
    file.write_text(file.read_text().partition("patches:")[0])
    assert "shop.events" in cluster.job("deploy/init", code=78).stderr
