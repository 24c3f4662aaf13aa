"""The standard streams as a shell hands them over: closed (`>&-`), full, or without a reader, as behind `head`.

A closed one is taken for a wish to hear nothing. Where nobody reads any more a command ends as other programs do, by
SIGPIPE and without a word: no exit code of its own would be true.
"""

from __future__ import annotations

import os
import select
import signal
import sys
from typing import TextIO

from cdc_outbox.errors import CdcOutboxError


def open_closed() -> None:
    """Put a sink in the place of each that is closed; its number would be the next connection's otherwise."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode, errors="replace"))


def is_unread() -> bool:
    """Whether the reader of our output has gone. A flush that failed leaves nothing to flush again."""
    try:
        descriptor = sys.stdout.fileno()
    except OSError:
        return False
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        return True
    except OSError:
        return False
    poll = select.poll()
    poll.register(descriptor, 0)
    return bool(poll.poll(0))


def end_unread() -> None:
    """End the process by SIGPIPE. Comes back where that can't be: process 1 of a container has no such end."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGPIPE)


def unwritten() -> CdcOutboxError | None:
    """What keeps our output from being written, if anything does.

    What can't be written is given up, on stderr too: the interpreter would try once more at its end, and end with a
    code of its own.
    """
    _given_up(sys.stderr)
    error = _given_up(sys.stdout)
    if error is None:
        return None
    return CdcOutboxError(
        f"the output can't be written: {error.strerror}", next="make room where it goes, or send it elsewhere"
    )


def _given_up(stream: TextIO) -> OSError | None:
    try:
        stream.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        return error
    return None
