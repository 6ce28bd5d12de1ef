"""Whose fault it is that a view was not computed, its own or the machine's; and how that is told to people."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

import duckdb
import pyarrow as pa

from tidegate.errors import Retryable, TidegateError, Truncated, Unavailable
from tidegate.reads.translate import UNANSWERED, NeedsSpark
from tidegate.snapshots.damage import SnapshotDamaged

_OF_THE_MACHINE: Final = (
    duckdb.IOException,
    duckdb.OutOfMemoryException,
    duckdb.InternalException,
    duckdb.FatalException,
    duckdb.InterruptException,
    duckdb.ConnectionException,
    pa.ArrowMemoryError,
    MemoryError,
    OSError,
    Retryable,
    SnapshotDamaged,
    Truncated,
    Unavailable,
)


class TooLarge(TidegateError):
    """What a view computes does not fit into the memory that it may use, `memory`, and on the disk beside it."""

    def __init__(self, memory: str) -> None:
        super().__init__(f"its computation needs more memory than the {memory} that a view may use")
        self.memory = memory


_KIND: Final = re.compile(r"([A-Za-z][A-Za-z ]*) Error: ")
_KINDS_OF_THE_MACHINE: Final = {"io", "internal", "fatal", "interrupt", "connection"}
_SOURCE: Final = re.compile(r" when casting from source column .*$")
_CAST: Final = re.compile(r"Type (\w+) with value (.*) can't be cast .* the destination type (\w+)$")
_DIVISION: Final = re.compile(r"^Division by zero in expression .*$")


def is_of_the_machine(error: BaseException) -> bool:
    """Whether it is not the view's: the disk, the memory, files that are gone. The batch is done again then."""
    return isinstance(error, _OF_THE_MACHINE)


def streamed(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Batches that DuckDB hands out one by one; its errors on the way come as `OSError`, whatever they are."""
    try:
        yield from batches
    except OSError as error:
        kind = _KIND.match(str(error))
        if kind is not None and kind[1].lower() == "out of memory":
            raise duckdb.OutOfMemoryException(str(error)) from error
        if kind is None or kind[1].lower() in _KINDS_OF_THE_MACHINE:
            raise
        raise duckdb.DataError(str(error)) from error


def plain(error: BaseException) -> str:
    """What is wrong, in one line for people."""
    text = (str(error).strip() or type(error).__name__).splitlines()[0]
    if isinstance(error, NeedsSpark) or UNANSWERED in text:
        return f"only Spark can compute it, and this pipeline runs without one: {text}"
    if isinstance(error, duckdb.Error):
        text = _KIND.sub("", text, count=1)
        text = _DIVISION.sub("division by zero", _SOURCE.sub("", text))
        if cast := _CAST.match(text.replace(" because the value is out of range for", " for")):
            text = f"the value {cast[2]} is out of range: {cast[1]} cannot be cast to {cast[3]}"
        return text.rstrip(".! ")
    if isinstance(error, TidegateError | pa.ArrowException):
        return text
    return f"a defect of Tidegate, {type(error).__name__}: {text}"
