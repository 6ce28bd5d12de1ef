"""The statement that creates a table as it is now, for SHOW CREATE TABLE; or a view.

Law: reading it gives the table's columns, key, shards and options; the view's name, columns, query and options.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tidegate.tables.column_type import to_sql
from tidegate.tables.schema import BESIDE, COMMENT, RETENTION_S, Table


def show_create(table: Table) -> str:
    """CREATE TABLE with the newest schema. Names are quoted, so that none is taken for a keyword."""
    schema = table.schema
    lines = [
        f"  {_quote(each.name)} {to_sql(each.type)}{'' if each.nullable else ' NOT NULL'}" for each in schema.columns
    ]
    if schema.key:
        lines.append(f"  PRIMARY KEY ({', '.join(_quote(each.name) for each in schema.key_columns)})")
    body = ",\n".join(lines)
    end = f"SHARDS {table.shards}"
    options = [f"'{each}' = '{table.options[each]}'" for each in (RETENTION_S, BESIDE) if each in table.options]
    if options:
        end = f"TBLPROPERTIES ('shards' = '{table.shards}', {', '.join(options)})"
    return f"CREATE TABLE {_quote(table.name)} (\n{body}\n) {end}"


def show_create_view(name: str, columns: Sequence[str], sql: str, options: Mapping[str, Any]) -> str:
    """CREATE MATERIALIZED VIEW with its query as it was written."""
    lines = [f"CREATE MATERIALIZED VIEW {_quote(name)} ({', '.join(map(_quote, columns))})"]
    if COMMENT in options:
        lines.append(f"COMMENT {_text(options[COMMENT])}")
    if RETENTION_S in options:
        lines.append(f"TBLPROPERTIES ('{RETENTION_S}' = '{options[RETENTION_S]}')")
    return "\n".join([*lines, f"AS {sql}"])


def _text(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "''") + "'"


def _quote(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
