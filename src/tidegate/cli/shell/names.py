"""`CatalogNames`: the names that completion proposes, asked of the database now and then, never while somebody types
ahead of its opening."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from tidegate.errors import TidegateError

if TYPE_CHECKING:
    from tidegate.database.database import Database

_FRESH_S: Final = 3.0


class CatalogNames:
    """Tables with views, topics and columns. Errors are no names: whoever runs the statement hears of them."""

    def __init__(self, database: Callable[[], Database | None]) -> None:
        """`database` gives None until it is open."""
        self._database = database
        self._known: dict[str, tuple[float, list[str]]] = {}

    def tables(self) -> Sequence[str]:
        return [*self._ask("SHOW TABLES", "name"), *self._ask("SHOW MATERIALIZED VIEWS", "name")]

    def topics(self) -> Sequence[str]:
        return self._ask("SHOW TOPICS", "name")

    def columns(self, table: str) -> Sequence[str]:
        return self._ask("DESCRIBE `" + table.replace("`", "``") + "`", "column")

    def forget(self) -> None:
        """A statement may have changed them."""
        self._known = {}

    def _ask(self, sql: str, key: str) -> list[str]:
        at, found = self._known.get(sql, (0.0, []))
        database = self._database()
        if database is None or (at and time.monotonic() - at < _FRESH_S):
            return found
        try:
            rows: list[dict[str, Any]] = database.sql(sql)
            found = [str(each[key]) for each in rows]
        except TidegateError:
            found = []
        self._known[sql] = (time.monotonic(), found)
        return found
