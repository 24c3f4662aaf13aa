"""`docs/man/cdc-outbox.1`: the manual page, which a wheel installs into `share/man/man1`."""

from __future__ import annotations

from collections.abc import Iterator

from cdc_outbox import __version__
from cdc_outbox.cli import SUMMARIES, main
from tests.documents.tree import Entry, entries
from tests.servers.cache import CHECKOUT


def text() -> str:
    """The page as troff."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield f'.TH CDC-OUTBOX 1 "" "cdc-outbox {__version__}" "User Commands"'
    yield ".SH NAME"
    summary = (main.help or "").strip().rstrip(".")
    yield f"cdc-outbox \\- {_plain(summary[0].lower() + summary[1:])}"
    yield ".SH SYNOPSIS"
    yield ".B cdc-outbox\n.I COMMAND\n[\\fIOPTION\\fR ...]"
    yield ".SH COMMANDS"
    for name, about in SUMMARIES.items():
        yield f".TP\n.B {_plain(name)}\n{_plain(about)}"
    for entry in entries():
        yield from _command(entry)
    yield ".SH EXIT STATUS"
    for code, meaning in _codes():
        yield f".TP\n.B {code}\n{_plain(meaning)}"
    yield ".SH ENVIRONMENT"
    yield _plain(
        "Each setting has a variable CDC_OUTBOX_SECTION_KEY, and secrets may stand in a file that the variable with"
        " _FILE names; cdc-outbox config show prints every value with its origin."
    )
    yield ".SH FILES"
    yield ".TP\n.B cdc\\-outbox.toml"
    yield _plain("The settings, in the working directory or where --config or CDC_OUTBOX_CONFIG says.")


def _command(entry: Entry) -> Iterator[str]:
    yield f".SH {_plain(entry.words.removeprefix('cdc-outbox ').upper())}"
    yield f".B {_plain(entry.words)}\n{_plain(entry.arguments)}".rstrip()
    for paragraph in entry.paragraphs:
        yield f".PP\n{_plain(paragraph)}"
    if entry.examples:
        yield ".PP\nExamples:\n.PP\n.nf\n.RS"
        yield from (_plain(example) for example in entry.examples)
        yield ".RE\n.fi"
    for flag in entry.flags:
        yield f".TP\n.B {_plain(flag.usage)}\n{_plain(flag.help)}"


def _codes() -> Iterator[tuple[str, str]]:
    """What the reference of exit codes says, without its links."""
    for line in (CHECKOUT / "docs" / "reference" / "exit-codes.md").read_text().splitlines():
        if line.startswith("| ") and line[2].isdigit():
            code, when = line.strip("| ").split(" | ", 1)
            yield code, _unlinked(when)


def _unlinked(markdown: str) -> str:
    words = ""
    rest = markdown.replace("`", "")
    while "](" in rest:
        before, _, after = rest.partition("](")
        words += before.replace("[", "", 1)
        rest = after.partition(")")[2]
    return words + rest


def _plain(words: str) -> str:
    escaped = words.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq")
    return f"\\&{escaped}" if escaped.startswith(".") else escaped
