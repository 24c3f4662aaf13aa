"""A Docker engine of the tests' own: Debian's dockerd in namespaces that end with it.

Its network is one without a way out, its images and containers are its own, and nothing of this machine's Docker is
seen or changed. No registry is reached from it: what images are made of is in standin.py.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.servers.cache import Missing
from tests.servers.process import Process, directory
from tests.servers.shell import Shell
from tests.servers.wait import eventually

_START: Final = """
mount -t tmpfs tmpfs /run
mkdir /run/lock
ip link set lo up
exec dockerd --host "unix://$1/socket" --data-root "$1/data" --exec-root "$1/exec" --pidfile "$1/pid" --log-level warn
"""


class Engine:
    """A running engine. Raises Missing, with the reason, where none runs."""

    def __init__(self) -> None:
        for program in ("dockerd", "docker", "unshare", "nsenter", "ip"):
            if os.geteuid() != 0 or shutil.which(program) is None:
                raise Missing(
                    f"a Docker engine of the tests' own needs root and {program}: apt-get install docker.io"
                )
        self.home = directory("engine-")
        self._log = self.home / "log"
        own = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
        self._process = Process([*own, "bash", "-euc", _START, "engine", self.home], log=self._log)
        self.host = f"unix://{self.home}/socket"
        try:
            eventually(self._answers, 120, lambda: f"dockerd answers:\n{self._log.read_text()}")
        except AssertionError as error:
            self._process.kill()
            raise Missing(f"dockerd doesn't run on this machine: {error}") from error

    def _answers(self) -> bool:
        assert self._process.running, self._log.read_text()
        return self._run("version").returncode == 0

    def _run(
        self, *arguments: str | Path, stdin: int = subprocess.DEVNULL
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["docker", "--host", self.host, *map(str, arguments)],
            stdin=stdin,
            capture_output=True,
            text=True,
            timeout=170,
            env={**os.environ, "DOCKER_BUILDKIT": "0"},
            check=False,
        )

    def docker(self, *arguments: str | Path, stdin: int = subprocess.DEVNULL) -> str:
        """What a command of docker prints. Raises AssertionError when it fails."""
        done = self._run(*arguments, stdin=stdin)
        assert done.returncode == 0, f"docker {' '.join(map(str, arguments))}:\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def load(self, root: Path, tag: str, *, changes: Sequence[str] = ()) -> None:
        """Make an image of a directory's files; `changes` are lines of a Dockerfile."""
        packed = subprocess.Popen(["tar", "-C", root, "-c", "."], stdout=subprocess.PIPE)
        assert packed.stdout is not None
        flags = [word for change in changes for word in ("--change", change)]
        self.docker("import", *flags, "-", tag, stdin=packed.stdout.fileno())
        packed.stdout.close()
        assert packed.wait(60) == 0

    def shell(self, place: Path, **variables: str) -> Shell:
        """A person's shell on the engine's machine, standing in `place`."""
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.home),
            "DOCKER_HOST": self.host,
            "DOCKER_BUILDKIT": "0",
            **variables,
        }
        home = directory("shell-")
        return Shell(home, environment, within=["nsenter", f"--net=/proc/{self.pid}/ns/net"], place=place)

    @property
    def pid(self) -> int:
        """Of dockerd, as this machine counts."""
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
        return int(children[0])

    def close(self) -> None:
        """End it with all its containers."""
        self._process.kill()
