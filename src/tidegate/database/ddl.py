"""Statements about tables and views themselves, carried out in the process that owns the database."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import Any, Final

import pyarrow as pa

from tidegate.catalog.catalog import Catalog
from tidegate.catalog.views import View
from tidegate.database.engine import Engine
from tidegate.errors import Conflict, InvalidArgument
from tidegate.pipeline.view_relations import relations, with_types
from tidegate.reads.translate import Translated
from tidegate.tables.column_type import to_sql
from tidegate.tables.schema import BESIDE, COMMENT, RETENTION_S, RETENTION_S_MIN, Table, TableSchema
from tidegate.tables.show_create import show_create, show_create_view
from tidegate.tables.statements import (
    AlterTable,
    CreateTable,
    DescribeTable,
    DropTable,
    ShowCreateTable,
    ShowTables,
)
from tidegate.tables.view_statements import (
    CreateView,
    DescribeView,
    DropView,
    ExplainView,
    ResumeView,
    ShowCreateView,
    ShowViews,
)
from tidegate.views.definition import Define, Defined

Rows = list[dict[str, Any]]
TableDdl = CreateTable | AlterTable | DropTable | ShowTables | DescribeTable | ShowCreateTable
ViewDdl = CreateView | DropView | ResumeView | ShowViews | ShowCreateView | DescribeView | ExplainView

TRIES_MAX: Final = 20
"""So often what a view reads may change while its query is looked at."""


def run_ddl(engine: Engine, statement: TableDdl | ViewDdl, check: Callable[[], None] | None = None) -> Rows:
    """Carry it out; its rows, if it has any. `check` may refuse a change of a table, as of its very moment."""
    match statement:
        case CreateTable():
            engine.change_catalog(
                lambda found: found.plan_create_table(
                    statement.name,
                    statement.columns,
                    statement.key,
                    shards=statement.shards or 1,
                    options=_options("table", statement.name, statement.retention_s)
                    | ({} if statement.beside is None else {BESIDE: statement.beside}),
                    if_not_exists=statement.if_not_exists,
                    channels=len(engine.channels),
                ),
                check,
            )
        case AlterTable():
            engine.change_catalog(
                lambda found: found.plan_alter_table(statement.name, *statement.changes, if_exists=statement.if_exists),
                check,
            )
        case DropTable(name, if_exists, cascade):
            engine.change_catalog(
                lambda found: found.plan_drop_table(name, if_exists=if_exists, cascade=cascade), check
            )
        case ShowTables():
            return [_row(each) for each in engine.catalog.tables()]
        case DescribeTable(name) | DescribeView(name):
            return _describe(*_shown(engine.catalog, name, isinstance(statement, DescribeView)))
        case ShowCreateTable(name) | ShowCreateView(name):
            return [{"statement": _create_statement(engine.catalog, name, isinstance(statement, ShowCreateView))}]
        case CreateView():
            create_view(engine, statement)
        case DropView(name, if_exists, cascade):
            engine.change_catalog(lambda found: found.plan_drop_view(name, if_exists=if_exists, cascade=cascade))
        case ResumeView(name):
            engine.change_catalog(lambda found: found.plan_resume_view(name))
        case ShowViews():
            return engine.report.views()
        case ExplainView(of):
            return _explain(engine, of)
    return []


# -- views ---------------------------------------------------------------------------------------------------


def create_view(engine: Engine, statement: CreateView, define: Define | None = None) -> None:
    """Look at the query, then create the view if all that it reads is still as it was; else look again.

    Raises: `InvalidArgument` for a query that cannot be a view; `Conflict` when its inputs never stay as they are.
    """
    define = define or partial(import_module("tidegate.views.define").define, translator=_translator(engine))
    options = _options("view", statement.name, statement.retention_s)
    if statement.comment is not None:
        options[COMMENT] = statement.comment
    for tried in range(TRIES_MAX):
        if not engine.catalog.may_create_view(statement.name, if_not_exists=statement.if_not_exists):
            return
        found = define(statement.sql, statement.columns, relations(engine.catalog))
        plan = partial(_plan_view, statement, found, options)
        try:
            engine.change_catalog(plan)
        except Conflict:
            if tried == TRIES_MAX - 1:
                raise
        else:
            return


def _plan_view(statement: CreateView, found: Defined, options: Mapping[str, Any], catalog: Catalog) -> bytes | None:
    return catalog.plan_create_view(
        statement.name,
        statement.sql,
        found.columns,
        found.nodes,
        found.inputs,
        found.used,
        options=options,
        if_not_exists=statement.if_not_exists,
    )


def _translator(engine: Engine) -> Any:
    """What only Spark can compute, Spark is asked about: it is started for that in this process, if it has none."""

    def types(sql: str, schemas: Mapping[str, pa.Schema]) -> Translated:
        from tidegate.spark.query_session import session_for
        from tidegate.spark.statements import SparkStatements

        with session_for(engine.path, is_large=False) as session:
            return SparkStatements(session).types(sql, schemas)

    return with_types(types)


def _explain(engine: Engine, of: str | CreateView) -> Rows:
    """As the planning of views tells it."""
    catalog = engine.catalog
    if isinstance(of, CreateView):
        asked = of.sql, of.columns, relations(catalog), of.name or "view"
    else:
        view = catalog.view(of)
        asked = view.sql, view.columns, relations(catalog, view), view.name
    rows: Rows = import_module("tidegate.views.explain").explain(*asked, translator=_translator(engine))
    return rows


# -- both ----------------------------------------------------------------------------------------------------


def _find(catalog: Catalog, name: str, must_be_view: bool) -> Table | View:
    """Raises: `NotFound`."""
    view = next((each for each in catalog.views() if each.name == name), None)
    if view is not None:
        return view
    return catalog.view(name) if must_be_view else catalog.table(name)


def _shown(catalog: Catalog, name: str, must_be_view: bool) -> tuple[TableSchema, Sequence[str]]:
    """The newest schema of a table or view, and which of its columns are visible."""
    found = _find(catalog, name, must_be_view)
    if isinstance(found, View):
        return found.table.schema, found.columns
    return found.schema, found.schema.names


def _describe(schema: TableSchema, visible: Sequence[str]) -> Rows:
    key = {each.id: at for at, each in enumerate(schema.key_columns, 1)}
    return [
        {"column": each.name, "type": to_sql(each.type), "nullable": each.nullable, "key": key.get(each.id)}
        for each in map(schema.column, visible)
    ]


def _create_statement(catalog: Catalog, name: str, must_be_view: bool) -> str:
    found = _find(catalog, name, must_be_view)
    if isinstance(found, View):
        return show_create_view(found.name, found.columns, found.sql, found.options)
    return show_create(found)


def _options(what: str, name: str, retention_s: int | None) -> dict[str, Any]:
    if retention_s is None:
        return {}
    if retention_s < RETENTION_S_MIN:
        raise InvalidArgument(f"{what} {name!r}: `retention_s` is at least {RETENTION_S_MIN}, not {retention_s}")
    return {RETENTION_S: retention_s}


def _row(table: Table) -> dict[str, Any]:
    return {
        "name": table.name,
        "columns": len(table.schema.columns),
        "key": ", ".join(each.name for each in table.schema.key_columns) or None,
        "shards": table.shards,
        "schema_version": table.schema.version,
        "created": int(table.created),
    }
