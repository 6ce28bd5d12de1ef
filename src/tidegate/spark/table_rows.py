"""The rows of a table at one cut, in parts that are read side by side: what a batch of the data source does; no Spark.

A part is some shards, or some files of one large shard's base. A key lives in one shard, so each part is merged by
itself: files as `merge_sql` does, and the log behind the checkpoint on top. DuckDB reads it, batch by batch.

Invariant: the parts of a plan hold every row of the cut once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from threading import Lock, Timer
from typing import Final

import duckdb
import pyarrow as pa

from tidegate.database.keeping import Keeper
from tidegate.database.tails import BYTES_MAX, TailTooLong
from tidegate.errors import InvalidArgument, StorageFailed, TidegateError, Truncated
from tidegate.snapshots.manifest import FileEntry, Manifest
from tidegate.snapshots.merge_sql import merge_sql, quoted, same_key
from tidegate.snapshots.reader import Duck, SnapshotReader, conformed
from tidegate.spark.reading import Span, read_span
from tidegate.spark.table_cut import TableCut, channels_of, opened_store
from tidegate.tables.changes import changes_of, net
from tidegate.tables.schema import OP, SYSTEM_COLUMNS, Table, TableSchema

PART_BYTES: Final = 16 << 20
"""About how much of a table's files one part takes; files are not cut."""
_ROW_BYTES: Final = 64
"""What a row counts at least: files are compressed, and what is read from them is not."""
BATCH_ROWS: Final = 65_536
LINGER_S: Final = 60.0
"""How long a process keeps a checkpoint after it has planned or read a part by it: others of the plan may wait."""
_MEMORY: Final = "512MB"
_TAIL: Final = "the tail"
"""No table has a blank in its name."""


@dataclass(frozen=True, slots=True)
class RowsPart:
    """A part of a table's rows, with all that reading it needs.

    `layers` lie on top of `files`, and the log on top of both; only the part that `leads` gives their rows, for the
    others they take rows away.
    """

    cut: TableCut
    shards: tuple[int, ...]
    files: tuple[FileEntry, ...]
    layers: tuple[FileEntry, ...]
    leads: bool
    spans: tuple[Span, ...]


