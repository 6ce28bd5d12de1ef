"""The machine of one channel: Allocated, Confirmed, Synced. Seed 000, reference sections 5 and 5.3."""

from __future__ import annotations

import pytest

from tidegate.clock.timestamp import Timestamp
from tidegate.errors import InvariantBroken
from tidegate.log.channel import Append, Channel, TickPlan
from tidegate.log.message import Position, Term


@pytest.fixture
def channel() -> Channel:
    """Opened by a tick at TimeTick 100, position 1."""
    return Channel("c", Term(1), Timestamp(100), Position(1))


def allocate(channel: Channel, *ticks: int) -> list[Append]:
    return [channel.allocate(each, 1, ("v",)) for each in ticks]


def tick(channel: Channel, now: int, *, force: bool = False) -> TickPlan | None:
    plan = channel.plan_tick(now, force=force)
    if plan is not None:
        channel.tick_appended(plan)
    return plan


def test_the_watermark_waits_for_whatever_is_in_flight_below_it(channel: Channel) -> None:
    """Fact 9: 1 to 10 allocated; 2 and 4 done moves nothing; 1 done moves to 2; 3 done at the end moves to 10."""
    appends = allocate(channel, *range(101, 111))
    for n in (2, 4):
        channel.acknowledge(appends[n - 1], n + 1)
        assert channel.confirmed == 100
    channel.acknowledge(appends[0], 2)
    assert channel.confirmed == 102
    for n in range(5, 11):
        channel.acknowledge(appends[n - 1], n + 1)
        assert channel.confirmed == 102
    channel.acknowledge(appends[2], 4)
    assert channel.confirmed == 110
    assert list(channel.in_flight()) == []


def test_time_ticks_enter_in_order(channel: Channel) -> None:
    """The caller takes them from the oracle and enters them under one lock; anything else is our defect."""
    channel.allocate(101, 5)
    for wrong in (99, 101, 105):
        with pytest.raises(InvariantBroken, match="allocated after 105"):
            channel.allocate(wrong, 1)
    with pytest.raises(InvariantBroken):
        channel.plan_tick(105)
    channel.allocate(106, 1)


def test_a_group_confirms_all_its_time_ticks_at_once(channel: Channel) -> None:
    append = channel.allocate(101, 50)
    assert (append.last, channel.allocated) == (150, 150)
    channel.acknowledge(append, 51)
    assert channel.confirmed == 150


def test_a_failed_append_blocks_nobody_and_is_no_place_to_read_from(channel: Channel) -> None:
    """Fact 13: an error between two good ones: the watermark passes it; LastConfirmed never names it."""
    ten, eleven, twelve = allocate(channel, 110, 111, 112)
    channel.acknowledge(ten, 2)
    channel.acknowledge(twelve, 3)
    assert channel.confirmed == 110
    channel.fail(eleven)
    assert channel.confirmed == 112
    tick(channel, 120)
    assert channel.last_confirmed.position == 3
    assert len(channel.last_confirmed) == 0


def test_acknowledging_twice_is_our_defect(channel: Channel) -> None:
    (append,) = allocate(channel, 101)
    channel.acknowledge(append, 2)
    for again in (lambda: channel.acknowledge(append, 2), lambda: channel.fail(append)):
        with pytest.raises(InvariantBroken, match="acknowledged twice"):
            again()


def test_with_11_open_the_tick_is_10_and_then_12(channel: Channel) -> None:
    """Fact 18."""
    ten, eleven, twelve = allocate(channel, 110, 111, 112)
    channel.acknowledge(ten, 2)
    channel.acknowledge(twelve, 3)
    plan = tick(channel, 113)
    assert plan is not None
    assert (plan.time_tick, plan.persist) == (110, True)
    channel.acknowledge(eleven, 4)
    plan = tick(channel, 120)
    assert plan is not None
    assert (plan.time_tick, plan.persist) == (120, True)


def test_an_idle_channels_clock_goes_on_without_writing(channel: Channel) -> None:
    """Fact 14: an idle tick is not persisted; a forced one is."""
    first, second = tick(channel, 101), tick(channel, 102, force=True)
    assert first is not None
    assert second is not None
    assert (first.time_tick, first.persist) == (101, False)
    assert (second.time_tick, second.persist) == (102, True)
    assert channel.synced == 102


