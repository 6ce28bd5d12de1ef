"""A program on a pseudo-terminal, and its screen as text: enough of a terminal for what the shell prints."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import sys
import termios
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType

SOURCE = Path(__file__).parents[1] / "src"
_PIECE = re.compile(r"\x1b\[([?>]?)([0-9;]*)([A-Za-z])|\x1b\][^\x07]*\x07|\x1b[()][A-Z0-9]|\x1b[=>78M]|(.)", re.DOTALL)

_BUSY_S = 0.3
"""So much processor time only something that runs takes; a prompt with nobody typing takes none."""


class Screen:
    """Characters and a cursor; lines that leave it at the top are kept."""

    def __init__(self, columns: int, rows: int) -> None:
        self.columns, self.rows = columns, rows
        self.gone: list[str] = []
        self._lines = [[" "] * columns for _ in range(rows)]
        self._row = self._column = 0
        self._rest = ""
        self.asked_for_cursor = False

    def feed(self, text: str) -> None:
        text = self._rest + text
        cut = text.rfind("\x1b")
        self._rest = (
            text[cut:]
            if cut >= 0 and not re.match(r"\x1b(\[[?>0-9;]*[A-Za-z]|\][^\x07]*\x07|[^\[\]])", text[cut:])
            else ""
        )
        for match in _PIECE.finditer(text[: len(text) - len(self._rest)]):
            if match[4] is not None:
                self._put(match[4])
            elif match[3] is not None and not match[1]:
                self._control(match[3], [int(each or 0) for each in match[2].split(";")])

    def _put(self, character: str) -> None:
        if character == "\r":
            self._column = 0
        elif character == "\n":
            self._down()
        elif character == "\b":
            self._column = max(self._column - 1, 0)
        elif character >= " ":
            if self._column >= self.columns:
                self._column = 0
                self._down()
            self._lines[self._row][self._column] = character
            self._column += 1

    def _down(self) -> None:
        if self._row + 1 < self.rows:
            self._row += 1
            return
        self.gone.append("".join(self._lines.pop(0)).rstrip())
        self._lines.append([" "] * self.columns)

    def _control(self, letter: str, numbers: list[int]) -> None:
        count = numbers[0] or 1
        match letter:
            case "A":
                self._row = max(self._row - count, 0)
            case "B":
                self._row = min(self._row + count, self.rows - 1)
            case "C":
                self._column = min(self._column + count, self.columns - 1)
            case "D":
                self._column = max(self._column - count, 0)
            case "H":
                self._row, self._column = count - 1, (numbers[1] if len(numbers) > 1 else 1) - 1
            case "J":
                self._erase(0 if numbers[0] == 2 else self._column, to_end=True)
            case "K":
                self._erase(self._column, to_end=False)
            case "n":
                self.asked_for_cursor = True

    def _erase(self, column: int, *, to_end: bool) -> None:
        self._lines[self._row][column:] = [" "] * (self.columns - column)
        for row in range(self._row + 1, self.rows) if to_end else ():
            self._lines[row] = [" "] * self.columns

    @property
    def cursor(self) -> tuple[int, int]:
        return self._row + 1, self._column + 1

    @property
    def lines(self) -> list[str]:
        """All that was shown, without empty lines at the end."""
        found = [*self.gone, *("".join(line).rstrip() for line in self._lines)]
        while found and not found[-1]:
            found.pop()
        return found

    @property
    def text(self) -> str:
        return "\n".join(self.lines)


class Terminal:
    """Runs `python -m tidegate.cli.main` with these arguments."""

    def __init__(self, args: Sequence[str | Path], *, columns: int = 80, rows: int = 24, home: Path) -> None:
        self.screen = Screen(columns, rows)
        self.code: int | None = None
        environment = {
            **os.environ,
            "TERM": "xterm-256color",
            "XDG_STATE_HOME": str(home),
            "PYTHONPATH": str(SOURCE),
            "LINES": str(rows),
        }
        for name in ("COLUMNS", "NO_COLOR"):
            environment.pop(name, None)
        command = [sys.executable, "-m", "tidegate.cli.main", *map(str, args)]
        self.pid, self._fd = pty.fork()
        if not self.pid:
            os.execve(command[0], command, environment)
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, text: str) -> None:
        """Keys, as a person presses them; `\\r` is Enter."""
        self._read(0.0)
        os.write(self._fd, text.encode())

    def wait(self, is_there: str | Callable[[str], bool], *, timeout: float = 30.0) -> str:
        """Wait until the screen shows a text (or it `is_there`), and return it all."""
        deadline = time.monotonic() + timeout
        found = (lambda text: is_there in text) if isinstance(is_there, str) else is_there
        while not found(self.screen.text):
            assert time.monotonic() < deadline and self._read(0.1), f"not shown: {is_there!r}\n{self.screen.text}"
        return self.screen.text

    def wait_prompt(self, prompt: str, *, timeout: float = 30.0) -> str:
        """Wait for the prompt that comes after what was typed."""
        return self.wait(lambda _: self.screen.lines[-1:] == [prompt.rstrip()], timeout=timeout)

    def run(self, line: str, prompt: str) -> str:
        """Type a line and Enter; what is shown between it and the next prompt."""
        before = len(self.screen.lines)
        self.type(line + "\r")
        self.wait(lambda _: len(self.screen.lines) > before and self.screen.lines[-1] == prompt.rstrip())
        return "\n".join(self.screen.lines[before:-1])

    def wait_busy(self, *, timeout: float = 30.0) -> None:
        """Wait until what was typed runs: keys go to nobody's prompt, and the processor is used."""
        deadline = time.monotonic() + timeout
        began = self._cpu_s()
        while self._is_prompting() or self._cpu_s() - began < _BUSY_S:
            assert time.monotonic() < deadline and self._read(0.02), f"nothing runs\n{self.screen.text}"

    def _is_prompting(self) -> bool:
        """Whether Ctrl-C is a key for the program, and no signal."""
        return not termios.tcgetattr(self._fd)[3] & termios.ISIG

    def _cpu_s(self) -> float:
        """How much processor time it has used; Linux only."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def wait_end(self, timeout: float = 30.0) -> int:
        """Its exit code."""
        deadline = time.monotonic() + timeout
        while self.code is None:
            assert time.monotonic() < deadline, f"it does not end\n{self.screen.text}"
            self._read(0.05)
            self._reap(os.WNOHANG)
        return self.code

    def _reap(self, how: int) -> None:
        if self.code is None:
            pid, status = os.waitpid(self.pid, how)
            if pid:
                self.code = os.waitstatus_to_exitcode(status)

    def _read(self, seconds: float) -> bool:
        """Take what the program prints; whether there may be more."""
        ready, _, _ = select.select([self._fd], [], [], seconds)
        if not ready:
            return True
        try:
            data = os.read(self._fd, 1 << 16)
        except OSError:
            return False
        self.screen.feed(data.decode(errors="replace"))
        if self.screen.asked_for_cursor:
            self.screen.asked_for_cursor = False
            row, column = self.screen.cursor
            self.type(f"\x1b[{row};{column}R")
        return bool(data)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.code is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            self._reap(0)
        os.close(self._fd)
