"""Columns of what views compute, as SQL for DuckDB."""

from __future__ import annotations

import pyarrow as pa

from tidegate.reads.translate import Translated
from tidegate.snapshots.merge_sql import duckdb_type, quoted
from tidegate.tables.schema import Column


def typed(found: Translated) -> str:
    """A translated statement whose columns have their names and types."""
    columns = ", ".join(
        f"CAST(c{number} AS {'INTEGER' if pa.types.is_null(type) else duckdb_type(type)}) AS {quoted(name)}"
        for number, (name, type) in enumerate(zip(found.names, found.types))
    )
    return f"SELECT {columns} FROM ({found.sql})"


def sign_of(column: Column) -> str:
    """What tells 0.0 and -0.0 apart, which are equal; nothing where a column has neither."""
    if pa.types.is_floating(column.type):
        return f"signbit({quoted(column.name)})"
    return f"CAST({quoted(column.name)} AS VARCHAR)" if _has_floats(column.type) else ""


def _has_floats(type: pa.DataType) -> bool:
    inner = (type.field(each).type for each in range(type.num_fields))
    return bool(pa.types.is_floating(type)) or any(map(_has_floats, inner))
