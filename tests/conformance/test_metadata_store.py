"""One suite for every metadata store. Each test names the law of `ports/metadata.py` that it checks."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import tidegate.errors
from tidegate.errors import Closed, NotLeader, OutcomeUnknown, StoreUnavailable
from tidegate.ports.metadata import MetadataStore
from tidegate.stores.memory_metadata import ManualClock, MemoryMetadataStore, MemoryState
from tidegate.stores.sqlite_metadata import SqliteMetadataStore


@dataclass
class World:
    """One store that any number of handles can be opened on, and the clock its leases run by."""

    make: Callable[[ManualClock], MetadataStore]
    clock: ManualClock = field(default_factory=ManualClock)
    handles: list[MetadataStore] = field(default_factory=list)

    def open(self) -> MetadataStore:
        self.handles.append(self.make(self.clock))
        return self.handles[-1]


@pytest.fixture(params=["memory", "sqlite"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    if request.param == "memory":
        state = MemoryState()
        world = World(lambda clock: MemoryMetadataStore(clock, state))
    else:
        world = World(lambda clock: SqliteMetadataStore(tmp_path / "meta.db", clock=clock))
    yield world
    for handle in world.handles:
        handle.close()


# -- keys ----------------------------------------------------------------------------------------------------


def test_law_1_a_write_through_one_handle_is_read_through_another(world: World) -> None:
    one, other = world.open(), world.open()
    version = one.compare_and_set("k", b"1", expected=0)
    found = other.get("k")
    assert found is not None
    assert (found.value, found.version) == (b"1", version)


def test_law_1_of_many_threads_that_expect_one_version_exactly_one_writes(world: World) -> None:
    handles = [world.open() for _ in range(4)]
    won: list[int] = []

    def race(store: MetadataStore) -> None:
        version = store.compare_and_set("k", b"x", expected=0)
        if version is not None:
            won.append(version)

    threads = [threading.Thread(target=race, args=(handle,)) for handle in handles for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1


def test_law_2_an_absent_key_has_version_0(world: World) -> None:
    store = world.open()
    assert store.get("k") is None
    assert store.compare_and_set("k", b"", expected=0)
    found = store.get("k")
    assert found is not None
    assert found.value == b""


def test_law_2_no_version_of_a_key_comes_back_not_even_after_a_delete(world: World) -> None:
    store = world.open()
    seen: list[int] = []
    expected = 0
    for value in (b"a", b"b", None, b"a", None, None, b"c"):
        version = store.compare_and_set("k", value, expected=expected)
        assert version is not None
        seen.append(version)
        expected = version if value is not None else 0
    assert len(set(seen)) == len(seen)
    assert 0 not in seen


def test_law_2_a_writer_that_slept_through_a_delete_and_a_rewrite_loses(world: World) -> None:
    store = world.open()
    old = store.compare_and_set("k", b"a", expected=0)
    assert old is not None
    store.compare_and_set("k", None, expected=old)
    store.compare_and_set("k", b"a", expected=0)
    assert store.compare_and_set("k", b"mine", expected=old) is None


def test_law_3_a_wrong_expectation_changes_nothing(world: World) -> None:
    store = world.open()
    version = store.compare_and_set("k", b"1", expected=0)
    assert version is not None
    for value in (b"2", None):
        assert store.compare_and_set("k", value, expected=0) is None
        assert store.compare_and_set("k", value, expected=version + 1) is None
    found = store.get("k")
    assert found is not None
    assert (found.value, found.version) == (b"1", version)


def test_law_4_what_was_written_outlives_the_handle(world: World) -> None:
    first = world.open()
    version = first.compare_and_set("k", b"kept", expected=0)
    first.close()
    found = world.open().get("k")
    assert found is not None
    assert (found.value, found.version) == (b"kept", version)


def test_law_5_a_closed_handle_raises_and_does_not_say_absent(world: World) -> None:
    store = world.open()
    store.close()
    for ask in (lambda: store.get("k"), lambda: store.list(""), lambda: store.holder("l")):
        with pytest.raises(Closed):
            ask()


def test_list_gives_the_present_keys_of_a_prefix_in_order(world: World) -> None:
    store = world.open()
    for key in ("a/2", "a/10", "b", "a", "a/%", "a_", "A/1", "a/ü", "a/3"):
        assert store.compare_and_set(key, key.encode(), expected=0)
    gone = store.get("a/3")
    assert gone is not None
    store.compare_and_set("a/3", None, expected=gone.version)
    assert list(store.list("a/")) == ["a/%", "a/10", "a/2", "a/ü"]
    assert list(store.list("a/%")) == ["a/%"]
    assert len(store.list("")) == 8
    assert all(found == store.get(key) for key, found in store.list("").items())


# -- leases --------------------------------------------------------------------------------------------------


def test_law_6_only_one_owner_holds_a_lease_and_everybody_sees_who(world: World) -> None:
    one, other = world.open(), world.open()
    lease = one.acquire("l", "ann", ttl_ms=1000)
    assert lease is not None
    assert (lease.name, lease.owner, lease.ttl_ms) == ("l", "ann", 1000)
    assert other.acquire("l", "bo", ttl_ms=1000) is None
    assert other.holder("l") == lease
    assert other.acquire("another", "bo", ttl_ms=1000) is not None


def test_law_6_a_lease_ends_when_its_time_is_up_and_not_before(world: World) -> None:
    store = world.open()
    assert store.acquire("l", "ann", ttl_ms=1000)
    world.clock.pass_s(0.998)
    assert store.acquire("l", "bo", ttl_ms=1000) is None
    world.clock.pass_s(0.003)
    assert store.holder("l") is None
    assert store.acquire("l", "bo", ttl_ms=1000)


def test_law_6_setting_the_wall_clock_ends_no_lease(world: World) -> None:
    store = world.open()
    lease = store.acquire("l", "ann", ttl_ms=1000)
    assert lease is not None
    world.clock.wall += 86_400_000
    assert store.acquire("l", "bo", ttl_ms=1000) is None
    assert store.renew(lease) == lease


def test_law_6_a_released_lease_is_free_at_once(world: World) -> None:
    one, other = world.open(), world.open()
    lease = one.acquire("l", "ann", ttl_ms=60_000)
    assert lease is not None
    one.release(lease)
    assert other.holder("l") is None
    assert other.acquire("l", "bo", ttl_ms=1000)


def test_law_7_the_holder_gets_its_lease_back_and_its_time_anew(world: World) -> None:
    store = world.open()
    lease = store.acquire("l", "ann", ttl_ms=1000)
    assert lease is not None
    world.clock.pass_s(0.9)
    assert store.acquire("l", "ann", ttl_ms=1000) == lease
    world.clock.pass_s(0.9)
    assert store.holder("l") == lease


def test_law_7_every_new_holder_has_a_larger_epoch_however_the_last_one_ended(world: World) -> None:
    store = world.open()
    epochs = []
    for owner in ("ann", "bo", "ann", "ann"):
        lease = store.acquire("l", owner, ttl_ms=1000)
        assert lease is not None
        epochs.append(lease.epoch)
        if owner == "bo":
            store.release(lease)
        else:
            world.clock.pass_s(1.001)
    assert epochs == sorted(set(epochs))


def test_law_7_renewing_keeps_the_epoch_and_starts_the_time_again(world: World) -> None:
    store = world.open()
    lease = store.acquire("l", "ann", ttl_ms=1000)
    assert lease is not None
    for _ in range(5):
        world.clock.pass_s(0.9)
        assert store.renew(lease) == lease
    assert store.acquire("l", "bo", ttl_ms=1000) is None


def test_law_8_a_lost_lease_stays_lost(world: World) -> None:
    store = world.open()
    lease = store.acquire("l", "ann", ttl_ms=1000)
    assert lease is not None
    world.clock.pass_s(1.001)
    with pytest.raises(NotLeader, match="nobody holds it"):
        store.renew(lease)
    successor = store.acquire("l", "bo", ttl_ms=1000)
    assert successor is not None
    with pytest.raises(NotLeader, match="'bo' holds it"):
        store.renew(lease)
    store.release(lease)  # no error, and not the successor's lease either
    assert store.holder("l") == successor
    world.clock.pass_s(1.001)
    again = store.acquire("l", "ann", ttl_ms=1000)
    assert again is not None
    with pytest.raises(NotLeader):
        store.renew(lease)
    assert store.renew(again) == again


# -- the store in memory -------------------------------------------------------------------------------------


def test_law_6_the_memory_store_ends_the_leases_of_an_owner_said_to_be_dead() -> None:
    clock, state = ManualClock(), MemoryState()
    store = MemoryMetadataStore(clock, state)
    lease = store.acquire("l", "ann", ttl_ms=60_000)
    assert lease is not None
    state.owner_died("ann")
    assert store.acquire("l", "bo", ttl_ms=1000)
    with pytest.raises(NotLeader):
        store.renew(lease)


def test_law_9_a_fault_before_the_write_leaves_nothing_and_one_after_it_leaves_it_written() -> None:
    store = MemoryMetadataStore(ManualClock())

    def fail(operation: str, key: str, done: bool) -> None:
        if done:
            raise OutcomeUnknown(f"{operation} {key}")

    store.fault = fail
    with pytest.raises(OutcomeUnknown, match="compare_and_set k"):
        store.compare_and_set("k", b"x", expected=0)
    store.fault = None
    assert store.get("k") is not None


# -- the store in SQLite -------------------------------------------------------------------------------------

CONTEND = """
import sys
from tidegate.stores.sqlite_metadata import SqliteMetadataStore
store = SqliteMetadataStore(sys.argv[1], busy_timeout_ms=60_000)
won = []
while len(won) < int(sys.argv[2]):
    found = store.get("n")
    value, expected = (int(found.value), found.version) if found else (0, 0)
    version = store.compare_and_set("n", str(value + 1).encode(), expected=expected)
    if version is not None:
        won.append(version)
