"""`ViewTables`: the relations that the changes of views are computed over, in DuckDB, for one batch.

Of a table or a node `t`: `t@b` as it was before the batch, `t@d` what changed in it, `t@s` what did not, `t@a` as it is
now; made when a statement names them. Statements come in Spark SQL and are translated; a relation has the columns that
views use.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

import duckdb
import pyarrow as pa

from tidegate.errors import InvariantBroken
from tidegate.reads.translate import SETUP, UNANSWERED, NeedsSpark, Translated, translate
from tidegate.snapshots.manifest import FileEntry
from tidegate.snapshots.merge_sql import duckdb_type, merge_sql, quoted
from tidegate.snapshots.reader import Duck
from tidegate.tables.schema import OP, SEQ, TS, Table, TableSchema
from tidegate.views.define import ROW_KEY
from tidegate.views.write import W

_NAMED: Final = re.compile(r"`((?:[^`]|``)+)@([bdsa])`")
_STEP: Final = re.compile(r"`(#\d+)`")
_STEP_IN_DUCKDB: Final = re.compile(r"""'(?:[^']|'')*'|["](#\d+)["]""")
LAYERS_MAX: Final = 500_000
"""Layers with more rows than this, together, are merged by each statement that reads them."""
KEPT_MAX: Final = 20_000
"""A step that gives more rows than this is computed again where another node has the same."""


class Spark(Protocol):
    """Statements on Spark."""

    def __call__(self, sql: str, schemas: Mapping[str, pa.Schema], rows_of: Callable[[str], pa.Table]) -> pa.Table:
        """The answer to a statement over relations, whose rows `rows_of` gives."""
        ...

    def types(self, sql: str, schemas: Mapping[str, pa.Schema]) -> Translated:
        """What columns it has."""
        ...


@dataclass(slots=True)
class Stored:
    """A table or a node: its files before the batch, and what the batch adds; with `now`, its files then and now."""

    table: Table
    schema: TableSchema
    before: Sequence[FileEntry]
    added: Sequence[FileEntry] = ()
    names: Sequence[str] = ()
    """The columns that are used, those of the key among them."""
    made: set[str] = field(default_factory=set)
    is_computed: bool = False
    """Whether its changes were computed here, and are there."""
    changes: int = 0
    root: str | None = None
    """Where its files are, when not where all are."""
    now: Sequence[FileEntry] | None = None
    keys: str = ""
    """With `now`: the relation that has the keys that changed since."""
    since: int = 0
    """With `now` and without a key: rows above this Timestamp are new."""

    @property
    def is_changed(self) -> bool:
        return self.is_computed or bool(self.added) or self.now is not None

    @property
    def key(self) -> list[str]:
        return [each.name for each in self.schema.key_columns]


class _Step(NamedTuple):
    """What a statement gave."""

    called: str
    schema: pa.Schema
    rows: int


