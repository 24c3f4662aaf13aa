"""`docs/reference/errors.md`: the classes of errors with their exit codes, and what each can say."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator

from cdc_outbox import errors
from tests.servers.cache import CHECKOUT

PACKAGE = CHECKOUT / "cdc_outbox"

HEAD = """\
# Errors

<!-- made by `make references` from the code that raises them -->

Whatever ends a command is two lines on stderr, `error: …` and `next: …` (one JSON line for `start` with JSON logs).
Below, each kind of error with its exit code and what it can say; a word in angle brackets stands for a value. Messages
whose words come from a server, and those that are put together from parts, aren't listed.

*Tried again*: `start` waits and tries again by itself, and ends only with `--fail-fast`; a one-off command ends. What
the codes mean for a supervisor: [Exit codes](exit-codes.md).
"""


def text() -> str:
    """The whole document."""
    said = sayings()
    lines = [HEAD, "| error | exit code | tried again | what it is |", "|---|---|---|---|"]
    tree = [
        each
        for each in vars(errors).values()
        if isinstance(each, type) and issubclass(each, errors.CdcOutboxError)
    ]
    for each in tree:
        if each is errors.CdcOutboxError or issubclass(each, errors.CallRefused):
            continue
        name = f"[{each.__name__}](#{each.__name__.lower()})" if said[each.__name__] else each.__name__
        again = "yes" if each.retriable else "no"
        lines.append(f"| {name} | {each.exit_code} | {again} | {_first(each)} |")
    lines.append("\nErrors of [`enqueue`](../how-to/write-events.md) are exceptions for the application:\n")
    lines += ["| error | what it is |", "|---|---|"]
    lines += [
        f"| {each.__name__} | {_first(each)} |" for each in tree if issubclass(each, errors.CallRefused)
    ]
    for each in tree:
        if said[each.__name__]:
            lines += [f"\n## {each.__name__}\n", "| error | next |", "|---|---|"]
            lines += [f"| {_code(message)} | {_code(remedy)} |" for message, remedy in said[each.__name__]]
    return "\n".join(lines) + "\n"


def _first(kind: type) -> str:
    return " ".join((kind.__doc__ or "").split("\n\n")[0].split())


def _code(words: str) -> str:
    quoted = words.replace("|", "\\|")
    return f"`` {quoted} ``" if "`" in words else f"`{quoted}`"


def sayings() -> dict[str, list[tuple[str, str]]]:
    """Class to the pairs of message and next step that some line of the package gives it, sorted."""
    found: dict[str, set[tuple[str, str]]] = defaultdict(set)
    for path in sorted(PACKAGE.rglob("*.py")):
        for name, message, remedy in _calls(ast.parse(path.read_text())):
            found[name].add((message, remedy))
    return defaultdict(list, {name: sorted(pairs) for name, pairs in found.items()})


def _calls(tree: ast.AST) -> Iterator[tuple[str, str, str]]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not node.args:
            continue
        name = getattr(node.func, "id", getattr(node.func, "attr", ""))
        kind = getattr(errors, name, None)
        if not isinstance(kind, type) or not issubclass(kind, errors.CdcOutboxError):
            continue
        message = _words(node.args[0])
        remedy = next((_words(each.value) for each in node.keywords if each.arg == "next"), None)
        if message and remedy and re.search(r"[a-z]{3}", re.sub(r"<[^>]*>", "", message)):
            yield name, message, remedy


def _words(node: ast.expr) -> str | None:
    """The text of a literal; what is filled in is named after the variable it comes from. None for anything else."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=values):
            parts = [_words(value) if isinstance(value, ast.Constant) else _filled(value) for value in values]
            return "".join(part or "" for part in parts)
        case _:
            return None


def _filled(node: ast.expr) -> str:
    inner = node.value if isinstance(node, ast.FormattedValue) else node
    while isinstance(inner, ast.Call | ast.Await | ast.Subscript):
        inner = (inner.args or [inner.func])[0] if isinstance(inner, ast.Call) else inner.value
    match inner:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return f"<{name.strip('_').lower().replace('_', ' ')}>"
        case _:
            return "<…>"
