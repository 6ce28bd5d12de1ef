"""Files that transactions are applied to and that fail: each error names the file, and a repeat goes on where it was.

"The way back" is that of issue 7 (seed 003).
"""

from __future__ import annotations

import ctypes
import gc
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import turso

import tidegate
from apply_rig import Rig
from children import Child
from database_rig import quick
from tidegate.capture.target import ApplyConflict, TargetBusy, TargetRefused, open_target
from tidegate.database.database import Database
from tidegate.errors import DiskFull, InvalidArgument, StorageFailed, Unavailable

KINDS = ("sqlite", "turso")

# -- a disk without room ---------------------------------------------------------------------------------------------

LIMITED = """
import resource, sys, time
import tidegate
from tidegate import DatabaseSettings, TidegateError

path, url, limit = sys.argv[1], sys.argv[2], int(sys.argv[3])
_, most = resource.getrlimit(resource.RLIMIT_FSIZE)
db = tidegate.open(path, settings=DatabaseSettings(pipeline=False))
assert not db.is_owner
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, most))
try:
    db.apply(["t", "events"], url, chunk_rows=5)
except TidegateError as error:
    print(type(error).__name__, error, flush=True)
following = db.apply(["t", "events"], url, chunk_rows=5, follow=True)
while following.trouble is None and following.error is None:
    time.sleep(0.01)
print(following.state, type(following.trouble).__name__, following.error, flush=True)
resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
while following.trouble is not None and following.error is None:
    time.sleep(0.01)
following.stop()
db.apply(["t", "events"], url)
print("done", flush=True)
"""


def filled(db: Database, url: str) -> None:
    """Sixty transactions of 20 rows that were not applied yet."""
    db.sql("CREATE TABLE t (id BIGINT PRIMARY KEY, v STRING)")
    db.sql("CREATE TABLE events (n BIGINT)")  # Without a key, what comes twice is there twice.
    db.apply(["t", "events"], url)
    for number in range(60):
        with db.transaction() as txn:
            txn.insert("t", [(number * 20 + each, os.urandom(300).hex()) for each in range(20)])
            txn.insert("events", [(number,)])


@pytest.mark.parametrize("limit", [70_000, 200_000])
@pytest.mark.parametrize("kind", KINDS)
def test_a_file_that_cannot_grow_has_whole_transactions_and_gets_the_rest(
    tmp_path: Path, kind: str, limit: int
) -> None:
    """The way back, no room: named, never half of a transaction, none lost, none twice."""
    file = tmp_path / "target.db"
    with tidegate.open(tmp_path / "here.tide", settings=quick(pipeline=False)) as db:
        filled(db, f"{kind}:///{file}")
        command = [sys.executable, "-c", LIMITED, str(db.path), f"{kind}:///{file}", str(limit)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
        assert done.returncode == 0, done.stderr
        first, second, *rest = done.stdout.splitlines()
        assert re.match(r"(DiskFull|StorageFailed) .*target\.db: .*Nothing of the chunk was applied", first)
        assert second.split() == ["waiting", first.split()[0], "None"]
        assert rest == ["done"]
        look: Any = sqlite3.connect(file) if kind == "sqlite" else turso.connect(str(file))
        assert look.execute("SELECT count(*), count(DISTINCT n) FROM events").fetchall() == [(60, 60)]
        assert look.execute("SELECT count(*) FROM t").fetchall() == [(1200,)]
        look.close()


@pytest.mark.parametrize("kind", KINDS)
def test_the_command_says_in_a_line_that_there_is_no_room(tmp_path: Path, kind: str) -> None:
    """Exit code 1 and no traceback; what was applied before is said."""
    file = tmp_path / "target.db"
    with tidegate.open(tmp_path / "here.tide", settings=quick(pipeline=False)) as db:
        filled(db, f"{kind}:///{file}")
        apply = f"'{sys.executable}' -m tidegate.cli.main apply t events --from '{db.path}' --to '{kind}:///{file}'"
        for options, code in (("--once --chunk-rows 5", 1), ("--once", 0)):
            limit = "ulimit -f 200; " if code else ""
            command = ["/bin/sh", "-c", f"{limit}{apply} {options}"]
            done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
            assert done.returncode == code, done.stderr
            assert len(done.stderr.splitlines()) == (1 if code else 0)
        assert "transactions with" in done.stdout


class NamedByTurso(Exception):
    """As Turso raises some of its errors: of its module, and of none of the classes that it documents."""


NamedByTurso.__module__ = "turso"


@pytest.mark.parametrize(
    ("name", "said", "error", "match"),
    [
        ("IoError", "pwritev: StorageFull", DiskFull, r"target\.db: .*StorageFull; make room"),
        ("IoError", "pwrite: QuotaExceeded", DiskFull, "make room"),
        ("IoError", "fsync: Uncategorized", StorageFailed, "check its disk"),
        ("IoError", "open: PermissionDenied", Unavailable, "check its permissions"),
        ("Readonly", "attempt to write a readonly database", Unavailable, "check its permissions"),
        ("PanicException", "assertion failed", TargetRefused, "assertion failed; nothing of the chunk"),
        ("Other", "something new", TargetRefused, "something new; nothing of the chunk"),
    ],
)
def test_no_error_of_tursos_gets_out_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, said: str, error: type[Exception], match: str
) -> None:
    """Fact: pyturso raises classes that it does not document, which are none of `turso.Error`."""
    target = open_target(f"turso:///{tmp_path}/target.db")
    made = type(name, (NamedByTurso,), {"__module__": "turso"})

    def failing(*_: Any) -> Any:
        raise made(said)

    monkeypatch.setattr(turso.Connection, "execute", failing)
    with pytest.raises(error, match=match):
        target.run("SELECT 1")
    target.close()


