"""How the shell asks a database: the one place that knows how reads and writes are called."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidegate.cli.shell.settings import Settings

if TYPE_CHECKING:
    from tidegate.database.cancel import Cancel
    from tidegate.database.database import Database
    from tidegate.database.result import Result
    from tidegate.database.transaction import Transaction


def new_cancel() -> Cancel:
    """What ends a query from outside."""
    from tidegate.database.cancel import Cancel

    return Cancel()


def ask(db: Database, sql: str, settings: Settings, cancel: Cancel) -> Result:
    """The answer to a query, with what is set. Forward only: the shell is one session (promise 5)."""
    wanted = db.memory.settings.with_(
        consistency=settings.consistency,
        staleness=settings.staleness_s,
        timeout=settings.timeout_s,
        engine=settings.engine,
    )
    return db.read(sql, wanted, db.memory, cancel=cancel)


def ask_inside(txn: Transaction, sql: str) -> Result:
    """The answer to a query at the cut that the transaction reads at, its own rows on top."""
    return txn.query(sql)


def run(db: Database, sql: str) -> list[dict[str, Any]]:
    """Any statement that is no query, by itself."""
    return db.sql(sql)


def run_inside(txn: Transaction, sql: str) -> list[dict[str, Any]]:
    """INSERT, UPDATE or DELETE as part of a transaction."""
    return txn.sql(sql)