print(*won)
"""

HOLD = """
import sys
from tidegate.stores.sqlite_metadata import SqliteMetadataStore
store = SqliteMetadataStore(sys.argv[1])
lease = store.acquire("l", "ann", ttl_ms=600_000)
store.compare_and_set("k", b"kept", expected=0)
print(lease.epoch, flush=True)
sys.stdin.read()
"""


def spawn(script: str, *args: object) -> subprocess.Popen[str]:
    source = Path(tidegate.errors.__file__).parents[1]
    return subprocess.Popen(
        [sys.executable, "-c", script, *map(str, args)],
        env={**os.environ, "PYTHONPATH": str(source)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_law_1_processes_that_count_together_lose_no_count(tmp_path: Path) -> None:
    """The file does not exist before, so that making it is part of the contention."""
    path = tmp_path / "meta.db"
    children = [spawn(CONTEND, path, 100) for _ in range(4)]
    versions = [int(word) for child in children for word in child.communicate(timeout=60)[0].split()]
    assert [child.returncode for child in children] == [0] * 4
    store = SqliteMetadataStore(path)
    found = store.get("n")
    store.close()
    assert found is not None
    assert found.value == b"400"
    assert len(set(versions)) == 400


def test_laws_4_and_6_the_lease_of_a_killed_process_ends_at_once_and_its_writes_stay(tmp_path: Path) -> None:
    path = tmp_path / "meta.db"
    child = spawn(HOLD, path)
    assert child.stdout is not None
    epoch = int(child.stdout.readline())
    store = SqliteMetadataStore(path)
    assert store.acquire("l", "bo", ttl_ms=1000) is None
    assert store.acquire("l", "ann", ttl_ms=1000) is None, "the name alone does not make it the holder"
    child.send_signal(signal.SIGKILL)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # dead, and still a zombie: we have not reaped it
    assert store.holder("l") is None
    lease = store.acquire("l", "bo", ttl_ms=1000)
    assert lease is not None
    assert lease.epoch > epoch
    found = store.get("k")
    assert found is not None
    assert found.value == b"kept"
    child.communicate()
    store.close()


@pytest.mark.parametrize(
    ("column", "value", "held"),
    [
        ("boot", "an earlier boot", False),  # the machine went down since, and every process with it
        ("started", "1", False),  # the process id was given to another process since
        ("pid", 2**22 + 1, False),  # above the largest process id: nobody
        ("pid_space", "another container's", True),  # its process ids mean nothing here: only time ends it
    ],
)
def test_law_6_a_lease_ends_when_its_process_is_known_to_be_dead(
    tmp_path: Path, column: str, value: object, held: bool
) -> None:
    path = tmp_path / "meta.db"
    store = SqliteMetadataStore(path)
    assert store.acquire("l", "ann", ttl_ms=600_000)
    if column == "pid_space":
        edit(path, "UPDATE lease SET pid = ?", 2**22 + 1)
    edit(path, f"UPDATE lease SET {column} = ?", value)
    assert (store.holder("l") is not None) == held
    assert (store.acquire("l", "bo", ttl_ms=1000) is None) == held
    store.close()


def edit(path: Path, statement: str, value: object) -> None:
    db = sqlite3.connect(path)
    with db:
        db.execute(statement, (value,))
    db.close()


def test_law_5_a_locked_file_is_an_error_that_says_so(tmp_path: Path) -> None:
    path = tmp_path / "meta.db"
    store = SqliteMetadataStore(path, busy_timeout_ms=10)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreUnavailable, match=r"meta\.db: another process holds it locked"):
        store.compare_and_set("k", b"x", expected=0)
    other.execute("ROLLBACK")
    assert store.compare_and_set("k", b"x", expected=0)
    other.close()
    store.close()


def test_law_5_a_file_that_is_something_else_is_an_error_that_says_so(tmp_path: Path) -> None:
    path = tmp_path / "meta.db"
    path.write_bytes(b"this is a text, and a long one, not a database" * 100)
    with pytest.raises(StoreUnavailable, match="not a metadata file"):
        SqliteMetadataStore(path)


def test_law_5_a_damaged_file_is_an_error_that_says_so(tmp_path: Path) -> None:
    path = tmp_path / "meta.db"
    store = SqliteMetadataStore(path)
    for n in range(200):
        assert store.compare_and_set(f"k{n}", b"x" * 200, expected=0)
    store.close()
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * (size - 4096))
    with pytest.raises(StoreUnavailable, match="damaged"):
        store = SqliteMetadataStore(path)
        store.get("k1")
    store.close()


def test_law_5_a_missing_directory_is_an_error_that_says_so(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="check that its directory exists"):
        SqliteMetadataStore(tmp_path / "nowhere" / "meta.db")


@pytest.mark.parametrize(
    ("pragma", "says"), [("max_page_count = 1", "its disk is full"), ("query_only = 1", "it is read-only")]
)
def test_law_9_a_write_that_found_no_room_or_no_right_is_known_to_be_absent(
    tmp_path: Path, pragma: str, says: str
) -> None:
    store = SqliteMetadataStore(tmp_path / "meta.db")
    assert store._db is not None
    store._db.execute(f"PRAGMA {pragma}")
    with pytest.raises(StoreUnavailable, match=says):
        store.compare_and_set("k", b"x" * 100_000, expected=0)
    assert store.get("k") is None
    store.close()


def test_law_9_a_commit_whose_outcome_nobody_knows_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = SqliteMetadataStore(tmp_path / "meta.db")

    def fail(db: sqlite3.Connection) -> None:
        error = sqlite3.OperationalError("disk I/O error")
        error.sqlite_errorcode = sqlite3.SQLITE_IOERR_FSYNC
        raise error

    monkeypatch.setattr(store, "_commit", fail)
    with pytest.raises(OutcomeUnknown, match=r"key 'k' may or may not have been written .* read it"):
        store.compare_and_set("k", b"x", expected=0)
    with pytest.raises(OutcomeUnknown, match="lease 'l'"):
        store.acquire("l", "ann", ttl_ms=1000)
    monkeypatch.undo()
    assert store.compare_and_set("k", b"x", expected=0), "the handle still works"
    store.close()


def test_law_4_writes_are_synced_before_they_return(tmp_path: Path) -> None:
    store = SqliteMetadataStore(tmp_path / "meta.db")
    assert store._db is not None
    assert store._db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert store._db.execute("PRAGMA synchronous").fetchone() == (2,)
    store.close()


def test_a_handle_does_not_cross_a_fork(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = SqliteMetadataStore(tmp_path / "meta.db")
    pid = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: pid + 1)
    with pytest.raises(Closed, match="before a fork"):
        store.get("k")
    monkeypatch.undo()
    store.close()
