"""`CutReader`: answers SQL over tables at one Timestamp: the last checkpoint before it, and the log from there on.

Works in every process: snapshots and log are files. Whoever asks has seen to it that every channel has ticked past
the Timestamp; if one has not, reading waits for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final, Protocol

import duckdb
import pyarrow as pa
import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from tidegate.clock.timestamp import Timestamp
from tidegate.errors import InvalidArgument, NotFound, WaitTimeout
from tidegate.log.batch import Batch
from tidegate.log.message import MessageType
from tidegate.runtime.transaction_reader import TransactionReader
from tidegate.snapshots.manifest import Manifest
from tidegate.snapshots.merge_sql import quoted
from tidegate.snapshots.reader import Duck, SnapshotReader
from tidegate.snapshots.store import SnapshotStore
from tidegate.tables.changes import changes_of, net
from tidegate.tables.schema import OP, Table
from tidegate.tables.spark_sql import DIALECT
from tidegate.topics.routing import place

_READ_S: Final = 10.0
_ROWS: Final = frozenset({MessageType.INSERT, MessageType.UPSERT, MessageType.DELETE})


class LogSource(Protocol):
    """Where the log is read: `Log` in the process that owns it, `LogFiles` in any other."""

    def transaction_reader(
        self,
        name: str,
        *,
        after: Timestamp = ...,
        vchannels: frozenset[str] | None = ...,
        types: frozenset[MessageType] | None = ...,
    ) -> TransactionReader: ...


class CutReader:
    """Reads one database. Safe to use from several threads."""

    def __init__(self, store: SnapshotStore, log: LogSource, channels: int) -> None:
        self._store = store
        self._log = log
        self._channels = channels
        self._snapshots = SnapshotReader(store)
        self._duck = Duck(Path(store.root) / "spill", threads=2, memory_limit="1GB")

    def close(self) -> None:
        self._snapshots.close()
        self._duck.close()

    @property
    def newest(self) -> Timestamp:
        """Of the last checkpoint."""
        return self._store.pointer().timestamp

    def query(
        self,
        sql: str,
        tables: Mapping[str, Table],
        at: Timestamp,
        own: Mapping[int, Sequence[Batch]] | None = None,
        given: Mapping[str, pa.Table] | None = None,
    ) -> pa.Table:
        """The answer to a query in Spark SQL over `tables` as they are at `at`, and `given` ones.

        `own` are rows by table that are not in the log, and lie on top.
        Raises: `InvalidArgument` when the query is not understood; `Truncated`, `WaitTimeout`, `SnapshotDamaged`.
        """
        translated = translate(sql)
        _check_cases(sql, tables)
        with ExitStack() as stack:
            manifest = self._store.at(at)
            cursor = self._duck.cursor()
            stack.callback(cursor.close)
            cursor.execute("SET TimeZone = 'UTC'")
            for name, rows in (given or {}).items():
                cursor.register(name, rows)
            for number, (name, table) in enumerate(sorted(tables.items())):
                # No table has a blank in its name.
                self._add(cursor, f"tail {number}", name, table, manifest, at, (own or {}).get(table.id, ()))
            try:
                found = cursor.sql(translated)
                return _as_spark(sql, found.to_arrow_table(), [str(each) for each in found.types])
            except duckdb.Error as error:
                raise InvalidArgument(f"{_shown(sql)}: {error}") from error

    def _add(
        self,
        cursor: duckdb.DuckDBPyConnection,
        tail_name: str,
        name: str,
        table: Table,
        manifest: Manifest,
        at: Timestamp,
        own: Sequence[Batch],
    ) -> None:
        """Make a table known to DuckDB under its name."""
        schema = table.at(at)
        key = [each.name for each in schema.key_columns]
        tail = net(changes_of(table, [*self.tail(table, manifest.timestamp, at), *own], schema), key)
        cursor.register(tail_name, tail)
        columns = ", ".join(quoted(each) for each in schema.names)
        below = self._snapshots.sql(manifest, table, schema)
        sql = f"SELECT {columns} FROM ({below}) AS below"
        if key and tail.num_rows:
            same = " AND ".join(f"above.{quoted(each)} = below.{quoted(each)}" for each in key)
            sql += f" WHERE NOT EXISTS (SELECT 1 FROM {quoted(tail_name)} AS above WHERE {same})"
        sql += f" UNION ALL SELECT {columns} FROM {quoted(tail_name)} WHERE {quoted(OP)} = 1"
        cursor.execute(f"CREATE TEMP VIEW {quoted(name)} AS {sql}")

    def tail(self, table: Table, after: Timestamp, upto: Timestamp) -> Iterable[Batch]:
        """What became visible of a table between two times."""
        if after >= upto:
            return
        by_channel: dict[int, list[str]] = {}
        for shard in range(table.shards):
            by_channel.setdefault(place(table.id, shard, self._channels), []).append(table.vchannel(shard))
        for channel, vchannels in sorted(by_channel.items()):
            name = f"data-{channel}"
            with self._log.transaction_reader(name, after=after, vchannels=frozenset(vchannels), types=_ROWS) as reader:
                while reader.after < upto:
                    delivery = reader.read(_READ_S)
                    if delivery is None:
                        raise WaitTimeout(
                            f"channel {name!r} has come to {Timestamp(reader.after)} and not to {upto} within"
                            f" {_READ_S:g} s; `tidegate status` says what holds it"
                        )
                    for batch in delivery.batches:
                        mask = batch.time_ticks <= int(upto)
                        if mask.any():
                            yield batch.where(mask)


def translate(sql: str) -> str:
    """Spark SQL as DuckDB's. Raises: `InvalidArgument`."""
    try:
        (found,) = sqlglot.transpile(sql, read=DIALECT, write="duckdb")
    except (SqlglotError, ValueError) as error:
        raise InvalidArgument(f"{_shown(sql)} is not understood: {error}") from error
    return found


def tables_in(sql: str) -> set[str]:
    """The names of tables that a query reads. Raises: `InvalidArgument`."""
    try:
        tree = sqlglot.parse_one(sql, read=DIALECT)
    except SqlglotError as error:
        raise InvalidArgument(f"{_shown(sql)} is not understood: {error}") from error
    known = {each.alias for each in tree.find_all(exp.CTE)}
    found = {each.name for each in tree.find_all(exp.Table)}
    if "" in found:
        raise NotFound(f"{_shown(sql)} reads something that is no table")
    return found - known


def _check_cases(sql: str, tables: Iterable[str]) -> None:
    """DuckDB does not tell names by their case; the catalog does."""
    seen: dict[str, str] = {}
    for name in tables:
        other = seen.setdefault(name.casefold(), name)
        if other != name:
            raise InvalidArgument(f"{_shown(sql)}: {other!r} and {name!r} cannot be read in one query")


def _as_spark(sql: str, found: pa.Table, types: Sequence[str]) -> pa.Table:
    """The answer with Spark's types: what DuckDB counts in 128 bits (the sum of integers) has 64 there."""
    for index, kind in enumerate(types):
        if kind in ("HUGEINT", "UHUGEINT"):
            name = found.column_names[index]
            try:
                column = found.column(index).cast(pa.int64())
            except pa.ArrowInvalid as error:
                raise InvalidArgument(
                    f"{_shown(sql)}: column {name!r} has a value beyond BIGINT; CAST what is summed to DECIMAL(38, 0)"
                ) from error
            found = found.set_column(index, name, column)
    return found


def _shown(sql: str) -> str:
    text = " ".join(sql.split())
    return repr(text if len(text) <= 80 else text[:77] + "...")
