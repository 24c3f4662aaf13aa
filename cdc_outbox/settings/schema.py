"""The JSON Schema of `cdc-outbox.toml`, made from the declarations, for editors that check as one types."""

from __future__ import annotations

from typing import Any

from cdc_outbox.settings.declare import SETTINGS, Setting
from cdc_outbox.settings.entries import Entries


def document() -> dict[str, object]:
    """The whole schema."""
    root = _table()
    for setting in SETTINGS:
        node = root
        *sections, last = setting.key.split(".")
        for section in sections:
            node = node["properties"].setdefault(section, _table())
        node["properties"][last] = _leaf(setting)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "cdc-outbox.toml"} | root


def _table() -> dict[str, Any]:
    return {"type": "object", "properties": {}, "additionalProperties": False}


def _leaf(setting: Setting) -> dict[str, object]:
    leaf = setting.kind.schema() | {"description": setting.help}
    if not isinstance(setting.kind, Entries) and setting.default is not None and not setting.secret:
        leaf["default"] = setting.kind.show(setting.default)
    return leaf
