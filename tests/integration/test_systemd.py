"""The unit under a real systemd, set up by the commands of its page, and what its page says of it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator

import pytest

from tests.integration.conftest import Database
from tests.servers.cache import CHECKOUT, Missing
from tests.servers.kafka import Kafka, KafkaBroker
from tests.servers.lacking import lacking
from tests.servers.ledger import create_outbox, read_all
from tests.servers.postgres import PostgresServer
from tests.servers.process import free_port
from tests.servers.relay import run_command
from tests.servers.security import USERS, certificates
from tests.servers.shell import FENCE, Shell, blocks
from tests.servers.systemd import Systemd
from tests.servers.wait import PATIENCE, eventually

UNIT = CHECKOUT / "docker" / "systemd" / "cdc-outbox.service"
PAGE = (CHECKOUT / "docs" / "how-to" / "run-under-systemd.md").read_text()
BLOCKS = blocks(PAGE)
LATER = blocks((CHECKOUT / "docs" / "how-to" / "upgrade-or-remove.md").read_text())


def test_each_block_is_run_or_says_why_not() -> None:
    assert list(BLOCKS) == ["settings", "authority", "check", "start", "look", "once", "http", "kafka"]
    assert len(FENCE.findall(PAGE)) == len(BLOCKS) + PAGE.count("<!-- not run: ")


def test_the_exposure_that_the_page_states() -> None:
    if shutil.which("systemd-analyze") is None:
        lacking("there is no systemd-analyze on this machine")
    judged = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--no-pager", UNIT],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    (stated,) = re.findall(r"exposure\s+of ([\d.]+)", PAGE)
    (found,) = re.findall(r"Overall exposure level for cdc-outbox.service: ([\d.]+)", judged.stdout)
    assert found == stated


@pytest.fixture
def systemd() -> Iterator[Systemd]:
    try:
        machine = Systemd()
    except Missing as missing:
        # To boot one needs root and namespaces, which a laptop or a container may not give.
        lacking(f"no systemd can be had: {missing}")
    try:
        yield machine
    finally:
        machine.close()


def shown(shell: Shell, name: str) -> str:
    """A property of the unit."""
    return shell.run(f"systemctl show --value --property {name} cdc-outbox").stdout.strip()


def journal(shell: Shell) -> str:
    """What the unit has said so far, as far as the journal has got."""
    return shell.run("journalctl --unit cdc-outbox --output cat").stdout


def ended(shell: Shell) -> tuple[str, str]:
    """The unit's state, and what its process ended with."""
    return shown(shell, "ActiveState"), shown(shell, "ExecMainStatus")


def told(shell: Shell) -> str:
    """How the unit stands, and what was last said of it."""
    return shell.run("systemctl status --lines 40 --full cdc-outbox", code=None).stdout


def configured(shell: Shell, slot: str, port: int) -> None:
    """The settings of the page, and what only a test needs, for service and root: a slot, a port, an interpreter from
    elsewhere, a watchdog and a drain that needn't be waited for.
    """
    shell.run(BLOCKS["settings"])
    variables = (
        f"CDC_OUTBOX_SLOT={slot} CDC_OUTBOX_HTTP=127.0.0.1:{port} CDC_OUTBOX_LIMITS_DRAIN=2s "
        "LD_LIBRARY_PATH=/opt/cdc-outbox/python/lib"
    )
    shell.run(
        "install -d /etc/systemd/system/cdc-outbox.service.d\n"
        "cat > /etc/systemd/system/cdc-outbox.service.d/a-test.conf <<END\n[Service]\n"
        f"Environment={variables}\nWatchdogSec=4s\nEND\n"
        f"export {variables}\n"
    )


def insert(outbox: Database, aggregate_type: str, name: str) -> None:
    outbox.server.execute(
        "insert into outbox (aggregate_type, aggregate_id, event_type) values (%s, '1', %s)",
        (aggregate_type, name),
        dbname=outbox.name,
    )


