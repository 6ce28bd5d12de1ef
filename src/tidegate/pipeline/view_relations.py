"""What views may read, as the planning of views wants it, from the catalog."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pyarrow as pa

from tidegate.catalog.catalog import Catalog
from tidegate.catalog.views import View
from tidegate.errors import NotFound
from tidegate.reads.translate import NeedsSpark, Translated, translate
from tidegate.tables.schema import Column, Table, TableSchema
from tidegate.views.definition import Relation
from tidegate.views.plan import Translator


def relations(catalog: Catalog, of: View | None = None) -> dict[str, Relation]:
    """What a new view could read: all tables and views as they are. With `of` what that one reads, as it was when it
    was created."""
    if of is not None:
        return {name: _input(catalog, *place) for name, place in of.inputs.items()}
    tables = {each.name: relation(each, each.schema) for each in catalog.tables()}
    return tables | {each.name: relation(each.table, each.table.schema, each.columns) for each in catalog.views()}


def relation(table: Table, schema: TableSchema, visible: Sequence[str] | None = None) -> Relation:
    """One of them; `visible` are the columns of a view that queries see."""
    names = schema.names if visible is None else visible
    key = tuple(each.name for each in schema.key_columns)
    shown = [_field(schema.column(name)) for name in names]
    hidden = [_field(each) for each in schema.key_columns if each.name not in names]
    return Relation(table.name, table.id, schema.version, pa.schema(shown), key, pa.schema(hidden))


def _input(catalog: Catalog, id: int, version: int) -> Relation:
    table = catalog.table_by_id(id)
    try:
        visible: Sequence[str] | None = catalog.view_by_id(id).columns
    except NotFound:
        visible = None
    return relation(table, table.version(version), visible)


def _field(column: Column) -> pa.Field:
    return pa.field(column.name, column.type, column.nullable)


def with_types(types: Callable[[str, Mapping[str, pa.Schema]], Translated]) -> Translator:
    """Translates what DuckDB can answer; of all else Spark says, by `types`, what columns it has."""

    def translator(sql: str, schemas: Mapping[str, pa.Schema]) -> Translated:
        try:
            return translate(sql, schemas)
        except NeedsSpark:
            return types(sql, schemas)

    return translator
