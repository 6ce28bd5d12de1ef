"""The rows of one key among many: for a query that wants no others."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.tables.schema import Table, TableSchema
from tidegate.tables.shards import key_of
from tidegate.topics.routing import shard_of

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


def shard_of_key(table: Table, schema: TableSchema, key: OneKey) -> int:
    """The only shard of a table that a key is ever in."""
    columns = schema.key_columns
    return shard_of(key_of(columns, [key[each.name] for each in columns]), table.shards)
