"""How the shell asks a database: the one place that knows the keywords of `db.query` and `txn.sql`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidegate.cli.shell.settings import Settings
from tidegate.clock.timestamp import Timestamp
from tidegate.errors import InvalidArgument

if TYPE_CHECKING:
    from tidegate.database.database import Database
    from tidegate.database.result import Result
    from tidegate.database.transaction import Transaction


def ask(db: Database, sql: str, settings: Settings) -> Result:
    """The answer to a query at the consistency that is set."""
    # Once `db.query` has the levels session and bounded, and `engine`, `timeout` and `staleness`, they are passed on
    # here. Until then both levels are answered strongly, which is never staler than what was asked for.
    if settings.engine == "spark":
        raise InvalidArgument("queries are answered by DuckDB in this version; SET engine = auto")
    level = settings.consistency
    if isinstance(level, Timestamp):
        return db.query(sql, consistency=level)
    return db.query(sql, consistency="eventual" if level == "eventual" else "strong")


def ask_inside(db: Database, txn: Transaction, sql: str, settings: Settings) -> Result:  # noqa: ARG001
    """The answer to a query while a transaction is open."""
    # Once there is `txn.query`, it has the transaction's own rows too: call it here, and set `SEES_OWN_ROWS`.
    return ask(db, sql, settings)


SEES_OWN_ROWS = False
"""Whether a query inside a transaction has what the transaction has written."""


def run(db: Database, sql: str) -> list[dict[str, Any]]:
    """Any statement that is no query, by itself."""
    return db.sql(sql)


def run_inside(txn: Transaction, sql: str) -> list[dict[str, Any]]:
    """INSERT, UPDATE or DELETE as part of a transaction."""
    return txn.sql(sql)