def test_a_batch_of_only_failed_appends_still_is_worth_a_written_tick(channel: Channel) -> None:
    """Reference 5.2: a detail with an error counts as one that is no mere sync."""
    (append,) = allocate(channel, 101)
    channel.fail(append)
    plan = tick(channel, 102)
    assert plan is not None
    assert plan.persist


def test_ticks_strictly_increase_and_one_that_says_nothing_new_is_not_made(channel: Channel) -> None:
    (held,) = allocate(channel, 101)
    assert tick(channel, 102) is None, "nothing below the held one is new"
    assert tick(channel, 103, force=True) is None
    channel.acknowledge(held, 2)
    seen = [plan.time_tick for now in (104, 105, 106) if (plan := tick(channel, now)) is not None]
    assert seen == [104, 105, 106]


def test_ticks_asked_for_while_something_is_held_leave_nothing_behind(channel: Channel) -> None:
    """However long a transaction holds the watermark, waiting costs no memory and no written ticks afterwards."""
    (held,) = allocate(channel, 101)
    for now in range(102, 202):
        assert tick(channel, now) is None
    assert channel.status().in_flight == 1
    assert len(channel._in_flight) == 1
    channel.acknowledge(held, 2)
    plan = tick(channel, 300)
    assert plan is not None
    assert plan.persist
    plan = tick(channel, 301)
    assert plan is not None
    assert not plan.persist


def test_only_one_tick_is_under_way_and_a_failed_one_is_made_up_for(channel: Channel) -> None:
    """Reference 5.2: on failure what the tick covered is kept and covered by the next."""
    (append,) = allocate(channel, 101)
    channel.acknowledge(append, 2)
    plan = channel.plan_tick(102)
    assert plan is not None
    assert channel.plan_tick(103) is None
    channel.tick_failed(plan)
    assert channel.synced == 100
    again = channel.plan_tick(104)
    assert again is not None
    assert again.persist
    with pytest.raises(InvariantBroken, match="not under way"):
        channel.tick_appended(plan)
    channel.tick_appended(again)
    assert channel.synced == 104


def test_what_is_confirmed_while_a_tick_is_under_way_belongs_to_the_next(channel: Channel) -> None:
    first, second = allocate(channel, 101, 102)
    channel.acknowledge(first, 2)
    plan = channel.plan_tick(103)
    assert plan is not None
    assert plan.time_tick == 101
    channel.acknowledge(second, 3)
    channel.tick_appended(plan)
    plan = tick(channel, 104)
    assert plan is not None
    assert (plan.time_tick, plan.persist) == (104, True)


def test_a_tick_carries_the_smallest_last_confirmed_of_what_it_covers(channel: Channel) -> None:
    """Fact 11 adapted: details with LastConfirmed 2 and 1 give a tick with 1."""
    (first,) = allocate(channel, 101)
    channel.acknowledge(first, 2)
    assert tick(channel, 102) is not None
    early = channel.allocate(103, 1)
    channel.acknowledge(early, 4)
    assert early.last_confirmed == 2
    late = channel.allocate(104, 1)
    channel.acknowledge(late, 5)
    plan = channel.plan_tick(110)
    assert plan is not None
    assert plan.last_confirmed == min(early.last_confirmed, late.last_confirmed)


# -- LastConfirmed: both conditions ----------------------------------------------------------------------------------


class Txn:
    def __init__(self) -> None:
        self.resolved = False

    def is_resolved(self, confirmed: int) -> bool:
        return self.resolved


def test_last_confirmed_waits_for_all_that_was_allocated_while_a_message_was_written(channel: Channel) -> None:
    """Fact 12: X(tt 9) got position 3 while B(tt 10) holds position 2 and is in flight: reading from 3 would miss B."""
    x, b = allocate(channel, 109, 110)
    channel.acknowledge(x, 3)
    assert channel.confirmed == 109
    late = channel.allocate(111, 1)
    assert late.last_confirmed == 1, "not 3: a message later than X lies before it"
    channel.acknowledge(b, 2)
    channel.acknowledge(late, 4)
    tick(channel, 120)
    assert channel.allocate(121, 1).last_confirmed == 4