def plan_rows(cut: TableCut, *, part_bytes: int = PART_BYTES) -> list[RowsPart]:
    """The parts that a cut is read in. Raises: `Truncated` when its checkpoint is not kept any more."""
    with opened_store(cut.path) as store, keeping(cut):
        manifest = store.checkpoint(cut.checkpoint) if cut.checkpoint else Manifest()
    files = manifest.files(cut.table.id)
    spans = _spans(cut)
    has_key = bool(cut.schema.key)
    parts: list[RowsPart] = []
    small: list[int] = []
    nbytes = 0

    def close_small() -> None:
        nonlocal small, nbytes
        if small:
            mine = [each for each in files if each.shard in small]
            parts.append(_part(cut, small, [each for each in mine if _is_below(each, has_key)], mine, True, spans))
            small, nbytes = [], 0

    for shard in range(cut.table.shards):
        mine = [each for each in files if each.shard == shard]
        size = sum(map(_weight, mine))
        below = [each for each in mine if _is_below(each, has_key)]
        if size > part_bytes and len(below) > 1:
            for number, group in enumerate(_groups(below, -(-size // part_bytes))):
                parts.append(_part(cut, [shard], group, mine, number == 0, spans))
            continue
        if nbytes + size > part_bytes:
            close_small()
        small.append(shard)
        nbytes += size
    close_small()
    return parts


def read_rows(part: RowsPart, schema: pa.Schema, where: str | None = None) -> Iterator[pa.RecordBatch]:
    """The rows of a part, by the columns of `schema`, which may name `_ts`, `_seq` and `_op`.

    `where` is a condition in DuckDB's SQL on the table's columns: on its rows as they are in the cut.
    Raises: `Truncated`, `SnapshotDamaged`, `TailTooLong`, `WaitTimeout`, also while batches are taken.
    """
    cut = part.cut
    with ExitStack() as stack:
        stack.enter_context(keeping(cut))
        root = Path(cut.path).absolute() / "snapshots"
        cursor = _duck(root).cursor()
        stack.callback(cursor.close)
        cursor.execute("SET TimeZone = 'UTC'")
        tail = _tail(part)
        if tail.num_rows:
            cursor.register(_TAIL, tail)
        try:
            sql = rows_sql(part, str(root), schema.names, where, has_tail=tail.num_rows > 0)
            for batch in cursor.sql(sql).to_arrow_reader(BATCH_ROWS):
                if batch.num_rows:
                    yield conformed(batch, schema)
        except (duckdb.Error, OSError, pa.ArrowException) as error:
            raise _explained(error, part) from error


def rows_sql(part: RowsPart, root: str, names: Sequence[str], where: str | None, *, has_tail: bool) -> str:
    """A part's rows as a query for DuckDB over its files and, where there is one, its tail."""
    table, schema = part.cut.table, part.cut.schema
    key = [each.name for each in schema.key_columns]
    named = [name if name in SYSTEM_COLUMNS else schema.column(name).name for name in names]
    # A condition may be on any column; DuckDB leaves out what nobody asks for.
    all_columns = [*schema.names, *(name for name in SYSTEM_COLUMNS if name != OP)]
    columns = ", ".join(map(quoted, all_columns))
    if part.leads or not part.layers:
        below = merge_sql(table, schema, [*part.files, *part.layers], root, columns=all_columns)
        sql = f"SELECT {columns} FROM ({below}) AS below"
    else:
        below = merge_sql(table, schema, part.files, root, columns=all_columns)
        above = merge_sql(table, schema, part.layers, root, columns=key, deletes=True)
        by_key = same_key(schema, "base", "layers")
        sql = f"SELECT {columns} FROM ({below}) AS base ANTI JOIN ({above}) AS layers {by_key}"
    if has_tail:
        if key:
            by_key = same_key(schema, "below", "above")
            sql = f"SELECT {columns} FROM ({sql}) AS below ANTI JOIN {quoted(_TAIL)} AS above {by_key}"
        if part.leads:
            sql += f" UNION ALL SELECT {columns} FROM {quoted(_TAIL)} WHERE {quoted(OP)} = 1"
    chosen = ", ".join(f"CAST(1 AS TINYINT) AS {quoted(OP)}" if name == OP else quoted(name) for name in named)
    condition = "" if where is None else f" WHERE {where}"
    return f"SELECT {chosen} FROM ({sql}) AS merged{condition}"


def row_fields(table: Table, schema: TableSchema) -> pa.Schema:
    """The columns of a table's rows. A column that was not there from the beginning may be NULL in any row."""
    versions = table.versions[: schema.version]

    def is_nullable(id: int) -> bool:
        found = [each.by_id(id) for each in versions]
        return any(each is None or each.nullable for each in found)

    shown = map(schema.column, table.visible(schema))
    return pa.schema([pa.field(each.name, each.type, is_nullable(each.id)) for each in shown])


# -- planning --------------------------------------------------------------------------------------------------------


def _is_below(file: FileEntry, has_key: bool) -> bool:
    """Whether a file's rows are taken one by one; files of a table without a key just add up."""
    return file.is_base or not has_key


def _weight(file: FileEntry) -> int:
    return max(file.bytes, file.rows * _ROW_BYTES)


def _groups(files: Sequence[FileEntry], count: int) -> list[list[FileEntry]]:
    """The files in groups of about one size."""
    groups: list[list[FileEntry]] = [[] for _ in range(min(count, len(files)))]
    sizes = [0] * len(groups)
    for each in sorted(files, key=lambda each: (-_weight(each), each.path)):
        smallest = sizes.index(min(sizes))
        groups[smallest].append(each)
        sizes[smallest] += _weight(each)
    return groups


def _part(
    cut: TableCut,
    shards: Sequence[int],
    files: Sequence[FileEntry],
    mine: Sequence[FileEntry],
    leads: bool,
    spans: Sequence[Span],
) -> RowsPart:
    has_key = bool(cut.schema.key)
    layers = tuple(each for each in mine if not _is_below(each, has_key))
    wanted = {cut.table.vchannel(shard) for shard in shards}
    # Without a key the log takes nothing away.
    tails = [
        Span(each.channel, each.after, each.upto, vchannels=tuple(sorted(wanted.intersection(each.vchannels or ()))))
        for each in spans
        if (leads or has_key) and wanted.intersection(each.vchannels or ())
    ]
    return RowsPart(cut, tuple(shards), tuple(files), layers, leads, tuple(tails))


def _spans(cut: TableCut) -> list[Span]:
    if cut.after >= cut.at or cut.table.is_view:
        return []
    channels = channels_of(cut.path, cut.table)
    return [Span(name, int(cut.after), int(cut.at), vchannels=mine) for name, mine in sorted(channels.items())]


# -- reading ---------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=4)
def _duck(root: Path) -> Duck:
    """The one of this process: Spark lets a process read part after part."""
    return Duck(root / "spill", threads=1, memory_limit=_MEMORY)


def _tail(part: RowsPart) -> pa.Table:
    """What the log holds of a part behind its checkpoint: of each key its last change."""
    table, schema = part.cut.table, part.cut.schema
    nbytes = 0
    batches = []
    for span in part.spans:
        for batch in read_span(part.cut.path, span):
            nbytes += batch.rows.nbytes
            if nbytes > BYTES_MAX:
                raise TailTooLong(
                    f"table {table.name!r}: more than {BYTES_MAX:,} bytes were written since checkpoint"
                    f" {part.cut.checkpoint}; let the pipeline catch up, as `flush` does, or read with consistency"
                    f" 'eventual'"
                )
            batches.append(batch)
    return net(changes_of(table, batches, schema), [each.name for each in schema.key_columns])


def _explained(error: Exception, part: RowsPart) -> Exception:
    cut = part.cut
    with opened_store(cut.path) as store:
        reader = SnapshotReader(store)
        try:
            damage = reader.damage(Manifest(cut.checkpoint), cut.table, [*part.files, *part.layers])
        finally:
            reader.close()
    if damage is not None:
        return damage
    if isinstance(error, duckdb.ProgrammingError):
        return InvalidArgument(f"table {cut.table.name!r}: {error}")
    if isinstance(error, duckdb.Error | OSError):
        return StorageFailed(f"reading table {cut.table.name!r} at {cut.at} failed: {error}")
    return error


# -- keeping files ---------------------------------------------------------------------------------------------------


class _Held:
    """A checkpoint that this process keeps for the parts it plans and reads, and a while longer."""

    def __init__(self, path: str, checkpoint: int) -> None:
        self.users = 0
        self.timer: Timer | None = None
        self._ends = ExitStack()
        with ExitStack() as failing:
            store = failing.enter_context(opened_store(path))
            keeper = Keeper(store)
            failing.callback(keeper.close)
            failing.enter_context(keeper.reading(checkpoint, at_once=True))
            self._ends = failing.pop_all()

    def close(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
        with suppress(TidegateError, OSError):  # The database itself may be gone.
            self._ends.close()


_held: dict[tuple[str, int], _Held] = {}
_lock: Final = Lock()


@contextmanager
def keeping(cut: TableCut, linger_s: float = LINGER_S) -> Iterator[None]:
    """No file of the cut's checkpoint is collected while this lasts, and `linger_s` longer in this process.

    Raises: `Truncated` when it is gone already.
    """
    if not cut.checkpoint:
        yield
        return
    name = (cut.path, cut.checkpoint)
    with _lock:
        held = _held.get(name)
        if held is None:
            try:
                held = _held[name] = _Held(*name)
            except Truncated as error:
                raise Truncated(f"table {cut.table.name!r} at {cut.at}: {error}; or load it again") from error
        held.users += 1
    try:
        yield
    finally:
        with _lock:
            held.users -= 1
            if held.timer is not None:
                held.timer.cancel()
            held.timer = Timer(linger_s, _let_go, (name,))
            held.timer.daemon = True
            held.timer.start()


def _let_go(name: tuple[str, int]) -> None:
    with _lock:
        held = _held.get(name)
        if held is None or held.users:
            return
        del _held[name]
    held.close()


def let_all_go() -> None:
    """Keep nothing any longer that nobody reads."""
    for name in list(_held):
        _let_go(name)
