"""`Driver`: the pipeline as one Structured Streaming query, batch after batch of epochs.

    cut file ──▶ WorkReader ──▶ one task a channel: fold ──▶ reports ──▶ finish(batch) ──▶ Spark commits the batch

Ordering: Spark writes a batch's offsets before it runs, and its commit after `finish` has returned. A batch that was
not committed is run again after a restart with the same offsets, hence the same epochs; newer cuts do not change it.

About the end of a query. Once `stop` was called, Spark (4.3, `StreamExecution.isInterruptionException`) looks at the
error that ended the stream thread: where it came out of a `foreachBatch` in Python, it searches the text, Python's
traceback and Java's in it, with an expression whose `(.|\\r\\n|\\r|\\n)*` takes a stack frame a character. A text that
contains a `Py4JJavaError` and goes on for more than 1,000 to 2,000 characters, as every such text does, overflows a
stack of 1 MB, and the StackOverflowError hides what happened. It takes two things: a Spark job inside `foreachBatch`
that fails or is cancelled, and a `stop` at that time, which cancels it. So here `stop` waits until no batch runs, and
nothing but `BatchFailed`, of one line, leaves a batch. A larger stack is no help: with 4 MB it overflows as well.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, Final

from tidegate.errors import InvalidArgument, TidegateError, WaitTimeout
from tidegate.spark.cuts import CutFile, Point
from tidegate.spark.source import register
from tidegate.spark.work import load_fold, seen_path

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

_SHOWN: Final = 300
_STOP_S: Final = 60.0
_LOOK_S: Final = 0.01


class BatchFailed(TidegateError):
    """A batch was not finished; it is run again when the pipeline starts again. `why` is the cause in full."""

    def __init__(self, batch: int, why: str) -> None:
        lines = [line.strip() for line in why.strip().splitlines() if line.strip()]
        short = (lines[-1] if lines else "no reason is known")[:_SHOWN].replace("Py4JJavaError", "an error of Java")
        super().__init__(f"batch {batch} of the pipeline failed: {short}")
        self.why = why


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch whose shares are all folded."""

    id: int
    """Spark's number. The same number always has the same epochs."""
    first: int
    last: int
    reports: tuple[dict[str, Any], ...]
    """What the folds returned; `channel` says of which."""
    seconds: float

    def to_json(self) -> dict[str, Any]:
        facts = {"id": self.id, "first": self.first, "last": self.last, "seconds": round(self.seconds, 6)}
        return facts | {"reports": list(self.reports)}


@dataclass(frozen=True, slots=True)
class Progress:
    """What Spark's own files say: the batch that was begun last, and the one that was committed last."""

    begun: Point | None
    committed: Point | None

    @property
    def is_open(self) -> bool:
        """Whether a batch was begun and not committed: the next start runs it again."""
        return self.begun is not None and self.begun != self.committed


