"""`Result`: the answer to a query, and the Timestamp of the cut it is of."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from tidegate.clock.timestamp import Timestamp


class Result:
    """Rows of one cut."""

    def __init__(self, table: pa.Table, timestamp: Timestamp) -> None:
        self._table = table
        self.timestamp = timestamp
        """Everything at or below it is in the answer, nothing above."""

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def rows(self) -> list[dict[str, Any]]:
        """A dict for each row. MAPs are dicts too, unless a key comes twice or is an ARRAY or STRUCT: then pairs."""
        found: list[dict[str, Any]]
        try:
            found = self._table.to_pylist(maps_as_pydicts="strict")
        except (KeyError, TypeError):
            found = self._table.to_pylist()
        return found

    def to_arrow(self) -> pa.Table:
        return self._table

    def to_pandas(self) -> Any:
        """Needs pandas."""
        return self._table.to_pandas()
