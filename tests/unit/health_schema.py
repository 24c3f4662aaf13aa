"""The published schema of `health --json`, and a check against it."""

from __future__ import annotations

import json
from typing import Any

from jsonschema import Draft202012Validator

from tests.servers.cache import CHECKOUT

SCHEMA = json.loads((CHECKOUT / "docs" / "reference" / "health.schema.json").read_text())
_VALIDATOR = Draft202012Validator(SCHEMA)


def require_valid(document: Any) -> None:
    """Raise AssertionError with what the schema has against a document."""
    against = SCHEMA | {"$ref": "#/$defs/several" if "slots" in document else "#/$defs/health"}
    del against["oneOf"]
    faults = [
        f"{fault.json_path}: {fault.message}" for fault in Draft202012Validator(against).iter_errors(document)
    ]
    assert not faults, faults
    assert _VALIDATOR.is_valid(document)