# -- who may not -----------------------------------------------------------------------------------------------------


@contextmanager
def as_somebody() -> Iterator[Path]:
    """A directory; within, this thread may not write to what the file system does not let everybody write to."""
    libc = ctypes.CDLL(None)
    folder = Path(tempfile.mkdtemp(prefix="tgro", dir="/tmp"))  # Nobody may look into those of pytest's.
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        libc.setfsuid(os.geteuid())
        shutil.rmtree(folder)


def drop_rights() -> None:
    if os.geteuid() == 0:
        ctypes.CDLL(None).setfsuid(65534)  # Of this thread alone.


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_that_may_only_be_read_says_to_look_at_its_permissions(kind: str) -> None:
    """The way back: named, and with what to do."""
    with as_somebody() as folder:
        target = open_target(f"{kind}:///{folder}/target.db")
        target.prepare()
        target.close()
        for each in folder.iterdir():
            each.chmod(0o444)
        folder.chmod(0o555)
        drop_rights()
        with pytest.raises(Unavailable, match=r"target\.db cannot be written to .*check its permissions"):
            target = open_target(f"{kind}:///{folder}/target.db")
            target.begin()
            target.forget("n")


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_that_cannot_be_created_says_so(kind: str) -> None:
    with as_somebody() as folder:
        folder.chmod(0o555)
        drop_rights()
        with pytest.raises(Unavailable, match=r"target\.db cannot be (opened|written to).*permissions"):
            open_target(f"{kind}:///{folder}/target.db")


@pytest.mark.parametrize("kind", KINDS)
def test_a_directory_is_no_file(kind: str, tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match=r"cannot be opened: .*check the path"):
        open_target(f"{kind}:///{tmp_path}")


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_kept_in_memory_only_is_refused(kind: str) -> None:
    """The way back: the target keeps how far it is, and memory does not."""
    with pytest.raises(InvalidArgument, match=f"{kind}:///:memory: is gone when applying ends.*name a file"):
        open_target(f"{kind}:///:memory:")


@pytest.mark.parametrize("name", ["turso_cdc", "TURSO_cdc_version", "sqlite_x", "own_log"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_table_that_is_called_as_one_of_the_files_own_is_refused(kind: str, name: str, tmp_path: Path) -> None:
    """The way back: nobody's rows come among the changes that captures of the file take."""
    look: Any = (sqlite3 if kind == "sqlite" else turso).connect(str(tmp_path / "target.db"))
    if name == "own_log":
        look.execute("CREATE TABLE turso_cdc_version (table_name TEXT PRIMARY KEY, version TEXT NOT NULL)")
        look.execute("INSERT INTO turso_cdc_version VALUES ('own_log', 'v2')")
        look.execute(
            "CREATE TABLE own_log (change_id INTEGER PRIMARY KEY AUTOINCREMENT, change_time INTEGER,"
            " change_type INTEGER, table_name TEXT, id, before BLOB, after BLOB, updates BLOB, change_txn_id INTEGER)"
        )
        look.commit()
    rig = Rig(tmp_path / "here.tide", f"{kind}:///{tmp_path}/target.db", look, kind)
    rig.db.sql(f"CREATE TABLE {name} (id BIGINT PRIMARY KEY)")
    with pytest.raises(InvalidArgument, match=f"table '{name}' cannot be applied there, as "):
        rig.apply(name)
    rig.close()


# -- whose file it is ------------------------------------------------------------------------------------------------

OPENING = "import sys, turso; print(turso.connect(sys.argv[1]).execute('SELECT count(*) FROM t').fetchall())"


def opened_by_another(path: Path) -> str:
    command = [sys.executable, "-c", OPENING, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return (done.stdout or done.stderr).strip()


def test_a_turso_file_is_free_for_others_when_applying_has_ended(tmp_path: Path) -> None:
    """Fact: Turso lets one process at a time open a file; it is let go of at once, also after errors on the way."""
    path = tmp_path / "target.db"
    look = turso.connect(str(path))
    look.execute("CREATE TABLE t (id BIGINT PRIMARY KEY, up BIGINT REFERENCES t (id))")
    look.commit()
    look.close()
    del look
    gc.collect()
    gc.disable()
    try:
        with tidegate.open(tmp_path / "here.tide", settings=quick(pipeline=False)) as db:
            db.sql("CREATE TABLE t (id BIGINT PRIMARY KEY, up BIGINT)")
            for first in (1, 3):
                with db.transaction() as txn:  # Rows in a circle: at first each of them is refused.
                    txn.insert("t", [(first, first + 1), (first + 1, first)])
                db.apply("t", f"turso:///{path}")
                assert opened_by_another(path) == f"[({first + 1},)]"
            db.insert("t", [(9, 10)])
            with pytest.raises(ApplyConflict) as raised:
                db.apply("t", f"turso:///{path}")
            assert opened_by_another(path) == "[(4,)]", raised.value
    finally:
        gc.enable()


def test_a_turso_file_that_another_process_has_open_is_named(tmp_path: Path) -> None:
    path = tmp_path / "target.db"
    child = Child(
        "import sys, time, turso\nc = turso.connect(sys.argv[1])\nc.execute('CREATE TABLE IF NOT EXISTS t (id)')\n"
        "print('ready', flush=True)\ntime.sleep(600)",
        path,
        errors=tmp_path / "errors",
    )
    try:
        child.wait_ready()
        with pytest.raises(TargetBusy, match=r"target\.db is open in another process, and Turso lets one at a time"):
            open_target(f"turso:///{path}")
    finally:
        child.kill()
    open_target(f"turso:///{path}").close()
