"""What the tests download once and keep: `$CDC_OUTBOX_TEST_CACHE`, or `.cache` at the top of the checkout."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

_LOG = logging.getLogger(__name__)

CHECKOUT = Path(__file__).resolve().parents[2]


class Missing(Exception):
    """Something that the tests need isn't on this machine and can't be installed."""


def cache_root() -> Path:
    """The cache's directory, made if there is none."""
    root = Path(os.environ.get("CDC_OUTBOX_TEST_CACHE") or CHECKOUT / ".cache").resolve()
    root.mkdir(parents=True, exist_ok=True)
    return root


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_name(path.name + ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def cached(path: Path, fill: Callable[[Path], None]) -> Path:
    """`path`, filled by `fill(draft)` if it isn't there yet; whole or not at all, whoever else asks."""
    if path.exists():
        return path
    with _locked(path):
        if not path.exists():
            draft = path.with_name(path.name + ".draft")
            shutil.rmtree(draft, ignore_errors=True)
            draft.mkdir(parents=True)
            _LOG.info("%s isn't there yet: it is fetched or made, once", path)
            fill(draft)
            draft.rename(path)
    return path


def run(command: Sequence[str | Path], *, what: str, cwd: Path | None = None, timeout: float = 300) -> str:
    """Run an installer; its output. Raises Missing, with the output's end, when it fails or isn't there."""
    if shutil.which(str(command[0])) is None:
        raise Missing(f"{what} needs the program '{command[0]}', which isn't on this machine")
    try:
        done = subprocess.run(
            [str(part) for part in command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=cwd,
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise Missing(f"{what}: '{command[0]}' took longer than {timeout:g} s") from None
    if done.returncode != 0:
        raise Missing(f"{what}: '{command[0]}' failed with {done.returncode}:\n{done.stdout[-2000:]}")
    return done.stdout


def download(
    command: Sequence[str | Path], *, what: str, cwd: Path | None = None, timeout: float = 300
) -> str:
    """`run` for what loads from elsewhere: a network fails now and then, so that it is tried up to three times."""
    for pause in (2, 10):
        try:
            return run(command, what=what, cwd=cwd, timeout=timeout)
        except Missing as failure:
            _LOG.info("once more in %d s: %s", pause, failure)
            time.sleep(pause)
    return run(command, what=what, cwd=cwd, timeout=timeout)
