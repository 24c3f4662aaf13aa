"""Prometheus' own judge of rules: `promtool`."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from tests.servers.cache import Missing


def promtool(*arguments: str | Path) -> None:
    """Run it to its end. Raises AssertionError with what it says when it isn't content, Missing without it."""
    program = shutil.which("promtool")
    if program is None:
        raise Missing(
            "alerts and board are checked by Prometheus' promtool, which isn't on this machine; "
            "on Debian: apt-get install prometheus"
        )
    done = subprocess.run(
        [program, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout


def check_queries(queries: Mapping[str, str], directory: Path) -> None:
    """Hold each query (by a name that says where it is from) to PromQL's grammar and types.

    Prometheus has no tool that only parses a query, but one that checks rules: each becomes one.
    """
    rules = [
        {"record": f"query:{number}", "labels": {"from": name}, "expr": query}
        for number, (name, query) in enumerate(queries.items())
    ]
    file = directory / "queries.yaml"
    file.write_text(json.dumps({"groups": [{"name": "queries", "rules": rules}]}))  # JSON is YAML
    promtool("check", "rules", file)