def test_the_relay_as_a_service(
    systemd: Systemd, outbox: Database, slot: str, kafka: Kafka, aggregate_type: str, outbox_topic: str
) -> None:
    done = run_command("init", "--slot", slot, env={"CDC_OUTBOX_DSN": outbox.dsn})
    assert done.returncode == 0, done.stderr
    port = free_port()
    shell = systemd.shell(RELAY_DSN=outbox.dsn, KAFKA=kafka.bootstrap)
    configured(shell, slot, port)
    insert(outbox, aggregate_type, "first")  # README's event, whose topic isn't there yet
    shell.run(BLOCKS["check"])
    shell.run(BLOCKS["start"])
    assert shown(shell, "ActiveState") == "active"
    eventually(lambda: shown(shell, "StatusText") == "streaming", PATIENCE, "streaming")

    def looked() -> str:
        said = shell.run(BLOCKS["look"]).stdout
        return said if '"event":"streaming"' in said else ""

    said = eventually(looked, PATIENCE, "the journal has what was said until then")
    assert 'Status: "streaming"' in said
    assert f"{slot}  OK" in said
    assert outbox.dsn not in said

    def types() -> list[str | None]:
        return [record.header("type") for record in read_all(kafka.bootstrap, outbox_topic)]

    eventually(lambda: types() == ["first"], PATIENCE, said)
    assert kafka.topics()[outbox_topic] == 12

    # Nobody else than root and the service reads the secret, and the service is nobody.
    pid = shown(shell, "MainPID")
    assert shell.run(f"stat -c %U /proc/{pid}").stdout.strip() not in ("root", "nobody")
    assert shell.run(f"grep -c '^CapEff:\\s*0*$' /proc/{pid}/status").stdout.strip() == "1"
    assert outbox.dsn not in shell.run(f"tr '\\0' '\\n' < /proc/{pid}/environ").stdout

    # A loop that stands still is killed and started again, and loses nothing.
    shell.run(f"kill -STOP {pid}")
    insert(outbox, aggregate_type, "second")
    eventually(lambda: shown(shell, "MainPID") not in (pid, "0"), PATIENCE, "started again")
    eventually(lambda: "watchdog" in journal(shell).lower(), PATIENCE, "why")
    eventually(lambda: set(types()) == {"first", "second"}, PATIENCE, "second")
    eventually(lambda: shown(shell, "StatusText") == "streaming", PATIENCE, "streaming")

    # From here on the port is the one of the settings.
    shell.run(
        f"sed -i 's/CDC_OUTBOX_HTTP=127.0.0.1:{port} //' /etc/systemd/system/cdc-outbox.service.d/a-test.conf\n"
        "unset CDC_OUTBOX_HTTP"
    )
    shell.run(BLOCKS["http"].replace("0.0.0.0:9464", f"0.0.0.0:{port}"))
    address = f"http://127.0.0.1:{port}/status"
    ask = f"curl --silent --output /dev/null --write-out '%{{http_code}}' {address}"
    assert shell.run(ask).stdout == "401"
    assert shell.run(f'{ask} --header "Authorization: Bearer $(cat /etc/cdc-outbox/token)"').stdout == "200"
    assert "the relay that runs here is " in shell.run("cdc-outbox doctor").stdout

    # Past what no restart cures, and an upgrade, by the commands of its page, whose start serves both; its `pip` is run
    # in test_upgrade_or_remove_page.py.
    before = shown(shell, "MainPID")
    outbox.server.execute("alter publication outbox_pub drop table outbox", dbname=outbox.name)
    eventually(lambda: shown(shell, "StatusText").startswith("held: "), PATIENCE, lambda: told(shell))
    outbox.server.execute("alter publication outbox_pub add table outbox", dbname=outbox.name)
    eventually(lambda: "was made again" in shown(shell, "StatusText"), PATIENCE, lambda: told(shell))
    stop, once, start = BLOCKS["once"].splitlines()
    assert start == "systemctl start cdc-outbox"
    shell.run(f"{stop}\n{once}")
    shell.run("\n".join(line for line in LATER["systemd"].splitlines() if "/pip " not in line))
    assert shown(shell, "ActiveState") == "active"
    assert shown(shell, "MainPID") != before

    shell.run("systemctl stop cdc-outbox")
    assert shown(shell, "Result") == "success"
    eventually(lambda: '"event":"stopped"' in journal(shell), PATIENCE, "its last word")

    # What a person has to mend isn't started again.
    outbox.server.execute("select pg_drop_replication_slot(%s)", (slot,), dbname=outbox.name)
    assert shell.run("systemctl start cdc-outbox", code=None).returncode != 0
    assert ended(shell) == ("failed", "78"), told(shell)
    assert shown(shell, "StatusText") == "ended: the last line of its log says why"

    def last() -> dict[str, str]:
        lines = [line for line in journal(shell).splitlines() if line.startswith("{")]
        return dict(json.loads(lines[-1]))

    eventually(lambda: slot in last().get("error", ""), PATIENCE, "why")
    assert last()["next"]

    # And a removal; what the test has mounted can't be removed.
    shell.run(LATER["systemd-remove"].replace(" /opt/cdc-outbox", ""))
    assert shown(shell, "LoadState") == "not-found"


