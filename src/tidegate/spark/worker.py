"""`python -m tidegate.spark.worker`: the process that holds the pipeline's Spark driver.

It speaks JSON lines with whoever started it. Standard input is its lease: at its end the worker ends, however the other
side ended; should the pipe be open elsewhere too, it ends when its parent is another. Its JVM has a pipe to it as
standard input and ends when that does, so that it never stays behind; nor do Spark's Python workers, which have the
same from the JVM.

    it reads    {"cut": {...}}             a cut, as `encode_cut` writes it; saying one again does no harm
                {"committed": 7}           epochs up to 7 are in a checkpoint: the batch that waits for it is done
                {"stop": true}             finish the batch that runs, and end
    it writes   {"ready": {...}}           process ids, the link to Spark's page, how far the query had come
                {"batch": {...}}           a batch is folded: id, first, last, seconds, reports
                {"upkeep": {...}}          what compaction and garbage collection have done, and do now
                {"fills": [...]}           views that are filled beside the batches: how far they are
                {"barrier": "..."}         a barrier is wanted, and why
                {"done": 7}                Spark has been told that the batch up to epoch 7 is done
                {"error": "...", "why"}    it ends because of this
                {"stopped": true}          it ends because it was asked to

Exit codes: 0 asked to stop, 1 an error, 2 usage, 3 whoever started it is gone.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import warnings
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from threading import Condition, Event, Lock, Thread
from time import sleep
from typing import IO, TYPE_CHECKING, Any, Final, NoReturn

from tidegate.barrier.cut import decode_cut
from tidegate.clock.timestamp import Timestamp
from tidegate.errors import Closed, TidegateError
from tidegate.spark.cuts import CutFile, Point

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidegate.snapshots.store import SnapshotStore
    from tidegate.spark.archive import Archive
    from tidegate.spark.java import Java

_GONE: Final = 3
_CLASSES: Final = "classes"
"""The classes that the JVM has loaded, by name."""
_QUIET_S: Final = 10.0


class Voice:
    """What the worker says, a line at a time."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file
        self._lock = Lock()

    def say(self, **facts: Any) -> None:
        with self._lock, suppress(OSError, ValueError):  # Nobody listens: the lease ends us.
            self._file.write(json.dumps(facts, separators=(",", ":")) + "\n")
            self._file.flush()


class Orders:
    """What the worker is told, and what follows from it."""

    def __init__(self, cuts: CutFile) -> None:
        self._cuts = cuts
        self._changed = Condition()
        self._committed = 0
        self.is_stopped = False
        self._is_running = False

    def begin(self) -> bool:
        """The query starts now; False when it is not to start any more."""
        with self._changed:
            self._is_running = not self.is_stopped
            return self._is_running

    @property
    def may_end_now(self) -> bool:
        """Whether the worker is to stop and nothing has begun that would have to be finished."""
        with self._changed:
            return self.is_stopped and not self._is_running

    def take(self, message: dict[str, Any]) -> None:
        if "cut" in message:
            self._cuts.append(decode_cut(json.dumps(message["cut"]).encode()))
        with self._changed:
            self._committed = max(self._committed, int(message.get("committed", 0)))
            self.is_stopped = self.is_stopped or bool(message.get("stop"))
            self._changed.notify_all()

    def wait_committed(self, epoch: int) -> None:
        """Raises: `Closed` when the worker is to stop before; the batch is then run again by the next."""
        with self._changed:
            self._changed.wait_for(lambda: self._committed >= epoch or self.is_stopped)
            if self._committed < epoch:
                raise Closed(f"the worker was stopped before epoch {epoch} was in a checkpoint")

    def wait_stop(self, timeout_s: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self.is_stopped, timeout_s)


