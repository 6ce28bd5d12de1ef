"""The data source `format("tidegate")`, for batches and streams.

    option                  what it says
    path                    the database's directory
    topic | table           what to read; a view is read as a table

  A table in a batch is its rows at one cut. Which one:
    consistency             strong | session | bounded | eventual, as of `load()`; session is that of a new session, or
                            of `sessionToken`: all that was acknowledged before
    staleness               seconds, for `bounded` (default 5)
    timestamp               this cut: a Timestamp as printed, its number, or an ISO time with a zone
    version                 the checkpoint with this number
    sessionToken            go on with a session: nothing older than it has seen (`session.token`)
    where                   a condition on columns, applied while reading: comparisons with constants, IN, IS NULL, AND

  A table in a stream is its changes; in a batch with
    changes                 true: its changes; false: its rows and nothing else
    startingTimestamp       read what is above it (a number, or an ISO time with a zone); default: everything kept
    endingTimestamp         batches only: read up to it and with it; default: as far as all channels have come
    maxEpochs, maxMessages, maxBytesPerTrigger
                            streams only: about the most that one batch takes; it takes at least one epoch. Where no
                            cuts are recorded, epochs are not counted, and the least is a segment of the log
    waitMs                  streams only: how long to wait for news before Spark asks again (default 100)
    startingFrom            streams of a view only: `earliest` (the default), its rows and then its changes; `latest`,
                            its changes from now on

A topic has the columns key, value (JSON), bytes, headers, `_ts`, `_shard`, `_txn` and `_seq`; it is read by the times
and limits above too. A table's changes have its columns, `_ts`, `_seq` and `_op`: 1 where the row is there with these
values, -1 where it is gone. A table's rows have the columns that it has in the cut. Spark does not say whether a schema
is asked for by a batch or by a stream: rows that name neither a cut nor `changes` have `_ts` (when they were written),
`_seq` and `_op` too. With `.schema(...)` only the columns named there are read.

A view's changes come checkpoint by checkpoint, each whole, and have its columns, `_change` (insert, update_before,
update_after or delete), `_epoch` and `_ts`, the checkpoint's; its rows, when neither a cut nor `changes` is named, have
those too, and are inserts. A batch of changes without a starting time begins with the rows at the oldest checkpoint
that is kept. `maxMessages` and `maxBytesPerTrigger` count what is stored of them.

One batch is one cut; two tables are at the same cut when both name the same `timestamp`. Every micro-batch's end is a
cut too: transactions come whole, in one micro-batch. Partitions of rows are shards, or files of large ones; of changes
and topics, channels.

Filters of Spark are not applied while reading. Spark 4 keeps one plan of a Python source for all uses of a DataFrame,
so that a filter of one use would be applied to the others, and `df.count()` be wrong after `df.where(...).count()`.
"""

# mypy: disable-error-code="misc"
# Spark's base classes are not typed here.

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxFiles, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from tidegate.catalog.views import View
from tidegate.clock.timestamp import Timestamp
from tidegate.errors import InvalidArgument, NotFound
from tidegate.log.batch import Batch
from tidegate.runtime.log_files import LogFiles
from tidegate.spark.cuts import Limits, Point, Points, points_of
from tidegate.spark.reading import (
    TOPIC_SCHEMA,
    Decode,
    Places,
    Span,
    TableChanges,
    find_table,
    find_topic,
    find_view,
    read_span,
    topic_rows,
)
from tidegate.spark.source_options import CUT, EARLIEST, FRESHNESS, FROM, LATEST
from tidegate.tables.schema import OP, SEQ, TS, Table

# Spark starts five Python processes for the first batch of a stream alone, and each imports this. What only some of its
# readers need, DuckDB and sqlglot among it, they import themselves: half a second of each process.
if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidegate.spark.table_cut import TableCut
    from tidegate.spark.table_rows import RowsPart
    from tidegate.spark.view_source import ViewPlace, ViewStreamReader

SYSTEM_SCHEMA: Final = pa.schema([(TS, pa.int64()), (SEQ, pa.int64()), (OP, pa.int8())])
_EPOCHS: Final = "epochs"
_CREATED_S: Final = 1.0


def register(session: SparkSession) -> None:
    """Make `format("tidegate")` known to a session, where the package is not installed like any other."""
    session.dataSource.register(TidegateSource)


