"""`cdc-outbox config`: what is set and by whom, whether it is right, and what could be set."""

from __future__ import annotations

import click

from cdc_outbox.cli import Command, Group, load_settings, settings_options
from cdc_outbox.cli.output import json_options
from cdc_outbox.log import json_text

_ALL = settings_options("postgres", "admin", "outbox", "kafka", "delivery", "limits", "http", "health")


@click.group(
    cls=Group,
    examples=(
        "cdc-outbox config show",
        "cdc-outbox config validate --config cdc-outbox.toml",
        "cdc-outbox config schema > cdc-outbox.schema.json",
    ),
)
def command() -> None:
    """Show, check and describe the settings."""


@command.command(cls=Command, examples=("cdc-outbox config show", "cdc-outbox config show --json"))
@_ALL
@json_options()
def show(*, as_json: bool) -> None:
    """Print each setting as `start` would see it, with where it comes from."""
    settings = load_settings("start")
    if as_json:
        rows = [{"key": one.key, "value": one.value, "origin": one.origin} for one in settings.shown]
        click.echo(json_text({"schema_version": 1, "settings": rows}))
        return
    lines = [
        (one.key if one.value is not None else f"# {one.key}", one.value, one.origin)
        for one in settings.shown
    ]
    texts = [
        f"{key} = {json_text(value)}" if value is not None else f"{key} is not set" for key, value, _ in lines
    ]
    width = min(60, max(map(len, texts)))
    for text, (_, _, origin) in zip(texts, lines, strict=True):
        click.echo(f"{text:{width}}  # {origin}")


@command.command(cls=Command, examples=("cdc-outbox config validate --config cdc-outbox.toml",))
@_ALL
def validate() -> None:
    """Check the settings without connecting to anything."""
    load_settings("start")
    click.echo("the settings are well formed")


@command.command(cls=Command, examples=("cdc-outbox config schema > cdc-outbox.schema.json",))
def schema() -> None:
    """Print the JSON Schema of cdc-outbox.toml, for an editor."""
    import json

    from cdc_outbox.settings.schema import document

    click.echo(json.dumps(document(), indent=2))
