"""Statements about tables themselves, carried out in the process that owns the database."""

from __future__ import annotations

from typing import Any

from tidegate.database.engine import Engine
from tidegate.errors import InvalidArgument
from tidegate.tables.column_type import to_sql
from tidegate.tables.schema import RETENTION_S, RETENTION_S_MIN, Table
from tidegate.tables.show_create import show_create
from tidegate.tables.statements import (
    AlterTable,
    CreateTable,
    DescribeTable,
    DropTable,
    ShowCreateTable,
    ShowTables,
)

Rows = list[dict[str, Any]]
TableDdl = CreateTable | AlterTable | DropTable | ShowTables | DescribeTable | ShowCreateTable


def run_ddl(engine: Engine, statement: TableDdl) -> Rows:
    """Carry it out; its rows, if it has any."""
    match statement:
        case CreateTable():
            engine.change_catalog(
                lambda found: found.plan_create_table(
                    statement.name,
                    statement.columns,
                    statement.key,
                    shards=statement.shards or 1,
                    options=_options(statement),
                    if_not_exists=statement.if_not_exists,
                )
            )
        case AlterTable():
            engine.change_catalog(
                lambda found: found.plan_alter_table(statement.name, *statement.changes, if_exists=statement.if_exists)
            )
        case DropTable():
            engine.change_catalog(lambda found: found.plan_drop_table(statement.name, if_exists=statement.if_exists))
        case ShowTables():
            return [_row(each) for each in engine.catalog.tables()]
        case DescribeTable():
            return _describe(engine.catalog.table(statement.name))
        case ShowCreateTable():
            return [{"statement": show_create(engine.catalog.table(statement.name))}]
    return []


def _options(statement: CreateTable) -> dict[str, Any]:
    if statement.retention_s is None:
        return {}
    if statement.retention_s < RETENTION_S_MIN:
        raise InvalidArgument(
            f"table {statement.name!r}: `retention_s` is at least {RETENTION_S_MIN}, not {statement.retention_s}"
        )
    return {RETENTION_S: statement.retention_s}


def _row(table: Table) -> dict[str, Any]:
    return {
        "name": table.name,
        "columns": len(table.schema.columns),
        "key": ", ".join(each.name for each in table.schema.key_columns) or None,
        "shards": table.shards,
        "schema_version": table.schema.version,
        "created": int(table.created),
    }


def _describe(table: Table) -> Rows:
    key = {each.id: at for at, each in enumerate(table.schema.key_columns, 1)}
    return [
        {"column": each.name, "type": to_sql(each.type), "nullable": each.nullable, "key": key.get(each.id)}
        for each in table.schema.columns
    ]
