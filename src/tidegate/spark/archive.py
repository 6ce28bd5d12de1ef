"""Classes of Spark in a form that a JVM maps instead of loading: a class-data archive, which halves Spark's start.

Made once for each Java and Spark, in the user's cache directory, in the background of the first worker that lives long
enough: that worker's JVM lists the classes it loads, and another JVM, of the lowest priority, writes the archive.
Whoever starts later uses it. It only ever saves time: where it is missing, damaged, of another Java or cannot
be written, Spark starts as without it.

    python -m tidegate.spark.archive TARGET JAVA CLASSES < class path, then nothing until whoever started it ends
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from threading import Event, Thread
from typing import Final

from tidegate.errors import TidegateError
from tidegate.spark.home import spark_home
from tidegate.spark.java import Java, cache_directory

_KEPT: Final = 2
"""Archives, the ones used last; each has about 170 MB."""
_FREE_BYTES: Final = 2 << 30
"""With less room on the disk none is made."""
_DUMP_S: Final = 600.0
_NICE: Final = 19
_LEASE: Final = 0
"""Standard input: it ends when whoever started this one does."""


@dataclass(frozen=True, slots=True)
class Archive:
    """The archive of one Java and one Spark, whether or not it is there yet."""

    path: Path
    home: Path
    """The home of Spark that it is for: a JVM takes an archive only for the class path it was made with."""

    @property
    def exists(self) -> bool:
        return self.path.is_file()

    def options(self, classes: Path) -> str:
        """What the JVM is to be told: to use it, or to list the classes that one is made of."""
        if not self.exists:
            return f"-XX:DumpLoadedClassList={classes}"
        with suppress(OSError):
            os.utime(self.path)  # It is in use; see `_KEPT`.
        # Its checksum costs a tenth of a second, and a damaged one would otherwise end the JVM sooner or later.
        return f"-XX:SharedArchiveFile={self.path} -XX:+VerifySharedSpaces -Xshare:auto"

    def make(self, java: Java, classes: Path, class_path: str) -> subprocess.Popen[bytes] | None:
        """Begin to make it, in a process that ends with this one. None when there is nothing to do."""
        if self.exists or not classes.is_file() or shutil.disk_usage(self.path.parent).free < _FREE_BYTES:
            return None
        command = [sys.executable, "-m", "tidegate.spark.archive", *map(str, (self.path, java.executable, classes))]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        if process.stdin is not None:
            process.stdin.write(class_path.encode() + b"\n")
            process.stdin.flush()
        return process


def find_archive(java: Java, cache: Path | None = None) -> Archive | None:
    """Where the archive for this Java is, or would be; None where there is no place for one that is safe to use."""
    try:
        root = (cache or cache_directory()) / "spark"
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
        found = root.stat()
        # Whoever can write there can put code into our JVM.
        if found.st_uid != os.getuid() or found.st_mode & 0o022 or not os.access(root, os.W_OK | os.X_OK):
            return None
        import pyspark

        package = Path(pyspark.__file__).parent
        home = spark_home(root / _key(str(package), pyspark.__version__))
        # A runtime that was replaced, or jars that were: the JVM would find out, and never use the archive.
        executable = Path(os.path.realpath((java.behind or java.home) / "bin" / "java"))
        stamps = [str(each.stat().st_mtime_ns) for each in (executable, home / "jars")]
        return Archive(root / f"classes-{_key(str(executable), str(home), *stamps)}.jsa", home)
    except (OSError, TidegateError):
        return None


def main(arguments: list[str]) -> int:
    target, java, classes = Path(arguments[0]), arguments[1], arguments[2]
    os.nice(_NICE)
    class_path = sys.stdin.readline().strip()
    with target.with_suffix(".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return 0  # Another does it.
        if target.exists():
            return 0
        # Whoever left files of these names is dead: he would hold the lock.
        for left in target.parent.glob(f"{target.name}.*"):
            left.unlink(missing_ok=True)
        return _dump(target, java, classes, class_path)


def _dump(target: Path, java: str, classes: str, class_path: str) -> int:
    staged = target.with_name(f"{target.name}.{os.getpid()}")
    command = [
        *(java, "-Xshare:dump", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx1g", "-Xlog:disable"),
        *(f"-XX:SharedClassListFile={classes}", f"-XX:SharedArchiveFile={staged}", "-cp", class_path),
    ]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    orphaned = Event()
    Thread(target=_kill_with_parent, args=(process, orphaned), name="lease", daemon=True).start()
    try:
        code = process.wait(_DUMP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        code = 1
    if code or not staged.is_file():
        staged.unlink(missing_ok=True)
        return 3 if orphaned.is_set() else 1
    with staged.open("rb") as file:
        os.fsync(file.fileno())
    staged.replace(target)
    archives = sorted(target.parent.glob("classes-*.jsa"), key=lambda each: each.stat().st_mtime, reverse=True)
    for old in archives[_KEPT:]:
        old.unlink(missing_ok=True)
    return 0


def _kill_with_parent(process: subprocess.Popen[bytes], orphaned: Event) -> None:
    while os.read(_LEASE, 1024):  # Not through sys.stdin, whose lock the interpreter wants when it ends.
        pass
    orphaned.set()
    process.kill()


def _key(*facts: str) -> str:
    return sha256("\0".join(facts).encode()).hexdigest()[:16]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
