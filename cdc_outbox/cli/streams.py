"""The standard streams as a shell hands them over: closed (`>&-`), full, or without a reader, as behind `head`.

A closed one is taken for a wish to hear nothing. Where nobody reads any more a command ends as other programs do, by
SIGPIPE and without a word: no exit code of its own would be true.
"""

from __future__ import annotations

import os
import select
import signal
import sys
from contextlib import suppress

import click

from cdc_outbox.errors import CdcOutboxError


def open_closed() -> None:
    """Put a sink in the place of each that is closed; its number would be the next connection's otherwise."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode, errors="replace"))


def say(text: str) -> None:
    """Tell a person on stderr what changes nothing: the work goes on, and ends with its own code, where it can't be."""
    with suppress(OSError):
        click.echo(text, err=True)


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


def told(error: BaseException) -> BaseException:
    """The same, but for one that came from writing our output (as `click.echo` does) what that is for a person."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if not isinstance(error, OSError) or trace is None or trace.tb_frame.f_code is not click.echo.__code__:
        return error
    return CdcOutboxError(
        f"the output can't be written: {error.strerror}", next="make room where it goes, or send it elsewhere"
    )


def give_up() -> None:
    """Leave what could not be written: the interpreter would try again at its end, and end with a code of its own."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
