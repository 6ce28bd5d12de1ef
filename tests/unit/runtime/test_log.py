"""A whole log: one writing process, its lock, its channels, its end. Promises 6 and 8."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import pytest

import tidegate
from helpers import BROKEN, drain, eventually, held_open
from tidegate.errors import (
    ClockStalled,
    Closed,
    Fenced,
    InUse,
    InvalidArgument,
    LimitExceeded,
    NotFound,
    NotLeader,
    StorageFailed,
    TidegateError,
)
from tidegate.log.message import Position
from tidegate.runtime.log import Log, LogFiles
from tidegate.runtime.oracle import Oracle
from tidegate.runtime.segments import SegmentWriter
from tidegate.runtime.writer_lock import writer_of

HOLD = """
import sys
from tidegate import open_log
log = open_log(sys.argv[1])
writer = log.channel("c")
for line in sys.stdin:
    try:
        result = writer.append("a", line.strip().encode(), timeout_s=20)
        print("ok", int(result.time_tick), flush=True)
    except Exception as error:
        print(type(error).__name__, flush=True)
"""


class Child:
    """A process that writes one line after the other into the log."""

    def __init__(self, path: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def append(self, text: str) -> str:
        self.send(text)
        return self.answer()

    def send(self, text: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()

    def answer(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()


def bodies(path: Path) -> list[bytes | None]:
    with LogFiles(path).reader("c") as reader:
        return [each.body for each in drain(reader)]


# -- the lock ----------------------------------------------------------------------------------------------------


def test_a_log_open_in_another_process_is_in_use_and_the_error_names_the_process(
    tmp_path: Path, open_log: Callable[..., Log]
) -> None:
    child = Child(tmp_path / "log")
    try:
        assert child.append("1").startswith("ok")
        with pytest.raises(InUse, match=f"process {child.process.pid}.*takeover"):
            open_log()
        assert writer_of(tmp_path / "log") == f"process {child.process.pid}"
        assert child.append("2").startswith("ok"), "whoever was refused did no harm"
        child.process.kill()
        child.process.wait()
        log = open_log()
        log.channel("c").append("a", b"3")
        eventually(lambda: bodies(tmp_path / "log") == [b"1", b"2", b"3"])
    finally:
        child.close()


def test_a_second_handle_in_one_process_is_refused_too(open_log: Callable[..., Log]) -> None:
    log = open_log()
    with pytest.raises(InUse, match=f"process {os.getpid()}"):
        open_log()
    log.close()
    open_log()


def test_a_stopped_process_can_be_taken_over_and_finds_out_when_it_wakes(
    tmp_path: Path, open_log: Callable[..., Log]
) -> None:
    """Fencing at work: whatever it still writes is not part of the log, and its appends fail."""
    child = Child(tmp_path / "log")
    try:
        assert child.append("1").startswith("ok")
        child.process.send_signal(signal.SIGSTOP)
        child.send("asleep")
        log = open_log(takeover=True)
        log.channel("c").append("a", b"2")
        child.process.send_signal(signal.SIGCONT)
        assert child.answer() in ("Fenced", "NotLeader", "ClockStalled")
        log.channel("c").append("a", b"3", timeout_s=10)
        eventually(lambda: bodies(tmp_path / "log")[-1:] == [b"3"])
        assert bodies(tmp_path / "log") == [b"1", b"2", b"3"]
        with pytest.raises(InUse):
            open_log()
    finally:
        child.close()


FORK = """
import os, sys
from tidegate import open_log
from tidegate.errors import Closed
log = open_log(sys.argv[1])
writer = log.channel("c")
writer.append("a", b"1")
go, tell = os.pipe()
if os.fork() == 0:
    if sys.argv[2] == "close":
        os.read(go, 1)
        try:
            log.channel("c")
        except Closed as error:
            print(error)
        log.close()
    print("child is there", flush=True)
    sys.stdin.read()
    os._exit(0)