def main(arguments: list[str] | None = None) -> int:
    options = _parse(arguments)
    voice = Voice(_take_standard_output())
    parent = os.getppid()
    work = Path(options.work).absolute()
    work.mkdir(parents=True, exist_ok=True)
    cuts = CutFile(work / "query" / "cuts")
    cuts.path.parent.mkdir(parents=True, exist_ok=True)
    cuts.path.unlink(missing_ok=True)  # Whoever started us says them again.
    orders = Orders(cuts)
    Thread(target=_listen, args=(orders, voice), name="lease", daemon=True).start()
    try:
        _run(options, work, cuts, orders, voice, parent)
    except TidegateError as error:
        if orders.is_stopped:  # What it was about to do is done by the next.
            voice.say(stopped=True)
            _end(0)
        voice.say(error=str(error), why=str(getattr(error, "why", "")) or None)
        _end(1)
    except Exception as error:
        voice.say(error=f"{type(error).__name__}: {str(error)[:2000]}", why=None)
        _end(1)
    voice.say(stopped=True)
    _end(0)


def _run(options: argparse.Namespace, work: Path, cuts: CutFile, orders: Orders, voice: Voice, parent: int) -> None:
    warnings.filterwarnings("ignore", module="pyspark")  # What Spark says of its own dependencies helps nobody here.
    from tidegate.pipeline.view_stage import ViewStage, with_views
    from tidegate.spark.archive import find_archive
    from tidegate.spark.driver import Batch, Driver, read_progress
    from tidegate.spark.java import find_java
    from tidegate.spark.session import jvm_pid
    from tidegate.spark.statements import SparkStatements

    java = find_java(work / "spark")
    archive = find_archive(java)
    session = _start_session(options, work, java, archive)
    is_warm = Event()

    stage = ViewStage(
        Path(options.path),
        _store(Path(options.path)),
        spark=SparkStatements(session),
        say=lambda facts: voice.say(**facts),
    )

    def finish(batch: Batch) -> None:
        batch = replace(
            batch, reports=tuple(with_views(stage, batch.first, batch.last, cuts.read(batch.last), batch.reports))
        )
        voice.say(batch=batch.to_json())
        if not options.no_commit_wait:
            orders.wait_committed(batch.last)
        voice.say(done=batch.last)
        is_warm.set()

    driver = Driver(
        session,
        options.path,
        work / "query",
        options.fold,
        finish,
        start=Point(options.start_epoch, Timestamp(options.start_timestamp)),
        channels=tuple(options.channel),
        arguments=json.loads(options.arguments),
        epochs_max=options.max_epochs,
    )
    progress = read_progress(work / "query")
    if not orders.begin():
        return
    driver.start()
    voice.say(
        ready={
            "pid": os.getpid(),
            "jvm": jvm_pid(session),
            "ui": session.sparkContext.uiWebUrl,
            "begun": None if progress.begun is None else progress.begun.offset,
            "committed": None if progress.committed is None else progress.committed.offset,
        }
    )
    if archive is not None and not archive.exists:
        class_path = str(session.sparkContext._jvm.java.lang.System.getProperty("java.class.path"))
        Thread(target=_make_archive, args=(archive, java, work / _CLASSES, class_path, is_warm), daemon=True).start()
    if options.retention_s:
        _look_after(Path(options.path), options.retention_s, voice)
    while driver.is_active:
        if orders.wait_stop(0.5):
            driver.stop()
            break
        if os.getppid() != parent:
            _end(_GONE)
    driver.wait()


def _start_session(options: argparse.Namespace, work: Path, java: Java, archive: Archive | None) -> SparkSession:
    from tidegate.spark.session import QUICK_JVM, start_session

    settings = dict(each.partition("=")[::2] for each in options.conf)
    given = settings.get("spark.driver.extraJavaOptions", "")
    quick = "" if options.full_jvm else QUICK_JVM

    def start(of_archive: str, home: Path | None) -> SparkSession:
        settings["spark.driver.extraJavaOptions"] = " ".join(filter(None, [quick, of_archive, given]))
        facts = {"cores": options.cores, "memory_mb": options.memory_mb, "ui": options.ui}
        return start_session(work / "spark", settings, java=java, home=home, **facts)

    if archive is None:
        return start("", None)
    had_one = archive.exists
    try:
        return start(archive.options(work / _CLASSES), archive.home)
    except Closed:
        if not had_one:
            raise
        print(f"the JVM did not start with {archive.path}; it is removed", file=sys.stderr)
        with suppress(OSError):
            archive.path.unlink()
        return start("", archive.home)


