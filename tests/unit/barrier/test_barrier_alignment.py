"""From a barrier to a cut: every channel ticks past it. Seed 001; checkpoints-and-views sections 1, 2.4 and 5."""

import pytest

from tidegate.barrier.alignment import Alignment, AskTicks, RecordCut
from tidegate.barrier.cut import Cut, Place
from tidegate.clock.timestamp import Timestamp
from tidegate.errors import InvariantBroken

CHANNELS = ("d0", "d1", "system")


def begin(alignment, at, channels=CHANNELS, *, is_checkpoint=True, now_ms=0):
    return alignment.begin(Timestamp(at), channels, is_checkpoint=is_checkpoint, now_ms=now_ms)


def tick(alignment, channel, at, position):
    return alignment.ticked(channel, Timestamp(at), position)


def tick_all(alignment, at, position, channels=CHANNELS):
    return [effect for name in channels for effect in tick(alignment, name, at, position)]


def test_every_channel_is_asked_to_tick_past_the_barrier():
    """Design: a barrier is a TimeTick; the system channel takes part."""
    assert begin(Alignment(), 100) == (AskTicks(1, Timestamp(100), CHANNELS),)


def test_the_cut_comes_when_the_last_channel_has_passed_and_not_before():
    """Section 5: a barrier goes on when it was collected from all upstreams."""
    alignment = Alignment()
    begin(alignment, 100)
    assert tick(alignment, "d0", 100, 1) == ()
    assert tick(alignment, "system", 130, 1) == ()
    assert tick(alignment, "d1", 99, 1) == ()
    (record,) = tick(alignment, "d1", 100, 2)
    assert isinstance(record, RecordCut)
    assert (record.cut.epoch, record.cut.since, record.cut.timestamp) == (1, 0, 100)


def test_a_cut_is_read_from_the_last_tick_at_or_below_it():
    """A tick that is past the barrier says nothing about where the messages between the two lie."""
    alignment = Alignment()
    tick_all(alignment, 90, 5)
    begin(alignment, 100)
    (record,) = tick_all(alignment, 120, 9)
    assert dict(record.cut.places) == {name: Place(5, Timestamp(90)) for name in CHANNELS}
    begin(alignment, 130)
    (record,) = tick_all(alignment, 130, 11)
    assert dict(record.cut.places) == {name: Place(11, Timestamp(130)) for name in CHANNELS}


def test_a_channel_without_a_tick_before_the_barrier_is_read_from_its_beginning():
    alignment = Alignment()
    begin(alignment, 100)
    (record,) = tick_all(alignment, 120, 9)
    assert dict(record.cut.places) == {}


def test_a_tick_that_overtook_the_barrier_counts():
    """Between taking a Timestamp and beginning, channels go on ticking."""
    alignment = Alignment()
    tick_all(alignment, 90, 5)
    tick_all(alignment, 120, 9)
    (record,) = begin(alignment, 100)
    assert dict(record.cut.places) == {name: Place(5, Timestamp(90)) for name in CHANNELS}


def test_many_ticks_without_a_barrier_keep_few_places_and_a_safe_one():
    """A bound on everything; the oldest place is safe for any barrier."""
    alignment = Alignment()
    for at in range(10, 1000, 10):
        tick(alignment, "d0", at, at)
    (record,) = begin(alignment, 500, ["d0"])
    assert record.cut.places["d0"] == Place(10, Timestamp(10))
    assert len(alignment._places["d0"]) <= 8


def test_cuts_come_out_in_order_and_without_a_gap():
    """Section 2.4: strict in-order promotion; section 1: contiguity."""
    alignment = Alignment()
    begin(alignment, 100, ["d0", "d1"])
    begin(alignment, 200, ["d1"])  # a channel less: it could be complete first
    assert tick(alignment, "d1", 250, 3) == ()
    first, second = tick(alignment, "d0", 100, 3)
    assert (first.cut.epoch, second.cut.epoch) == (1, 2)
    second.cut.require_after(first.cut)


def test_one_tick_may_let_several_barriers_pass():
    alignment = Alignment()
    for at in (100, 200, 300):
        begin(alignment, at, ["d0"])
    assert [record.cut.epoch for record in tick(alignment, "d0", 250, 1)] == [1, 2]
    assert [barrier.epoch for barrier in alignment.pending] == [3]


def test_a_tick_that_was_overtaken_changes_nothing():
    alignment = Alignment()
    tick(alignment, "d0", 100, 9)
    begin(alignment, 150, ["d0"])
    assert tick(alignment, "d0", 90, 4) == ()
    (record,) = tick(alignment, "d0", 150, 9)
    assert record.cut.places["d0"] == Place(9, Timestamp(150))


def test_a_barrier_that_does_not_rise_is_a_defect():
    """Section 2.3: no regress."""
    alignment = Alignment()
    begin(alignment, 100)
    with pytest.raises(InvariantBroken):
        begin(alignment, 100)


def test_a_channel_that_is_removed_is_not_waited_for():
    alignment = Alignment()
    begin(alignment, 100, ["d0", "d1"])
    tick(alignment, "d0", 100, 1)
    (record,) = alignment.removed("d1")
    assert set(record.cut.places) == {"d0"}


def test_a_change_of_the_catalog_takes_effect_at_the_one_epoch_that_holds_it():
    """Section 2.6: a change of configuration is atomic at an epoch."""
    alignment = Alignment()
    begin(alignment, 100, ["system"])
    begin(alignment, 200, ["system"])
    begin(alignment, 300, ["system"])
    alignment.catalog_changed(1, Timestamp(100))
    alignment.catalog_changed(2, Timestamp(201))
    alignment.catalog_changed(3, Timestamp(301))
    versions = [record.cut.catalog_version for record in tick(alignment, "system", 400, 1)]
    assert versions == [1, 1, 2]


def test_after_a_restart_numbers_go_on_behind_the_last_recorded_cut():
    """A barrier that was not recorded leaves nothing behind."""
    last = Cut(4, Timestamp(50), Timestamp(100), {"d0": Place(7, Timestamp(90))}, True, 5)
    alignment = Alignment(last)
    begin(alignment, 200, ["d0"])
    alignment.catalog_changed(5, Timestamp(60))  # read again from the log
    (record,) = tick(alignment, "d0", 200, 8)
    record.cut.require_after(last)
    assert record.cut.catalog_version == 5
    assert alignment.newest == (5, 200)
    begin(alignment, 300, ["d0"])
    (record,) = tick(alignment, "d0", 350, 8)
    assert record.cut.places["d0"] == Place(8, Timestamp(200))


def test_a_cut_says_whether_it_is_a_checkpoint():
    alignment = Alignment()
    begin(alignment, 100, ["d0"], is_checkpoint=False)
    (record,) = tick(alignment, "d0", 100, 1)
    assert not record.cut.is_checkpoint