writer.append("a", b"2")
os.write(tell, b"!")
sys.stdin.read()
"""


@pytest.fixture
def forked(tmp_path: Path) -> Iterator[Callable[[str], subprocess.Popen[str]]]:
    """A process that has the log open and has forked; all of its family ends with the test."""
    family: list[subprocess.Popen[str]] = []

    def start(what: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", FORK, str(tmp_path / "log"), what]
        family.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        return family[0]

    yield start
    for each in family:
        each.kill()
        each.communicate(timeout=20)  # Ends the child as well, and waits until it has let go of its output.


def test_a_forked_child_does_not_hold_the_lock_when_its_parent_dies(
    tmp_path: Path, open_log: Callable[..., Log], forked: Callable[[str], subprocess.Popen[str]]
) -> None:
    parent = forked("stay")
    assert parent.stdout is not None
    assert parent.stdout.readline() == "child is there\n"
    parent.kill()
    parent.wait()
    log = open_log()
    log.channel("c").append("a", b"3")
    log.close()
    assert bodies(tmp_path / "log")[-1] == b"3"


def test_a_forked_child_that_closes_the_log_takes_nothing_from_its_parent(
    tmp_path: Path, open_log: Callable[..., Log], forked: Callable[[str], subprocess.Popen[str]]
) -> None:
    """Closing would unlock the log and cut it off where it ended when the child was made."""
    parent = forked("close")
    assert parent.stdout is not None
    assert "opened before a fork" in parent.stdout.readline()
    assert parent.stdout.readline() == "child is there\n"
    assert writer_of(tmp_path / "log") == f"process {parent.pid}"
    with pytest.raises(InUse):
        open_log()
    parent.kill()
    parent.wait()
    open_log().channel("c")
    assert bodies(tmp_path / "log") == [b"1", b"2"]


# -- names and places ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../x", "-x", "x" * 101, "é", "a b", "a\n", "lock"])
def test_a_bad_channel_name_is_refused_and_nothing_is_made(open_log: Callable[..., Log], name: str) -> None:
    log = open_log()
    with pytest.raises(InvalidArgument):
        log.channel(name)
    assert log.channels() == []


@pytest.mark.parametrize("name", ["a", "A-1_b.c", "0", "x" * 100, "lock2"])
def test_a_good_channel_name_is_taken_as_it_is(open_log: Callable[..., Log], name: str) -> None:
    log = open_log()
    assert log.channel(name).append("a", b"x").messages == 1
    assert log.channels() == [name]
    assert log.channel(name) is log.channel(name)


def test_there_are_at_most_channels_max(open_log: Callable[..., Log]) -> None:
    log = open_log(channels_max=2)
    log.channel("a")
    log.channel("b")
    with pytest.raises(LimitExceeded, match="channels_max"):
        log.channel("c")
    assert log.channel("a").append("v", b"x").messages == 1
    assert log.channels() == ["a", "b"]


def test_a_channel_that_does_not_exist_is_not_found(open_log: Callable[..., Log], tmp_path: Path) -> None:
    log = open_log()
    log.channel("known")
    for call in (
        lambda: log.channel("other", create=False),
        lambda: log.reader("other"),
        lambda: LogFiles(tmp_path / "log").reader("other"),
        lambda: LogFiles(tmp_path / "log").channel("../log"),
    ):
        with pytest.raises(NotFound, match="known"):
            call()


def test_a_path_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(InvalidArgument):
            Log(path)
    assert (tmp_path / "file").read_text() == "x"


def test_reading_where_there_is_no_log_is_not_found_and_makes_nothing(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="holds no log"):
        tidegate.read_log(tmp_path / "nothing")
    assert not (tmp_path / "nothing").exists()


@pytest.mark.parametrize("path", [".", "deep/er/log", "./x/../y"])
def test_a_log_may_lie_at_any_path(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    if ".." in path:
        (tmp_path / "x").mkdir()
    with Log(path) as log:
        log.channel("c").append("a", b"x")
    assert bodies(Path(path)) == [b"x"]
    assert not Path("/log/lock").exists()


# -- the end -------------------------------------------------------------------------------------------------------


def test_closing_twice_is_the_same_as_closing_once(open_log: Callable[..., Log]) -> None:
    log = open_log()
    log.channel("c")
    threads = threading.active_count()
    log.close()
    log.close()
    assert threading.active_count() < threads


def test_everything_after_the_end_says_closed(open_log: Callable[..., Log]) -> None:
    log = open_log()
    writer = log.channel("c")
    log.close()
    for call in (
        lambda: log.channel("c"),
        lambda: log.channel("d"),
        lambda: log.reader("c"),
        lambda: log.truncate("c", Position(1)),
        lambda: writer.append("a", b"x"),
        lambda: log.oracle.allocate(1),
        lambda: log.pin("c", "me", Position(1)),
        lambda: log.unpin("c", "me"),
        lambda: log.pins("c"),
    ):
        with pytest.raises(Closed):
            call()


def test_a_log_is_closed_at_the_end_of_a_with_block_also_after_an_error(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), Log(tmp_path / "log") as log:
        log.channel("c").append("a", b"x")
        raise ZeroDivisionError
    assert writer_of(tmp_path / "log") is None
    assert bodies(tmp_path / "log") == [b"x"]


def test_a_log_whose_oracle_fails_closes_all_the_same(open_log: Callable[..., Log], tmp_path: Path) -> None:
    log = open_log()
    writer = log.channel("c")
    writer.append("a", b"x")

    def stalled(count: int = 1) -> int:
        raise ClockStalled("no time")

    writer._allocate = stalled  # type: ignore[assignment]
    log.close()
    assert writer_of(tmp_path / "log") is None
    open_log().channel("c")
    assert bodies(tmp_path / "log") == [b"x"]


def test_a_failed_opening_leaves_the_lock_free(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.mkdir()
    (path / "meta.sqlite").write_bytes(b"this is no database at all, is it?" * 100)
    with pytest.raises(TidegateError):
        Log(path)
    assert writer_of(path) is None


def test_a_log_whose_oracle_cannot_start_leaves_nothing_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even while somebody looks at the error, which keeps the half-made log alive."""

    def refuse(self: Oracle, timeout_s: float = 10.0) -> None:
        raise NotLeader("somebody else leads")

    monkeypatch.setattr(Oracle, "start", refuse)
    with pytest.raises(NotLeader) as caught:
        Log(tmp_path / "log")
    assert held_open(tmp_path) == []
    assert caught.value.__traceback__ is not None


