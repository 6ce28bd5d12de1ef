"""Where the shell keeps what was typed: a file of the user's, that nobody else can read, of a bounded size."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

_BYTES_MAX: Final = 1 << 20


def history_path() -> Path:
    """In the user's state directory."""
    state = os.environ.get("XDG_STATE_HOME", "")
    base = Path(state) if state and Path(state).is_absolute() else Path.home() / ".local" / "state"
    return base / "tidegate" / "sql_history"


def prepare_history(path: Path) -> None:
    """Make the file, or make it private and not too long. Raises: OSError."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "rb+") as file:
        if os.fstat(file.fileno()).st_mode & 0o077:
            os.fchmod(file.fileno(), 0o600)
        size = file.seek(0, os.SEEK_END)
        if size <= _BYTES_MAX:
            return
        file.seek(size - _BYTES_MAX // 2)
        kept = file.read()
        # An entry begins with an empty line and a comment.
        start = kept.find(b"\n\n# ")
        file.truncate(0)
        file.write(kept[start + 1 :] if start >= 0 else b"")
