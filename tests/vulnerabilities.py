"""`python -m tests.vulnerabilities [--where-reachable]`: what PyPI's database knows against what is installed here.

Everything counts: what the package needs, its extras, and what tests and documents are made with. Exits 0 where
nothing is known, 1 where something is or a package isn't known at all, 2 where the database can't be reached: the
flag makes that a word and a 0, for who builds behind a mirror.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, Final

ASK: Final = ("-m", "pip_audit", "--format", "json", "--progress-spinner", "off", "--skip-editable")


class UnreachableError(Exception):
    """Nobody answered, or one who knows of no package: `pip-audit` calls the latter free of vulnerabilities."""


def findings(answer: str) -> Iterator[str]:
    """A line for each thing found, from what `pip-audit` printed. Raises UnreachableError."""
    try:
        packages: list[dict[str, Any]] = json.loads(answer)["dependencies"]
    except (ValueError, KeyError, TypeError) as error:
        raise UnreachableError(f"it printed no report: {answer[:80]!r}") from error
    # Our own checkout is passed over by wish.
    skipped = {
        each["name"]: each["skip_reason"]
        for each in packages
        if "editable" not in each.get("skip_reason", "editable")
    }
    if not any("vulns" in each for each in packages):
        raise UnreachableError("who answers knows of no package")
    yield from skipped.values()
    for package in packages:
        for known in package.get("vulns", ()):
            mended = ", ".join(known["fix_versions"]) or "no version yet"
            yield f"{package['name']} {package['version']}: {known['id']}, mended in {mended}"


def main(arguments: list[str]) -> int:
    asked = subprocess.run([sys.executable, *ASK], check=False, text=True, capture_output=True)
    try:
        found = list(findings(asked.stdout))
    except UnreachableError as error:
        print(asked.stderr, file=sys.stderr)
        print(f"Not looked for known vulnerabilities: PyPI's database of them can't be reached: {error}.")
        return 0 if arguments == ["--where-reachable"] else 2
    print("\n".join(found) or "No known vulnerabilities in what is installed.")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
