"""A command that has settled how it ends: no signal changes that, and none is needed but where a thread hangs."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

ENDS = """
import atexit, os, signal, sys, threading, time
from cdc_outbox.cli import ending

def hangs():
    while True:
        time.sleep(0.01)

def told():
    print(signal.getsignal(signal.SIGTERM) is signal.SIG_IGN, flush=True)

atexit.register(told)
ending.settled()
os.kill(os.getpid(), signal.SIGTERM)
os.kill(os.getpid(), signal.SIGINT)
if "hangs" in sys.argv:
    threading.Thread(target=hangs).start()
print("the last word", flush=True)
ending.said(7)
print("said", flush=True)
sys.exit(7)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_thread_that_hangs_holds_up_the_end_until_a_signal_comes(number: signal.Signals) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", ENDS, "hangs"], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "the last word\n"
        assert process.stdout.readline() == "said\n"
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.5)
        process.send_signal(number)
        assert process.wait(10) == 7


def test_without_one_signals_are_ignored_when_the_interpreter_ends() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ENDS], capture_output=True, text=True, timeout=30, check=False
    )
    assert (done.returncode, done.stdout.splitlines()[-1]) == (7, "True")
