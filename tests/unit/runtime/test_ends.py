"""How things end: interrupted, fenced while closing, closed and used again."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

import pytest

from helpers import Calls, Rig, drain, eventually, tick
from tidegate.errors import Closed, Fenced, InvalidArgument
from tidegate.runtime.log import Log, LogFiles


def test_closing_in_the_middle_of_a_commit_cuts_nothing_off(rig: Rig) -> None:
    """The disk answered too late for closing to wait for it; what it then acknowledges is there."""
    writer = rig.writer()
    pending = writer.append_async("a", b"kept")
    commit = writer.next_commit()
    assert commit is not None
    writer.write(commit)
    writer.sync(commit)
    writer.close()
    writer.finish(commit)
    assert pending.result().messages == 1
    rig.writer()
    assert rig.bodies() == [b"kept"]


def test_a_writer_fenced_while_it_closes_cuts_nothing_off(rig: Rig, calls: Calls) -> None:
    """Its last block was whole when the new owner looked, so it is part of the new owner's log."""
    old = rig.writer(start=True)
    sync, reached, answer = old.segments.sync, threading.Event(), threading.Event()

    def slow() -> None:
        reached.set()
        assert answer.wait(20)
        sync()

    old.segments.sync = slow  # type: ignore[method-assign]
    pending = old.append_async("a", b"kept")
    assert reached.wait(10)
    closing = calls(old.close)
    eventually(lambda: not old.is_open)
    new = rig.writer()
    answer.set()
    closing.result(20)
    assert isinstance(pending.exception(10), Fenced)
    tick(new)
    assert rig.bodies() == [b"kept"]


def test_an_interrupt_in_the_middle_of_a_commit_leaves_the_channel_working(rig: Rig) -> None:
    writer = rig.writer()
    sync = writer.segments.sync
    calls = iter([KeyboardInterrupt()])

    def interrupted() -> None:
        error = next(calls, None)
        if error is not None:
            raise error
        sync()

    writer.segments.sync = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        writer.append("a", b"interrupted", timeout_s=5)
    writer.append("a", b"next", timeout_s=5)
    tick(writer)
    assert rig.bodies()[-1] == b"next"


def test_an_interrupt_while_waiting_leaves_nobody_without_a_writer(rig: Rig) -> None:
    """Ctrl-C reaches the main thread while it waits for its turn behind a reservation."""
    writer = rig.writer(start=True)
    hold = writer.reserve("a")
    here = threading.get_ident()
    timer = threading.Timer(0.2, lambda: signal.pthread_kill(here, signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        writer.append("a", b"alone", exclusive=True, timeout_s=20)
    timer.join()
    for _ in range(2):  # The first finds the interrupted one behind it, and must not leave the writing to it.
        writer.append("b", b"other", timeout_s=5)
    hold.release()
    assert writer.append("a", b"next", timeout_s=5).messages == 1


def test_a_callback_that_waits_for_another_append_is_refused(rig: Rig) -> None:
    """It runs on the thread that writes for everybody, so it would wait for itself."""
    writer = rig.writer(start=True)
    found: list[BaseException] = []
    done = threading.Event()

    def again(_: object) -> None:
        try:
            writer.append("a", b"inside", timeout_s=5)
        except InvalidArgument as error:
            found.append(error)
        done.set()

    hold = writer.reserve("a")
    pending = writer.append_async("a", b"alone", exclusive=True)
    pending.add_done_callback(again)
    hold.release()
    assert done.wait(10)
    assert "append_async" in str(found[0])


def test_a_closed_channel_says_so_without_keeping_what_was_refused(rig: Rig) -> None:
    writer = rig.writer()
    writer.close()
    for _ in range(3):
        with pytest.raises(Closed) as caught:
            writer.append("a", b"late")
    depth = 0
    trace = caught.value.__traceback__
    while trace is not None:
        depth, trace = depth + 1, trace.tb_next
    assert depth < 8


def test_a_tick_without_messages_is_a_delivery_and_a_closed_reader_delivers_none(tmp_path: Path) -> None:
    with Log(tmp_path / "log") as log:
        log.channel("c")
        reader = LogFiles(tmp_path / "log").reader("c")
        delivery = reader.read(10)
        assert delivery is not None
        assert (len(delivery), bool(delivery)) == (0, True)
        drain(reader)
        reader.close()
        with pytest.raises(Closed):
            reader.poll()
