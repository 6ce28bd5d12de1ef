"""`ViewTables`: the relations that the changes of views are computed over, in DuckDB, for one batch.

Of a table or a node `t`: `t@b` as it was before the batch, `t@d` what changed in it, `t@s` what did not, `t@a` as it is
now; made when a statement names them. Statements come in Spark SQL and are translated; a relation has the columns that
views use, called as `beside_weight` says. What is made on the way has the names of the table.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

import duckdb
import pyarrow as pa

from tidegate.errors import InvariantBroken
from tidegate.pipeline.view_columns import sign_of, typed
from tidegate.pipeline.view_errors import TooLarge, streamed
from tidegate.pipeline.view_names import relations_in, renamed, renamed_in_duckdb, version_of
from tidegate.reads.translate import SETUP, UNANSWERED, NeedsSpark, Translated, translate
from tidegate.snapshots.manifest import FileEntry
from tidegate.snapshots.merge_sql import duckdb_type, merge_sql, quoted
from tidegate.snapshots.reader import Duck
from tidegate.tables.schema import OP, SEQ, TS, Table, TableSchema
from tidegate.views.define import ROW_KEY, SHARD
from tidegate.views.write import W, beside_weight

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
        self._shown: set[str] = set()
        self._folded: dict[str, str] = {}
        self._own: dict[str, str] = {}
        """What tables and nodes are called in DuckDB, where that is not their name."""
        self.by_spark = 0
        """Statements that Spark has answered."""

    # -- relations -------------------------------------------------------------------------------------------

    def add(self, name: str, stored: Stored) -> None:
        """Make a table or a node known."""
        if name in self.stored:
            self._kept.clear()  # They may be of what it was.
        elif self._folded.setdefault(name.casefold(), name) != name:
            self._own[name] = f"{name}/{len(self._own)}"  # Upper and lower case are the same to DuckDB.
        self.stored[name] = stored
        schema = self._schema(stored)
        for version in "bsa":
            self.schemas[f"{name}@{version}"] = schema
        self.schemas[f"{name}@d"] = schema.append(pa.field(W, pa.int32()))

    def _schema(self, stored: Stored) -> pa.Schema:
        names = [each for each in stored.names if each not in ROW_KEY]
        fields = [pa.field(beside_weight(each), stored.schema.column(each).type) for each in names]
        if not stored.key:
            fields += [pa.field(name, type) for name, type in ROW_KEY.items()]
        return pa.schema(fields)

    def show(self, name: str, visible: Sequence[str]) -> None:
        """Let statements read a relation by its own name, with the columns that queries see, until `forget`."""
        types = self.schemas[f"{name}@a"]
        self.schemas[name] = pa.schema([(each, types.field(beside_weight(each)).type) for each in visible])
        self._shown.add(name)
        self._make(name, "a")
        columns = ", ".join(f"{quoted(beside_weight(each))} AS {quoted(each)}" for each in visible)
        self._execute(f"CREATE OR REPLACE TEMP VIEW {self._at(name)} AS SELECT {columns} FROM {self._at(name, 'a')}")

    def _at(self, name: str, version: str = "") -> str:
        """A relation, as DuckDB knows it."""
        own = self._own.get(name, name)
        return quoted(f"{own}@{version}" if version else own)

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
        relation = self._at(name, version)
        if version == "b" or not stored.is_changed:
            sql = self._named(name, stored, self._before(name, stored))
        elif version == "s":
            self._make(name, "d")
            sql = self._named(name, stored, self._unchanged(name, stored))
        elif version == "a":
            self._make(name, "s")
            columns = ", ".join(map(quoted, self.schemas[f"{name}@a"].names))
            sql = (
                f"SELECT {columns} FROM {self._at(name, 's')} UNION ALL"
                f" SELECT {columns} FROM {self._at(name, 'd')} WHERE {W} = 1"
            )
        else:
            self._make_changes(name, stored)
            stored.made.add(version)
            return
        self._execute(f"CREATE OR REPLACE TEMP VIEW {relation} AS {sql}")
        stored.made.add(version)

    def _named(self, name: str, stored: Stored, sql: str, more: str = "") -> str:
        """Rows by the names of the table, with those that they have in relations."""
        real = self._real(stored)
        if not more and real == self.schemas[f"{name}@a"].names:
            return sql
        pairs = zip(real, self.schemas[f"{name}@a"].names, strict=True)
        return f"SELECT {', '.join(f'{quoted(one)} AS {quoted(other)}' for one, other in pairs)}{more} FROM ({sql})"

    def _real(self, stored: Stored) -> list[str]:
        """The columns of a relation by the names of the table."""
        names = [each for each in stored.names if each not in ROW_KEY]
        return names if stored.key else [*names, *ROW_KEY]

    def _make_changes(self, name: str, stored: Stored) -> None:
        """The rows that a table's new layers replace or take away, and those that they bring."""
        keys = self._at(name, "k")
        if stored.now is None:
            new = self._merged(stored, stored.added)
            if stored.key:
                changed = changed_keys(stored.table, stored.schema, stored.added, self._root)
                self._execute(f"CREATE OR REPLACE TEMP TABLE {keys} AS {changed}")
        elif stored.key:
            new = self._merged(stored, stored.now, keys)
            by = ", ".join(map(quoted, stored.key))
            self._execute(f"CREATE OR REPLACE TEMP TABLE {keys} AS SELECT DISTINCT {by} FROM {quoted(stored.keys)}")
        else:
            new = f"SELECT * FROM ({self._merged(stored, stored.now)}) WHERE {quoted(TS)} > {stored.since}"
        sql = self._named(name, stored, new, f", 1::INTEGER AS {W}")
        if stored.key and stored.before:
            gone = self._named(name, stored, self._before(name, stored, keys), f", -1::INTEGER AS {W}")
            sql += f" UNION ALL {gone}"
        stored.changes = self._create(self._at(name, "d"), sql)

    # Small layers are merged once for all statements of the batch, as `t@l`: then a row of the base is looked up in one
    # relation, instead of in what each statement makes of the files anew.

    def _has_layers(self, name: str, stored: Stored) -> bool:
        """Whether `t@l` is there; made if it is worth it."""
        layers = [each for each in stored.before if not each.is_base]
        if not stored.key or not layers or sum(each.rows for each in layers) > LAYERS_MAX:
            return False
        if "l" not in stored.made:
            columns = [*stored.names, OP]
            root = stored.root or self._root
            newest = merge_sql(stored.table, stored.schema, layers, root, columns=columns, deletes=True)
            self._create(self._at(name, "l"), newest)
            stored.made.add("l")
        return True

    def _before(self, name: str, stored: Stored, keys: str | None = None) -> str:
        """The rows before; with `keys` only theirs."""
        if not self._has_layers(name, stored):
            return self._merged(stored, stored.before, keys)
        columns = ", ".join(map(quoted, stored.names))
        layers = self._at(name, "l")
        only = "" if keys is None else f" SEMI JOIN {keys} AS y ON {self._same(stored, 'x', 'y')}"
        base = self._merged(stored, [each for each in stored.before if each.is_base], keys)
        return (
            f"SELECT {columns} FROM ({base}) AS x ANTI JOIN {layers} AS l ON {self._same(stored, 'x', 'l')}"
            f" UNION ALL SELECT {columns} FROM {layers} AS x{only} WHERE {quoted(OP)} = 1"
        )

    def _unchanged(self, name: str, stored: Stored) -> str:
        """The rows before whose keys are not among those that changed."""
        if not stored.key:
            return self._before(name, stored)
        columns, changed = ", ".join(map(quoted, stored.names)), self._at(name, "k")
        if stored.is_computed and "k" not in stored.made:
            by = ", ".join(map(quoted, stored.key))
            self._create(self._at(name, "k"), f"SELECT DISTINCT {by} FROM {self._at(name, 'd')}")
            stored.made.add("k")
        other = f"ANTI JOIN {changed} AS k ON {self._same(stored, 'x', 'k')}"
        if not self._has_layers(name, stored):
            return f"SELECT {columns} FROM ({self._merged(stored, stored.before)}) AS x {other}"
        layers, both = self._at(name, "l"), self._at(name, "lk")
        keys = ", ".join(map(quoted, stored.key))
        self._create(self._at(name, "lk"), f"SELECT {keys} FROM {layers} UNION SELECT {keys} FROM {changed}")
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
            parts.append(f"SELECT *, {shard}::INTEGER AS {SHARD} FROM ({rows})")
        return " UNION ALL ".join(parts)

    def _same(self, stored: Stored, one: str, other: str) -> str:
        return " AND ".join(
            f"{one}.{quoted(each.name)} {'IS NOT DISTINCT FROM' if each.nullable else '='} {other}.{quoted(each.name)}"
            for each in stored.schema.key_columns
        )

    # -- statements ------------------------------------------------------------------------------------------

    def compute(self, name: str, sql: str) -> int:
        """Keep what a statement gives, under a name, until `forget`; how many rows that is."""
        meaning = renamed(sql, self._called)
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
                rows = self._create(quoted(called), renamed_in_duckdb(typed(found), self._in_duckdb))
            except duckdb.Error as error:
                self._must_be_for_spark(error)
            else:
                return _Step(called, pa.schema(list(zip(found.names, found.types))), rows)
        answer = self.on_spark(sql)
        self._cursor.register(called, answer)
        return _Step(called, answer.schema, int(answer.num_rows))

    def _called(self, name: str) -> str | None:
        """The relation that a step is kept in."""
        step = self._steps.get(name)
        return None if step is None else step.called

    def _in_duckdb(self, name: str) -> str | None:
        """What a relation is called in DuckDB, where that is not its name."""
        base, version = version_of(name) or (name, "")
        if own := self._own.get(base):
            return f"{own}@{version}" if version else own
        return self._called(name)

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
            yield from self._read(renamed_in_duckdb(typed(found), self._in_duckdb), batch_rows)

    def _read(self, sql: str, batch_rows: int) -> Iterator[pa.RecordBatch]:
        with self._bounded():
            reader = self._cursor.sql(sql).to_arrow_reader(batch_rows)
            self._readers.append(reader)
            yield from streamed(reader)

    def _prepare(self, sql: str) -> None:
        for each in relations_in(sql):
            found = version_of(each)
            if found is not None and found[0] in self.stored:
                self._make(*found)

    def translation(self, sql: str) -> Translated | None:
        """A statement for DuckDB; None when only Spark can answer it."""
        # Steps are numbered: what a number stands for is another thing in another node, or where another step is empty.
        steps = [str(self.schemas.get(each)) for each in sorted(relations_in(sql)) if each in self._steps]
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
            called = self._in_duckdb(name) or name
            with self._bounded():
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
        by = ", ".join([columns, *(sign for each in stored.names if (sign := sign_of(stored.schema.column(each))))])
        # Keys are unique on each side, so what is the same before and after has the sum 0.
        stored.changes = self._create(
            self._at(name, "d"),
            f"SELECT {columns}, sign(sum({W}))::INTEGER AS {W} FROM {from_} GROUP BY {by} HAVING sum({W}) <> 0",
        )
        stored.made.discard("k")
        if not stored.changes:
            stored.is_computed = False
            stored.made.discard("d")
        return stored.changes

    def layer(self, name: str, timestamp: int, batch_rows: int) -> Iterator[pa.RecordBatch]:
        """The changes of a node as a layer holds them: what is there now, and the keys of what is gone."""
        stored = self.stored[name]
        relation = self._at(name, "d")
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
        return self._read(sql, batch_rows)

    def forget(self) -> None:
        """What was computed for one node is not needed for the next."""
        for reader in self._readers:
            reader.close()  # One that was not read to its end would keep the cursor.
        self._readers.clear()
        for name in (*self._steps, *self._shown):
            self.schemas.pop(name, None)
        self._steps.clear()
        self._shown.clear()
        for called in self._dropped:
            self._cursor.unregister(called)
            self._cursor.execute(f"DROP TABLE IF EXISTS {quoted(called)}")
        self._dropped.clear()

    def _create(self, name: str, sql: str) -> int:
        with self._bounded():
            found = self._cursor.execute(f"CREATE OR REPLACE TEMP TABLE {name} AS {sql}").fetchone()
        return int(found[0]) if found else 0

    def _execute(self, sql: str) -> None:
        with self._bounded():
            self._cursor.execute(sql)

    @contextmanager
    def _bounded(self) -> Iterator[None]:
        """Raises: `TooLarge` for what does not fit into the memory that statements may use."""
        try:
            yield
        except duckdb.OutOfMemoryException as error:
            found = self._cursor.execute("SELECT current_setting('memory_limit')").fetchone() or ("?",)
            raise TooLarge(str(found[0])) from error


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