def test_last_confirmed_waits_for_the_end_of_a_transaction(channel: Channel) -> None:
    """Seed 000, second condition: nothing behind an open transaction's first message may be skipped."""
    txn = Txn()
    begin = channel.allocate(101, 1, session=txn)
    channel.acknowledge(begin, 2)
    plain = channel.allocate(102, 1)
    channel.acknowledge(plain, 3)
    plan = tick(channel, 103)
    assert channel.last_confirmed.position == 2, "where the transaction begins"
    assert channel.last_confirmed.resume == 3, "whoever fetches a transaction's bodies need not go back to it"
    assert plan is not None
    assert (plan.resume, plan.last_confirmed) == (1, 1), "as of the messages it covers"
    txn.resolved = True
    tick(channel, 104)
    assert channel.last_confirmed.position == 3


# -- held appends ------------------------------------------------------------------------------------------------------


def test_a_held_append_moves_to_a_later_time_tick_and_holds_the_watermark_below_the_earlier(channel: Channel) -> None:
    """Design, cross-channel commit: no tick can pass the commit Timestamp before its marker is in."""
    (held,) = allocate(channel, 101)
    (other,) = allocate(channel, 102)
    channel.acknowledge(other, 2)
    channel.move(held, 150)
    assert (held.first, held.last, channel.allocated) == (101, 150, 150)
    assert tick(channel, 151) is None
    assert channel.confirmed == 100
    channel.acknowledge(held, 3)
    assert channel.confirmed < 150
    plan = tick(channel, 160)
    assert plan is not None
    assert (plan.time_tick, plan.persist) == (160, True)


def test_a_moved_append_is_covered_only_by_a_tick_at_or_above_its_new_place(channel: Channel) -> None:
    held, later = allocate(channel, 101, 102)
    channel.move(held, 150)
    channel.acknowledge(held, 2)
    plan = tick(channel, 160)
    assert plan is not None
    assert plan.time_tick == 101
    assert channel.visible("v") != channel.visible("w"), "what lies at 150 is not covered yet"
    channel.acknowledge(later, 3)
    plan = tick(channel, 170)
    assert plan is not None
    assert (plan.time_tick, plan.persist) == (170, True)
    assert channel.visible("v") == channel.visible("w")


def test_a_held_append_cannot_move_back_nor_after_its_end(channel: Channel) -> None:
    (held,) = allocate(channel, 105)
    group = channel.allocate(110, 3)
    for append, at in ((held, 104), (group, 111)):
        with pytest.raises(InvariantBroken, match="cannot move"):
            channel.move(append, at)
    channel.acknowledge(held, 2)
    with pytest.raises(InvariantBroken):
        channel.move(held, 130)


# -- the view per virtual channel -----------------------------------------------------------------------------


def test_a_virtual_channel_has_come_as_far_as_its_last_message_or_the_last_tick(channel: Channel) -> None:
    """Fact 19: start 100; 101 in v1 is unconfirmed there and v2 is at 100; a tick at 102 confirms both."""

    def seen(name: str) -> tuple[int, bool]:
        visible = channel.visible(name)
        return int(visible.time_tick), visible.confirmed

    append = channel.allocate(101, 1, ("v1",))
    assert seen("v1") == (100, True), "what is not acknowledged is not there"
    channel.acknowledge(append, 2)
    assert (seen("v1"), seen("v2")) == ((101, False), (100, True))
    tick(channel, 102)
    assert seen("v1") == seen("v2") == (102, True)
    failed = channel.allocate(103, 1, ("v1",))
    channel.fail(failed)
    assert seen("v1") == (102, True), "a failed append is not there"


def test_status_names_what_holds_the_watermark_back(channel: Channel) -> None:
    """Promise 8."""
    first, second = allocate(channel, 101, 102)
    channel.acknowledge(second, 2)
    status = channel.status()
    assert (status.allocated, status.confirmed, status.synced) == (102, 100, 100)
    assert (status.in_flight, status.oldest_in_flight) == (1, 101)
    channel.acknowledge(first, 3)
    status = channel.status()
    assert (status.in_flight, status.oldest_in_flight, status.unsynced_appends) == (0, None, 2)
    assert status.vchannels == {"v": 102}
