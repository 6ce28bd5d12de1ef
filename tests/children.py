"""Processes that a test starts, listens to, stops and kills. Only these, by their own id."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path


class Child:
    """A Python process that runs `code` and says what it does, line by line.

    A line `ready` means that it has begun; one that begins with `!` is a complaint. A line that was cut by a kill was
    never said.
    """

    def __init__(self, code: str, *arguments: object, errors: Path) -> None:
        self._errors = errors.open("ab")
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, *[str(each) for each in arguments]],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        self.errors = errors
        self.lines: list[str] = []
        self.complaints: list[str] = []
        self.is_stopped = False
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._collect, daemon=True)
        self._thread.start()

    @property
    def pid(self) -> int:
        return self.process.pid

    def _collect(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if not line.endswith("\n"):
                return
            if line == "ready\n":
                self._ready.set()
            elif line.startswith("!"):
                self.complaints.append(line[1:].strip())
            else:
                self.lines.append(line.strip())

    def wait_ready(self, timeout_s: float = 60.0) -> Child:
        if not self._ready.wait(timeout_s):
            self.kill()
            raise AssertionError(f"process {self.pid} did not start: {self.errors.read_text()[-20000:]}")
        return self

    @property
    def is_ready(self) -> bool:
        return self._ready.is_set()

    def stop(self) -> None:
        """It stands still, and does not know it."""
        os.kill(self.pid, signal.SIGSTOP)
        self.is_stopped = True

    def go_on(self) -> None:
        if self.is_stopped:
            self.is_stopped = False
            os.kill(self.pid, signal.SIGCONT)

    def wait(self, timeout_s: float = 60.0) -> int:
        """Wait until it has ended by itself; its exit code."""
        code = self.process.wait(timeout_s)
        self._clean_up()
        return code

    def kill(self) -> None:
        """End it at once, wherever it is. May be repeated."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.process.wait(30)
        self._clean_up()

    def _clean_up(self) -> None:
        self._thread.join(30)
        with suppress(Exception):
            self.process.stdout.close()  # type: ignore[union-attr]
        self._errors.close()


def owner_pid(path: Path) -> int | None:
    """The process that said last that it owns the database."""
    try:
        return int(json.loads((path / "owner.json").read_text())["pid"])
    except (OSError, ValueError, KeyError):
        return None
