"""The image and compose.yaml, built and run by the commands of their page, on an engine of the tests' own.

No public image can be pulled here: tests/servers/standin.py says what stands for each. Grafana has none, so that what
is mounted into it is only looked at.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from shlex import quote

import pytest
import yaml

from tests.servers import standin
from tests.servers.cache import CHECKOUT, Missing
from tests.servers.engine import Engine
from tests.servers.lacking import lacking
from tests.servers.process import directory
from tests.servers.shell import FENCE, Shell, blocks
from tests.servers.wait import eventually

PAGE = (CHECKOUT / "docs" / "how-to" / "run-in-containers.md").read_text()
BLOCKS = blocks(PAGE)
UPGRADE = blocks((CHECKOUT / "docs" / "how-to" / "upgrade-or-remove.md").read_text())
MB = 1_000_000
IMAGE = "cdc-outbox"
PATIENCE = 90


def test_each_block_is_run() -> None:
    everything = [
        "build",
        "secrets",
        "up",
        "event",
        "consume",
        "look",
        "own",
        "audit",
        "poison",
        "drop",
        "down",
    ]
    assert list(BLOCKS) == [*everything, "files", "init", "alone", "alone-look"]
    assert len(FENCE.findall(PAGE)) == len(BLOCKS)


@pytest.fixture
def engine() -> Iterator[Engine]:
    try:
        running = Engine()
    except Missing as missing:
        # An engine needs root, overlayfs and namespaces: who tests as an ordinary user or within a container has
        # none, and nothing else can build an image.
        lacking(f"no Docker engine can be had: {missing}")
    try:
        standin.compose(running)
        standin.python(running)
        yield running
    finally:
        running.close()


@pytest.mark.timeout(700)
def test_the_image_and_all_that_is_around_it(engine: Engine, tmp_path: Path) -> None:
    """One test for one engine: a second one, beside it, would make all images again."""
    engine.shell(CHECKOUT).run(BLOCKS["build"])
    the_image_is_small_and_holds_nothing_else(engine)
    the_image_needs_no_right_and_no_file(engine)
    another_one_knows_amazon_and_pushes(engine)
    compose_builds_the_same_image(engine)
    the_whole_file_is_one(engine)
    place = around(engine, tmp_path)
    compose_up_and_an_event_flows(engine, place)
    a_table_and_topics_of_ones_own(place)
    place.run(BLOCKS["down"])
    assert engine.docker("ps", "--all", "--quiet", "--filter", "label=com.docker.compose.project") == ""
    assert engine.docker("volume", "ls", "--quiet") == ""


def the_image_is_small_and_holds_nothing_else(engine: Engine) -> None:
    (made,) = json.loads(engine.docker("image", "inspect", IMAGE))
    assert made["Size"] < 120 * MB
    assert round(made["Size"] / MB, -1) == 80, "the page says 80 MB"
    assert made["Config"]["User"] == "65532:65532"
    assert made["Config"]["Healthcheck"]["Test"] == ["CMD", "cdc-outbox", "health"]
    container = engine.docker("create", IMAGE).strip()
    archive = directory("image-") / "files.tar"
    engine.docker("export", "--output", archive, container)
    files = subprocess.run(
        ["tar", "-tf", archive], capture_output=True, text=True, timeout=60, check=True
    ).stdout.splitlines()
    names = {Path(name).name for name in files if "/bin/" in name or name.startswith("bin/")}
    assert not names & {"sh", "bash", "dash", "pip", "apt", "dpkg"}
    modules = {name for name in files if name.endswith(".py") and "/cdc_outbox/" in name}
    compiled = {name for name in files if name.endswith(".pyc") and "/cdc_outbox/" in name}
    assert len(modules) == len(compiled) > 100


def the_image_needs_no_right_and_no_file(engine: Engine) -> None:
    confined = [
        "--rm",
        "--read-only",
        "--cap-drop",
        "ALL",
        "--security-opt",
        "no-new-privileges",
        "--network",
        "none",
    ]
    version = engine.docker("run", *confined, IMAGE, "--version")
    assert version.startswith("cdc-outbox")
    # All that is compiled can be loaded: no shared library was left behind.
    script = (
        "import ctypes, ssl, zoneinfo, lzma, bz2, zlib, sqlite3, uuid, psycopg, aiokafka, orjson, cramjam, murmurhash2;"
        "print(psycopg.pq.__impl__, zoneinfo.ZoneInfo('Europe/Berlin'));"
        "print(ssl.create_default_context().cert_store_stats())"
    )
    said = engine.docker("run", *confined, "--entrypoint", "python", IMAGE, "-c", script)
    assert said.startswith("binary Europe/Berlin")
    assert "'x509_ca': 0" not in said
    kept = "import tempfile; print(tempfile.mkstemp()[1])"
    said = engine.docker("run", *confined, "--tmpfs", "/tmp", "--entrypoint", "python", IMAGE, "-c", kept)
    assert said.startswith("/tmp/")


def another_one_knows_amazon_and_pushes(engine: Engine) -> None:
    argument = "--build-arg EXTRAS=speed,compression,aws,otel"
    assert argument in PAGE
    engine.shell(CHECKOUT).run(BLOCKS["build"].replace(f"--tag {IMAGE}", f"--tag {IMAGE}-more {argument}"))
    host = "a.b.eu-central-1.rds.amazonaws.com"
    password = f"from cdc_outbox import aws; print(aws.rds(host={host!r}, port='5432', user='u'))"
    planted = ["--env", "AWS_ACCESS_KEY_ID=planted", "--env", "AWS_SECRET_ACCESS_KEY=planted"]
    more = ["run", "--rm", "--read-only", *planted, "--entrypoint", "python", f"{IMAGE}-more", "-c"]
    assert engine.docker(*more, password).startswith(f"{host}:5432/?Action=connect&DBUser=u&")
    push = "from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter; OTLPMetricExporter()"
    engine.docker(*more, push)
    engine.docker("image", "rm", f"{IMAGE}-more")


def around(engine: Engine, tmp_path: Path) -> Shell:
    """A shell where `docker/` is, without Grafana, for which nothing stands; Prometheus asks each second."""
    standin.postgres(engine)
    standin.broker(engine)
    standin.prometheus(engine)
    subprocess.run(["cp", "-r", CHECKOUT / "docker", tmp_path], check=True)
    file = tmp_path / "docker" / "compose.yaml"
    before, after = file.read_text().split("  grafana:\n")
    file.write_text(before + after[after.index("\nvolumes:\n") :])
    scrapes = tmp_path / "docker" / "prometheus" / "prometheus.yml"
    scrapes.write_text(scrapes.read_text().replace("scrape_interval: 15s", "scrape_interval: 1s"))
    return engine.shell(tmp_path, KAFKA="kafka:9092")


def compose_up_and_an_event_flows(engine: Engine, place: Shell) -> None:
    place.run(BLOCKS["secrets"])
    place.run(BLOCKS["up"])
    place.run(BLOCKS["event"])
    assert place.run(BLOCKS["consume"]).stdout == '{"total": 12.5}\n'
    assert "1 read, " in place.run(BLOCKS["audit"]).stdout
    # An upgrade over the volumes that are there: the same secrets, and nothing is refused.
    place.run(BLOCKS["secrets"])
    build, up = UPGRADE["compose"].splitlines()
    engine.shell(CHECKOUT).run(build)
    place.run(up)
    assert partitions(place)["outbox.event.order"] == 12

    def looked() -> str:
        said = place.run(BLOCKS["look"], code=None)
        if said.returncode != 0:
            return ""
        series = json.loads(said.stdout.splitlines()[-1])["data"]["result"]
        return said.stdout if [each["value"][1] for each in series] == ["1"] else ""

    said = eventually(looked, PATIENCE, "Prometheus has asked a relay that streams")
    assert "outbox_slot  OK" in said
    assert '"status":"ok"' in said
    rules = place.run("curl --silent http://127.0.0.1:9090/api/v1/rules").stdout
    assert '"name":"RelayDown"' in rules

    # The second one, by the page's commands, where network, port and patience are this test's.
    passwords = {name: place.run(f"cat docker/secrets/{name}_password").stdout for name in ("owner", "relay")}
    place.export(
        OWNER_DSN=f"postgresql://postgres:{passwords['owner'].strip()}@postgres/app",
        RELAY_DSN=f"postgresql://outbox_relay:{passwords['relay'].strip()}@postgres/app",
    )
    place.run(BLOCKS["files"])
    network = "docker run --network cdc-outbox_default"
    assert "existed" in place.run(BLOCKS["init"].replace("docker run", network)).stdout
    alone = BLOCKS["alone"].replace("docker run", f"{network} --health-interval 1s")
    place.run(alone.replace("127.0.0.1:9464:", "127.0.0.1:9465:"))

    def health() -> str:
        return place.run("docker inspect --format '{{.State.Health.Status}}' relay").stdout.strip()

    eventually(lambda: health() == "healthy", PATIENCE, lambda: engine.docker("inspect", "relay"))
    eventually(lambda: '"state":"standby"' in place.run("docker logs relay 2>&1").stdout, PATIENCE, "standby")
    assert '"status":"ok"' in place.run(BLOCKS["alone-look"].replace(":9464", ":9465")).stdout
    logs = place.run(
        "docker compose --file docker/compose.yaml logs --no-color; docker logs relay 2>&1"
    ).stdout
    secrets = place.run("cat docker/secrets/*password docker/secrets/http_token").stdout.split()
    assert len(secrets) == 4
    assert not [secret for secret in secrets if secret in logs]
    place.run("docker compose --file docker/compose.yaml stop relay")
    eventually(
        lambda: '"state":"streaming"' in place.run("docker logs relay 2>&1").stdout, PATIENCE, "took over"
    )
    place.run("docker rm --force relay")
    place.run(BLOCKS["down"])


def a_table_and_topics_of_ones_own(place: Shell) -> None:
    """With the secrets of before, as everything is thrown away but them; read and written from the engine's machine."""
    place.run(BLOCKS["own"])
    owner = 'PGPASSWORD="$(cat docker/secrets/owner_password)" psql --host 127.0.0.1 --username postgres app -q -c'

    def insert(kind: str) -> None:
        event = f"""insert into shop.events (event_type, payload) values ('{kind}', '{{"order_id": 7}}')"""
        place.run(f"{owner} {quote(event)}")

    def arrived(topic: str) -> list[str]:
        return [name for name in partitions(place) if name == topic]

    insert("Placed")
    eventually(lambda: arrived("shop.Placed"), PATIENCE, "the topic of one's own")
    assert partitions(place)["shop.Placed"] == 6
    insert("an illegal name")
    state = "curl --silent http://127.0.0.1:9464/readyz"
    eventually(lambda: "blocked" in place.run(state).stdout, PATIENCE, lambda: place.run(state).stdout)
    place.run(BLOCKS["poison"])
    assert arrived("outbox.event.unsorted")
    eventually(lambda: "streaming" in place.run(state, code=None).stdout, PATIENCE, "it streams again")
    assert 'removed slot "outbox_slot"' in place.run(BLOCKS["drop"]).stdout


