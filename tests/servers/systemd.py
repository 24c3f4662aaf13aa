"""A real systemd, as process 1 of a container of systemd-nspawn.

Its files are this machine's, with a layer of memory over them: what happens in it stays in it. It shares the network,
so that servers of the tests are reached, and nothing else.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Final

from tests.servers.cache import CHECKOUT, Missing
from tests.servers.process import Process, directory
from tests.servers.shell import Shell
from tests.servers.wait import PATIENCE, eventually

HOME: Final = Path("/opt/cdc-outbox")
"""Where the relay is installed in it: this checkout, by the interpreter and the libraries of the tests."""

_BOOT: Final = """
for cgroup in $4; do echo 0 >"$cgroup/cgroup.procs"; done
mount --bind / "$1"
exec systemd-nspawn --directory "$1" --volatile=overlay --boot --register=no --keep-unit --machine "$2" \
    --console=pipe --link-journal=no --bind-ro="$3:/opt/cdc-outbox" "${@:5}" systemd.unit=basic.target
"""

_COMMAND: Final = """#!/opt/cdc-outbox/python/bin/python3
import sys
sys.path[:0] = ["/opt/cdc-outbox/checkout", "/opt/cdc-outbox/site"]
from cdc_outbox.cli import main
sys.exit(main())
"""


class Systemd:
    """A machine that has booted. Raises Missing where none can."""

    def __init__(self) -> None:
        self._log = directory("systemd-") / "log"
        root, opt = directory("root-"), directory("opt-")
        self.home = directory("shell-")
        for path in (root, opt, self.home):
            path.chmod(0o755)
        binds = []
        for name, source in {
            "python": sys.base_prefix,
            "site": sysconfig.get_path("purelib"),
            "checkout": CHECKOUT,
        }.items():
            (opt / name).mkdir()
            binds.append(f"--bind-ro={source}:{HOME / name}")
        (opt / "bin").mkdir()
        (opt / "bin" / "cdc-outbox").write_text(_COMMAND)
        (opt / "bin" / "cdc-outbox").chmod(0o755)
        binds.append(f"--bind={self.home}:{self.home}")
        for program in ("systemd-nspawn", "unshare", "nsenter"):
            if os.geteuid() != 0 or shutil.which(program) is None:
                raise Missing(f"a systemd of the tests' own needs root and {program}")
        machine = f"cdc-outbox-{os.getpid()}"
        own = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "bash", "-euc", _BOOT]
        self._cgroups = _made_below_ours(machine)
        where: list[str | Path] = [root, machine, opt, " ".join(map(str, self._cgroups))]
        self._process = Process([*own, "boot", *where, *binds], log=self._log, cwd=Path("/"))
        self._init = 0
        try:
            eventually(self._booted, 60, lambda: f"systemd has booted:\n{self._log.read_text()}")
        except AssertionError as error:
            self.close()
            raise Missing(f"no systemd boots on this machine: {error}") from error

    def _booted(self) -> bool:
        assert self._process.running, self._log.read_text()
        below = subprocess.run(
            ["ps", "-A", "-o", "pid=,ppid=,comm="], capture_output=True, text=True, check=True
        )
        parents = {
            int(pid): (int(parent), name) for pid, parent, name in map(str.split, below.stdout.splitlines())
        }
        for pid, (parent, name) in parents.items():
            if name == "systemd" and parents.get(parent, (0, ""))[1] == "systemd-nspawn":
                above = parent
                while above not in (0, self._process.pid):
                    above = parents.get(above, (0, ""))[0]
                if above == self._process.pid:
                    self._init = pid
                    asked = self.run("systemctl", "is-system-running")
                    return asked.stdout.strip() in ("running", "degraded")
        return False

    @property
    def prefix(self) -> list[str]:
        """What runs a command in it."""
        return ["nsenter", "--target", str(self._init), "--mount", "--pid", "--ipc", "--uts"]

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command in it."""
        return subprocess.run(
            [*self.prefix, *command],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def shell(self, **variables: str) -> Shell:
        """Root's shell in it, in the checkout."""
        environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8", **variables}
        return Shell(self.home, environment, within=self.prefix, place=HOME / "checkout")

    def close(self) -> None:
        """Switch it off."""
        self._process.kill()
        eventually(self._cleared, PATIENCE, "its cgroups are empty")

    def _cleared(self) -> bool:
        try:
            for top in self._cgroups:
                for each, _, _ in os.walk(top, topdown=False):
                    Path(each).rmdir()
        except OSError:
            return False  # the last of its processes are still ending
        return True


def _made_below_ours(name: str) -> list[Path]:
    """A cgroup for one systemd alone, in each hierarchy that it uses; none where none may be made.

    systemd-nspawn takes names of its own below the cgroup that it finds itself in: two of them in one would have the
    same cgroups for their units, and each would remove those of the other.
    """
    made = []
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, hierarchy, path = line.split(":", 2)
        if hierarchy not in ("", "name=systemd"):
            continue
        tree = Path("/sys/fs/cgroup", "systemd" if hierarchy else "unified")
        cgroup = (tree if tree.is_dir() else tree.parent) / path.lstrip("/") / name
        try:
            cgroup.mkdir()
        except OSError:
            continue
        made.append(cgroup)
    return made
