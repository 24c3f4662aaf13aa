"""`docs/reference/cli.md`: every command with its examples and flags."""

from __future__ import annotations

from collections.abc import Iterator

from tests.documents.tree import Entry, Flag, entries

HEAD = """\
# Commands

<!-- made by `make references` from the commands themselves -->

`cdc-outbox --help` and `cdc-outbox COMMAND --help` say the same on the terminal, and `man cdc-outbox` where the package
installed its manual. Data goes to stdout, everything else to stderr; `NO_COLOR` is honoured. How a command ends:
[Exit codes](exit-codes.md). What a flag of a setting accepts, and its other names: [Settings](settings.md).

Every command takes `--config FILE`, `--log-level` and `--log-format`, and answers `--help`. Completion for your shell:
[Complete commands](../how-to/complete-commands.md).
"""


def text() -> str:
    """The whole document."""
    return "\n".join([HEAD, *(line for entry in entries() for line in _section(entry))])


def _section(entry: Entry) -> Iterator[str]:
    yield f"## {entry.words}\n"
    for paragraph in entry.paragraphs:
        yield f"{paragraph}\n"
    if entry.examples:
        yield "<!-- not run: examples of the help; their commands and flags are held against the program -->"
        yield "```bash"
        yield from entry.examples
        yield "```\n"
    if entry.arguments:
        yield f"Takes `{entry.arguments}`.\n"
    if entry.own:
        yield "| flag | what |"
        yield "|---|---|"
        yield from (f"| `{_cell(flag.usage)}` | {_cell(flag.help)} |" for flag in entry.own)
        yield ""
    if entry.of_settings:
        yield f"Flags of settings: {', '.join(_linked(flag) for flag in entry.of_settings)}.\n"


def _cell(words: str) -> str:
    return words.replace("|", "\\|").replace("<", "&lt;")


def _linked(flag: Flag) -> str:
    assert flag.setting is not None
    return f"[`{flag.usage.split()[0]}`](settings.md#{anchor(flag.setting.key)})"


def anchor(heading: str) -> str:
    """Where a heading made of one dotted name is found in its page."""
    return heading.replace(".", "")
