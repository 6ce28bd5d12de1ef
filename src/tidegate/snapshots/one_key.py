"""The rows of one key among many: for a query that wants no others."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

OneKey = Mapping[str, int | str]
"""A key by its columns."""


def only_key(rows: pa.Table, key: OneKey) -> pa.Table:
    """Those of `rows` whose columns have the values of `key`."""
    for name, value in key.items():
        if not rows.num_rows:
            return rows
        column = rows.column(name)
        wanted = pa.scalar(value, column.type)
        if pc.index(column, wanted).as_py() < 0:  # Mostly so, and the cheaper question.
            return rows.slice(0, 0)
        rows = rows.filter(pc.equal(column, wanted))
    return rows
