"""`Child`: the pipeline's worker as a process of its own, spoken to in lines of JSON.

It gets a process group to itself, so that it and its JVM end together. Its standard input is its lease: when the
owner ends, however that happens, the pipe breaks and the worker ends by itself.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from threading import Lock, Thread
from typing import Any, Final, Protocol

_logger = logging.getLogger("tidegate.pipeline")
_LOG_BYTES_MAX: Final = 4 << 20
_SHOWN: Final = 2000

Message = dict[str, Any]


class Worker(Protocol):
    """Whoever folds, as the owner of the pipeline sees it."""

    @property
    def pid(self) -> int: ...

    def send(self, message: Message, /) -> bool: ...

    def stop(self, timeout_s: float = ..., /) -> None: ...

    def kill(self) -> None: ...


class Child:
    """A running worker. `on_message` and `on_end` are called from a thread of its own."""

    def __init__(
        self,
        command: list[str],
        *,
        log: Path,
        on_message: Callable[[Message], None],
        on_end: Callable[[str], None],
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """`on_end` is told why it ended: the last lines of what it wrote to `log`."""
        self._log = log
        self._on_message = on_message
        self._on_end = on_end
        self._lock = Lock()
        log.parent.mkdir(parents=True, exist_ok=True)
        if log.exists() and log.stat().st_size > _LOG_BYTES_MAX:
            log.replace(log.with_suffix(".old"))
        self._log_from = log.stat().st_size if log.exists() else 0
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=None if environment is None else {**os.environ, **environment},
                start_new_session=True,
                text=True,
            )
        self._thread = Thread(target=self._read, name="tidegate-pipeline-worker", daemon=True)
        self._thread.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, message: Message) -> bool:
        """Say something to it; False when it has ended."""
        line = json.dumps(message) + "\n"
        try:
            with self._lock:
                if self._process.stdin is None:
                    return False
                self._process.stdin.write(line)
                self._process.stdin.flush()
        except (OSError, ValueError):
            return False
        return True

    def stop(self, timeout_s: float = 10.0) -> None:
        """Ask it to end, and end it if it does not."""
        self.send({"stop": True})
        with suppress(OSError, ValueError), self._lock:
            if self._process.stdin is not None:
                self._process.stdin.close()
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            _logger.warning("the pipeline's worker, process %d, does not end; it is killed", self.pid)
        self.kill()
        self._thread.join(timeout_s)

    def kill(self) -> None:
        """End it and all it has started, now."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _read(self) -> None:
        for line in self._process.stdout or ():
            try:
                message = json.loads(line)
            except ValueError:
                _logger.warning("the pipeline's worker says what is not understood: %s", line.strip()[:200])
                continue
            try:
                self._on_message(message)
            except Exception:
                _logger.exception("a message of the pipeline's worker could not be handled")
        code = self._process.wait()
        self.kill()  # What it started must not outlive it.
        self._close_pipes()
        self._on_end(f"it ended with exit code {code}: {self._last_words()}")

    def _close_pipes(self) -> None:
        with self._lock:
            for pipe in (self._process.stdin, self._process.stdout):
                with suppress(OSError, ValueError):  # What was not taken by it any more cannot be flushed.
                    if pipe is not None:
                        pipe.close()

    def _last_words(self) -> str:
        try:
            with self._log.open("rb") as log:
                log.seek(max(self._log_from, self._log.stat().st_size - _SHOWN))
                lines = log.read().decode(errors="replace").strip().splitlines()
        except OSError:
            lines = []
        return " | ".join(lines[-5:]) or "it said nothing"


def python_command(module: str, *arguments: str) -> list[str]:
    """How to run a module of this package in another process."""
    return [sys.executable, "-m", module, *arguments]
