"""Sessions of Spark that queries are answered on: beside the one that this process has, or a local one of our own.

Each query has a session to itself, so that nobody's views and settings are touched. A Spark that was started here stays
for the life of the process, and ends with it: neither a JVM nor a directory is left behind.
"""

from __future__ import annotations

import atexit
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

from tidegate.errors import Closed, InvalidArgument

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_IDLE_MAX: Final = 4
_SETTINGS: Final = {
    "spark.sql.ansi.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.timestampType": "TIMESTAMP_LTZ",
    "spark.sql.caseSensitive": "false",
    # Else ${...} inside a text would be replaced before the query is parsed.
    "spark.sql.variable.substitute": "false",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # See `spark.source`: filters would be applied to other uses of the same table too.
    "spark.sql.python.filterPushdown.enabled": "false",
}
_FOR_LARGE: Final = {
    "spark.sql.adaptive.enabled": "true",
    "spark.sql.codegen.wholeStage": "true",
    "spark.sql.codegen.factoryMode": "FALLBACK",
}
_FOR_SMALL: Final = {
    # Compiling and adapting a plan takes longer than running it over a few rows.
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}

_lock: Final = Lock()
_idle: list[SparkSession] = []
_started: list[tuple[SparkSession, Path]] = []
"""At most one: the Spark that was started here."""


@contextmanager
def session_for(path: Path, *, is_large: bool) -> Iterator[SparkSession]:
    """A session for one query, in the Spark of this process; a local one is started below `path` when it has none.

    Raises: `InvalidArgument` without pyspark; `JavaMissing`; `Closed` when Java ends while it starts.
    """
    session = _take(path)
    for name, value in (_SETTINGS | (_FOR_LARGE if is_large else _FOR_SMALL)).items():
        session.conf.set(name, value)
    try:
        yield session
    finally:
        with _lock:
            if len(_idle) < _IDLE_MAX and _lives(session):
                _idle.append(session)


def _take(path: Path) -> SparkSession:
    with _lock:
        while _idle:
            session = _idle.pop()
            if _lives(session):
                return session
        theirs = running_session()
        if theirs is None:
            theirs = _start(path)
        session = theirs.newSession()
    from tidegate.spark.source import register

    register(session)
    return session


def running_session() -> SparkSession | None:
    """The one of this process, whichever thread it was made in. Raises: `InvalidArgument` without pyspark."""
    try:
        from pyspark import SparkContext
        from pyspark.errors import PySparkException
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise InvalidArgument(
            "engine='spark' needs Spark, which is not installed; run `pip install 'tidegate[spark]'`"
        ) from error
    if SparkContext._active_spark_context is None:
        return None
    try:
        return SparkSession.active()
    except PySparkException:
        return None


def _lives(session: SparkSession) -> bool:
    from pyspark import SparkContext

    context: Any = session._sc
    return context is SparkContext._active_spark_context and context._jsc is not None


def _start(path: Path) -> SparkSession:
    from tidegate.spark.session import stop_session

    below = path / "pipeline"
    _remove_left_over(below)
    work = below / f"query-{os.getpid()}-{secrets.token_hex(4)}"
    try:
        session = _started_with_archive(work)
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise

    def stop() -> None:
        _started.clear()
        _idle.clear()
        stop_session(session, work)
        shutil.rmtree(work, ignore_errors=True)

    for before, directory in _started:  # Somebody has stopped it; its files are ours to remove.
        stop_session(before, directory)
        shutil.rmtree(directory, ignore_errors=True)
    _started[:] = [(session, work)]
    atexit.register(stop)
    return session


def _started_with_archive(work: Path) -> SparkSession:
    """With the archive of classes that a pipeline's worker has made, if there is one: Java starts faster."""
    from tidegate.spark.archive import find_archive
    from tidegate.spark.java import find_java
    from tidegate.spark.session import start_session

    java = find_java(work)
    archive = find_archive(java)
    if archive is not None and archive.exists:
        options = {"spark.driver.extraJavaOptions": archive.options(work / "classes")}
        with suppress(Closed):
            return start_session(work, options, java=java, home=archive.home)
    return start_session(work, java=java)


def _remove_left_over(below: Path) -> None:
    """Directories of processes that were killed: their JVMs ended with them."""
    for each in below.glob("query-*-*"):
        pid = each.name.split("-")[1]
        if pid.isdecimal() and int(pid) != os.getpid():
            try:
                os.kill(int(pid), 0)
            except ProcessLookupError:
                shutil.rmtree(each, ignore_errors=True)
            except OSError:
                pass


def stop_own_session() -> None:
    """End the Spark that was started here, if there is one."""
    from tidegate.spark.session import stop_session

    with _lock:
        _idle.clear()
        for session, work in _started:
            with suppress(Exception):
                stop_session(session, work)
            shutil.rmtree(work, ignore_errors=True)
        _started.clear()
