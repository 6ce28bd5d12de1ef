"""A table at a checkpoint as one DuckDB query over the files of its manifest. Text only, no IO.

The newest change of a key wins, by `(_ts, _seq)`. Every layer is younger than the base, so a base's row counts
unless some layer has its key. Columns are found by their number in the schema version of each file: a renamed one is
found under its old name, one that was added later is NULL, one that was dropped is not read.

What a view stores may have NULL in its key: there keys are joined by IS NOT DISTINCT FROM. DuckDB takes NaN for equal
to itself, and -0.0 for equal to 0.0, in every join and partition.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa

from tidegate.errors import InvalidArgument
from tidegate.snapshots.manifest import FileEntry
from tidegate.tables.schema import OP, SEQ, SYSTEM_COLUMNS, TS, Column, Table, TableSchema

_NAMES = {
    pa.bool_(): "BOOLEAN",
    pa.int8(): "TINYINT",
    pa.int16(): "SMALLINT",
    pa.int32(): "INTEGER",
    pa.int64(): "BIGINT",
    pa.uint8(): "UTINYINT",
    pa.uint16(): "USMALLINT",
    pa.uint32(): "UINTEGER",
    pa.uint64(): "UBIGINT",
    pa.float32(): "FLOAT",
    pa.float64(): "DOUBLE",
    pa.string(): "VARCHAR",
    pa.large_string(): "VARCHAR",
    pa.binary(): "BLOB",
    pa.large_binary(): "BLOB",
    pa.date32(): "DATE",
    pa.timestamp("s"): "TIMESTAMP_S",
    pa.timestamp("ms"): "TIMESTAMP_MS",
    pa.timestamp("us"): "TIMESTAMP",
    pa.timestamp("ns"): "TIMESTAMP_NS",
}


def duckdb_type(type: pa.DataType) -> str:
    """How DuckDB calls an Arrow type. Raises: `InvalidArgument` for one that tables do not have."""
    if name := _NAMES.get(type):
        return name
    if pa.types.is_decimal(type):
        return f"DECIMAL({type.precision}, {type.scale})"
    if pa.types.is_timestamp(type):
        return "TIMESTAMP WITH TIME ZONE"
    if pa.types.is_list(type) or pa.types.is_large_list(type):
        return f"{duckdb_type(type.value_type)}[]"
    if pa.types.is_map(type):
        return f"MAP({duckdb_type(type.key_type)}, {duckdb_type(type.item_type)})"
    if pa.types.is_struct(type):
        fields = (type.field(each) for each in range(type.num_fields))
        return f"STRUCT({', '.join(f'{quoted(each.name)} {duckdb_type(each.type)}' for each in fields)})"
    raise InvalidArgument(f"a column of a table cannot be of the type {type}; cast it")


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def escaped(path: str) -> str:
    """A path as a string of SQL, in which no letter is a wildcard."""
    plain = "".join(f"[{letter}]" if letter in "*?[" else letter for letter in path)
    return "'" + plain.replace("'", "''") + "'"


def merge_sql(
    table: Table,
    schema: TableSchema,
    files: Sequence[FileEntry],
    root: str,
    *,
    columns: Sequence[str] | None = None,
    keys: str | None = None,
    deletes: bool = False,
) -> str:
    """The rows of `files`, below the directory `root`, by `schema`.

    `columns` chooses and orders columns, `_ts`, `_op` and `_seq` among them; `keys` names a relation with the key's
    columns, and only rows with a key in it are given. With `deletes` the newest change of each key is given whatever
    it is: that is how layers are merged while something lies below them.
    """
    wanted = [*schema.names] if columns is None else [_named(schema, each) for each in columns]
    chosen = ", ".join(map(quoted, wanted))
    if not files:
        typed = {each.name: duckdb_type(each.type) for each in schema.columns} | {
            TS: "BIGINT",
            OP: "TINYINT",
            SEQ: "BIGINT",
        }
        return f"SELECT {', '.join(f'CAST(NULL AS {typed[name]}) AS {quoted(name)}' for name in wanted)} WHERE false"
    if not schema.key:
        if keys is not None:
            raise InvalidArgument(f"table {table.name!r} has no primary key to look up; read it with a filter instead")
        return f"SELECT {chosen} FROM ({_rows(table, schema, files, root, wanted)})"

    key = [each.name for each in schema.key_columns]
    by_key = ", ".join(map(quoted, key))
    looked_up = "" if keys is None else f" SEMI JOIN {keys} {same_key(schema, 'stored', keys)}"
    called = " AS stored" if schema.key_may_be_null else ""
    base = [each for each in files if each.is_base]
    layers = [each for each in files if not each.is_base]
    base_rows = f"({_rows(table, schema, base, root, [*wanted, *key])}){called}{looked_up}" if base else ""
    if not layers:
        return f"SELECT {chosen} FROM {base_rows}"

    named = _rows(table, schema, layers, root, [*wanted, *key, TS, OP, SEQ])
    parts = [f"WITH layers AS MATERIALIZED (SELECT * FROM ({named}){called}{looked_up})"]
    if len(layers) == 1 and layers[0].distinct:
        parts.append(", newest AS (SELECT * FROM layers)")
    else:
        order = f"PARTITION BY {by_key} ORDER BY {quoted(TS)} DESC, {quoted(SEQ)} DESC"
        parts.append(f", newest AS (SELECT * FROM layers QUALIFY row_number() OVER ({order}) = 1)")
    if base:
        parts.append(
            f" SELECT {chosen} FROM {base_rows} ANTI JOIN layers {same_key(schema, 'stored', 'layers')} UNION ALL"
        )
    parts.append(f" SELECT {chosen} FROM newest")
    if not deletes:
        parts.append(f" WHERE {quoted(OP)} = 1")
    return "".join(parts)


def same_key(schema: TableSchema, left: str, right: str) -> str:
    """How two relations are joined by the key, as the end of a JOIN."""
    names = [quoted(each.name) for each in schema.key_columns]
    if not schema.key_may_be_null:
        return f"USING ({', '.join(names)})"
    return "ON " + " AND ".join(f"{left}.{each} IS NOT DISTINCT FROM {right}.{each}" for each in names)


def _named(schema: TableSchema, name: str) -> str:
    return name if name in SYSTEM_COLUMNS else schema.column(name).name


def _rows(table: Table, schema: TableSchema, files: Sequence[FileEntry], root: str, names: Iterable[str]) -> str:
    """The columns `names` of `schema`, read from files of any version."""
    wanted = list(dict.fromkeys(names))
    parts = []
    for version in sorted({each.schema for each in files}):
        written = table.version(version)
        paths = ", ".join(escaped(f"{root}/{each.path}") for each in files if each.schema == version)
        chosen = ", ".join(_column(schema, written, name) for name in wanted)
        parts.append(f"SELECT {chosen} FROM read_parquet([{paths}], hive_partitioning = false)")
    return " UNION ALL ".join(parts)


def _column(schema: TableSchema, written: TableSchema, name: str) -> str:
    if name in SYSTEM_COLUMNS:
        return quoted(name)
    column = schema.column(name)
    found: Column | None = written.by_id(column.id)
    if found is None:
        return f"CAST(NULL AS {duckdb_type(column.type)}) AS {quoted(column.name)}"
    if found.type != column.type:
        return f"CAST({quoted(found.name)} AS {duckdb_type(column.type)}) AS {quoted(column.name)}"
    return f"{quoted(found.name)} AS {quoted(column.name)}"
