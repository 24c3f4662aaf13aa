"""`python -m tests.matrix [WORD…]`: a row for each combination whose name holds one of the words, or for all.

Each has a virtual environment of its own in the cache, made by uv with the lowest or the newest versions that
`pyproject.toml` allows; in it the unit and property tests run, and an event goes through real servers. A Python that
can't be had on this machine is said to be missing; it fails nothing. Exits 1 where a row failed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from tests.matrix import debian
from tests.servers.cache import CHECKOUT, Missing

PYTHONS: Final = ("3.11", "3.12", "3.13", "3.14")
OF_THE_LOWEST: Final = ("3.11", "3.13")
"""The oldest, and the newest that the lowest versions of dependencies have wheels for."""

OLD_KAFKA: Final = "3.9.1"
UV: Final = CHECKOUT / ".cache" / "release" / "bin" / "uv"
HOME: Final = CHECKOUT / ".cache" / "matrix"
THROUGH_SERVERS: Final = "tests/integration/test_first_event.py"


@dataclass(frozen=True)
class Row:
    """One combination. `resolution` is uv's word for which versions of what `pyproject.toml` names are taken."""

    python: str
    resolution: str = "highest"
    kafka: str | None = None

    @property
    def name(self) -> str:
        versions = {"highest": "newest", "lowest-direct": "lowest"}[self.resolution]
        return f"Python {self.python}, {versions} dependencies" + (
            f", Kafka {self.kafka}" if self.kafka else ""
        )


def rows() -> Iterator[Row]:
    """Newest dependencies on every Python, the lowest on two, Kafka 3.9 on one."""
    here = [version for version in PYTHONS if interpreter(version)]
    for version in PYTHONS:
        yield Row(version)
    for version in OF_THE_LOWEST:
        yield Row(version, "lowest-direct")
    yield Row(here[0], kafka=OLD_KAFKA)


@cache
def interpreter(version: str) -> str | None:
    """A Python of that version: by its name, one that pyenv has, or one of Debian's next release."""
    kept = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    candidates = [shutil.which(f"python{version}"), *map(str, sorted(kept.glob(f"{version}.*/bin/python")))]
    for each in filter(None, candidates):
        # A shim of pyenv is there for versions that aren't switched on.
        asked = [each, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
        done = subprocess.run(asked, capture_output=True, text=True, check=False)
        if done.returncode == 0 and done.stdout.strip() == version:
            return each
    try:
        fetched = debian.interpreter(version)
    except Missing as missing:
        print(missing, file=sys.stderr)
        return None
    return str(fetched) if fetched else None


def run(row: Row, python: str) -> str | None:
    """What went wrong, or None."""
    venv = HOME / re.sub(r"[^a-z0-9.]+", "-", row.name.lower())
    environment = {**os.environ, "VIRTUAL_ENV": str(venv), "CDC_OUTBOX_TEST_CACHE": str(CHECKOUT / ".cache")}
    if row.kafka:
        environment["CDC_OUTBOX_TEST_KAFKA_VERSION"] = row.kafka
    workers = ["-n", "2", "--dist", "loadgroup"]
    tests = [THROUGH_SERVERS] if row.kafka else ["tests/unit", "tests/property", THROUGH_SERVERS]
    if row.kafka:
        tests += ["tests/integration/test_messages.py", "tests/integration/test_topics.py"]
    steps: list[list[str | Path]] = [
        [UV, "venv", "--quiet", "--clear", "--python", python, venv],
        [UV, "pip", "install", "--quiet", "--resolution", row.resolution,
         "--editable", ".[demo,compression,speed,aws,otel]", "--group", "test", "--group", "docs"],
        [venv / "bin" / "python", "-m", "pytest", *workers, *tests],
    ]  # fmt: skip
    for step in steps:
        done = subprocess.run(
            step,
            cwd=CHECKOUT,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        if done.returncode:
            return f"{' '.join(map(str, step))}\n{done.stdout[-6000:]}{done.stderr[-3000:]}"
    print(f"  {done.stdout.splitlines()[-1]}")
    return None


def main(words: list[str]) -> int:
    failed = 0
    for row in rows():
        if words and not any(word in row.name for word in words):
            continue
        python = interpreter(row.python)
        began = time.monotonic()
        print(row.name, flush=True)
        if python is None:
            print("  missing on this machine")
        elif wrong := run(row, python):
            failed += 1
            print(f"  FAILED\n{wrong}")
        else:
            print(f"  well, after {time.monotonic() - began:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
