"""What the relay has to have on its own machine, and how one is that runs there already."""

from __future__ import annotations

import errno
import socket
from contextlib import closing
from typing import TYPE_CHECKING, Final

from cdc_outbox.doctor.check import MAY_PASS
from cdc_outbox.settings.kind.address import host_port
from cdc_outbox.watch import inquiry

if TYPE_CHECKING:
    from cdc_outbox.doctor.check import Findings
    from cdc_outbox.settings import Settings
    from cdc_outbox.watch.health import Delivery

NEAR: Final = 20
"""Ports above one that is taken, among which a free one is looked for."""


def examine(settings: Settings, findings: Findings) -> None:
    """Look at the database driver and at the port for probes."""
    _driver(findings)
    _port(settings, findings)


def _driver(findings: Findings) -> None:
    from cdc_outbox.postgres.driver import driver

    found = driver()
    libpq = f"{found.libpq // 10000}.{found.libpq % 10000}"
    what = f"psycopg {found.version}, implementation {found.implementation}, libpq {libpq}"
    if found.implementation == "python":
        findings.warn("psycopg", f"{what}: many times slower than the C one", "pip install 'psycopg[binary]'")
    else:
        findings.ok("psycopg", what)


def _port(settings: Settings, findings: Findings) -> None:
    if settings.http.listen is None:
        findings.ok("http", "off: no probes")
        return
    host, port = settings.http.listen
    address = host_port(host, port)
    try:
        _bind(host, port)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            running = inquiry.delivery(
                inquiry.ask((host, port), settings.http.token_file), settings.postgres.slot
            )
            if running is not None:
                findings.ok("http", f"{address} is the relay's that runs here")
                _running(running, findings)
                return
            otherwise = "start would end" if settings.http.explicit else "start would go on without probes"
            findings.warn(
                "http",
                f"{address} is taken: by a relay that runs here, or {otherwise}",
                f"cdc-outbox start --http {host_port(host, _free(host, port))}",
            )
        else:
            findings.fail(
                "http",
                f"can't listen on {address}: {error.strerror or error}",
                "name an own address with --http",
            )
        return
    findings.ok("http", f"{address} is free")


def _running(said: Delivery, findings: Findings) -> None:
    """What the relay says of itself that has our slot's name and address."""
    what = f"the relay that runs here is {said.state}"
    if said.stuck:
        remedy = said.next or "cdc-outbox health"
        findings.fail("running", f"{what}: {said.reason}", remedy, exit_code=MAY_PASS)
    else:
        findings.ok("running", what)


def _bind(host: str, port: int) -> None:
    """Raises OSError where a server couldn't listen there."""
    family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
    with closing(socket.socket(family, socket.SOCK_STREAM)) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((host, port))


def _free(host: str, taken: int) -> int:
    """The next port that is free, so that a probe can be told of it; 0 (any) where none is near."""
    for port in range(taken + 1, min(taken + NEAR, 65536)):
        try:
            _bind(host, port)
        except OSError:
            continue
        return port
    return 0
