"""The tables' part of the catalog: which there are, with all versions of their schemas, and which there were.

A record holds the columns as they are after it, types as Spark SQL text, so that replaying it needs no rules: what was
once accepted stays. A dropped table is remembered until `forget`, because cuts before its end still show it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Final

from tidegate.catalog import records
from tidegate.catalog.entries import Options, TableAltered, TableCreated
from tidegate.catalog.names import check_shards, count, near
from tidegate.clock.timestamp import Timestamp
from tidegate.errors import InvalidArgument, LimitExceeded, NotFound
from tidegate.tables.column_type import from_sql, to_sql
from tidegate.tables.definition import COLUMNS_MAX, ColumnChange, ColumnDef, alter, define
from tidegate.tables.schema import BESIDE, Column, Table, TableSchema
from tidegate.topics.routing import place

TABLES_MAX: Final = 10_000
VERSIONS_MAX: Final = 1000
"""How many schemas a table can have had; each is kept for as long as the table is."""

Check = Callable[[Table, tuple[Column, ...]], None]
May = Callable[[Table, tuple[Column, ...]], bool]


class TableFold:
    """Tables by name and by id.

    Invariants: a name has at most one table at any time; the versions of a table count up from 1, and each is in effect
    no earlier than the one before.
    """

    def __init__(self, *, tables_max: int = TABLES_MAX, columns_max: int = COLUMNS_MAX) -> None:
        self._by_name: dict[str, Table] = {}
        self._by_id: dict[int, Table] = {}
        """The dropped ones too."""
        self._tables_max = tables_max
        self._columns_max = columns_max

    # -- asking ----------------------------------------------------------------------------------------------

    def get(self, name: str) -> Table | None:
        return self._by_name.get(name)

    def table(self, name: str) -> Table:
        table = self._by_name.get(name)
        if table is None:
            raise NotFound(f"there is no table {name!r}{near(name, self._by_name)}")
        return table

    def tables(self) -> tuple[Table, ...]:
        return tuple(table for _, table in sorted(self._by_name.items()))

    def by_id(self, id: int) -> Table | None:
        return self._by_id.get(id)

    def at(self, timestamp: Timestamp) -> tuple[Table, ...]:
        there = (each for each in self._by_id.values() if each.existed(timestamp))
        return tuple(sorted(there, key=lambda each: each.name))

    def changed(self, names: Sequence[str]) -> Timestamp:
        found = [each.schema.since if each.dropped is None else each.dropped for each in self._named(names)]
        return max(found, default=Timestamp.ZERO)

    def _named(self, names: Sequence[str]) -> Iterable[Table]:
        if all(name in self._by_name for name in names):
            return [self._by_name[name] for name in names]
        return [each for each in self._by_id.values() if each.name in names]

    # -- planning --------------------------------------------------------------------------------------------

    def plan_create(
        self,
        name: str,
        columns: Sequence[ColumnDef],
        key: Sequence[str],
        *,
        shards: int,
        options: Options | None,
        if_not_exists: bool,
        channels: int,
    ) -> bytes | None:
        check_shards("table", name, shards)
        there = self._by_name.get(name)
        if there is not None:
            if if_not_exists:
                return None
            raise InvalidArgument(
                f"table {name!r} exists since {there.created} with {count(len(there.schema.columns), 'column')};"
                f" use IF NOT EXISTS, or drop it first"
            )
        made, ids = define(name, columns, key, columns_max=self._columns_max)
        if len(self._by_name) >= self._tables_max:
            raise LimitExceeded("the number of tables", len(self._by_name) + 1, self._tables_max, "tables_max")
        facts: dict[str, Any] = {}
        if (beside := (options or {}).get(BESIDE)) is not None:
            facts["channel"] = (channels, place(self.table(beside).id, 0, channels))
        return records.write(
            "create_table",
            name=name,
            shards=shards,
            options=dict(options or {}),
            columns=column_facts(made),
            key=ids,
            **facts,
        )

    def plan_alter(self, name: str, changes: Iterable[ColumnChange], *, if_exists: bool, check: Check) -> bytes | None:
        """`check` raises for a table and its next columns when somebody needs the ones it has."""
        if if_exists and name not in self._by_name:
            return None
        table = self.table(name)
        columns = alter(table, changes, columns_max=self._columns_max)
        if columns is None:
            return None
        check(table, columns)
        if len(table.versions) >= VERSIONS_MAX:
            raise InvalidArgument(
                f"table {name!r} has been altered {len(table.versions) - 1:,} times, which is as often as can be;"
                f" create another table and copy the rows"
            )
        return records.write(
            "alter_table", id=table.id, name=name, version=table.schema.version, columns=column_facts(columns)
        )

    # -- the fold --------------------------------------------------------------------------------------------

    def create(self, facts: dict[str, Any], id: int, timestamp: Timestamp) -> TableCreated:
        """The name must be free."""
        schema = TableSchema(1, timestamp, columns_of(facts["columns"]), tuple(facts["key"]))
        table = Table(id, facts["name"], facts["shards"], timestamp, (schema,), options=facts["options"])
        self._by_name[table.name] = self._by_id[table.id] = table
        return TableCreated(table)

    def alter(self, facts: dict[str, Any], timestamp: Timestamp, may: May) -> TableAltered | None:
        """None when the table is not the one, or no longer at the version, that the change was planned for, or when it
        `may` not have these columns."""
        table = self._by_name.get(facts["name"])
        if table is None or table.id != facts["id"] or table.schema.version != facts["version"]:
            return None
        schema = TableSchema(facts["version"] + 1, timestamp, columns_of(facts["columns"]), table.schema.key)
        if not may(table, schema.columns):
            return None
        table = replace(table, versions=(*table.versions, schema))
        self._by_name[table.name] = self._by_id[table.id] = table
        return TableAltered(table)

    def drop(self, table: Table, timestamp: Timestamp) -> Table:
        """A table that is there; as it was, with its end."""
        del self._by_name[table.name]
        table = replace(table, dropped=timestamp)
        self._by_id[table.id] = table
        return table

    def forget(self, before: Timestamp) -> tuple[Table, ...]:
        gone = tuple(each for each in self._by_id.values() if each.dropped is not None and each.dropped <= before)
        for each in gone:
            del self._by_id[each.id]
        return gone

    # -- snapshots -------------------------------------------------------------------------------------------

    def facts(self) -> list[dict[str, Any]]:
        """All tables, also the dropped ones, for a snapshot."""
        return [table_facts(each) for _, each in sorted(self._by_id.items())]

    def load(self, facts: Iterable[dict[str, Any]]) -> None:
        """Take over what `facts` gave."""
        for each in facts:
            table = table_of(each)
            self._by_id[table.id] = table
            if table.dropped is None:
                self._by_name[table.name] = table


def table_facts(table: Table) -> dict[str, Any]:
    """A table as plain data; `table_of` makes it a table again."""
    return {
        "id": table.id,
        "name": table.name,
        "shards": table.shards,
        "created": table.created,
        "dropped": table.dropped,
        "options": dict(table.options),
        "key": table.schema.key,
        "versions": [{"since": one.since, "columns": column_facts(one.columns)} for one in table.versions],
    }


def table_of(facts: dict[str, Any]) -> Table:
    """The table that `table_facts` was given."""
    key = tuple(facts["key"])
    versions = tuple(
        TableSchema(number, Timestamp(one["since"]), columns_of(one["columns"]), key)
        for number, one in enumerate(facts["versions"], 1)
    )
    dropped = None if facts["dropped"] is None else Timestamp(facts["dropped"])
    return Table(
        facts["id"],
        facts["name"],
        facts["shards"],
        Timestamp(facts["created"]),
        versions,
        dropped,
        facts["options"],
    )


def column_facts(columns: Iterable[Column]) -> list[list[Any]]:
    """Columns as plain data, types as Spark SQL; `columns_of` makes them columns again."""
    return [[each.id, each.name, to_sql(each.type), each.nullable] for each in columns]


def columns_of(facts: Iterable[list[Any]]) -> tuple[Column, ...]:
    """The columns that `column_facts` was given."""
    return tuple(Column(id, name, from_sql(type), nullable) for id, name, type, nullable in facts)