def test_who_starts_it_waits_for_no_outage(
    systemd: Systemd,
    outbox: Database,
    slot: str,
    make_kafka: Callable[..., KafkaBroker],
    aggregate_type: str,
    outbox_topic: str,
) -> None:
    """With a Kafka that wants a password, and is away for as long as the commands run."""
    done = run_command("init", "--slot", slot, env={"CDC_OUTBOX_DSN": outbox.dsn})
    assert done.returncode == 0, done.stderr
    broker = make_kafka(secure=True)
    broker.create_topic(outbox_topic)
    broker.allow("relay", "write", outbox_topic)
    port = free_port()
    shell = systemd.shell(RELAY_DSN=outbox.dsn, KAFKA=broker.address("SASL_SSL"))
    configured(shell, slot, port)
    (shell.home / "ca.pem").write_bytes((certificates() / "ca.pem").read_bytes())
    (shell.home / "kafka-password").write_text(USERS["relay"])
    shell.run(f"cd {shell.home}\n{BLOCKS['kafka']}")
    shell.run(BLOCKS["check"])

    def status() -> str:
        return shown(shell, "StatusText")

    broker.stop()
    shell.run(BLOCKS["start"])
    assert shown(shell, "ActiveState") == "active"
    eventually(lambda: status().startswith("held: no Kafka broker can be used"), PATIENCE, status)
    shell.run("systemctl restart cdc-outbox")
    assert shown(shell, "ActiveState") == "active"
    eventually(lambda: status().startswith("held: no Kafka broker can be used"), PATIENCE, status)

    broker.start()
    eventually(lambda: status() == "streaming", PATIENCE, status)

    # A stop with an event in flight can't end well, and loses nothing.
    broker.stop()
    insert(outbox, aggregate_type, "waiting")
    read = f"curl --silent http://127.0.0.1:{port}/status"
    eventually(
        lambda: json.loads(shell.run(read).stdout)["inflight"]["events"] == 1,
        PATIENCE,
        "the event is in flight",
    )
    shell.run("systemctl stop cdc-outbox")
    assert ended(shell) == ("failed", "1"), told(shell)
    broker.start()

    done = shell.run("systemctl start cdc-outbox", code=None)
    assert done.returncode == 0, told(shell)
    eventually(
        lambda: [each.header("type") for each in read_all(broker.bootstrap, outbox_topic)] == ["waiting"],
        PATIENCE,
        status,
    )
    assert f"{slot}  OK" in shell.run("cdc-outbox health").stdout
    assert USERS["relay"] not in journal(shell)

    # A PostgreSQL that is away is waited for as well.
    shell.run(f"echo postgresql://127.0.0.1:{free_port()}/app > /etc/cdc-outbox/dsn")
    shell.run("systemctl restart cdc-outbox")
    assert shown(shell, "ActiveState") == "active"
    eventually(lambda: status().startswith("connecting: "), PATIENCE, status)


def with_tls(server: PostgresServer) -> PostgresServer:
    """The server, with a certificate for its address."""
    owner = server.data.stat()
    for name in ("server.pem", "server.key"):
        copy = server.data / name
        copy.write_bytes((certificates() / name).read_bytes())
        copy.chmod(0o600)
        os.chown(copy, owner.st_uid, owner.st_gid)
    server.execute("alter system set ssl_cert_file = 'server.pem'")
    server.execute("alter system set ssl_key_file = 'server.key'")
    server.execute("alter system set ssl = on")
    server.execute("select pg_reload_conf()")
    eventually(lambda: server.value("show ssl") == "on", PATIENCE, "TLS")
    return server


def test_the_authority_that_the_dsn_names_goes_along(
    systemd: Systemd, make_postgres: Callable[..., PostgresServer], slot: str, kafka: Kafka
) -> None:
    """It lies in a checkout in root's home, where root's commands see it, and the service doesn't."""
    server = with_tls(make_postgres(17))
    create_outbox(server.dsn())
    done = run_command("init", "--slot", slot, env={"CDC_OUTBOX_DSN": server.dsn()})
    assert done.returncode == 0, done.stderr
    (systemd.home / "ca.pem").write_bytes((certificates() / "ca.pem").read_bytes())
    checkout = systemd.shell().run("mktemp --directory ~/checkout.XXXX").stdout.strip()
    shell = systemd.shell(
        RELAY_DSN=f"{server.dsn()}?sslmode=verify-full&sslrootcert={checkout}/db-ca.pem",
        KAFKA=kafka.bootstrap,
    )
    shell.run(f"cp {systemd.home}/ca.pem {checkout}/db-ca.pem")
    configured(shell, slot, free_port())
    shell.run(BLOCKS["check"])
    shell.run(BLOCKS["start"], code=None)
    assert ended(shell) == ("failed", "78"), told(shell)
    eventually(lambda: "as a service none in a home directory" in journal(shell), PATIENCE, "what to do")

    shell.run(f"cd {checkout}\n{BLOCKS['authority']}")
    assert shell.run("stat -c '%U %a' /etc/cdc-outbox/dsn").stdout.split() == ["root", "600"]
    shell.run(BLOCKS["check"])
    shell.run(BLOCKS["start"])
    eventually(lambda: shown(shell, "StatusText") == "streaming", PATIENCE, lambda: told(shell))
