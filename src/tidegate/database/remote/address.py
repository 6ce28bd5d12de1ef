"""Where a database's owner can be reached: a Unix socket inside the directory, and a file that says so.

The socket can be used by whoever may write to the directory's files and by nobody else. A path that is too long for a
socket gets one in a private directory elsewhere. No two owners have the same one: a connection that is made again by
itself never ends at an owner that does not know the client.
"""

from __future__ import annotations

import json
import os
import secrets
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

_FILE: Final = "owner.json"
_SOCKET: Final = "owner.sock"
_SCHEME: Final = "grpc+unix://"
_PREFIX: Final = "tidegate-"
_PATH_MAX: Final = 100
"""Bytes in the path of a Unix socket, with some to spare."""


class Address:
    """One owner's place to listen."""

    def __init__(self, directory: Path) -> None:
        """Ordering: this process owns the database, so whoever listened before is gone."""
        self._directory = directory
        self._private: str | None = None
        self._remove_left_behind()
        path = directory.absolute() / f"owner-{secrets.token_hex(4)}.sock"
        if len(os.fsencode(path)) > _PATH_MAX:
            self._private = tempfile.mkdtemp(prefix=_PREFIX)  # Readable by this user only.
            path = Path(self._private) / _SOCKET
        self.path: Final = path

    @property
    def location(self) -> str:
        return f"{_SCHEME}{self.path}"

    def publish(self) -> None:
        """Let others find it. Ordering: the socket exists."""
        self.path.chmod(0o600)
        temporary = self._directory / f"{_FILE}.{os.getpid()}.tmp"
        temporary.write_text(json.dumps({"location": self.location, "pid": os.getpid()}))
        temporary.chmod(0o600)
        temporary.replace(self._directory / _FILE)

    def _remove_left_behind(self) -> None:
        """An owner that was killed leaves its socket and its private directory behind."""
        for each in self._directory.glob("owner*.sock"):
            each.unlink(missing_ok=True)
        found = find(self._directory)
        if found is None:
            return
        path = Path(found.removeprefix(_SCHEME))
        private = path.parent
        if private.parent == Path(tempfile.gettempdir()) and private.name.startswith(_PREFIX) and path.name == _SOCKET:
            with suppress(OSError):
                path.unlink(missing_ok=True)
                private.rmdir()

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)
        if self._private is not None:
            Path(self._private).rmdir()


def find(directory: Path) -> str | None:
    """Where the owner listens, or listened last."""
    try:
        found = json.loads((directory / _FILE).read_text())
        return str(found["location"])
    except (OSError, ValueError, KeyError):
        return None
