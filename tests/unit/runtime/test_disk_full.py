"""A disk that is full or broken: errors say what became of the append, reads go on, appends resume. Promise 6."""

from __future__ import annotations

import errno
from itertools import count

import pytest

from helpers import BROKEN, FULL, Rig, commit_all, tick
from tidegate.errors import DiskFull, OutcomeUnknown, Retryable, StorageFailed, TidegateError
from tidegate.runtime.verify import verify

BIG = bytes(40 << 10)


def readable(rig: Rig) -> list[int]:
    return [len(each or b"") for each in rig.bodies()]


def test_a_full_disk_refuses_the_append_and_takes_the_next_one_once_there_is_room(rig: Rig) -> None:
    """Room is reserved a segment at a time; when the next cannot be had, nothing of the append was written."""
    writer = rig.writer()
    writer.append("a", BIG)
    tick(writer)
    with rig.files.failing(FULL, "create"):
        for _ in range(3):
            with pytest.raises(DiskFull, match=r"nothing of the append was written.*by themselves"):
                writer.append("a", BIG, timeout_s=5)
            assert "no room" in (writer.status().last_error or "")
        assert writer.append("a", b"small", timeout_s=5).messages == 1, "what fits into the segment still is written"
        tick(writer)
        assert readable(rig) == [len(BIG), 5], "reads go on"
    writer.append("a", BIG, timeout_s=5)
    assert writer.status().last_error is None
    tick(writer)
    assert readable(rig) == [len(BIG), 5, len(BIG)]
    assert isinstance(DiskFull("x"), Retryable)


def test_quota_counts_as_full_and_other_errors_as_broken(rig: Rig) -> None:
    writer = rig.writer()
    writer.append("a", BIG)
    with rig.files.failing(errno.EDQUOT, "create"), pytest.raises(DiskFull):
        writer.append("a", BIG, timeout_s=5)
    with rig.files.failing(BROKEN, "create"), pytest.raises(StorageFailed, match="Input/output error"):
        writer.append("a", BIG, timeout_s=5)


@pytest.mark.parametrize("number", [FULL, BROKEN])
@pytest.mark.parametrize("call", ["write", "sync"])
def test_a_failed_write_or_sync_is_cut_off_and_is_not_part_of_the_log(rig: Rig, call: str, number: int) -> None:
    """Law 6 of the files: after a failed sync what was written since the last good one is never trusted again."""
    writer = rig.writer()
    writer.append("a", b"1")
    fails = count()
    path = str(rig.channel.segments()[-1].name)

    def once(each: str, where: str) -> int | None:
        return number if each == call and path in where and next(fails) == 0 else None

    rig.files.rule = once
    expected = DiskFull if number == FULL else StorageFailed
    with pytest.raises(expected, match="cut off and is not part of the log"):
        writer.append("a", b"2", timeout_s=5)
    writer.append("a", b"3", timeout_s=5)
    tick(writer)
    assert rig.bodies() == rig.bodies(writer) == [b"1", b"3"]
    rig.writer()
    assert rig.bodies() == [b"1", b"3"], "nor after it was opened again"
    assert verify(rig.channel, "c").problems == []


@pytest.mark.parametrize("call", ["write", "sync"])
def test_when_the_log_cannot_be_cut_either_the_outcome_is_unknown_until_it_can(rig: Rig, call: str) -> None:
    writer = rig.writer()
    writer.append("a", b"1")
    with rig.files.failing(BROKEN, call, "create"):
        with pytest.raises(OutcomeUnknown, match="read before you repeat"):
            writer.append("a", b"2", timeout_s=5)
        with pytest.raises(TidegateError):
            writer.append("a", b"3", timeout_s=5)
    writer.append("a", b"4", timeout_s=5)
    tick(writer)
    bodies = rig.bodies()
    assert bodies in ([b"1", b"4"], [b"1", b"2", b"4"])
    assert rig.bodies(writer) == bodies
    rig.writer()
    assert rig.bodies() == bodies


