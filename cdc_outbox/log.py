"""Logging: constant lower-case text with fields beside it, on stderr, with no secret in it.

Text for a person on a terminal, one JSON object a line elsewhere. Records of libraries (psycopg, asyncio, Python's
warnings) come the same way, from WARNING on, and each distinct one at most once a minute.

The Kafka client tells of each attempt that fails, as an error, while it tries again, and so does the exporter of
OpenTelemetry; what a failure means is in lines of ours. So what they say is for `debug` alone, but for an exception
that they didn't expect: a warning.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from time import monotonic
from typing import Final, Literal

from cdc_outbox.instant import iso_seconds
from cdc_outbox.terminal import coloured, one_line

OURS: Final = "cdc_outbox"

_CLIENTS: Final = ("aiokafka", "opentelemetry.exporter.otlp.proto.http.metric_exporter")
_REPEAT_SECONDS: Final = 60.0
_TEMPLATES: Final = 256
_COLOURS: Final = {"debug": "2", "warning": "33", "error": "31", "critical": "31"}

Format = Literal["text", "json"]


class Log:
    """A module's log: `log.info("streaming", slot=slot, lsn=lsn)`. Costs one comparison where it is off."""

    __slots__ = ("_logger",)

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(name)

    def debug(self, event: str, /, **fields: object) -> None:
        if self._logger.isEnabledFor(logging.DEBUG):
            self._logger.debug(event, extra={"fields": fields})

    def info(self, event: str, /, **fields: object) -> None:
        if self._logger.isEnabledFor(logging.INFO):
            self._logger.info(event, extra={"fields": fields})

    def warning(self, event: str, /, **fields: object) -> None:
        if self._logger.isEnabledFor(logging.WARNING):
            self._logger.warning(event, extra={"fields": fields})

    def error(self, event: str, /, **fields: object) -> None:
        if self._logger.isEnabledFor(logging.ERROR):
            self._logger.error(event, extra={"fields": fields})


def get(name: str) -> Log:
    """The log of a module: `log = get(__name__)`."""
    return Log(name)


def _same(text: str) -> str:
    return text


def stderr_format() -> Format:
    """The format where none is asked for: text on a terminal, else json."""
    return "text" if sys.stderr.isatty() else "json"


def set_up(
    level: str = "info",
    format: Format | None = None,  # noqa: A002 - the setting's name
    redact: Callable[[str], str] = _same,
    complete: Callable[[str], str] = _same,
) -> None:
    """Send all records to stderr, from `level` on. May be called again.

    All text in them passes `redact`, and a `next` passes `complete` before.
    """
    debug = level == "debug"
    chosen = format or stderr_format()
    handler = _Stderr()
    handler.addFilter(_Client(debug))
    handler.addFilter(_OncePerMinute())
    formatter = _Json if chosen == "json" else _Text
    handler.setFormatter(formatter(redact, complete, debug))
    root = logging.getLogger()
    for old in root.handlers[:]:
        if isinstance(old, _Stderr):
            root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    logging.getLogger(OURS).setLevel(level.upper())
    logging.captureWarnings(True)
    _catch_strays()


def _catch_strays() -> None:
    """Log what Python would print to stderr by itself: every line there has to be ours.

    Hooks that somebody else has set, a test runner for one, stay.
    """
    if sys.unraisablehook is sys.__unraisablehook__:
        sys.unraisablehook = _unraisable
    if threading.excepthook is threading.__excepthook__:
        threading.excepthook = _in_thread


def _unraisable(stray: sys.UnraisableHookArgs) -> None:
    error = stray.exc_value
    info = (type(error), error, stray.exc_traceback) if error is not None else None
    logging.getLogger("python").warning(stray.err_msg or "an exception was ignored", exc_info=info)


def _in_thread(stray: threading.ExceptHookArgs) -> None:
    error = stray.exc_value
    info = (type(error), error, stray.exc_traceback) if error is not None else None
    logging.getLogger("python").error("a thread ended by an exception", exc_info=info)


class _Stderr(logging.Handler):
    """Writes to what sys.stderr is at that moment."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            sys.stderr.write(self.format(record) + "\n")
            sys.stderr.flush()
        except (OSError, ValueError):
            # Nobody reads stderr any more; delivery goes on, and there is no other place to say so.
            return


class _Client(logging.Filter):
    """Lowers what clients say to what it is for us."""

    def __init__(self, debug: bool) -> None:
        super().__init__()
        self._debug = debug

    def filter(self, record: logging.LogRecord) -> bool:
        if not any(record.name == name or record.name.startswith(name + ".") for name in _CLIENTS):
            return True
        unexpected = bool(record.exc_info)
        record.levelno = logging.WARNING if unexpected else logging.DEBUG
        record.levelname = logging.getLevelName(record.levelno)
        return unexpected or self._debug


class _OncePerMinute(logging.Filter):
    """Lets a library's record through once a minute per template, with the number of those held back."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: dict[tuple[str, int, str], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if is_ours(record):
            return True
        key = (record.name, record.levelno, str(record.msg))
        now = monotonic()
        at, held_back = self._seen.get(key, (0.0, 0))
        if at and now - at < _REPEAT_SECONDS:
            self._seen[key] = (at, held_back + 1)
            return False
        if len(self._seen) >= _TEMPLATES and key not in self._seen:
            self._seen.pop(next(iter(self._seen)))
        self._seen[key] = (now, 0)
        record.held_back = held_back
        return True


