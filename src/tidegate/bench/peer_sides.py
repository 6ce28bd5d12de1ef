"""The other sides of `bench-peers`: an environment of its own for each, and its script run in it, bounded in time.

A side that cannot be installed, started or finished says so by `SideFailed`; whoever asked reports that.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from tidegate.errors import TidegateError, Unavailable

SCRIPTS: Final = Path(__file__).parents[3] / "bench" / "peers"
INSTALL_S: Final = 1_200.0
SIDE_S: Final = 600.0
"""How long one workload of one side may take."""
_SAID: Final = 500
"""Characters of what a failed process said that are passed on."""


class SideFailed(Unavailable):
    """A side could not be installed, started or finished; the message says which and why."""


def environment(name: str, parent: Path, *, timeout_s: float = INSTALL_S) -> Path:
    """The Python of the environment of a side, made when it is not there or its requirements have changed."""
    wanted = SCRIPTS / f"{name}.txt"
    home = parent / name
    python, stamp = home / "bin" / "python", home / "requirements"
    try:
        digest = hashlib.sha256(wanted.read_bytes()).hexdigest()
    except OSError as error:
        raise SideFailed(f"{name} is not pinned: {error}; run this in a checkout") from error
    if python.exists() and stamp.exists() and stamp.read_text() == digest:
        return python
    pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--requirement", str(wanted)]
    for what in ([sys.executable, "-m", "venv", str(home)], [str(python), *pip]):
        _call(f"the environment of {name}", what, timeout_s)
    stamp.write_text(digest)
    return python


def run_side(name: str, python: Path, arguments: Sequence[str], output: Path, *, timeout_s: float = SIDE_S) -> Any:
    """Run the script of a side; what it printed last, which is JSON."""
    output.mkdir(parents=True, exist_ok=True)
    variables = {**os.environ, "PYTHONPATH": "", "TMPDIR": str(output)}
    if name == "flink":
        from tidegate.spark.java import find_java

        try:
            variables["JAVA_HOME"] = str(find_java().home)
        except TidegateError as error:
            raise SideFailed(f"flink has no Java: {error}") from error
    command = [str(python), str(SCRIPTS / f"{name}_side.py"), *arguments]
    said = _call(f"{name} ({' '.join(arguments[:1])})", command, timeout_s, variables, output)
    try:
        return json.loads(said.strip().splitlines()[-1])
    except (ValueError, IndexError) as error:
        raise SideFailed(f"{name} ended without a result, and said {said[-_SAID:]!r}") from error


def _call(
    what: str,
    command: Sequence[str],
    timeout_s: float,
    variables: dict[str, str] | None = None,
    directory: Path | None = None,
) -> str:
    """What a process printed. It has a session of its own, so that what it started ends with it."""
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=variables,
            cwd=directory,
            start_new_session=True,
        )
    except OSError as error:
        raise SideFailed(f"{what} could not be started: {error}") from error
    try:
        out, err = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired as error:
        raise SideFailed(f"{what} was ended after {timeout_s:,.0f} s") from error
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    if process.returncode:
        said = (err or out).decode(errors="replace").strip()
        raise SideFailed(f"{what} ended with {process.returncode}: {said[-_SAID:]}")
    return out.decode(errors="replace")