class Driver:
    """Runs the pipeline on a session. `finish` is called for every batch in turn, from a thread of Spark's."""

    def __init__(
        self,
        session: SparkSession,
        database: str | Path,
        work: str | Path,
        fold: str,
        finish: Callable[[Batch], None],
        *,
        start: Point = Point(),  # noqa: B008
        channels: tuple[str, ...] = (),
        arguments: Mapping[str, Any] | None = None,
        tasks: int | None = None,
        epochs_max: int | None = None,
        wait_ms: int = 1000,
    ) -> None:
        """`fold` names a function, `module:function`, of type `Fold`. `work` keeps the query's files and the cuts.

        `start` is where a pipeline without a history begins. Without `channels`, work is shared out by the places of
        each cut, over `tasks` tasks (as many as there are cores). `epochs_max` bounds the epochs of one batch.
        """
        load_fold(fold)
        self.work: Final = Path(work)
        self.cuts: Final = CutFile(self.work / "cuts")
        self._session = session
        self._finish = finish
        self._stopfile = self.work / "stop"
        self._options = {
            "path": str(database),
            "stream": "epochs",
            "fold": fold,
            "cuts": str(self.cuts.path),
            "stopFile": str(self._stopfile),
            "channels": json.dumps(list(channels)),
            "arguments": json.dumps(dict(arguments or {})),
            "startEpoch": str(start.epoch),
            "startTimestamp": str(int(start.timestamp)),
            "waitMs": str(wait_ms),
            "tasks": str(tasks or session.sparkContext.defaultParallelism),
        }
        if epochs_max is not None:
            self._options["maxEpochs"] = str(epochs_max)
        self._is_stopping = False
        self._failure: BatchFailed | None = None
        self._query: StreamingQuery | None = None

    def start(self) -> None:
        """Begin, or go on behind the last committed batch."""
        if self._query is not None:
            raise InvalidArgument("this driver was started already; make another")
        self.work.mkdir(parents=True, exist_ok=True)
        self._stopfile.unlink(missing_ok=True)
        seen_path(self._stopfile).unlink(missing_ok=True)
        register(self._session)
        stream = self._session.readStream.format("tidegate").options(**self._options).load()
        writer = stream.writeStream.foreachBatch(self._run).queryName("tidegate")
        self._query = writer.option("checkpointLocation", str(self.work / "query")).start()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the query has ended; False when the time is up before.

        Raises: `BatchFailed` when it ended by an error.
        """
        query = self._started()
        try:
            ended = query.awaitTermination(timeout_s) if timeout_s is not None else query.awaitTermination()
        except Exception as error:
            if self._is_stopping and self._failure is None:
                return True
            raise (self._failure or BatchFailed(-1, str(error))) from None
        return ended is not False

    def stop(self, timeout_s: float = _STOP_S) -> None:
        """End the query between two batches: what was begun is finished and committed first. May be repeated.

        Raises: `WaitTimeout` when the batch that runs does not end in time.
        """
        query = self._started()
        self._stopfile.touch()
        seen = seen_path(self._stopfile)
        deadline = monotonic() + timeout_s
        while query.isActive and not seen.exists():
            if monotonic() > deadline:
                raise WaitTimeout(f"the batch that runs did not end within {timeout_s:g} s; kill the worker")
            sleep(_LOOK_S)
        self._is_stopping = True
        with suppress(Exception):
            query.stop()

    @property
    def is_active(self) -> bool:
        return self._query is not None and self._query.isActive

    def _started(self) -> StreamingQuery:
        if self._query is None:
            raise InvalidArgument("this driver was not started; call `start` first")
        return self._query

    def _run(self, frame: DataFrame, batch: int) -> None:
        try:
            began = monotonic()
            rows = frame.collect()
            self._finish(_gather(batch, rows, monotonic() - began))
        except BaseException as error:
            self._failure = BatchFailed(batch, f"{type(error).__name__}: {error}")
            raise self._failure from None


def _gather(batch: int, rows: list[Any], seconds: float) -> Batch:
    reports = tuple({"channel": row.channel, **json.loads(row.report)} for row in rows if row.report is not None)
    firsts, lasts = {row.first for row in rows}, {row.last for row in rows}
    return Batch(batch, min(firsts, default=0), max(lasts, default=0), reports, seconds)


def read_progress(work: str | Path) -> Progress:
    """How far the query whose files lie in `work` has come."""
    query = Path(work) / "query"
    begun = _newest(query / "offsets")
    committed = _newest(query / "commits")
    return Progress(
        None if begun is None else _offset(query, begun), None if committed is None else _offset(query, committed)
    )


def _newest(directory: Path) -> int | None:
    with suppress(FileNotFoundError):
        return max((int(each.name) for each in directory.iterdir() if each.name.isdecimal()), default=None)
    return None


def _offset(query: Path, batch: int) -> Point | None:
    try:
        lines = (query / "offsets" / str(batch)).read_text().splitlines()
        return Point.of(json.loads(lines[-1]))
    except (OSError, ValueError, KeyError, IndexError):
        return None
