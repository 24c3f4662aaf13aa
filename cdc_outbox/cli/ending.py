"""How a command ends whose exit code is settled: one more signal changes neither that nor what is said.

Until the last word is said signals are ignored. After it the interpreter waits for threads that still run, as one that
looks up a name, for as long as that takes; meanwhile a signal ends the process at once, with its settled exit code.
When no thread is left they are ignored again, for the interpreter gives up its handlers before it has ended.
"""

from __future__ import annotations

import atexit
import os
import signal
from typing import Final

SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


def settled() -> None:
    """From now on signals are ignored."""
    for which in SIGNALS:
        signal.signal(which, signal.SIG_IGN)


def said(code: int) -> None:
    """The last word is said, and the process ends with `code`. Does nothing unless it was `settled`."""
    if signal.getsignal(signal.SIGTERM) is not signal.SIG_IGN:
        return
    atexit.register(settled)  # runs when the threads have ended
    for which in SIGNALS:
        signal.signal(which, lambda *_: os._exit(code))