def _make_archive(archive: Archive, java: Java, classes: Path, class_path: str, is_warm: Event) -> None:
    """Once the classes that matter are known, and whoever waits for the first batch has it."""
    is_warm.wait()
    sleep(_QUIET_S)
    with suppress(OSError):
        process = archive.make(java, classes, class_path)
        if process is not None:
            process.wait()


def _look_after(database: Path, retention_s: int, voice: Voice) -> None:
    """Compact snapshots and collect garbage beside the batches, and say how that goes. It ends with the process."""
    from tidegate.pipeline.upkeep import Upkeep

    upkeep = Upkeep(database, _store(database), retention_s)
    upkeep.start()

    def tell() -> None:
        before = None
        while True:
            now = {"compactions": upkeep.compactions, "collected": upkeep.collected, "running": upkeep.progress}
            if now != before:
                voice.say(upkeep=now)
            before = now
            sleep(1.0)

    Thread(target=tell, name="upkeep", daemon=True).start()


def _store(database: Path) -> SnapshotStore:
    from tidegate.snapshots.store import SnapshotStore
    from tidegate.stores.sqlite_metadata import SqliteMetadataStore

    return SnapshotStore(database / "snapshots", SqliteMetadataStore(database / "meta.sqlite"))


def _listen(orders: Orders, voice: Voice) -> None:
    for line in sys.stdin:
        try:
            orders.take(json.loads(line))
        except Exception as error:
            print(f"not understood, {error!r}: {line.strip()[:200]}", file=sys.stderr)
            _end(1)
        if orders.may_end_now:
            voice.say(stopped=True)
            _end(0)
    _end(0 if orders.is_stopped else _GONE, wait_s=10.0 if orders.is_stopped else 0.0)


def _end(code: int, wait_s: float = 0.0) -> NoReturn:
    """End at once, and the JVM with us: the pipe to it breaks. Tidying up is for those who start us again."""
    if wait_s:  # The main thread ends us first, unless it hangs.
        sleep(wait_s)
    with suppress(Exception):
        sys.stderr.flush()
    _kill_jvm()
    os._exit(code)


def _kill_jvm() -> None:
    context = sys.modules.get("pyspark.core.context")
    gateway = None if context is None else context.SparkContext._gateway
    process = getattr(gateway, "proc", None)
    if process is not None and process.poll() is None:
        with suppress(OSError):
            process.send_signal(signal.SIGKILL)


def _take_standard_output() -> IO[str]:
    """Only we write to it: what Spark, its JVM and its workers print goes to standard error."""
    ours = os.dup(1)
    os.dup2(2, 1)
    return os.fdopen(ours, "w", encoding="utf-8")


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tidegate.spark.worker", description="The pipeline's Spark driver.")
    parser.add_argument("path", help="the directory of the database")
    parser.add_argument("--work", required=True, help="where Spark and the query keep their files")
    parser.add_argument("--fold", required=True, help="the function that folds a share, as module:function")
    parser.add_argument("--arguments", default="{}", help="JSON for the fold")
    parser.add_argument("--channel", action="append", default=[], help="work on this channel; default: on all of a cut")
    parser.add_argument("--start-epoch", type=int, default=0, help="where a query without a history begins")
    parser.add_argument("--start-timestamp", type=int, default=0, help="its Timestamp")
    parser.add_argument("--max-epochs", type=int, default=None, help="the most epochs in one batch")
    parser.add_argument("--retention-s", type=int, default=0, help="look after snapshots, and keep old ones so long")
    parser.add_argument("--cores", type=int, default=None)
    parser.add_argument("--memory-mb", type=int, default=None)
    parser.add_argument("--ui", action="store_true", help="Spark's web page on a free port")
    parser.add_argument(
        "--full-jvm", action="store_true", help="let the JVM optimize fully: slower start, faster plans"
    )
    parser.add_argument("--no-commit-wait", action="store_true", help="a batch is done when it is folded")
    parser.add_argument("--conf", action="append", default=[], metavar="NAME=VALUE", help="a setting of Spark")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
