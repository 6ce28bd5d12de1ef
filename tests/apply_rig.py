"""What tests of applying share: a database, a target, and a second connection that looks at the target."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tidegate
from database_rig import quick
from tidegate import DatabaseSettings
from tidegate.capture.applying import Applying
from tidegate.database.database import Database


class Rig:
    """A database with tables, and a target whose URL is `url`. `look` is a connection of DB-API to it."""

    def __init__(self, path: Path, url: str, look: Any, kind: str, settings: DatabaseSettings | None = None) -> None:
        self.path = path
        self.url = url
        self.kind = kind
        self._look = look
        self._settings = settings or quick(pipeline=False, channels=3)
        self.opened: list[Database] = []
        self.db = self.another()

    def another(self) -> Database:
        """Another opening of the same database; not the owner's."""
        found = tidegate.open(self.path, settings=self._settings)
        self.opened.append(found)
        return found

    def apply(self, *tables: str, **options: Any) -> Applying:
        return self.db.apply(tables or self.tables(), self.url, **options)

    def tables(self) -> list[str]:
        return [each["name"] for each in self.db.sql("SHOW TABLES") if not each["name"].startswith("capture_")]

    def here(self, table: str) -> list[tuple[Any, ...]]:
        """The rows of a table in the database, in order."""
        return sorted(tuple(each.values()) for each in self.db.query(f"SELECT * FROM {table}", "strong").rows())

    def there(self, sql: str) -> list[tuple[Any, ...]]:
        """The rows of a query, or of a table, at the target, in order."""
        text = sql if " " in sql else f"SELECT * FROM {sql}"
        return sorted(map(tuple, self._look.execute(text).fetchall()))

    def at_target(self, *statements: str) -> None:
        """Somebody else writes to the target."""
        for each in statements:
            self._look.execute(each)

    def equal(self, *tables: str) -> bool:
        return all(self.here(each) == self.there(each) for each in tables or self.tables())

    def close(self) -> None:
        for each in reversed(self.opened):
            each.close()
        self._look.close()
