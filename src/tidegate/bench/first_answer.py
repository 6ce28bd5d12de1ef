"""How long a process of `tidegate sql` takes from its start to its first answer, and a shell from its prompt to it."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

import tidegate
from tidegate.errors import InvariantBroken

_WAIT_S: Final = 60.0
_ENTER, _CTRL_D = b"\r", b"\x04"


def command_s(path: Path, statement: str, compiled: Path) -> tuple[float, float]:
    """From the start of a process with one statement to the first line of its answer, and to its end."""
    began = time.perf_counter()
    process = subprocess.Popen([*_COMMAND, str(path), statement], stdout=subprocess.PIPE, env=_environment(compiled))
    with process:
        if process.stdout is None or not process.stdout.readline():
            raise InvariantBroken(f"`tidegate sql` answered nothing and ended with {process.wait()}")
        answered = time.perf_counter() - began
        process.stdout.read()
    return answered, time.perf_counter() - began


def shell_s(path: Path, statement: str, shown: str, compiled: Path) -> tuple[float, float]:
    """From the start of a shell to its prompt, and from the prompt to an answer that is asked for at once.

    `shown` is part of the answer and not of the statement.
    """
    began = time.perf_counter()
    pid, terminal = pty.fork()
    if not pid:
        os.execve(_COMMAND[0], [*_COMMAND, str(path)], _environment(compiled))
    try:
        _wait(terminal, f"{path.name}>".encode())
        prompt = time.perf_counter() - began
        os.write(terminal, statement.encode() + b";" + _ENTER)
        _wait(terminal, shown.encode())
        answered = time.perf_counter() - began - prompt
        _wait(terminal, f"{path.name}>".encode())
        os.write(terminal, _CTRL_D)
        _wait(terminal, None)
    finally:
        os.close(terminal)  # Whatever still runs is hung up.
        os.waitpid(pid, 0)
    return prompt, answered


_COMMAND: Final = [sys.executable, "-m", "tidegate.cli.main", "sql"]


def _environment(compiled: Path) -> dict[str, str]:
    """As for an installed package: compiled once, into `compiled`, whatever the caller's own habit."""
    found = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    source = str(Path(tidegate.__file__).parents[1])
    return {
        **found,
        "PYTHONPATH": os.pathsep.join(filter(None, [source, os.environ.get("PYTHONPATH")])),
        "PYTHONPYCACHEPREFIX": str(compiled),
        "PROMPT_TOOLKIT_NO_CPR": "1",
        "TERM": "xterm",
        "COLUMNS": "120",
        "LINES": "40",
        "XDG_STATE_HOME": str(compiled),
    }


def _wait(terminal: int, text: bytes | None) -> None:
    """Until the terminal shows a text, or was left.

    Raises: `InvariantBroken` when it does not within a minute.
    """
    seen, deadline = b"", time.monotonic() + _WAIT_S
    while text is None or text not in seen:
        ready, _, _ = select.select([terminal], [], [], max(deadline - time.monotonic(), 0))
        try:
            found = os.read(terminal, 1 << 16) if ready else b""
        except OSError:  # The other end is closed.
            found = b""
        if not found:
            if text is None and ready:
                return
            raise InvariantBroken(f"the shell did not show {text!r}, but {seen[-500:]!r}")
        seen += found
