"""Transactions, one timeline and untorn answers for streaming data."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from tidegate.clock.timestamp import Timestamp
from tidegate.errors import TidegateError

if TYPE_CHECKING:
    from pathlib import Path

    from tidegate.database.consumer import Consumer
    from tidegate.database.database import Database
    from tidegate.database.settings import DatabaseSettings
    from tidegate.database.transaction import Transaction
    from tidegate.reads.consistency import Consistency
    from tidegate.runtime.log import Log, LogFiles
    from tidegate.runtime.settings import Durability, LogSettings

__version__ = "0.1.0"

_ON_USE: Final = {
    "Consumer": "tidegate.database.consumer",
    "Database": "tidegate.database.database",
    "DatabaseSettings": "tidegate.database.settings",
    "Transaction": "tidegate.database.transaction",
    "Durability": "tidegate.runtime.settings",
    "Log": "tidegate.runtime.log",
    "LogFiles": "tidegate.runtime.log",
    "LogSettings": "tidegate.runtime.settings",
}
"""Names that bring Arrow with them. They are imported when first used, so that `tidegate --help` need not wait."""


def __getattr__(name: str) -> Any:
    if name not in _ON_USE:
        raise AttributeError(f"module 'tidegate' has no attribute {name!r}")
    return getattr(import_module(_ON_USE[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def open(
    path: str | Path,
    *,
    settings: DatabaseSettings | None = None,
    name: str | None = None,
    consistency: Consistency | str | None = None,
    staleness: float | None = None,
) -> Database:
    """Open or create the database at `path`, or reach it through the process that has it open; see `Database`."""
    from tidegate.database.database import Database

    return Database(path, settings=settings, name=name, consistency=consistency, staleness=staleness)


def open_log(path: str | Path, *, settings: LogSettings | None = None, takeover: bool = False) -> Log:
    """Open or create the log at `path` for writing; see `Log`."""
    from tidegate.runtime.log import Log

    return Log(path, settings=settings, takeover=takeover)


def read_log(path: str | Path) -> LogFiles:
    """The log at `path` for reading, in any process; see `LogFiles`."""
    from tidegate.runtime.log import LogFiles

    return LogFiles(path)


__all__ = [
    "Consumer",
    "Database",
    "DatabaseSettings",
    "Durability",
    "Log",
    "LogFiles",
    "LogSettings",
    "TidegateError",
    "Timestamp",
    "Transaction",
    "open",
    "open_log",
    "read_log",
]
