"""The unit under a real systemd, set up by the commands of its page, and what its page says of it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator

import pytest

from tests.integration.conftest import Database
from tests.servers.cache import CHECKOUT, Missing
from tests.servers.kafka import Kafka
from tests.servers.ledger import read_all
from tests.servers.process import free_port
from tests.servers.relay import run_command
from tests.servers.shell import FENCE, Shell, blocks
from tests.servers.systemd import Systemd
from tests.servers.wait import eventually

UNIT = CHECKOUT / "docker" / "systemd" / "cdc-outbox.service"
PAGE = (CHECKOUT / "docs" / "how-to" / "run-under-systemd.md").read_text()
BLOCKS = blocks(PAGE)
PATIENCE = 60


def test_each_block_is_run_or_says_why_not() -> None:
    assert list(BLOCKS) == ["settings", "start", "look", "http"]
    assert len(FENCE.findall(PAGE)) == len(BLOCKS) + PAGE.count("<!-- not run: ")


def test_the_exposure_that_the_page_states() -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("there is no systemd-analyze on this machine")
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
        # To boot one needs root and namespaces, which a laptop or a container may not give; CI has them.
        pytest.skip(f"no systemd can be had: {missing}")
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


def test_the_relay_as_a_service(
    systemd: Systemd, outbox: Database, slot: str, kafka: Kafka, aggregate_type: str, outbox_topic: str
) -> None:
    done = run_command("init", "--slot", slot, env={"CDC_OUTBOX_DSN": outbox.dsn})
    assert done.returncode == 0, done.stderr
    kafka.create_topic(outbox_topic)
    port = free_port()
    shell = systemd.shell(RELAY_DSN=outbox.dsn, KAFKA=kafka.bootstrap)
    shell.run(BLOCKS["settings"])
    # What only this test needs: a slot, a port, an interpreter from elsewhere, a watchdog that it needn't wait for.
    shell.run(
        "install -d /etc/systemd/system/cdc-outbox.service.d\n"
        "cat > /etc/systemd/system/cdc-outbox.service.d/a-test.conf <<END\n[Service]\n"
        f"Environment=CDC_OUTBOX_SLOT={slot} CDC_OUTBOX_HTTP=127.0.0.1:{port}\n"
        "Environment=LD_LIBRARY_PATH=/opt/cdc-outbox/python/lib\nWatchdogSec=4s\nEND\n"
    )
    shell.run(BLOCKS["start"])
    assert shown(shell, "ActiveState") == "active"

    def looked() -> str:
        said = shell.run(BLOCKS["look"]).stdout
        return said if '"event":"streaming"' in said else ""

    said = eventually(looked, PATIENCE, "the journal has what was said until then")
    assert 'Status: "streaming"' in said
    assert outbox.dsn not in said

    def insert(name: str) -> None:
        outbox.server.execute(
            "insert into outbox (aggregate_type, aggregate_id, event_type) values (%s, '1', %s)",
            (aggregate_type, name),
            dbname=outbox.name,
        )

    def types() -> list[str | None]:
        return [record.header("type") for record in read_all(kafka.bootstrap, outbox_topic)]

    insert("first")
    eventually(lambda: types() == ["first"], PATIENCE, said)

    # Nobody else than root and the service reads the secret, and the service is nobody.
    pid = shown(shell, "MainPID")
    assert shell.run(f"stat -c %U /proc/{pid}").stdout.strip() not in ("root", "nobody")
    assert shell.run(f"grep -c '^CapEff:\\s*0*$' /proc/{pid}/status").stdout.strip() == "1"
    assert outbox.dsn not in shell.run(f"tr '\\0' '\\n' < /proc/{pid}/environ").stdout

    # A loop that stands still is killed and started again, and loses nothing.
    shell.run(f"kill -STOP {pid}")
    insert("second")
    eventually(lambda: shown(shell, "MainPID") not in (pid, "0"), PATIENCE, "started again")
    eventually(lambda: "watchdog" in journal(shell).lower(), PATIENCE, "why")
    eventually(lambda: set(types()) == {"first", "second"}, PATIENCE, "second")
    eventually(lambda: shown(shell, "StatusText") == "streaming", PATIENCE, "streaming")

    shell.run(BLOCKS["http"].replace("0.0.0.0:9464", f"0.0.0.0:{port}"))
    address = f"http://127.0.0.1:{port}/status"
    ask = f"curl --silent --output /dev/null --write-out '%{{http_code}}' {address}"
    assert shell.run(ask).stdout == "401"
    assert shell.run(f'{ask} --header "Authorization: Bearer $(cat /etc/cdc-outbox/token)"').stdout == "200"

    shell.run("systemctl stop cdc-outbox")
    assert shown(shell, "Result") == "success"
    eventually(lambda: '"event":"stopped"' in journal(shell), PATIENCE, "its last word")

    # What a person has to mend isn't started again.
    outbox.server.execute("select pg_drop_replication_slot(%s)", (slot,), dbname=outbox.name)
    assert shell.run("systemctl start cdc-outbox", code=None).returncode != 0
    assert shown(shell, "ActiveState") == "failed"
    assert shown(shell, "ExecMainStatus") == "78"

    def last() -> dict[str, str]:
        lines = [line for line in journal(shell).splitlines() if line.startswith("{")]
        return dict(json.loads(lines[-1]))

    eventually(lambda: slot in last().get("error", ""), PATIENCE, "why")
    assert last()["next"]