@pytest.mark.parametrize("call", ["recover", "write"])
def test_a_channel_that_cannot_be_opened_leaves_nothing_open(
    open_log: Callable[..., Log], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """Nor mapped into memory: neither when its end cannot be found nor when its first tick cannot be written."""

    def refuse(*_: object) -> NoReturn:
        raise OSError(BROKEN, "broken")

    log = open_log()
    with monkeypatch.context() as broken, pytest.raises(StorageFailed) as caught:
        broken.setattr(SegmentWriter, call, refuse)
        log.channel("c")
    assert held_open(tmp_path / "log" / "log" / "c") == []
    assert caught.value.__traceback__ is not None
    assert log.channel("c").append("a", b"x").messages == 1


@pytest.mark.parametrize("name", ["a", "b"])
def test_a_channel_that_fails_to_close_keeps_nothing_else_open(
    open_log: Callable[..., Log], tmp_path: Path, name: str
) -> None:
    log = open_log()
    writers = {each: log.channel(each) for each in ("a", "b")}
    close = writers[name].close

    def failing(timeout_s: float = 10.0) -> None:
        close(timeout_s)
        raise ZeroDivisionError

    writers[name].close = failing  # type: ignore[method-assign]
    with pytest.raises(ZeroDivisionError):
        log.close()
    assert writer_of(tmp_path / "log") is None
    assert held_open(tmp_path) == []


def test_open_files_are_given_back(open_log: Callable[..., Log], tmp_path: Path) -> None:
    log = open_log()
    for name in ("a", "b"):
        writer = log.channel(name)
        for _ in range(5):
            writer.append("v", bytes(40 << 10))
    reader = log.reader("a")
    drain(reader)
    reader.close()
    log.seal()
    log.close()
    assert held_open(tmp_path) == []


def test_status_tells_what_holds_a_channel_back(open_log: Callable[..., Log]) -> None:
    """Promise 8: which append holds the watermark back, as plain data."""
    log = open_log()
    writer = log.channel("c")
    with writer.reserve("a") as reservation:
        channel = log.status().channels["c"]
        assert channel["channel"]["oldest_in_flight"] == reservation.time_tick
        assert channel["holders"] == {"a": "shared by 1"}
    assert log.status().channels["c"]["channel"]["oldest_in_flight"] is None
    assert log.status().troubles == {}


def test_terms_only_ever_grow(open_log: Callable[..., Log]) -> None:
    """Fact 43."""
    terms = []
    for _ in range(4):
        log = open_log()
        terms.append(log.channel("c").term)
        log.close()
    assert terms == [1, 2, 3, 4]


def test_a_fenced_log_does_not_take_its_channel_back(open_log: Callable[..., Log]) -> None:
    old = open_log()
    mine = old.channel("c")
    old.oracle.close()  # as if the lease had run out while the process was stopped
    new = open_log(takeover=True)
    theirs = new.channel("c")
    with pytest.raises(TidegateError):
        mine.append("a", b"x", timeout_s=10)
    with pytest.raises(TidegateError):
        old.channel("c").append("a", b"x", timeout_s=10)
    with pytest.raises(TidegateError):
        old.channel("new one").append("a", b"x", timeout_s=10)
    assert theirs.append("a", b"y", timeout_s=10).messages == 1
    assert not isinstance(theirs._closed, Fenced)


def test_a_log_whose_metadata_is_lost_goes_on_above_what_its_files_have_seen(tmp_path: Path) -> None:
    """Terms start again in an empty store; a segment of a smaller term would not count as part of the log."""
    path = tmp_path / "lost"
    for life in range(3):
        with Log(path) as log:
            log.channel("c").append("a", b"%d" % life)
    for lost in path.glob("meta.sqlite*"):
        lost.unlink()
    for fence in (path / "log" / "c").glob("fence*"):
        fence.unlink()  # As after a restart of the machine.
    with Log(path) as log:
        assert log.channel("c").term == 4
        log.channel("c").append("a", b"after")
    with Log(path) as log:
        target = log.channel("c").latest_tick.time_tick
        found: list[bytes | None] = []
        with LogFiles(path).reader("c") as reader:
            while reader.tick is None or reader.tick.time_tick < target:
                delivery = reader.read(10)
                assert delivery is not None
                found += [each.body for each in delivery.messages()]
    assert found == [b"0", b"1", b"2", b"after"]
