"""The wheel as somebody installs it who has no checkout: an environment of its own, as pipx and uvx make one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cdc_outbox import __version__
from tests.servers.package import build
from tests.servers.relay import clean_environment


@pytest.mark.timeout(300)  # pip may have to fetch what the demo runs on
def test_the_demo_runs_from_the_wheel_alone(tmp_path: Path) -> None:
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    wheel = build("wheel", tmp_path)
    pip: list[str | Path] = [venv / "bin" / "python", "-m", "pip", "install", "--quiet", "--no-compile"]
    subprocess.run([*pip, f"{wheel}[demo]"], check=True)
    environment = clean_environment({"PATH": os.pathsep.join([str(venv / "bin"), os.environ["PATH"]])})
    del environment["PYTHONPATH"]

    def run(*command: str) -> str:
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=120
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert run("cdc-outbox", "--version") == f"cdc-outbox {__version__}\n"
    told = json.loads(run("cdc-outbox", "demo", "--json"))
    assert told["total"]["committed"] == 70
    assert all(chapter["cdc_outbox"]["lost"] == 0 for chapter in told["chapters"])
    assert (venv / "share" / "man" / "man1" / "cdc-outbox.1").is_file()
    typed = run(
        "python",
        "-c",
        "import cdc_outbox.enqueue.psycopg as m, pathlib; print(pathlib.Path(m.__file__).parents[1])",
    )
    assert (Path(typed.strip()) / "py.typed").is_file()
    assert Path(typed.strip()).is_relative_to(venv)