class ViewTables:
    """One batch. Used by one thread."""

    def __init__(
        self,
        cursor: duckdb.DuckDBPyConnection,
        root: str,
        translated: dict[str, Translated],
        spark: Spark | None = None,
    ) -> None:
        """`translated` is kept from batch to batch, for as long as the catalog is the same."""
        self._cursor = cursor
        self._root = root
        self.translated = translated
        self._spark = spark
        self.stored: dict[str, Stored] = {}
        self.schemas: dict[str, pa.Schema] = {}
        self._steps: dict[str, _Step] = {}
        """Of the node that is computed, by the names that its statements have for them."""
        self._kept: dict[str, _Step] = {}
        """Of all nodes, by what they mean: views that join the same compute it once."""
        self._dropped: list[str] = []
        """Relations that are too large to be kept for others."""
        self._count = 0
        self._readers: list[pa.RecordBatchReader] = []
        self.by_spark = 0
        """Statements that Spark has answered."""

    # -- relations -------------------------------------------------------------------------------------------

    def add(self, name: str, stored: Stored) -> None:
        """Make a table or a node known."""
        if name in self.stored:
            self._kept.clear()  # They may be of what it was.
        self.stored[name] = stored
        schema = self._schema(stored)
        for version in "bsa":
            self.schemas[f"{name}@{version}"] = schema
        self.schemas[f"{name}@d"] = schema.append(pa.field(W, pa.int32()))

    def _schema(self, stored: Stored) -> pa.Schema:
        fields = [pa.field(each, stored.schema.column(each).type) for each in stored.names if each not in ROW_KEY]
        if not stored.key:
            fields += [pa.field(name, type) for name, type in ROW_KEY.items()]
        return pa.schema(fields)

    def show(self, name: str, visible: Sequence[str]) -> None:
        """Let statements read a relation as it is by its own name, with the columns that queries see."""
        self.schemas[name] = pa.schema([self.schemas[f"{name}@a"].field(each) for each in visible])
        self._make(name, "a")
        columns = ", ".join(map(quoted, visible))
        self._cursor.execute(
            f"CREATE OR REPLACE TEMP VIEW {quoted(name)} AS SELECT {columns} FROM {quoted(name + '@a')}"
        )

    def changed(self, relation: str) -> int:
        stored = self.stored[relation]
        if stored.is_computed or not stored.is_changed:
            return stored.changes
        self._make(relation, "d")
        return stored.changes

    def rows(self, relation: str) -> int:
        stored = self.stored[relation]
        files = (*stored.before, *stored.added) if stored.now is None else stored.now
        return sum(each.rows - each.deletes for each in files)

    def _make(self, name: str, version: str) -> None:
        stored = self.stored[name]
        if version in stored.made:
            return
        stored.made.add(version)
        relation = quoted(f"{name}@{version}")
        if version == "b" or not stored.is_changed:
            sql = self._before(name, stored)
        elif version == "s":
            self._make(name, "d")
            sql = self._unchanged(name, stored)
        elif version == "a":
            self._make(name, "s")
            columns = ", ".join(map(quoted, self.schemas[f"{name}@a"].names))
            sql = (
                f"SELECT {columns} FROM {quoted(name + '@s')} UNION ALL"
                f" SELECT {columns} FROM {quoted(name + '@d')} WHERE {W} = 1"
            )
        else:
            self._make_changes(name, stored)
            return
        self._cursor.execute(f"CREATE OR REPLACE TEMP VIEW {relation} AS {sql}")

    def _make_changes(self, name: str, stored: Stored) -> None:
        """The rows that a table's new layers replace or take away, and those that they bring."""
        keys = quoted(name + "@k")
        if stored.now is None:
            new = self._merged(stored, stored.added)
            if stored.key:
                changed = changed_keys(stored.table, stored.schema, stored.added, self._root)
                self._cursor.execute(f"CREATE OR REPLACE TEMP TABLE {keys} AS {changed}")
        elif stored.key:
            new = self._merged(stored, stored.now, keys)
            by = ", ".join(map(quoted, stored.key))
            self._cursor.execute(
                f"CREATE OR REPLACE TEMP TABLE {keys} AS SELECT DISTINCT {by} FROM {quoted(stored.keys)}"
            )
        else:
            new = f"SELECT * FROM ({self._merged(stored, stored.now)}) WHERE {quoted(TS)} > {stored.since}"
        columns = ", ".join(map(quoted, self.schemas[f"{name}@a"].names))
        sql = f"SELECT {columns}, 1::INTEGER AS {W} FROM ({new})"
        if stored.key and stored.before:
            sql += f" UNION ALL SELECT {columns}, -1::INTEGER FROM ({self._before(name, stored, keys)})"
        stored.changes = self._create(f"{name}@d", sql)

    # Small layers are merged once for all statements of the batch, as `t@l`: then a row of the base is looked up in one
    # relation, instead of in what each statement makes of the files anew.

    def _has_layers(self, name: str, stored: Stored) -> bool:
        """Whether `t@l` is there; made if it is worth it."""
        layers = [each for each in stored.before if not each.is_base]
        if not stored.key or not layers or sum(each.rows for each in layers) > LAYERS_MAX:
            return False
        if "l" not in stored.made:
            stored.made.add("l")
            columns = [*stored.names, OP]
            root = stored.root or self._root
            newest = merge_sql(stored.table, stored.schema, layers, root, columns=columns, deletes=True)
            self._create(f"{name}@l", newest)
        return True

    def _before(self, name: str, stored: Stored, keys: str | None = None) -> str:
        """The rows before; with `keys` only theirs."""
        if not self._has_layers(name, stored):
            return self._merged(stored, stored.before, keys)
        columns = ", ".join(map(quoted, stored.names))
        layers = quoted(name + "@l")
        only = "" if keys is None else f" SEMI JOIN {keys} AS y ON {self._same(stored, 'x', 'y')}"
        base = self._merged(stored, [each for each in stored.before if each.is_base], keys)
        return (
            f"SELECT {columns} FROM ({base}) AS x ANTI JOIN {layers} AS l ON {self._same(stored, 'x', 'l')}"
            f" UNION ALL SELECT {columns} FROM {layers} AS x{only} WHERE {quoted(OP)} = 1"
        )

    def _unchanged(self, name: str, stored: Stored) -> str:
        """The rows before whose keys are not among those that changed."""
        if not stored.key:
            self._make(name, "b")
            return f"SELECT * FROM {quoted(name + '@b')}"
        columns, changed = ", ".join(map(quoted, stored.names)), quoted(name + "@k")
        if stored.is_computed and "k" not in stored.made:
            stored.made.add("k")
            by = ", ".join(map(quoted, stored.key))
            self._create(f"{name}@k", f"SELECT DISTINCT {by} FROM {quoted(name + '@d')}")
        other = f"ANTI JOIN {changed} AS k ON {self._same(stored, 'x', 'k')}"
        if not self._has_layers(name, stored):
            return f"SELECT {columns} FROM ({self._merged(stored, stored.before)}) AS x {other}"
        layers, both = quoted(name + "@l"), quoted(name + "@lk")
        keys = ", ".join(map(quoted, stored.key))
        self._create(f"{name}@lk", f"SELECT {keys} FROM {layers} UNION SELECT {keys} FROM {changed}")
        base = self._merged(stored, [each for each in stored.before if each.is_base])
        return (
            f"SELECT {columns} FROM ({base}) AS x ANTI JOIN {both} AS k ON {self._same(stored, 'x', 'k')}"
            f" UNION ALL SELECT {columns} FROM {layers} AS x {other} WHERE {quoted(OP)} = 1"
        )

    def _merged(self, stored: Stored, files: Sequence[FileEntry], keys: str | None = None) -> str:
        root = stored.root or self._root
        if stored.key:
            return merge_sql(stored.table, stored.schema, files, root, columns=list(stored.names), keys=keys)
        columns = [each for each in stored.names if each not in ROW_KEY]
        shards = sorted({each.shard for each in files})
        parts = []
        for shard in shards or [0]:
            mine = [each for each in files if each.shard == shard]
            rows = merge_sql(stored.table, stored.schema, mine, root, columns=[*columns, TS, SEQ])
            parts.append(f"SELECT *, {shard}::INTEGER AS _shard FROM ({rows})")
        return " UNION ALL ".join(parts)

    def _same(self, stored: Stored, one: str, other: str) -> str:
        return " AND ".join(
            f"{one}.{quoted(each.name)} {'IS NOT DISTINCT FROM' if each.nullable else '='} {other}.{quoted(each.name)}"
            for each in stored.schema.key_columns
        )

    # -- statements ------------------------------------------------------------------------------------------

    def compute(self, name: str, sql: str) -> int:
        """Keep what a statement gives, under a name, until `forget`; how many rows that is."""
        meaning = _STEP.sub(lambda found: f"`{self._steps[found[1]].called}`", sql)
        step = self._kept.get(meaning)
        if step is None:
            step = self._computed(sql)
            if step.rows <= KEPT_MAX:
                self._kept[meaning] = step
            else:
                self._dropped.append(step.called)
        self._steps[name] = step
        self.schemas[name] = step.schema
        return step.rows

    def _computed(self, sql: str) -> _Step:
        self._prepare(sql)
        self._count += 1
        called = f"step {self._count}"
        found = self.translation(sql)
        if found is not None:
            try:
                rows = self._create(called, self._resolved(_typed(found)))
            except duckdb.Error as error:
                self._must_be_for_spark(error)
            else:
                return _Step(called, pa.schema(list(zip(found.names, found.types))), rows)
        answer = self.on_spark(sql)
        self._cursor.register(called, answer)
        return _Step(called, answer.schema, int(answer.num_rows))

    def _resolved(self, sql: str) -> str:
        """A statement of DuckDB with the relations that steps are kept in."""

        def relation(found: re.Match[str]) -> str:
            return quoted(self._steps[found[1]].called) if found[1] else found[0]

        return _STEP_IN_DUCKDB.sub(relation, sql)

    def _must_be_for_spark(self, error: duckdb.Error) -> None:
        """Raises it unless it says that only Spark can answer, and there is one."""
        if self._spark is None or UNANSWERED not in str(error):
            raise error

    def stream(self, sql: str, batch_rows: int) -> Iterator[pa.RecordBatch]:
        """What a statement gives, batch by batch."""
        self._prepare(sql)
        found = self.translation(sql)
        if found is None:
            yield from self.on_spark(sql).to_batches()
        else:
            yield from self._reader(self._resolved(_typed(found)), batch_rows)

    def _reader(self, sql: str, batch_rows: int) -> pa.RecordBatchReader:
        reader = self._cursor.sql(sql).to_arrow_reader(batch_rows)
        self._readers.append(reader)
        return reader

    def _prepare(self, sql: str) -> None:
        for name, version in _NAMED.findall(sql):
            self._make(name.replace("``", "`"), version)

    def translation(self, sql: str) -> Translated | None:
        """A statement for DuckDB; None when only Spark can answer it."""
        # Steps are numbered: what a number stands for is another thing in another node, or where another step is empty.
        steps = [str(self.schemas.get(each)) for each in sorted(set(_STEP.findall(sql)))]
        known = self.translated.get(key := "\n".join([sql, *steps]))
        if known is None:
            try:
                known = self.translated[key] = translate(sql, self.schemas)
            except NeedsSpark:
                if self._spark is None:
                    raise
                return None
        return known

    @property
    def has_spark(self) -> bool:
        return self._spark is not None

    def on_spark(self, sql: str) -> pa.Table:
        """What a statement gives on Spark."""
        if self._spark is None:
            raise InvariantBroken("a statement for Spark, and there is none")
        self.by_spark += 1

        def rows_of(name: str) -> pa.Table:
            called = self._steps[name].called if name in self._steps else name
            return self._cursor.sql(f"SELECT * FROM {quoted(called)}").to_arrow_table()

        return self._spark(sql, self.schemas, rows_of)

    def take(self, name: str, computed: str | None) -> int:
        """What was computed is the change of a node: without what is the same before and after; how many rows."""
        stored = self.stored[name]
        stored.is_computed = True
        stored.made -= {"s", "a", "d"}
        stored.made.add("d")
        columns = ", ".join(map(quoted, stored.names))
        if computed is None:
            stored.is_computed = False
            stored.made.discard("d")
            return 0
        from_ = quoted(self._steps[computed].called)
        # Keys are unique on each side, so what is the same before and after has the sum 0.
        stored.changes = self._create(
            f"{name}@d",
            f"SELECT {columns}, sign(sum({W}))::INTEGER AS {W} FROM {from_} GROUP BY {columns} HAVING sum({W}) <> 0",
        )
        stored.made.discard("k")
        if not stored.changes:
            stored.is_computed = False
            stored.made.discard("d")
        return stored.changes

    def layer(self, name: str, timestamp: int, batch_rows: int) -> pa.RecordBatchReader:
        """The changes of a node as a layer holds them: what is there now, and the keys of what is gone."""
        stored = self.stored[name]
        relation = quoted(f"{name}@d")
        columns = ", ".join(map(quoted, stored.names))
        system = f"{timestamp}::BIGINT AS {quoted(TS)}, 0::BIGINT AS {quoted(SEQ)}"
        gone = ", ".join(
            f"x.{quoted(each)}"
            if each in stored.key
            else f"CAST(NULL AS {duckdb_type(stored.schema.column(each).type)})"
            for each in stored.names
        )
        sql = (
            f"SELECT {columns}, {system}, 1::TINYINT AS {quoted(OP)} FROM {relation} WHERE {W} = 1 UNION ALL"
            f" SELECT {gone}, {system}, -1::TINYINT FROM (SELECT * FROM {relation} WHERE {W} = -1) AS x"
            f" ANTI JOIN (SELECT * FROM {relation} WHERE {W} = 1) AS y ON {self._same(stored, 'x', 'y')}"
        )
        return self._reader(sql, batch_rows)

    def forget(self) -> None:
        """What was computed for one node is not needed for the next."""
        for reader in self._readers:
            reader.close()  # One that was not read to its end would keep the cursor.
        self._readers.clear()
        for name in self._steps:
            self.schemas.pop(name, None)
        self._steps.clear()
        for called in self._dropped:
            self._cursor.unregister(called)
            self._cursor.execute(f"DROP TABLE IF EXISTS {quoted(called)}")
        self._dropped.clear()

    def _create(self, name: str, sql: str) -> int:
        found = self._cursor.execute(f"CREATE OR REPLACE TEMP TABLE {quoted(name)} AS {sql}").fetchone()
        return int(found[0]) if found else 0


