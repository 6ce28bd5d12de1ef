"""Transactions, one timeline and untorn answers for streaming data."""

from pathlib import Path

from tidegate.clock.timestamp import Timestamp
from tidegate.errors import TidegateError
from tidegate.runtime.log import Log, LogFiles
from tidegate.runtime.settings import Durability, LogSettings

__version__ = "0.1.0"


def open_log(path: str | Path, *, settings: LogSettings | None = None, takeover: bool = False) -> Log:
    """Open or create the log at `path` for writing; see `Log`."""
    return Log(path, settings=settings, takeover=takeover)


def read_log(path: str | Path) -> LogFiles:
    """The log at `path` for reading, in any process; see `LogFiles`."""
    return LogFiles(path)


__all__ = [
    "Durability",
    "Log",
    "LogFiles",
    "LogSettings",
    "TidegateError",
    "Timestamp",
    "open_log",
    "read_log",
]
