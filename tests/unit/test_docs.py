"""The documents say only what is there: files, settings, variables, flags, commands, targets, columns, exit codes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from cdc_outbox import errors
from cdc_outbox.cli import SUMMARIES, main
from cdc_outbox.cli.failure import INTERRUPTED
from cdc_outbox.settings.client import DECIDED_HERE, KINDS, variable
from cdc_outbox.settings.declare import BY_KEY, SETTINGS
from cdc_outbox.settings.model import SECRET_CLIENT_NAMES
from cdc_outbox.table.profiles import BY_NAME
from cdc_outbox.table.recognise import NAMES
from cdc_outbox.table.sent import DUE_TIMES, SENT_TIMES, SENT_WORDS
from tests.servers.cache import CHECKOUT

DOCUMENTS = sorted(
    [*CHECKOUT.glob("*.md"), *(CHECKOUT / "docs").rglob("*.md"), *(CHECKOUT / "tests").glob("*.md")]
)
TESTS = [path.read_text() for path in (CHECKOUT / "tests").rglob("*.py") if path != Path(__file__)]
ANY_CLIENT = KINDS.keys() | DECIDED_HERE.keys()
SECTIONS = {key.partition(".")[0] for key in BY_KEY}

LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
CODE = re.compile(r"`([^`\n]+)`")
FENCED = re.compile(r"^```\w*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"[\w./-]+\.(?:py|sql|toml|md)|(?:tests|docs|sql|cdc_outbox)/[\w./-]*")

REFERENCE = CHECKOUT / "docs" / "reference"


def each_of(documents: list[Path]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("document", documents, ids=lambda path: str(path.relative_to(CHECKOUT)))


each_document = each_of(DOCUMENTS)
# The words of errors are quoted there from the code, with names left open, and parts of sentences.
each_document_of_ours = each_of([path for path in DOCUMENTS if path != REFERENCE / "errors.md"])


def said(document: Path) -> Iterator[str]:
    """Everything that a document sets as code, in the text and in blocks."""
    text = document.read_text()
    yield from (line for block in FENCED.findall(text) for line in block.splitlines())
    yield from CODE.findall(FENCED.sub("", text))


def anchors(document: Path) -> set[str]:
    """The anchors of a document's headings."""
    headings = re.findall(r"^#+ (.*)$", document.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@each_document
def test_links_lead_somewhere(document: Path):
    for target in LINK.findall(document.read_text()):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        linked = (document.parent / name).resolve() if name else document
        assert linked.exists(), target
        assert linked.is_relative_to(CHECKOUT), target
        assert not anchor or anchor in anchors(linked), target


@each_document
def test_each_block_is_run_or_says_why_not(document: Path):
    """A block that is run is named in a test that reads this document; that test runs it, and names the others."""
    text = document.read_text()
    marks = re.findall(r"^ *([^\n]*)\n *```\w*\n.*?^ *```$", f"\n{text}", re.MULTILINE | re.DOTALL)
    assert 2 * len(marks) == len(re.findall(r"^\s*```", text, re.MULTILINE)), (
        "a fence that these tests don't see"
    )
    readers = [test for test in TESTS if re.search(rf"\b{document.stem}\b", test)]
    for mark in marks:
        found = re.fullmatch(r"<!-- (not run|run|config): (.+) -->", mark)
        assert found, f"below {mark!r}: mark it <!-- run: NAME -->, or <!-- not run: REASON -->"
        if found[1] != "not run":
            assert readers, "no test reads this document"
            assert any(f'"{found[2]}"' in test or f": {found[2]} -->" in test for test in TESTS), found[2]


@each_document
def test_files_are_there(document: Path):
    for name in said(document):
        if not FILE.fullmatch(name):
            continue
        found = [CHECKOUT / name, document.parent / name, CHECKOUT / "cdc_outbox" / name]
        found += (CHECKOUT / "cdc_outbox").rglob(name) if "/" not in name else []
        assert any(path.exists() for path in found) or name == "cdc-outbox.toml", name


@each_document_of_ours
def test_settings_are_there(document: Path):
    for code in said(document):
        for name in re.findall(r"(?<![\w./-])[a-z]+(?:\.[a-z_]+)+(?![\w./-])", code):
            ours = name.partition(".")[0] in SECTIONS
            others = (
                name.startswith(("outbox.event", "cleanup.policy"))
                or ".example." in name
                or name in ANY_CLIENT
            )
            if ours and not others:
                assert known(name), name


def known(name: str) -> bool:
    """Whether a dotted name is a setting, a table of them, or a name within one that holds names."""
    return any(
        name == key
        or key.startswith(name + ".")
        or (name.startswith(key + ".") and BY_KEY[key].default is None)
        for key in BY_KEY
    )


@each_document
def test_environment_variables_are_there(document: Path):
    variables = {each for setting in SETTINGS for each in setting.variables}
    variables |= {f"{name}_FILE" for setting in SETTINGS if setting.secret for name in setting.variables}
    variables |= {variable(name) for name in ANY_CLIENT} | {
        f"{variable(name)}_FILE" for name in SECRET_CLIENT_NAMES
    }
    variables |= {"CDC_OUTBOX_", "CDC_OUTBOX_CONFIG"}  # a beginning, as the documents name it
    of_tests = "\n".join(path.read_text() for path in (CHECKOUT / "tests").rglob("*.py"))
    for code in said(document):
        for name in re.findall(r"(?<!_)CDC_OUTBOX_[A-Z0-9_]+", code):
            in_tests = name.startswith("CDC_OUTBOX_TEST_")
            if in_tests:
                assert re.sub(r"_1[5-8]$", "_", name) in of_tests, name
            else:
                stem = name.removesuffix("_") if f"{name}<NAME>" in code else name
                assert stem in variables | {"CDC_OUTBOX_KAFKA"}, name


@each_document_of_ours
def test_flags_and_commands_are_there(document: Path):
    commands = dict(loaded())
    flags = {flag for command in commands.values() for flag in flags_of(command)}
    for code in said(document):
        run = re.match(r"cdc-outbox ([a-z][a-z-]*)(.*)", code)
        if run:
            assert run[1] in commands, code
            assert {*re.findall(r"(?<!\S)--[a-z-]+", run[2])} <= flags_of(commands[run[1]]), code
        elif code.startswith("--"):
            chaos = "\n".join(path.read_text() for path in (CHECKOUT / "tests" / "chaos").glob("*.py"))
            assert f'"{code}"' in chaos or code.split()[0].partition("=")[0] in flags, code


def loaded() -> Iterator[tuple[str, click.Command]]:
    context = click.Context(main)
    for name in SUMMARIES:
        command = main.get_command(context, name)
        assert command is not None
        yield name, command


def flags_of(command: click.Command) -> set[str]:
    """The flags of a command and of those below it."""
    below = command.commands.values() if isinstance(command, click.Group) else ()
    own = {flag for each in command.params for flag in each.opts}
    return own.union({"--help"}, *(flags_of(each) for each in below))


@each_document_of_ours
def test_targets_of_make_are_there(document: Path):
    targets = re.findall(r"^([a-z-]+):", (CHECKOUT / "Makefile").read_text(), re.MULTILINE)
    for code in said(document):
        run = re.match(r"make ([a-z-]+)", code)
        assert not run or run[1] in targets, code


@each_document
def test_exit_codes_are_there(document: Path):
    for code in re.findall(r"\bexit(?:s| code)? (\d+)", document.read_text(), re.IGNORECASE):
        assert int(code) in exit_codes(), code


def exit_codes() -> set[int]:
    tree = [each for each in vars(errors).values() if isinstance(each, type)]
    return {0, INTERRUPTED} | {each.exit_code for each in tree if issubclass(each, errors.CdcOutboxError)}


def test_the_table_of_exit_codes_is_whole():
    rows = re.findall(r"^\| (\d+) \|", (REFERENCE / "exit-codes.md").read_text(), re.MULTILINE)
    assert [int(code) for code in rows] == sorted(exit_codes())


def section(heading: str) -> str:
    """One section of the reference of the mapping."""
    return (REFERENCE / "mapping.md").read_text().partition(f"## {heading}\n")[2].partition("\n## ")[0]


def test_the_table_of_recognised_columns_is_whole():
    rows = re.findall(r"^\| `(\w+)` \| (.*) \|$", section("Columns that are recognised"), re.MULTILINE)
    assert {role: tuple(CODE.findall(names)) for role, names in rows} == NAMES


def test_the_table_of_profiles_is_whole():
    """Each has its row, and an example file where its rows can be sent."""
    rows = re.findall(r"^\| `([a-z-]+)` \| ([^|]+) \|", section("Profiles"), re.MULTILINE)
    assert [name for name, _ in rows] == list(BY_NAME)
    for name, library in rows:
        assert library == BY_NAME[name].product
        assert BY_NAME[name].refused or (CHECKOUT / "docs" / "examples" / f"{name}.toml").exists()


def test_the_words_that_mean_sent_are_whole():
    told = set(CODE.findall(section("Rows that are left out")))
    assert {*SENT_WORDS, *SENT_TIMES, *DUE_TIMES} <= told


def test_no_test_file_imports_from_another():
    """As the tests' own page says; a script that a test writes down may import from its own file."""
    for file in (CHECKOUT / "tests").rglob("*.py"):
        imported = re.findall(r"^(?:from|import) tests\.[\w.]*\b(test_\w+)", file.read_text(), re.MULTILINE)
        assert set(imported) <= {file.stem}, file
