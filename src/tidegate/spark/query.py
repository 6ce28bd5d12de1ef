"""`answer`: a query in Spark SQL over tables at one cut, computed by Spark in this process."""

from __future__ import annotations

import logging
import re
import secrets
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from threading import Timer, get_ident
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from tidegate import errors
from tidegate.database.cancel import Cancel
from tidegate.database.cut_reader import TableAt, shown
from tidegate.database.tails import TailTooLong
from tidegate.errors import Closed, InvalidArgument, StorageFailed, TidegateError, WaitTimeout
from tidegate.reads.dotted import with_single_names
from tidegate.spark.query_pruning import NotRead, Wanted, parse_query, wanted_of
from tidegate.spark.query_session import session_for
from tidegate.spark.source_options import CUT
from tidegate.spark.table_cut import TableCut, opened_store
from tidegate.spark.table_rows import keeping, row_fields

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LARGE_BYTES: Final = 8 << 20
"""Tables of so many bytes are worth compiling a plan for."""
_OURS: Final = re.compile(r"^(?:[\w.]+: )?tidegate\.[\w.]*?(\w+): (.+)$", re.MULTILINE)
_GROUP: Final = ("spark.jobGroup.id", "spark.job.description", "spark.job.interruptOnCancel")


def answer(
    path: Path, sql: str, tables: Mapping[str, TableAt], *, timeout_s: float | None, cancel: Cancel | None
) -> pa.Table:
    """The answer of Spark, with its names and types. `tables` are what the query may name.

    It runs beside the SparkSession that this process has, or on a local one that is started for it and kept.

    Raises: `InvalidArgument` for what Spark refuses or fails to compute, with its error class; `WaitTimeout`;
    `TailTooLong`; `Truncated`, `SnapshotDamaged`; `JavaMissing`.
    """
    try:
        tree = parse_query(sql)
    except NotRead:
        tree = None  # Whoever asked has had Spark read it.
    cancel = cancel or Cancel()
    timer = None if timeout_s is None else Timer(timeout_s, cancel.set)
    with ExitStack() as stack:
        if timer is not None:
            timer.daemon = True
            timer.start()
            stack.callback(timer.cancel)
        cuts = {name: _cut(path, each, stack) for name, each in tables.items()}
        large = any(
            sum(file.bytes for file in each.manifest.files(each.table.id)) > LARGE_BYTES
            for each in tables.values()
            if each.manifest is not None
        )
        session = stack.enter_context(session_for(Path(path), is_large=large))
        try:
            with _job(session, sql, cancel), _quiet:
                names = {name: each.names for name, each in tables.items()}
                wanted = {name: Wanted(each) for name, each in names.items()} if tree is None else wanted_of(tree, cuts)
                return _computed(session, with_single_names(sql), cuts, wanted, names)
        except TidegateError:
            raise
        except Exception as error:
            raise _explained(error, sql, cancel, timeout_s) from error


def _cut(path: Path, each: TableAt, stack: ExitStack) -> TableCut:
    """A table's cut, and the files for it kept."""
    if each.manifest is not None:
        manifest = each.manifest
    else:
        with opened_store(path) as store:
            manifest = store.at(each.at)
    cut = TableCut.of(path, each.table, each.at, manifest)
    stack.enter_context(keeping(cut, linger_s=0.0))
    return cut


def _computed(
    session: SparkSession,
    sql: str,
    cuts: Mapping[str, TableCut],
    wanted: Mapping[str, Wanted],
    names: Mapping[str, list[str]],
) -> pa.Table:
    from pyspark.errors import AnalysisException

    everything = {name: Wanted(each) for name, each in names.items()}
    wanted = {
        name: each._replace(columns=[one for one in each.columns if one in names[name]])
        for name, each in wanted.items()
    }
    try:
        with _views(session, cuts, wanted):
            return session.sql(sql).toArrow()
    except AnalysisException:
        if everything == wanted:
            raise
        # What Spark proposes in its message should be all that there is.
        with _views(session, cuts, everything):
            return session.sql(sql).toArrow()


