"""The write-ahead buffer: the newest part of a channel in memory. Reference 7.5, fact 37."""

from __future__ import annotations

import pytest

from tidegate.clock.timestamp import Timestamp
from tidegate.errors import InvariantBroken
from tidegate.log.block import Encoded
from tidegate.log.message import Position, Tick
from tidegate.log.write_ahead_buffer import Evicted, WriteAheadBuffer


def persisted(at: int) -> Tick:
    return Tick(Timestamp(at), Position(at), Position(at), persisted=True)


def passing(at: int) -> Tick:
    return Tick(Timestamp(at), Position(at), Position(at), persisted=False)


def block(first: int, last: int, size: int = 10) -> Encoded:
    return Encoded((bytes(size),), size, 0, first, last)


def ticks(buffer: WriteAheadBuffer, after: int) -> list[int] | None:
    """The ticks a reader at `after` gets; None when it has to go to the files."""
    found = buffer.read_after(after)
    return None if isinstance(found, Evicted) else [int(each.tick.time_tick) for each in found]


@pytest.fixture
def buffer() -> WriteAheadBuffer:
    return WriteAheadBuffer(persisted(100), bytes_max=100, age_max_s=30)


def test_a_reader_never_loses_messages_without_eviction(buffer: WriteAheadBuffer) -> None:
    for at in (110, 120, 130):
        buffer.push(persisted(at), [block(at - 5, at)], now=1)
    assert ticks(buffer, 100) == [110, 120, 130]
    assert ticks(buffer, 110) == [120, 130]
    assert ticks(buffer, 130) == []
    found = buffer.read_after(110)
    assert not isinstance(found, Evicted)
    assert [each.first_time_tick for entry in found for each in entry.blocks] == [115, 125]


def test_what_lies_before_the_first_tick_is_in_the_files(buffer: WriteAheadBuffer) -> None:
    """Fact 37: reading before the first is Evicted, and says how far."""
    assert buffer.read_after(99) == Evicted(100)
    assert ticks(buffer, 100) == []


def test_the_oldest_go_first_and_a_reader_behind_them_is_told(buffer: WriteAheadBuffer) -> None:
    """Fact 37: with room for 100 bytes and entries of 40, the last two stay."""
    for at in (110, 120, 130, 140):
        buffer.push(persisted(at), [block(at - 5, at, 40)], now=1)
    assert buffer.nbytes == 80
    assert ticks(buffer, 119) is None
    assert ticks(buffer, 120) == [130, 140]
    assert ticks(buffer, 130) == [140]


def test_the_newest_is_never_evicted_however_large_or_old(buffer: WriteAheadBuffer) -> None:
    buffer.push(persisted(110), [block(105, 110, 1000)], now=1)
    assert ticks(buffer, 100) == [110]
    buffer.push(persisted(120), [block(115, 120, 1)], now=1000)
    assert ticks(buffer, 110) == [120]
    assert ticks(buffer, 100) is None


def test_age_evicts_too(buffer: WriteAheadBuffer) -> None:
    buffer.push(persisted(110), [block(105, 110)], now=1)
    buffer.push(persisted(120), [block(115, 120)], now=31)
    assert ticks(buffer, 100) == [110, 120]
    buffer.push(persisted(130), [block(125, 130)], now=31.5)
    assert ticks(buffer, 100) is None
    assert ticks(buffer, 110) == [120, 130]


def test_a_tick_that_was_not_written_is_kept_apart_and_only_the_newest_of_them(buffer: WriteAheadBuffer) -> None:
    """Fact 37: only the newest trivial tick is returned; a reader at it waits."""
    buffer.push(persisted(110), [block(105, 110)], now=1)
    buffer.advance(passing(115))
    buffer.advance(passing(116))
    assert (int(buffer.latest.time_tick), buffer.latest.persisted) == (116, False)
    assert ticks(buffer, 110) == []
    assert ticks(buffer, 116) == []
    buffer.push(persisted(120), [block(117, 120)], now=1)
    assert ticks(buffer, 116) == [120], "a reader that was given 116 gets what came after it"
    assert ticks(buffer, 110) == [120]
    assert buffer.latest == persisted(120)


def test_what_was_too_much_to_keep_is_marked_as_gone(buffer: WriteAheadBuffer) -> None:
    buffer.push(persisted(110), [block(105, 110)], now=1)
    buffer.skip(persisted(120))
    assert ticks(buffer, 110) is None
    assert ticks(buffer, 120) == []
    assert (buffer.nbytes, int(buffer.latest.time_tick)) == (0, 120)
    buffer.push(persisted(130), [block(125, 130)], now=2)
    assert ticks(buffer, 120) == [130]


def test_ticks_strictly_increase(buffer: WriteAheadBuffer) -> None:
    buffer.push(persisted(110), [], now=1)
    buffer.advance(passing(115))
    for wrong in (
        lambda: buffer.push(persisted(115), [], now=1),
        lambda: buffer.push(persisted(90), [], now=1),
        lambda: buffer.push(passing(120), [], now=1),
        lambda: buffer.advance(passing(115)),
        lambda: buffer.advance(persisted(120)),
        lambda: buffer.skip(persisted(115)),
    ):
        with pytest.raises(InvariantBroken, match="cannot follow"):
            wrong()