@pytest.mark.parametrize("call", ["create", "write", "sync", "sync_dir", "remove"])
@pytest.mark.parametrize("skip", range(4))
def test_an_error_at_any_call_leaves_a_log_that_goes_on_and_holds_what_was_acknowledged(
    rig: Rig, call: str, skip: int
) -> None:
    """One error at each place a commit can meet one, with rolls in between."""
    writer = rig.writer()
    acknowledged: list[bytes] = []
    uncertain: list[bytes] = []
    with rig.files.failing(FULL, call, after=skip):
        for n in range(4):
            body = b"%d" % n + bytes(30 << 10)
            try:
                writer.append("a", body, timeout_s=5)
            except OutcomeUnknown:
                uncertain.append(body)
            except Retryable:
                continue
            else:
                acknowledged.append(body)
    last = writer.append("a", b"last", timeout_s=5)
    assert last.messages == 1
    tick(writer)
    found = rig.bodies()
    assert [each for each in found if each not in uncertain] == [*acknowledged, b"last"]
    assert rig.bodies(writer) == found
    rig.writer()
    assert rig.bodies() == found
    assert verify(rig.channel, "c").problems == []


def test_a_group_fails_as_one_and_everybody_is_told(rig: Rig) -> None:
    writer = rig.writer()
    pending = [writer.append_async("a", b"%d" % n) for n in range(20)]
    with rig.files.failing(FULL, "write"):
        commit_all(writer)
    assert all(isinstance(each.exception(0), TidegateError) for each in pending)
    assert writer.status().in_flight_bytes == 0


def test_a_failed_append_never_holds_the_watermark(rig: Rig) -> None:
    """Fact 13: an error acknowledges too; the tick goes on."""
    writer = rig.writer()
    writer.append("a", BIG)
    with rig.files.failing(FULL, "create"), pytest.raises(DiskFull):
        writer.append("a", BIG, timeout_s=5)
    result = writer.append("a", b"x", timeout_s=5)
    tick(writer)
    assert writer.status().channel.synced >= result.time_tick
    assert readable(rig) == [len(BIG), 1]


def test_a_tick_that_could_not_be_written_is_made_up_for_by_the_next(rig: Rig) -> None:
    writer = rig.writer()
    writer.append("a", b"x")
    with rig.files.failing(BROKEN, "write", "create"):
        writer.tick()
        commit_all(writer)
    assert rig.bodies() == []
    tick(writer)
    assert rig.bodies() == [b"x"]


def test_a_reserved_time_tick_is_let_go_when_its_write_fails(rig: Rig) -> None:
    writer = rig.writer()
    reservation = writer.reserve("a")
    pending = reservation.append_async(b"held")
    with rig.files.failing(BROKEN, "write"):
        commit_all(writer)
    assert isinstance(pending.exception(0), TidegateError)
    assert writer.status().holders == {}
    writer.append("a", b"x", timeout_s=5)
    tick(writer)
    assert rig.bodies() == [b"x"]


def test_a_full_disk_at_opening_is_told_as_such(rig: Rig) -> None:
    rig.writer().append("a", b"1")
    with rig.files.failing(FULL, "create"), pytest.raises(DiskFull, match="could not be opened"):
        rig.writer()
    writer = rig.writer()
    assert rig.bodies() == [b"1"]
    assert writer.append("a", b"2").messages == 1


def test_an_index_that_cannot_be_written_fails_nobody(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    from tidegate.log import segment

    monkeypatch.setattr(segment, "INDEX_EVERY", 200)
    writer = rig.writer()
    with rig.files.failing(FULL, "write", only=".idx"):
        for n in range(20):
            writer.append("a", b"%d" % n, timeout_s=5)
    tick(writer)
    assert rig.bodies() == [b"%d" % n for n in range(20)]
    rig.writer()
    assert rig.bodies() == [b"%d" % n for n in range(20)]


def test_closing_on_a_broken_disk_still_closes(rig: Rig) -> None:
    writer = rig.writer(start=True)
    writer.append("a", b"1")
    with rig.files.failing(BROKEN, "sync", "write", "create"):
        writer.close()
    assert not writer.is_open
    rig.writer()
    assert rig.bodies() == [b"1"]


def test_with_interval_durability_a_segment_is_durable_before_the_next_one_says_where_it_ends(rig: Rig) -> None:
    """Otherwise a loss of power would turn messages nobody promised into damage that stops every reader."""
    writer = rig.writer(durability="interval")
    writer.append("a", BIG)
    first = rig.channel.segments()[-1].name
    rig.files.calls.clear()
    writer.append("a", BIG)
    calls = [(call, path) for call, path in rig.files.calls if call in ("sync", "create")]
    assert calls[0] == ("sync", f"c/{first}")
    assert calls[1][0] == "create"
