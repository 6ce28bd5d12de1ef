"""`Result`: the answer to a query, and the Timestamp of the cut it is of. `ResultStream`: the same, batch by batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import pyarrow as pa

from tidegate.clock.timestamp import Timestamp
from tidegate.errors import Closed


class Result:
    """Rows of one cut."""

    def __init__(
        self,
        table: pa.Table,
        timestamp: Timestamp,
        *,
        engine: str = "duckdb",
        waited_ms: int = 0,
        views: Mapping[str, str] | None = None,
    ) -> None:
        self._table = table
        self.timestamp = timestamp
        """Everything at or below it is in the answer, nothing above."""
        self.engine = engine
        """Who computed it: duckdb or spark."""
        self.waited_ms = waited_ms
        """How long its cut was waited for."""
        self.views = dict(views or {})
        """Where the rows of each view came from: `stored`, at a checkpoint, or `computed` by its query."""

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.rows())

    @property
    def columns(self) -> list[str]:
        """The names of its columns."""
        return list(self._table.column_names)

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

    def to_polars(self) -> Any:
        """Needs Polars."""
        import polars

        return polars.from_arrow(self._table)

    def __repr__(self) -> str:
        return f"<{len(self):,} rows of {len(self.columns)} columns at {self.timestamp}>"


class ResultStream:
    """An answer of one cut that need not fit into memory: iterate over it, once. Use it as a context manager."""

    def __init__(
        self,
        answer: AbstractContextManager[tuple[pa.Schema, Iterator[pa.RecordBatch]]],
        timestamp: Timestamp,
        waited_ms: int = 0,
    ) -> None:
        self.timestamp = timestamp
        self.waited_ms = waited_ms
        self._ends = ExitStack()
        self.schema, self._batches = self._ends.enter_context(answer)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        try:
            yield from self._batches
        finally:
            self.close()

    def to_reader(self) -> pa.RecordBatchReader:
        """For whoever takes Arrow streams: pandas, Polars, DuckDB, a Parquet writer."""
        return pa.RecordBatchReader.from_batches(self.schema, iter(self))

    def close(self) -> None:
        """Let go of the cut. What was not read is not computed."""
        self._batches = _closed()
        self._ends.close()

    def __enter__(self) -> ResultStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _closed() -> Iterator[pa.RecordBatch]:
    raise Closed("this result was closed or read to its end; run the query again")
    yield