def _typed(found: Translated) -> str:
    columns = ", ".join(
        f"CAST(c{number} AS {'INTEGER' if pa.types.is_null(type) else duckdb_type(type)}) AS {quoted(name)}"
        for number, (name, type) in enumerate(zip(found.names, found.types))
    )
    return f"SELECT {columns} FROM ({found.sql})"


def changed_keys(table: Table, schema: TableSchema, layers: Sequence[FileEntry], root: str) -> str:
    """The keys that layers write or delete, each once, as a query."""
    keys = ", ".join(quoted(each.name) for each in schema.key_columns)
    names = [each.name for each in schema.key_columns]
    return f"SELECT DISTINCT {keys} FROM ({merge_sql(table, schema, layers, root, columns=names, deletes=True)})"


def used_columns(schema: TableSchema, used: Collection[str]) -> list[str]:
    """Those of a table's columns that are read: the key's among them, and one at least."""
    key = [each.name for each in schema.key_columns]
    return [each for each in schema.names if each in used or each in key] or schema.names[:1]


def prepared(duck: Duck) -> None:
    """Give a DuckDB what translated statements call. Once."""
    cursor = duck.cursor()
    for each in SETUP:
        if not each.startswith("SET "):
            cursor.execute(each.replace(" TEMP ", " ", 1))
    cursor.close()


def cursor_of(duck: Duck) -> duckdb.DuckDBPyConnection:
    """A cursor for translated statements."""
    cursor = duck.cursor()
    for each in SETUP:
        if each.startswith("SET "):
            cursor.execute(each)
    return cursor
