"""A local SparkSession with defaults for a small machine.

Nothing listens but on the loopback interface, nothing is written but in the work directory, no Hive, times are UTC. The
settings for streams are those that make a small batch cheap; each says why where that is not plain.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import tidegate
from tidegate.errors import Closed, InvalidArgument
from tidegate.spark.home import spark_home
from tidegate.spark.java import Java, find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Options = Mapping[str, str | int | bool]

DRIVER_MB: Final = (512, 2048)
"""The least and the most memory of the JVM's heap without being told; between them a quarter of the machine's."""
_JVM_OPTIONS: Final = ("-XX:+UseSerialGC", "-XX:+ExitOnOutOfMemoryError")
"""One collector thread is enough for a heap of this size, and starts faster. A JVM
without memory ends instead of half working: whoever watches it starts another."""

QUICK_JVM: Final = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"
"""For a JVM that only hands work to Python: half the time to start and half the CPU of a batch; plans over many rows
take two to three times as long. Its cache of compiled code would be 48 MB, a fifth of the usual one: when that is full,
as after some thousand plans, the JVM ends."""

CHEAP_BATCHES: Final[dict[str, str]] = {
    # Plans of a pipeline's batches read a few rows: adapting them while they run, and compiling them, costs more than
    # it saves. Whoever runs large queries in the same session turns both on again for those.
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    # An epoch without messages is a batch like any other; Spark's own empty batches serve watermarks: there are none.
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    "spark.sql.streaming.minBatchesToRetain": "10",
    "spark.sql.streaming.numRecentProgressUpdates": "10",
    # The source itself waits for the next epoch.
    "spark.sql.streaming.pollingDelay": "1ms",
    "spark.sql.streaming.ui.retainedProgressUpdates": "10",
    # A batch's offsets and its commit are a file each, written beside and renamed. Without files of checksums, and
    # without a process started for every change of permissions, they cost 15 ms instead of 150 ms.
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    "spark.hadoop.fs.AbstractFileSystem.file.impl": "org.apache.hadoop.fs.local.RawLocalFs",
}


def session_options(
    work: Path, java: Java, *, cores: int | None = None, memory_mb: int | None = None
) -> dict[str, str]:
    """Every setting of a session whose files lie in `work`."""
    cores = cores or min(os.cpu_count() or 1, 4)
    memory_mb = memory_mb or _memory_mb()
    path = os.pathsep.join(filter(None, [_source_path(), os.environ.get("PYTHONPATH")]))
    return {
        "spark.master": f"local[{cores}]",
        "spark.app.name": "tidegate",
        "spark.driver.memory": f"{memory_mb}m",
        "spark.driver.extraJavaOptions": " ".join(
            [*_JVM_OPTIONS, f"-Djava.io.tmpdir={work / 'tmp'}", f"-Dderby.system.home={work / 'tmp'}"]
        ),
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        # What has run is kept for the page of the web, by default with a thousand plans and 100,000 tasks, also when
        # nobody looks; a pipeline runs for months.
        "spark.ui.retainedJobs": "100",
        "spark.ui.retainedStages": "100",
        "spark.ui.retainedTasks": "1000",
        "spark.sql.ui.retainedExecutions": "50",
        "spark.log.level": "ERROR",
        "spark.local.dir": str(work / "tmp"),
        "spark.sql.warehouse.dir": str(work / "warehouse"),
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.ansi.enabled": "true",
        "spark.sql.shuffle.partitions": str(cores),
        "spark.default.parallelism": str(cores),
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
        "spark.python.worker.reuse": "true",
        "spark.python.authenticate.socketTimeout": "60s",
        "spark.scheduler.mode": "FIFO",
        "spark.locality.wait": "0",
        "spark.cleaner.periodicGC.interval": "10min",
        "spark.executorEnv.JAVA_HOME": str(java.home),
        **({"spark.executorEnv.PYTHONPATH": path} if path else {}),
        **CHEAP_BATCHES,
    }


def start_session(
    work: str | Path,
    options: Options | None = None,
    *,
    cores: int | None = None,
    memory_mb: int | None = None,
    ui: bool | int = False,
    java: Java | None = None,
    home: Path | None = None,
) -> SparkSession:
    """Start Spark in this process, with its files in `work`.

    `ui` is its web page: off, on a port that is free, or on that port. `options` are Spark's own settings and win over
    all others; what they say of `spark.driver.extraJavaOptions` is added. `home` is a home of Spark that `spark_home`
    has made elsewhere.

    Raises: `JavaMissing`; `InvalidArgument` when this process has a session already: hand that one over instead.
    """
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise InvalidArgument("Spark is not installed; run `pip install 'tidegate[spark]'`") from error
    if SparkSession.getActiveSession() is not None:
        raise InvalidArgument("this process has a SparkSession already; use it instead of starting another")
    work = Path(work).absolute()
    for name in ("tmp", "warehouse"):
        (work / name).mkdir(parents=True, exist_ok=True)
    java = java or find_java(work)
    settings = session_options(work, java, cores=cores, memory_mb=memory_mb)
    if ui is not False:
        settings |= {"spark.ui.enabled": "true", "spark.ui.port": "0" if ui is True else str(ui)}
    for name, value in (options or {}).items():
        text = str(value).lower() if isinstance(value, bool) else str(value)
        settings[name] = f"{settings[name]} {text}" if name == "spark.driver.extraJavaOptions" else text
    environment = {
        "JAVA_HOME": str(java.home),
        "SPARK_HOME": str(home or spark_home(work)),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }
    with _environment(environment):
        builder = SparkSession.builder
        for name, value in settings.items():
            builder = builder.config(name, value)
        try:
            return builder.getOrCreate()
        except Exception as error:
            if type(error).__name__ == "PySparkRuntimeError" and "JAVA_GATEWAY_EXITED" in str(error):
                raise Closed(
                    f"Java {java.version} at {java.home} ended while Spark was starting; see its output"
                ) from error
            raise


def stop_session(session: SparkSession, work: str | Path | None = None) -> None:
    """Stop Spark, end its JVM and remove its temporary files. May be repeated."""
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    process = getattr(gateway, "proc", None)
    with suppress(Exception):
        session.stop()
    if gateway is not None:
        with suppress(Exception):
            gateway.shutdown()
        SparkContext._gateway = None
        SparkContext._jvm = None
    if process is not None:
        with suppress(Exception):
            process.stdin.close()  # The JVM ends when this pipe does.
        with suppress(Exception):
            process.wait(20)
        if process.poll() is None:
            process.kill()
            process.wait(20)
    if work is not None:
        shutil.rmtree(Path(work) / "tmp", ignore_errors=True)


def jvm_pid(session: SparkSession) -> int | None:
    """The process of the session's JVM, when this process started it."""
    process = getattr(session.sparkContext._gateway, "proc", None)
    return None if process is None else int(process.pid)


def _memory_mb() -> int:
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20
    except (ValueError, OSError):
        return DRIVER_MB[0]
    return max(DRIVER_MB[0], min(total // 4, DRIVER_MB[1]))


def _source_path() -> str | None:
    """Where Spark's Python workers find this package when it is not installed like any other."""
    root = Path(tidegate.__file__).parents[1]
    return None if root.name in ("site-packages", "dist-packages") else str(root)


@contextmanager
def _environment(changes: Mapping[str, str]) -> Iterator[None]:
    """Spark takes these from the environment of the process; they are put back behind it."""
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
