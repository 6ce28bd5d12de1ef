"""The demo's shop, its processes: started, listened to, killed without a warning and started again; and their lives."""

from __future__ import annotations

import subprocess
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from threading import Thread
from typing import Final

from tidegate.errors import InvariantBroken

_END_MAX_S: Final = 30.0
_WORDS_MAX: Final = 5
STARTS, LIVES, DEAD = "starts", "lives", "dead"


class Actor:
    """A process that says lines and is told some. One thread directs it."""

    def __init__(self, name: str, command: Sequence[str], hear: Callable[[str], bool]) -> None:
        """`hear` is told every whole line, in a thread of its own, and says whether it is one that it knows."""
        self.name: Final = name
        self._command: Final = list(command)
        self._hear: Final = hear
        self.pids: Final[list[int]] = []
        """Of all its lives."""
        self.words: Final[deque[str]] = deque(maxlen=_WORDS_MAX)
        """What it said that nobody knows: how it ended."""
        self._process: subprocess.Popen[str] | None = None
        self._listener: Thread | None = None

    @property
    def pid(self) -> int | None:
        """Of the process that runs."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        # In a session of its own: a Ctrl-C is for the demo, which ends it in good order.
        process = self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            start_new_session=True,
        )  # fmt: skip
        self.pids.append(process.pid)
        self._listener = Thread(target=self._listen, args=(process,), daemon=True)
        self._listener.start()

    def _listen(self, process: subprocess.Popen[str]) -> None:
        for line in process.stdout or ():
            # What was cut by a kill was never said.
            if line.endswith("\n") and line.strip() and not self._hear(line):
                self.words.append(line.strip())

    def tell(self, words: str) -> None:
        if self._process is not None and self._process.stdin is not None:
            with suppress(OSError):  # It is dead, which is found out elsewhere.
                self._process.stdin.write(f"{words}\n")
                self._process.stdin.flush()

    def kill(self) -> int | None:
        """End it where it is; its process id. Ordering: when this returns, everything that it said was heard."""
        process, self._process = self._process, None
        if process is None:
            return None
        process.kill()
        process.wait()
        self._close(process)
        return process.pid

    def stop(self) -> str | None:
        """Let it end by itself; what went wrong, if something did."""
        process = self._process
        if process is None:
            return None
        self.tell("stop")
        try:
            code = process.wait(_END_MAX_S)
        except subprocess.TimeoutExpired:
            return f"the {self.name}, process {process.pid}, did not end when it was told to"
        self._process = None
        self._close(process)
        return self._ended(process.pid, code) if code else None

    def look(self) -> str | None:
        """How it has ended, if it has and nobody wanted that."""
        if self._process is None or (code := self._process.poll()) is None:
            return None
        if self._listener is not None:
            self._listener.join(_END_MAX_S)
        return self._ended(self._process.pid, code)

    def _ended(self, pid: int, code: int) -> str:
        return f"the {self.name}, process {pid}, ended with {code}: {'; '.join(self.words) or 'it does not say why'}"

    def _close(self, process: subprocess.Popen[str]) -> None:
        if self._listener is not None:
            self._listener.join(_END_MAX_S)
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with suppress(OSError):  # What was not written is for nobody.
                    stream.close()


class Lane:
    """Who lived when: how a part of the scene was from which second on. Pure."""

    def __init__(self, name: str) -> None:
        self.name: Final = name
        self._turns: Final[list[tuple[float, str]]] = []

    @property
    def state(self) -> str | None:
        return self._turns[-1][1] if self._turns else None

    @property
    def since(self) -> float:
        """When it came to be as it is."""
        return self._turns[-1][0] if self._turns else 0.0

    @property
    def deaths(self) -> list[float]:
        return [at for at, state in self._turns if state == DEAD]

    def turn(self, at: float, state: str) -> None:
        """It is so from now on."""
        if self._turns and at < self._turns[-1][0]:
            raise InvariantBroken(
                f"{self.name} was {self.state} at {self._turns[-1][0]}, and is {state} before, at {at}"
            )
        if state != self.state:
            self._turns.append((at, state))

    def cells(self, columns: int, span_s: float, now_s: float) -> list[str | None]:
        """How it was in each of `columns` parts of `span_s` seconds, up to now; no death is too short to be seen."""
        found: list[str | None] = []
        for column in range(columns):
            start, end = column * span_s / columns, (column + 1) * span_s / columns
            if start > now_s:
                break
            within = [state for at, state in self._turns if start <= at < end]
            before = [state for at, state in self._turns if at < start]
            last = within[-1] if within else before[-1] if before else None
            found.append(DEAD if DEAD in within else STARTS if last == DEAD else last)
        return found


@dataclass(slots=True)
class Kill:
    """Somebody who is killed."""

    who: str
    at_s: float
    """When it is due."""
    pid: int | None = None
    killed_at: float | None = None
    mark: int = 0
    """How far it was then: commits, transactions taken, or checkpoints."""
    back_s: float | None = None
    """From the kill until it went on."""

    @property
    def is_over(self) -> bool:
        return self.back_s is not None
