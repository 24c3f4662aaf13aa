"""Servers in containers, for machines that have a Docker engine and lack what local servers need.

Local servers come first: they start in a second, and the tests that stop, kill and freeze servers need them
anyway.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from functools import cache
from typing import TypeVar

from tests.servers.cache import Missing

T = TypeVar("T")


@cache
def docker_answers() -> bool:
    """Whether an engine answers within three seconds."""
    if shutil.which("docker") is None:
        return False
    try:
        asked = subprocess.run(
            ["docker", "version", "--format", "{{.Server.Version}}"],
            capture_output=True,
            timeout=3,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return asked.returncode == 0


def local_or_docker(local: Callable[[], T], docker: Callable[[], T]) -> T:
    """What `local` makes, or `docker` where something is missing; the other way round when asked for."""
    wish = os.environ.get("CDC_OUTBOX_TEST_DOCKER", "")
    if wish == "first" and docker_answers():
        return docker()
    try:
        return local()
    except Missing as missing:
        if wish == "no" or not docker_answers():
            raise Missing(f"{missing}; and no Docker engine answers that could run it instead") from missing
    return docker()


def run_container(
    image: str, *, env: Mapping[str, str], ports: Mapping[int, int], command: str | None = None
) -> Callable[[], object]:
    """Start a container whose `ports` (inside: outside) are open on this machine; answers what ends it."""
    from testcontainers.core.container import DockerContainer

    container = DockerContainer(image).with_envs(**env)
    for inside, outside in ports.items():
        container = container.with_bind_ports(inside, outside)
    if command is not None:
        container = container.with_command(command)
    container.start()
    return container.stop