def partitions(place: Shell) -> dict[str, int]:
    """The topics of compose's Kafka and their partitions, as a client on the engine's machine is told."""
    script = (
        "import json; from confluent_kafka.admin import AdminClient\n"
        f"found = AdminClient({{'bootstrap.servers': '127.0.0.1:9094'}}).list_topics(timeout={PATIENCE}).topics\n"
        "print(json.dumps({name: len(topic.partitions) for name, topic in found.items()}))"
    )
    found: dict[str, int] = json.loads(place.run(f"{quote(sys.executable)} -c {quote(script)}").stdout)
    return found


def compose_builds_the_same_image(engine: Engine) -> None:
    layers = ("image", "inspect", "--format", "{{.RootFS.Layers}}", IMAGE)
    built = engine.docker(*layers)
    engine.shell(CHECKOUT).run("docker compose --file docker/compose.yaml build")
    assert engine.docker(*layers) == built


def the_whole_file_is_one(engine: Engine) -> None:
    """With Grafana: `docker compose config` reads it, and each file that it mounts is there."""
    shell = engine.shell(CHECKOUT)
    whole = json.loads(shell.run("docker compose --file docker/compose.yaml config --format json").stdout)
    assert set(whole["services"]) == {"postgres", "kafka", "init", "relay", "prometheus", "grafana"}
    for service in whole["services"].values():
        for volume in service.get("volumes", []):
            assert volume["type"] == "volume" or Path(volume["source"]).exists()
    stood_for = {standin.POSTGRES, standin.KAFKA, standin.PROMETHEUS, "cdc-outbox"}
    assert {service["image"] for service in whole["services"].values()} - stood_for == {
        "grafana/grafana:12.1.0"
    }


def test_what_is_mounted_into_grafana() -> None:
    """By the words of its documentation on provisioning, for there is no Grafana here that could be asked."""
    provisioning = CHECKOUT / "docker" / "grafana" / "provisioning"
    (source,) = yaml.safe_load((provisioning / "datasources" / "prometheus.yaml").read_text())["datasources"]
    assert {"name", "type", "url", "access"} <= set(source)
    assert (source["type"], source["url"]) == ("prometheus", "http://prometheus:9090")
    (provider,) = yaml.safe_load((provisioning / "dashboards" / "cdc-outbox.yaml").read_text())["providers"]
    assert provider["type"] == "file"
    compose = yaml.safe_load((CHECKOUT / "docker" / "compose.yaml").read_text())
    board = f"./grafana/cdc-outbox.json:{provider['options']['path']}/cdc-outbox.json:ro"
    assert board in compose["services"]["grafana"]["volumes"]