@dataclass(frozen=True)
class What:
    """What the options name, found in the database."""

    path: str
    schema: pa.Schema
    places: Places
    table: TableChanges | None
    view: View | None = None

    def decode(self, partition: SpanPartition, span: Span) -> Decode:
        if self.table is not None and partition.table is not None:
            return self.table.decode(partition.table)
        shards = self.places.by_channel[span.channel]

        def rows(batch: Batch) -> Iterator[pa.RecordBatch]:
            yield topic_rows(batch, shards)

        return rows


def check_names(options: Any) -> None:
    """Raises: `InvalidArgument` when the options name nothing, or too much."""
    if not options.get("path"):
        raise InvalidArgument('format("tidegate") needs .option("path", ...): the directory of the database')
    if (options.get("topic") is None) == (options.get("table") is None):
        raise InvalidArgument('format("tidegate") needs either .option("topic", ...) or .option("table", ...)')


def find(options: Any) -> What:
    """Raises: `InvalidArgument` when the options name nothing, or too much; `NotFound`."""
    check_names(options)
    deadline = monotonic() + _CREATED_S
    while True:
        try:
            return _find(options.get("path"), options.get("topic"), options.get("table"))
        except NotFound:
            # What was created just now can be read from the log with its next tick.
            if monotonic() >= deadline or not LogFiles(options.get("path")).is_written():
                raise
            sleep(0.05)


def _find(path: str, topic: str, table: str | None) -> What:
    if table is None:
        return What(path, TOPIC_SCHEMA, find_topic(path, topic), None)
    if (view := find_view(path, table)) is not None:
        from tidegate.snapshots.view_feed import feed_schema

        schema = arrow_of_spark(feed_schema(view.table, view.columns))
        return What(path, schema, Places(table, view.created, {}), None, view)
    changes = find_table(path, table)
    return What(path, arrow_of_spark(changes.schema), changes.places, changes)


def arrow_of_spark(schema: pa.Schema) -> pa.Schema:
    """The same columns as Spark writes them in Arrow: it takes no others from a source."""
    return to_arrow_schema(spark_schema(schema), timezone="UTC")


def spark_schema(schema: pa.Schema) -> StructType:
    """The columns as Spark names their types: a time without a zone stays one."""
    return from_arrow_schema(schema.remove_metadata(), prefer_timestamp_ntz=True)


