"""A world of tables in DuckDB's memory, with views that are maintained by changes and compared with their queries.

The same parts do the work as in the pipeline: `plan`, `Delta` and the translation of Spark SQL. What the pipeline adds
is left out: files, epochs, crashes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from spark_duck import spark_cursor
from tidegate.reads.translate import Translated, as_spark, translate
from tidegate.snapshots.merge_sql import duckdb_type, quoted
from tidegate.views.define import ROW_KEY, SHARD
from tidegate.views.delta import Delta, full
from tidegate.views.operators import Node, Plan, Source
from tidegate.views.plan import plan

W = "_w"
Row = Mapping[str, Any]


@dataclass(frozen=True)
class TableOf:
    """A table of a world. Without a key its rows are told apart by when they were written, and only added."""

    schema: pa.Schema
    key: tuple[str, ...] = ()

    @property
    def stored(self) -> pa.Schema:
        return self.schema if self.key else pa.schema([*self.schema, *(pa.field(*each) for each in ROW_KEY.items())])

    @property
    def row_key(self) -> tuple[str, ...]:
        return self.key or tuple(ROW_KEY)


@dataclass(frozen=True)
class Change:
    """What one transaction does to a table: rows that are put, and keys that are deleted."""

    rows: Sequence[Row] = ()
    deletes: Sequence[tuple[Any, ...]] = ()


class World:
    """Invariant: after each step every view holds what its query gives over the tables as they are."""

    def __init__(
        self, tables: Mapping[str, TableOf], translated: dict[tuple[str, ...], Translated] | None = None
    ) -> None:
        """`translated` may be shared by worlds with the same tables."""
        self.tables = dict(tables)
        self.views: dict[str, tuple[Plan, str]] = {}
        self.statements: list[str] = []
        """What was computed in the last step."""
        self._translated = {} if translated is None else translated
        self._con = spark_cursor()
        self._sources: dict[str, Source] = {}
        self._schemas: dict[str, pa.Schema] = {}
        self._changed: Counter[str] = Counter()
        self._temporary: list[str] = []
        self._steps = 0
        for name, table in self.tables.items():
            types = dict(zip(table.stored.names, table.stored.types))
            self._sources[name] = Source(name, tuple(table.schema.names), table.row_key, types)
            self._con.register("given", table.stored.empty_table())
            self._table(f"{name}@a", "SELECT * FROM given")
            self._know(name, table.stored, table.schema.names)

    # -- what a test does ------------------------------------------------------------------------------------

    def create(self, name: str, sql: str, planned: Plan | None = None) -> Plan:
        """Make a view and fill it. `planned` is the plan, where another world with the same tables has made it."""
        found = planned or plan(sql, self._sources, name=name)
        self.views[name] = found, sql
        for node in found.nodes:
            translated = self._translation(full(node))
            self._table(f"{node.name}@a", _typed(translated))
            self._know(node.name, pa.schema(list(zip(translated.names, translated.types))), translated.names)
            for column in node.columns.values():
                assert node.types[column] == self._schemas[f"{node.name}@a"].field(column).type, (node.name, column)
            for column in node.key:
                assert not pa.types.is_nested(node.types[column]), f"{node.name} has the nested key {column}"
        last = found.nodes[-1]
        self._sources[name] = Source(name, tuple(found.columns), last.key, last.types)
        self._know(name, self._schemas[f"{name}@a"], found.columns)
        return found

    def step(self, changes: Mapping[str, Change], *, whole: bool = False) -> None:
        """One epoch: the tables change, then every view. `whole`: all nodes are computed in full."""
        self._steps += 1
        self.statements = []
        self._changed.clear()
        for name, change in changes.items():
            self._change(name, change)
        for name in self.views:
            self._maintain(name, whole)

    def check(self, name: str) -> None:
        """The view is its query: the same rows, each as often."""
        found, sql = self.views[name]
        want = rows_of(self.ask(sql))
        got = rows_of(self.stored(name).select(found.columns))
        missing, extra = want - got, got - want
        assert not missing and not extra, (
            f"after step {self._steps} the view {name} AS {sql}\nlacks {list(missing.elements())[:5]}"
            f"\nand has {list(extra.elements())[:5]}"
        )

    def stored(self, name: str) -> pa.Table:
        return self._con.sql(f"SELECT * FROM {quoted(name + '@a')}").to_arrow_table()

    def ask(self, sql: str) -> pa.Table:
        """The answer to a query over the tables as they are."""
        found = self._translation(sql)
        return as_spark(self._con.sql(found.sql).to_arrow_table(), found)

    # -- what `Delta` asks of a computer ---------------------------------------------------------------------

    def compute(self, name: str, sql: str) -> int:
        found = self._translation(sql)
        self.statements.append(sql)
        self._schemas[name] = pa.schema(list(zip(found.names, found.types)))
        self._temporary.append(name)
        return self._table(name, _typed(found))

    def changed(self, relation: str) -> int:
        return self._changed[relation]

    # -- inside ----------------------------------------------------------------------------------------------

    def _change(self, name: str, change: Change) -> None:
        table = self.tables[name]
        rows = [dict(each) for each in change.rows]
        if not table.key:
            assert not change.deletes, f"rows of {name} have no key to delete them by"
            rows = [{**each, "_ts": self._steps, "_seq": at, SHARD: 0} for at, each in enumerate(rows)]
        keys = [tuple(each[column] for column in table.row_key) for each in rows]
        gone = [dict(zip(table.row_key, each)) for each in [*keys, *change.deletes]]
        self._con.register("given", pa.Table.from_pylist(rows, schema=table.stored))
        key_schema = pa.schema([table.stored.field(each) for each in table.row_key])
        self._con.register("keys", pa.Table.from_pylist(gone, schema=key_schema))
        on = _same(table.row_key, "x", "y")
        a = quoted(f"{name}@a")
        count = self._table(
            f"{name}@d",
            f"SELECT x.*, -1::INTEGER AS {W} FROM {a} AS x SEMI JOIN keys AS y ON {on}"
            f" UNION ALL SELECT *, 1::INTEGER FROM given",
        )
        self._table(f"{name}@s", f"SELECT x.* FROM {a} AS x ANTI JOIN keys AS y ON {on}")
        self._table(f"{name}@a", f"SELECT * FROM {quoted(name + '@s')} UNION ALL SELECT * FROM given")
        self._changed[name] = count

    def _maintain(self, name: str, whole: bool) -> None:
        for node in self.views[name][0].nodes:
            for each in self._temporary:
                self._schemas.pop(each, None)
            self._temporary = []
            b, a = quoted(f"{node.name}@b"), quoted(f"{node.name}@a")
            self._con.execute(f"CREATE OR REPLACE TEMP VIEW {b} AS FROM {a}")
            delta = Delta(self)
            is_touched = any(self._changed[each] for each in node.reads)
            computed = delta.whole(node) if whole and is_touched else delta.changes(node)
            if computed is not None:
                self._take(node, computed)

    def _take(self, node: Node, computed: str) -> None:
        """The change of a node becomes its rows. What leaves must be there, and no key may be there twice."""
        names = self._schemas[f"{node.name}@a"].names
        columns, keys = ", ".join(map(quoted, names)), ", ".join(map(quoted, node.key))
        a, d, s = (quoted(f"{node.name}@{version}") for version in "ads")
        plus = f"SELECT {columns} FROM {quoted(computed)} WHERE {W} = 1"
        minus = f"SELECT {columns} FROM {quoted(computed)} WHERE {W} = -1"
        unknown = self._con.sql(f"{minus} EXCEPT ALL SELECT {columns} FROM {a}").fetchall()
        assert not unknown, f"{node.name} takes away rows that it does not hold: {unknown[:3]}"
        self._changed[node.name] = self._table(
            f"{node.name}@d",
            f"SELECT *, 1::INTEGER AS {W} FROM ({plus} EXCEPT ALL {minus})"
            f" UNION ALL SELECT *, -1::INTEGER FROM ({minus} EXCEPT ALL {plus})",
        )
        if not self._changed[node.name]:
            return
        self._table(f"{node.name}@s", f"SELECT x.* FROM {a} AS x ANTI JOIN {d} AS y ON {_same(node.key, 'x', 'y')}")
        self._table(f"{node.name}@a", f"SELECT * FROM {s} UNION ALL SELECT {columns} FROM {d} WHERE {W} = 1")
        twice = self._con.sql(f"SELECT {keys}, count(*) AS n FROM {a} GROUP BY ALL HAVING n > 1").fetchall()
        assert not twice, f"{node.name} has keys twice: {twice[:3]}"

    def _know(self, name: str, schema: pa.Schema, visible: Sequence[str]) -> None:
        for version in "bsa":
            self._schemas[f"{name}@{version}"] = schema
        self._schemas[f"{name}@d"] = schema.append(pa.field(W, pa.int32()))
        self._schemas[name] = pa.schema([schema.field(each) for each in visible])
        columns = ", ".join(map(quoted, visible))
        self._con.execute(f"CREATE OR REPLACE TEMP VIEW {quoted(name)} AS SELECT {columns} FROM {quoted(name + '@a')}")

    def _translation(self, sql: str) -> Translated:
        # What a text means hangs on the views there are.
        key = (sql, *(each for _, each in self.views.values()))
        if key not in self._translated:
            self._translated[key] = translate(sql, self._schemas)
        return self._translated[key]

    def _table(self, name: str, sql: str) -> int:
        found = self._con.execute(f"CREATE OR REPLACE TEMP TABLE {quoted(name)} AS {sql}").fetchone()
        return int(found[0]) if found else 0


def rows_of(table: pa.Table) -> Counter[tuple[Any, ...]]:
    """Rows and how often they are there. Floating point to nine digits; lists in any order, as Spark collects them."""
    columns = [[_plain(value) for value in column.to_pylist()] for column in table.columns]
    return Counter(zip(*columns)) if columns else Counter([()] * table.num_rows)


def _plain(value: Any) -> Any:
    match value:
        case float():
            return "NaN" if value != value else float(f"{value:.9g}")
        case list():
            return tuple(sorted(map(_plain, value), key=repr))
        case dict():
            return tuple((name, _plain(each)) for name, each in value.items())
        case tuple():
            return tuple(map(_plain, value))
        case _:
            return value


def _same(key: Sequence[str], one: str, other: str) -> str:
    return " AND ".join(f"{one}.{quoted(each)} IS NOT DISTINCT FROM {other}.{quoted(each)}" for each in key)


def _typed(found: Translated) -> str:
    columns = ", ".join(
        f"CAST(c{number} AS {'INTEGER' if pa.types.is_null(type) else duckdb_type(type)}) AS {quoted(name)}"
        for number, (name, type) in enumerate(zip(found.names, found.types))
    )
    return f"SELECT {columns} FROM ({found.sql})"
