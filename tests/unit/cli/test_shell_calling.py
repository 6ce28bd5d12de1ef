"""Calls that Ctrl-C leaves: whoever waits hears of nothing else, at whatever moment it comes. docs/shell.md, Keys."""

from __future__ import annotations

import subprocess
import sys

import pytest

INTERRUPTED = """
import signal, time
from tidegate.cli.shell.calling import Call

waits, heard = False, 0

def interrupt(*_):
    if waits:
        raise KeyboardInterrupt  # Also while the one before is on its way.

def work():
    while heard < 1000:
        time.sleep(0.001)
    return "answer"

def wait():
    global waits
    try:
        waits = True
        call.settle(None)
    finally:
        waits = False

signal.signal(signal.SIGALRM, interrupt)
call = Call(work)
signal.setitimer(signal.ITIMER_REAL, 0.00002, 0.00002)
while not call.is_done:
    try:
        try:
            wait()
        except KeyboardInterrupt:
            heard += 1
    except KeyboardInterrupt:
        heard += 1
signal.setitimer(signal.ITIMER_REAL, 0)
assert call.settle(0) and call.wait(1) == "answer"
print("all interrupts")
"""


@pytest.mark.slow
def test_an_interrupt_at_any_moment_of_waiting_is_one() -> None:
    done = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, timeout=60)
    assert done.stdout == "all interrupts\n", done.stderr
