"""The reorder buffer: TimeTick order whatever the physical order was. Promise 1, seed 000, fact 32."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest

from tidegate.errors import InvariantBroken
from tidegate.log.batch import Batch, body_rows
from tidegate.log.message import Term
from tidegate.log.reorder import ReorderBuffer


def batch(ticks: Sequence[int], first_position: int = 1) -> Batch:
    """Messages with these TimeTicks, whose bodies are their TimeTicks."""
    count = len(ticks)
    return Batch(
        time_ticks=np.array(ticks, np.uint64),
        positions=np.arange(first_position, first_position + count, dtype=np.uint64),
        last_confirmed=np.ones(count, np.uint64),
        types=np.full(count, 2, np.uint8),
        vchannel_ids=np.zeros(count, np.uint16),
        vchannels=("v",),
        rows=body_rows([b"%d" % each for each in ticks]),
        term=Term(1),
    )


def popped(buffer: ReorderBuffer, tick: int) -> list[int]:
    messages = [message for each in buffer.pop_until(tick) for message in each.messages()]
    assert [each.body for each in messages] == [b"%d" % each.time_tick for each in messages], "rows moved along"
    return [int(each.time_tick) for each in messages]


def test_a_random_permutation_comes_out_in_order_tick_by_tick() -> None:
    """Fact 32: a permutation of 25; up to 0 none, 1, 10 and 25 give 1, 9 and 15."""
    ticks = list(range(1, 26))
    random.Random(3).shuffle(ticks)
    buffer = ReorderBuffer()
    for each in ticks:
        buffer.push(batch([each]))
    assert len(buffer) == 25
    assert popped(buffer, 0) == []
    assert popped(buffer, 1) == [1]
    assert popped(buffer, 10) == list(range(2, 11))
    assert popped(buffer, 25) == list(range(11, 26))
    assert (len(buffer), buffer.nbytes) == (0, 0)


def test_a_message_at_or_below_a_delivered_tick_is_a_violation_and_names_its_place() -> None:
    """Reference 7.2: the tick's promise was false."""
    buffer = ReorderBuffer()
    buffer.pop_until(10)
    for late in (10, 3):
        with pytest.raises(InvariantBroken, match=f"position 8 has TimeTick {late}.*tick 10"):
            buffer.push(batch([50, late], first_position=7))
    buffer.push(batch([11]))
    assert popped(buffer, 11) == [11]


def test_a_reader_that_starts_behind_a_time_tick_takes_nothing_at_or_below_it() -> None:
    buffer = ReorderBuffer(after=100)
    with pytest.raises(InvariantBroken):
        buffer.push(batch([100]))
    buffer.push(batch([101]))


def test_a_tick_never_goes_back() -> None:
    buffer = ReorderBuffer()
    buffer.pop_until(10)
    with pytest.raises(InvariantBroken, match="tick 9 came after tick 10"):
        buffer.pop_until(9)
    assert buffer.pop_until(10) == []


def test_batches_in_order_pass_through_untouched() -> None:
    """The common case costs nothing per row: the very same objects come out."""
    first, second = batch([1, 2, 3]), batch([4, 5])
    buffer = ReorderBuffer()
    buffer.push(second)
    buffer.push(first)
    found = buffer.pop_until(5)
    assert found[0] is first
    assert found[1] is second


def test_a_batch_is_split_at_the_tick() -> None:
    buffer = ReorderBuffer()
    buffer.push(batch([5, 1, 4, 2, 3]))
    assert popped(buffer, 2) == [1, 2]
    assert len(buffer) == 3
    assert buffer.nbytes > 0
    assert popped(buffer, 3) == [3]
    assert popped(buffer, 99) == [4, 5]


def test_batches_that_overlap_are_cut_so_that_their_sequence_ascends() -> None:
    buffer = ReorderBuffer()
    buffer.push(batch([1, 4, 7, 10]))
    buffer.push(batch([9, 2, 8]))
    buffer.push(batch([3, 20]))
    buffer.push(batch([5, 6]))
    assert popped(buffer, 10) == list(range(1, 11))
    assert popped(buffer, 20) == [20]


def test_two_messages_at_one_time_tick_are_our_defect() -> None:
    buffer = ReorderBuffer()
    buffer.push(batch([1, 5]))
    buffer.push(batch([3, 5]))
    with pytest.raises(InvariantBroken, match="same TimeTick"):
        buffer.pop_until(9)


def test_the_same_time_tick_twice_in_one_batch_is_our_defect_too() -> None:
    buffer = ReorderBuffer()
    buffer.push(batch([5, 1, 5]))
    with pytest.raises(InvariantBroken, match="same TimeTick"):
        buffer.pop_until(9)