class TidegateSource(DataSource):
    """`format("tidegate")`."""

    _cut: TableCut | None = None
    """The one that `load` has found; it goes with this object to where the batch is planned."""

    @classmethod
    def name(cls) -> str:
        return "tidegate"

    @property
    def _is_work(self) -> bool:
        return bool(self.options.get("stream") == _EPOCHS)

    def schema(self) -> StructType | str:
        if self._is_work:
            from tidegate.spark.work import REPORT_DDL

            return REPORT_DDL
        if _asks_for_rows(self.options) and not _may_be_stream(self.options):
            from tidegate.spark.table_cut import find_cut
            from tidegate.spark.table_rows import row_fields

            self._cut = find_cut(self.options)
            return spark_schema(row_fields(self._cut.table, self._cut.schema))
        return spark_schema(find(self.options).schema)

    def reader(self, schema: StructType) -> DataSourceReader:
        if self.options.get(FROM) is not None:
            raise InvalidArgument(f"option {FROM!r} is for streams; a batch of changes has 'startingTimestamp'")
        if _asks_for_rows(self.options):
            for each in ("startingTimestamp", "endingTimestamp"):
                if self.options.get(each) is not None:
                    raise InvalidArgument(f"option {each!r} is for a table's changes: add .option('changes', 'true')")
            from tidegate.spark.table_cut import find_cut

            cut = self._cut or find_cut(self.options)
            if not (cut.table.is_view and _may_be_stream(self.options)):
                return RowsReader(cut, schema, self.options.get("where"))
        else:
            cut = None
        if (view := _view_of(self.options)) is not None:
            from tidegate.spark.view_source import ViewReader

            return ViewReader(view.wanted(schema.names), self.options, cut)
        return TidegateReader(self.options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        if self._is_work:
            module = import_module("tidegate.spark.work")
            reader: DataSourceStreamReader = module.WorkReader(self.options)
            return reader
        if self.options.get("table") is not None and _asks_for_rows(self.options) and not _may_be_stream(self.options):
            named = [each for each in (*FRESHNESS, "where", "changes") if self.options.get(each) is not None]
            raise InvalidArgument(f"a stream of a table is its changes; leave out {', '.join(map(repr, named))}")
        if (view := _view_of(self.options)) is not None:
            return _view_stream(view.wanted(schema.names), self.options)
        if self.options.get(FROM) is not None:
            raise InvalidArgument(f"option {FROM!r} is for a view; a topic or a table has 'startingTimestamp'")
        return TidegateStreamReader(self.options)


def _view_of(options: Any) -> ViewPlace | None:
    """The view that the options name, if they name one."""
    what = find(options) if options.get("table") is not None else None
    if what is None or what.view is None:
        return None
    from tidegate.spark.view_source import ViewPlace

    return ViewPlace(what.path, what.view, what.schema)


def _view_stream(view: ViewPlace, options: Any) -> ViewStreamReader:
    from tidegate.spark.view_source import ViewStreamReader

    begin = str(options.get(FROM, EARLIEST)).strip().lower()
    if begin not in (EARLIEST, LATEST):
        raise InvalidArgument(f"option {FROM!r} is {EARLIEST} or {LATEST}, not {options.get(FROM)!r}")
    starting = None if options.get("startingTimestamp") is None else _starting(options)
    if starting is not None and options.get(FROM) is not None:
        raise InvalidArgument(f"options 'startingTimestamp' and {FROM!r} each say where to begin; give one of them")
    limits = _limits(options)
    return ViewStreamReader(
        view, begin if starting is None else starting, limits, default_limit(limits), _wait_s(options)
    )


def _asks_for_rows(options: Any) -> bool:
    """Whether a batch gives a table's rows. Raises: `InvalidArgument` for options that do not go together."""
    text = str(options.get("changes", "false")).strip().lower()
    if text not in ("true", "false"):
        raise InvalidArgument(f"option 'changes' is true or false, not {options.get('changes')!r}")
    of_rows = [each for each in (*FRESHNESS, "where") if options.get(each) is not None]
    if options.get("table") is None:
        if of_rows or text == "true":
            raise InvalidArgument(f"option {(of_rows or ['changes'])[0]!r} goes with .option('table', ...)")
        return False
    if text == "true" and of_rows:
        raise InvalidArgument(f"option {of_rows[0]!r} is for a table's rows; changes have starting and ending times")
    check_names(options)
    return text == "false"


def _may_be_stream(options: Any) -> bool:
    """Whether the options of a table leave it open that a stream is asked for; Spark does not say it."""
    return options.get("changes") is None and not any(
        options.get(each) is not None for each in (*FRESHNESS, "where", CUT)
    )


class RowsPartition(InputPartition):
    """A part of a table's rows; None of an empty plan."""

    def __init__(self, part: RowsPart) -> None:
        super().__init__(part.shards)
        self.part = part


class RowsReader(DataSourceReader):
    """Reads a table's rows at one cut."""

    def __init__(self, cut: TableCut, schema: StructType, where: str | None) -> None:
        from tidegate.spark.table_rows import row_fields

        known = {each.name: each for each in spark_schema(row_fields(cut.table, cut.schema))}
        known |= {each.name: each for each in spark_schema(SYSTEM_SCHEMA)}
        folded = {name.casefold(): field for name, field in known.items()}
        for each in schema:
            field = folded.get(each.name.casefold())
            if field is None or field.dataType != each.dataType:
                there = "no such column" if field is None else f"{field.dataType.simpleString().upper()}"
                raise InvalidArgument(
                    f"table {cut.table.name!r} at {cut.at}: column {each.name!r} is asked for as"
                    f" {each.dataType.simpleString().upper()}, and there is {there}; load it again"
                )
        self._cut = cut
        self._schema = to_arrow_schema(schema, timezone="UTC")
        self._where: str | None = None
        if where is not None:
            from tidegate.spark.row_condition import condition_sql

            self._where = condition_sql(where, cut.schema)

    def partitions(self) -> Sequence[InputPartition]:
        from tidegate.spark.table_rows import plan_rows

        return [RowsPartition(each) for each in plan_rows(self._cut)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, RowsPartition):
            raise InvalidArgument(f"{type(partition).__name__} is not a part of a table")
        from tidegate.spark.table_rows import read_rows

        return read_rows(partition.part, self._schema, self._where)


class SpanPartition(InputPartition):
    """One channel's part of a batch, with all that reading it needs: it looks nothing up."""

    def __init__(self, span: Span | None, table: Table | None = None) -> None:
        super().__init__(span)
        self.span = span
        self.table = table


def _read(what: What, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    if not isinstance(partition, SpanPartition):
        raise InvalidArgument(f"{type(partition).__name__} is not a part of a batch")
    span = partition.span
    if span is None:
        return
    decode = what.decode(partition, span)
    for batch in read_span(what.path, span):
        for rows in decode(batch):
            if rows.num_rows:
                yield rows if rows.schema.equals(what.schema) else rows.cast(what.schema)


def _spans(what: What, start: Point, end: Point, points: Points) -> list[SpanPartition]:
    if start.timestamp >= end.timestamp:
        return []
    table = None if what.table is None else what.table.table_at(points.catalog_version(end))
    return [
        SpanPartition(
            Span(
                channel,
                max(int(start.timestamp), int(what.places.created)),
                int(end.timestamp),
                points.position(start, channel),
                tuple(vchannels),
            ),
            table,
        )
        for channel, vchannels in sorted(what.places.by_channel.items())
    ]


def _starting(options: Any) -> Timestamp:
    text = options.get("startingTimestamp")
    return Timestamp.ZERO if text is None else Timestamp.parse(text)


class TidegateReader(DataSourceReader):
    """Reads one cut."""

    def __init__(self, options: Any) -> None:
        self._what = find(options)
        self._cuts = options.get("cuts")
        self._after = _starting(options)
        ending = options.get("endingTimestamp")
        self._upto = Timestamp.MAX if ending is None else Timestamp.parse(ending)

    def partitions(self) -> Sequence[InputPartition]:
        points = points_of(self._what.path, self._what.places.by_channel, self._cuts)
        newest = points.latest(Point(), Limits())
        end = Point(newest.epoch, min(newest.timestamp, self._upto))
        start = Point(0, self._after)
        return list(_spans(self._what, start, end, points)) or [SpanPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self._what, partition)


class TidegateStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads from cut to cut."""

    def __init__(self, options: Any) -> None:
        self._what = find(options)
        self._points = points_of(self._what.path, self._what.places.by_channel, options.get("cuts"))
        self._starting = _starting(options)
        self._limits = _limits(options)
        self._wait_s = _wait_s(options)
        self._target: Point | None = None

    def initialOffset(self) -> dict[str, int]:
        return Point(0, self._starting).offset

    def getDefaultReadLimit(self) -> ReadLimit:
        return default_limit(self._limits)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, int]:
        begin = Point.of(start)
        limits = Limits() if isinstance(limit, ReadAllAvailable) else self._limits
        if self._target is None:
            found = self._points.latest(begin, limits)
            if found == begin:
                self._points.wait(begin, self._wait_s, lambda: False)
                found = self._points.latest(begin, limits)
            return found.offset
        return min(self._points.latest(begin, limits), max(self._target, begin)).offset

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._points.latest(Point(0, self._starting), Limits())

    def reportLatestOffset(self) -> dict[str, int] | None:
        return self._points.latest(Point(), Limits()).offset

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return _spans(self._what, Point.of(start), Point.of(end), self._points)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self._what, partition)

    def commit(self, end: dict[str, Any]) -> None:
        self._points.release(Point.of(end))


def default_limit(limits: Limits) -> ReadLimit:
    """Spark's name for limits of our own: a batch is asked for with it; with `ReadAllAvailable` none apply."""
    return ReadAllAvailable() if limits.is_none else ReadMaxFiles(limits.epochs or 1_000_000)


def _limits(options: Any) -> Limits:
    return Limits(*(_number(options, name) for name in ("maxEpochs", "maxMessages", "maxBytesPerTrigger")))


def _wait_s(options: Any) -> float:
    return (_number(options, "waitMs") or 100) / 1000


def _number(options: Any, name: str) -> int | None:
    text = options.get(name)
    if text is None:
        return None
    if not text.strip().isdecimal() or int(text) < 1:
        raise InvalidArgument(f"option {name!r} is a number above zero, not {text!r}")
    return int(text)
