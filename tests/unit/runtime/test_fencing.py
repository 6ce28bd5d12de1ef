"""Terms: once a newer writer has opened a channel, an older one can never again acknowledge. Facts 38, 43, 58."""

from __future__ import annotations

import itertools
import random

import pytest

from helpers import BROKEN, Rig, commit_all, drain, tick
from tidegate.errors import Fenced, TidegateError
from tidegate.log.segment import SegmentId
from tidegate.runtime.channel_writer import ChannelWriter
from tidegate.runtime.pending import PendingAppend
from tidegate.runtime.verify import verify

STEPS = ("collect", "write", "sync", "finish")


class Stepped:
    """A writer whose commit is done one step at a time, so that anything may happen in between."""

    def __init__(self, writer: ChannelWriter) -> None:
        self.writer = writer
        self.commit = None
        self.error: TidegateError | None = None

    def step(self, name: str) -> None:
        writer = self.writer
        if name == "collect":
            self.commit = writer.next_commit()
            return
        if self.commit is None:
            return
        try:
            match name:
                case "write" if self.error is None:
                    writer.write(self.commit)
                case "sync" if self.error is None:
                    writer.sync(self.commit)
                case "finish":
                    writer.finish(self.commit, self.error)
                    self.commit = None
        except TidegateError as error:
            self.error = error
        except OSError as error:
            self.error = writer.abandon(self.commit, error)


def acknowledged(pending: list[PendingAppend]) -> list[bytes]:
    return [each.body for each in pending if each.is_done and each.error is None]


@pytest.mark.parametrize("paused_before", [*STEPS, "nothing"])
@pytest.mark.parametrize("seal", [False, True])
def test_an_older_writer_paused_anywhere_acknowledges_nothing_that_is_absent(
    rig: Rig, paused_before: str, seal: bool
) -> None:
    """ports/tail.py: either the old one sees the fence and acknowledges nothing, or the new one keeps what it wrote."""
    old = rig.writer(1)
    old.append("a", b"before")
    pending = [old.append_async("a", b"old %d" % n) for n in range(3)]
    stepped = Stepped(old)
    at = len(STEPS) if paused_before == "nothing" else STEPS.index(paused_before)
    for name in STEPS[:at]:
        stepped.step(name)
    new = rig.writer(2)
    if seal:
        rig.seal(new)
    seen_early = rig.bodies()
    fresh = new.append("a", b"new")
    for name in STEPS[at:]:
        stepped.step(name)
    commit_all(old)
    with pytest.raises(Fenced, match="term 1 was fenced by term 2"):
        old.append("a", b"too late", timeout_s=5)
    tick(new)
    found = rig.messages()
    bodies = [each.body for each in found]
    assert bodies[: len(seen_early)] == seen_early, "what readers saw stays"
    assert bodies[0] == b"before"
    assert bodies[-1] == b"new"
    assert b"too late" not in bodies
    for body in acknowledged(pending):
        assert bodies.count(body) == 1, f"acknowledged and absent after a pause before {paused_before}"
    assert all(each.is_done for each in pending)
    if paused_before in ("collect", "write"):
        assert acknowledged(pending) == []
    if paused_before == "nothing":
        assert acknowledged(pending) == [b"old 0", b"old 1", b"old 2"]
    assert found[-1].time_tick == fresh.time_tick
    assert verify(rig.channel, "c").problems == []


@pytest.mark.parametrize("seed", range(25))
def test_any_interleaving_of_two_writers_keeps_what_was_acknowledged(rig: Rig, seed: int) -> None:
    """Random steps of the old writer around the opening of the new one, with small segments so that both roll."""
    rng = random.Random(seed)
    old = rig.writer(1, segment_bytes=4 << 10, block_bytes_max=4 << 10, message_bytes_max=4 << 10)
    stepped = Stepped(old)
    new: ChannelWriter | None = None
    expected: list[bytes] = []
    pending: list[PendingAppend] = []
    steps = itertools.cycle(STEPS)
    opening = rng.randrange(4, 60)
    follower = rig.reader()
    followed: list[bytes | None] = []
    for n in range(80):
        if old.is_open and rng.random() < 0.6:
            pending.append(old.append_async("a", b"old %d " % n + bytes(rng.choice([0, 900]))))
        stepped.step(next(steps))
        if n == opening:
            new = rig.writer(2, segment_bytes=4 << 10, block_bytes_max=4 << 10, message_bytes_max=4 << 10)
        if new is not None and rng.random() < 0.5:
            body = b"new %d " % n + bytes(rng.choice([0, 900]))
            new.append("a", body)
            expected.append(body)
        if new is not None and rng.random() < 0.2:
            rig.seal(rng.choice([old, new]))
        if rng.random() < 0.2:
            tick(new) if new is not None else old.tick()
        followed.extend(each.body for each in drain(follower))
    assert new is not None
    tick(new)
    found = rig.messages()
    bodies = [each.body for each in found]
    followed.extend(each.body for each in drain(follower))
    assert followed == bodies, "whoever followed saw the same log"
    assert [body for body in bodies if body and body.startswith(b"new")] == expected
    for body in acknowledged(pending):
        assert bodies.count(body) == 1
    assert [each.term for each in found] == sorted(each.term for each in found)
    assert verify(rig.channel, "c").problems == []


