"""`TursoTarget`: a Turso file that transactions are applied to, through `pyturso`."""

from __future__ import annotations

from typing import Any

from tidegate.capture.target_sqlite import SqliteTarget
from tidegate.errors import InvalidArgument


class TursoTarget(SqliteTarget):
    """As SQLite's, by Turso's own engine."""

    kind = "turso"

    def _connect(self) -> Any:
        try:
            import turso
        except ImportError as error:
            raise InvalidArgument(
                "a Turso database is reached with pyturso, which is not installed: pip install 'tidegate[turso]'"
            ) from error
        self._errors = (turso.Error,)
        self._integrity = (turso.IntegrityError,)
        found = turso.connect(str(self.path), isolation_level=None)
        found.execute(f"PRAGMA busy_timeout = {round(self._busy_s * 1000)}")
        return found

    def _record(self, log: str) -> None:
        self.run(f"PRAGMA capture_data_changes_conn('full,{log}')")