def _message(record: logging.LogRecord) -> str:
    """A library's words; as they were given where its values don't fit them, since no caller's log call may fail."""
    try:
        return record.getMessage()
    except Exception:
        return str(record.msg)


def is_ours(record: logging.LogRecord) -> bool:
    return record.name == OURS or record.name.startswith(OURS + ".")


class _Formatter(logging.Formatter):
    def __init__(self, redact: Callable[[str], str], complete: Callable[[str], str], debug: bool) -> None:
        super().__init__()
        self._redact = redact
        self._complete = complete
        self._debug = debug

    def document(self, record: logging.LogRecord) -> dict[str, object]:
        """The record as ordered keys and plain, redacted values."""
        document: dict[str, object] = {
            "ts": iso_seconds(record.created),
            "level": record.levelname.lower(),
        }
        if is_ours(record):
            document["event"] = record.getMessage()
            fields: Mapping[str, object] = getattr(record, "fields", {})
        else:
            document["event"] = "library message"
            fields = {"logger": record.name, "message": _message(record)}
            if held_back := getattr(record, "held_back", 0):
                fields = {**fields, "held_back": held_back}
        for name, value in fields.items():
            if name == "next" and isinstance(value, str):
                value = self._complete(value)  # noqa: PLW2901
            document[name if name not in document else f"{name}_"] = plain(value, self._redact)
        if record.exc_info and record.exc_info[1] is not None:
            error = record.exc_info[1]
            text = (
                self.formatException(record.exc_info) if self._debug else f"{type(error).__name__}: {error}"
            )
            document["exception"] = self._redact(text)
        return document


class _Json(_Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return json_text(self.document(record))


class _Text(_Formatter):
    def format(self, record: logging.LogRecord) -> str:
        document = self.document(record)
        ts, level, event = document.pop("ts"), str(document.pop("level")), document.pop("event")
        traceback = document.pop("exception", None) if self._debug else None
        if "error" in document and "next" in document:
            error, remedy = (one_line(str(document[name])) for name in ("error", "next"))
            return f"error: {error}\nnext: {remedy}"  # as the command line says them
        shown = f"{level:7}"
        if level in _COLOURS and coloured(sys.stderr):
            shown = f"\x1b[{_COLOURS[level]}m{shown}\x1b[0m"
        fields = {name: value for name, value in document.items() if not isinstance(value, dict)}
        words = [f"{ts} {shown} {event}", *(f"{name}={_word(value)}" for name, value in fields.items())]
        lines = ["  ".join((words[0], " ".join(words[1:]))).rstrip(), *_below(document)]
        return "\n".join(lines) + (f"\n{traceback}" if traceback else "")


def _below(document: Mapping[str, object]) -> Iterator[str]:
    """What is too much for a line: of a table of texts each name, and under it each part of its text."""
    for name, table in document.items():
        if isinstance(table, dict):
            for key, value in table.items():
                yield f"    {name} {_shown(key)}"
                yield from (f"      {_shown(part)}" for part in str(value).split("; "))


def _shown(text: str) -> str:
    return text if text.isprintable() else json_text(text)


def _word(value: object) -> str:
    if not isinstance(value, str):
        return json_text(value)
    if value and value.isprintable() and not any(letter in value for letter in ' "='):
        return value
    return json_text(value)


def plain(value: object, redact: Callable[[str], str]) -> object:
    """A value for JSON: numbers and truth values as they are, everything else as redacted text."""
    if value is None or type(value) in (bool, int, float):
        return value
    if isinstance(value, Mapping):
        return {redact(str(name)): plain(one, redact) for name, one in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        items: Sequence[object] = list(value)
        return [plain(one, redact) for one in items]
    return redact(str(value))


def json_text(value: object) -> str:
    """A value as JSON, on one line."""
    import orjson

    try:
        return orjson.dumps(value).decode()
    except (TypeError, UnicodeEncodeError):
        # Lone surrogates and numbers beyond 64 bits: json has an answer where orjson refuses.
        import json

        return json.dumps(value, separators=(",", ":"), default=str)