@contextmanager
def _views(session: SparkSession, cuts: Mapping[str, TableCut], wanted: Mapping[str, Wanted]) -> Iterator[None]:
    """Make tables known to a session by their names, for as long as this lasts."""
    from tidegate.spark.source import spark_schema

    made = []
    try:
        for name, cut in cuts.items():
            chosen = wanted[name]
            fields = row_fields(cut.table, cut.schema)
            schema = spark_schema(pa.schema([fields.field(each) for each in chosen.columns]))
            reader = session.read.format("tidegate").schema(schema)
            reader = reader.options(path=cut.path, table=cut.table.name).option(CUT, cut.encode())
            if chosen.where is not None:
                reader = reader.option("where", chosen.where)
            view = "`" + name.replace("`", "``") + "`"
            reader.load().createOrReplaceTempView(view)
            made.append(name)
        yield
    finally:
        for name in made:
            with suppress(Exception):  # Java may have ended.
                session.catalog.dropTempView(name)  # By the name itself: in backticks it is not found.


@contextmanager
def _job(session: SparkSession, sql: str, cancel: Cancel) -> Iterator[None]:
    """Spark's jobs of this thread can be cancelled while this lasts."""
    context: Any = session.sparkContext
    group = f"tidegate-query-{secrets.token_hex(8)}"
    before = {name: context.getLocalProperty(name) for name in _GROUP}
    context.setJobGroup(group, shown(sql), interruptOnCancel=True)

    def interrupt() -> None:
        with suppress(Exception):
            context._jsc.sc().cancelJobGroupAndFutureJobs(group)

    try:
        with cancel.guarding(interrupt):
            yield
    finally:
        with suppress(Exception):
            for name, value in before.items():
                context.setLocalProperty(name, value)


class _Quiet(logging.Filter):
    """PySpark writes every error of a query to the standard error too; here it is raised, and that is enough."""

    def __init__(self) -> None:
        super().__init__()
        self._threads: set[int | None] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        return record.thread not in self._threads

    def __enter__(self) -> None:
        from pyspark.logger import PySparkLogger

        PySparkLogger.getLogger("SQLQueryContextLogger").addFilter(self)
        self._threads.add(get_ident())

    def __exit__(self, *_: object) -> None:
        self._threads.discard(get_ident())


_quiet: Final = _Quiet()


def _explained(error: Exception, sql: str, cancel: Cancel, timeout_s: float | None) -> TidegateError | Exception:
    from py4j.protocol import Py4JError, Py4JNetworkError
    from pyspark.errors import PySparkException

    if cancel.is_set:
        if timeout_s is not None:
            return WaitTimeout(f"{shown(sql)} took longer than its timeout of {timeout_s:g} s; give it more time")
        return WaitTimeout(f"{shown(sql)} was cancelled")
    text = str(error)
    for name, message in reversed(_OURS.findall(text)):
        kind = TailTooLong if name == "TailTooLong" else getattr(errors, name, None)
        if isinstance(kind, type) and issubclass(kind, TidegateError):
            with suppress(TypeError):
                return kind(message)
        return StorageFailed(f"{shown(sql)}: {name}: {message}")
    if isinstance(error, Py4JNetworkError | ConnectionError):
        return Closed(
            f"{shown(sql)}: Spark's Java has ended ({text}); ask again, and give it more memory if it persists"
        )
    if isinstance(error, PySparkException):
        lines = [each for each in text.splitlines() if each.strip()] or [type(error).__name__]
        first = lines[0].strip()
        condition = error.getCondition()
        if condition and condition not in first:
            first = f"[{condition}] {first}"
        return InvalidArgument(f"{shown(sql)}: {first}")
    if isinstance(error, Py4JError):
        cause = getattr(error, "java_exception", None)
        what = text.splitlines()[0] if cause is None else str(cause.toString()).splitlines()[0]
        return InvalidArgument(f"{shown(sql)}: {what}")
    return error