def test_a_fenced_writers_later_rolls_and_seals_do_no_harm(rig: Rig) -> None:
    old = rig.writer(1)
    for n in range(10):
        old.append("a", b"%d" % n)
    old.segments.roll()
    old.append("a", b"10")
    new = rig.writer(2)
    new.append("a", b"11")
    with pytest.raises(Fenced):
        old.segments.roll()
    rig.seal(old)
    tick(new)
    expected = [b"%d" % n for n in range(12)]
    assert rig.bodies() == expected
    rig.seal(new)
    rig.seal(old)
    assert rig.bodies() == expected
    newest = rig.writer(3)
    left = rig.channel.describe(SegmentId(3, 1))
    assert left in newest.recovered.discarded, "what the fenced writer left is removed, and that is said"
    assert rig.bodies() == expected


def test_a_tail_published_by_a_fenced_writer_is_not_followed(rig: Rig) -> None:
    """Law 2 of the tail: each term has its own slot."""
    old = rig.writer(1)
    old.append("a", b"1")
    old.tick()
    commit_all(old)
    reader = rig.reader()
    assert [each.body for each in drain(reader)] == [b"1"]
    new = rig.writer(2)
    slot = rig.tail.slot(1)
    assert slot is not None
    slot.publish_tick(1 << 60)
    slot.publish_address((9 << 40) | 5)
    new.append("a", b"2")
    tick(new)
    assert [each.body for each in drain(reader)] == [b"2"]


def test_a_fenced_writer_fails_everything_that_waits(rig: Rig) -> None:
    old = rig.writer(1)
    reservation = old.reserve("a")
    blocked = old.append_async("a", b"x", exclusive=True)
    waiting = old.append_async("b", b"y")
    rig.writer(2)
    commit_all(old)
    for each in (blocked, waiting):
        assert isinstance(each.exception(0), Fenced)
    with pytest.raises(Fenced):
        reservation.append_async(b"z")
    with pytest.raises(Fenced) as caught:
        old.reserve("a")
    assert (caught.value.channel, caught.value.term, caught.value.current) == ("c", 1, 2)
    assert not old.is_open
    old.tick()
    old.close()


def test_a_fenced_writer_ticks_no_more(rig: Rig) -> None:
    old = rig.writer(1)
    old.append("a", b"1")
    new = rig.writer(2)
    before = old.status().channel.synced
    old.tick()
    commit_all(old)
    assert old.status().channel.synced == before
    tick(new)
    assert rig.bodies() == [b"1"]


def test_a_writer_of_an_older_term_cannot_open(rig: Rig) -> None:
    """Fact 43: terms only go forward."""
    new = rig.writer(5)
    new.append("a", b"x")
    with pytest.raises(Fenced, match="term 3 was fenced by term 5"):
        rig.writer(3)
    new.append("a", b"y", timeout_s=5)
    tick(new)
    assert rig.bodies() == [b"x", b"y"]


def test_a_term_whose_first_tick_cannot_be_written_does_not_open_and_the_next_does(rig: Rig) -> None:
    """Fact 42: any error of the first append fails the opening; nothing is retried."""
    rig.writer(1).append("a", b"1")
    with rig.files.failing(BROKEN, "sync", after=2), pytest.raises(TidegateError, match="first time tick"):
        rig.writer(2)
    assert rig.writer(3).append("a", b"2").messages == 1
    assert rig.bodies() == [b"1"]
    tick(rig.opened[-2])
    assert sorted(name for name in rig.files.names("c") if name.endswith(".tmp")) == []


def test_a_write_of_unknown_outcome_that_the_next_term_finds_whole_is_kept_or_cut_alike_for_everybody(rig: Rig) -> None:
    """What was not acknowledged is either whole or absent, and that is decided once."""
    old = rig.writer(1)
    old.append("a", b"1")
    with rig.files.failing(BROKEN, "sync", "create"), pytest.raises(TidegateError):
        old.append("a", b"2", timeout_s=5)
    new = rig.writer(2)
    first = rig.bodies()
    old.close()
    new.append("a", b"3")
    tick(new)
    assert rig.bodies() == [*first, b"3"]
    assert first in ([b"1"], [b"1", b"2"])
    assert verify(rig.channel, "c").problems == []
