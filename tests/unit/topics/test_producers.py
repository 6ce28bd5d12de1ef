"""Idempotent producers: never appended twice, zombies refused (promise 7; transactions.md facts 61, 62, 65)."""

from __future__ import annotations

from typing import Any

import pytest

from tidegate.clock.timestamp import Timestamp
from tidegate.errors import Backpressure, Conflict, InvalidArgument, InvariantBroken, LeaseLost, LimitExceeded, NotFound
from tidegate.topics.producers import SENDING_MAX, Duplicate, New, Opened, Producers, Sending, Sent, Wait

NOON = 1_767_268_800_000
DAY_MS = 24 * 3600 * 1000


def ms(n: int) -> Timestamp:
    return Timestamp.compose(NOON + n)


class Topic:
    """Producers with their log; the clock moves a millisecond with every record."""

    def __init__(self, **settings: Any) -> None:
        self.settings = settings
        self.producers = Producers("audit", **settings)
        self.log: list[tuple[bytes, Timestamp]] = []
        self.now_ms = 0

    def write(self, record: bytes) -> Opened | Sent:
        self.now_ms += 1
        self.log.append((record, ms(self.now_ms)))
        return self.producers.apply(*self.log[-1])

    def open(self, name: str = "p", *, strict: bool = True) -> Opened:
        opened = self.write(self.producers.begin_open(name, ms(self.now_ms), strict=strict).record)
        assert isinstance(opened, Opened)
        return opened

    def begin(self, epoch: int, first: int, count: int = 1, *, unit: object = None) -> Sending:
        sending = self.producers.begin("p", epoch, first, count, unit=unit)
        assert isinstance(sending, Sending)
        return sending

    def send(self, epoch: int, first: int, count: int = 1) -> Timestamp:
        sent = self.write(self.begin(epoch, first, count).record)
        assert isinstance(sent, Sent) and (sent.first, sent.last) == (first, first + count - 1)
        return sent.timestamp

    def restart(self) -> None:
        self.producers = Producers("audit", **self.settings)
        for record, timestamp in self.log:
            self.producers.apply(record, timestamp)


def test_a_repeated_send_is_recognised_and_gets_the_result_of_the_first_time() -> None:
    topic = Topic()
    epoch = topic.open().epoch
    when = topic.send(epoch, 0, 3)
    assert topic.producers.begin("p", epoch, 0, 3) == Duplicate(when)
    assert topic.producers.begin("p", epoch, 1) == Duplicate(when), "a part of it is a repeat too"
    later = topic.send(epoch, 3)
    assert topic.producers.begin("p", epoch, 0, 4) == Duplicate(later), "repeats put together: the last result"


def test_a_repeat_is_recognised_after_a_restart() -> None:
    topic = Topic()
    epoch = topic.open().epoch
    when = topic.send(epoch, 0)
    topic.restart()
    assert topic.producers.begin("p", epoch, 0) == Duplicate(when)
    assert topic.open() == Opened("p", epoch + 1, 0)
    assert topic.producers.begin("p", epoch + 1, 0) == Duplicate(when)


def test_a_new_producer_begins_where_it_likes_and_then_leaves_nothing_out() -> None:
    """Kafka: next = last + 1, from 0; here the first number is free."""
    topic = Topic()
    epoch = topic.open().epoch
    assert topic.producers.check("p", epoch, 1_000) == New()
    topic.send(epoch, 1_000, 5)
    with pytest.raises(
        InvalidArgument, match=r"producer 'p' of topic 'audit' sends 1007 to 1008 after 1004; 1005 is next"
    ):
        topic.producers.begin("p", epoch, 1_007, 2)
    assert topic.producers.check("p", epoch, 999) == Duplicate(None), "below its first number: never appended"
    topic.send(epoch, 1_005)


def test_one_that_is_not_strict_may_leave_numbers_out_but_not_go_back() -> None:
    topic = Topic()
    epoch = topic.open(strict=False).epoch
    topic.send(epoch, 10)
    topic.send(epoch, 20)
    assert topic.producers.begin("p", epoch, 15) == Duplicate(None)
    with pytest.raises(InvalidArgument, match="19 to 21, of which some were sent before"):
        topic.producers.begin("p", epoch, 19, 3)


def test_a_send_that_overlaps_in_part_is_refused() -> None:
    topic = Topic()
    epoch = topic.open().epoch
    topic.send(epoch, 0, 3)
    with pytest.raises(InvalidArgument, match=r"2 to 3, of which some .* go on at 3"):
        topic.producers.begin("p", epoch, 2, 2)


def test_a_forgotten_result_is_still_a_duplicate() -> None:
    topic = Topic(results_max=2)
    epoch = topic.open().epoch
    times = [topic.send(epoch, n) for n in range(4)]
    assert [topic.producers.check("p", epoch, n) for n in range(4)] == [
        Duplicate(None),
        Duplicate(None),
        Duplicate(times[2]),
        Duplicate(times[3]),
    ]


def test_a_repeat_waits_for_the_outcome_of_the_first() -> None:
    topic = Topic()
    epoch = topic.open().epoch
    sending = topic.begin(epoch, 0)
    assert topic.producers.begin("p", epoch, 0) == Wait(sending)
    assert topic.producers.begin("p", epoch, 1) == Wait(sending), "the next one too: the first may yet fail"
    assert not sending.ended
    sent = topic.write(sending.record)
    assert isinstance(sent, Sent) and sending.ended
    assert topic.producers.begin("p", epoch, 0) == Duplicate(sent.timestamp)
    assert topic.producers.begin("p", epoch, 0) == Duplicate(sent.timestamp)


def test_what_was_accepted_is_answered_while_something_else_is_under_way() -> None:
    topic = Topic()
    epoch = topic.open().epoch
    when = topic.send(epoch, 0)
    topic.begin(epoch, 1)
    assert topic.producers.check("p", epoch, 0) == Duplicate(when)


def test_a_failed_send_may_be_begun_again() -> None:
    topic = Topic()
    epoch = topic.open().epoch
    topic.send(epoch, 0)
    sending = topic.begin(epoch, 1, 2)
    topic.producers.fail(sending)
    assert sending.ended
    topic.send(epoch, 1, 5)


def test_checking_changes_nothing() -> None:
    topic = Topic()
    epoch = topic.open().epoch
    assert topic.producers.check("p", epoch, 0) == New() == topic.producers.check("p", epoch, 0)


def test_sends_of_one_transaction_follow_each_other_without_waiting_and_fail_together() -> None:
    topic = Topic()
    epoch = topic.open().epoch
    one, two = topic.begin(epoch, 0, 2, unit="t1"), topic.begin(epoch, 2, unit="t1")
    assert topic.producers.check("p", epoch, 1, unit="t1") == Duplicate(None), "it repeats itself"
    assert topic.producers.check("p", epoch, 3, unit="t2") == Wait(two)
    assert topic.producers.check("p", epoch, 3) == Wait(two)
    with pytest.raises(InvalidArgument, match="4 after 2; 3 is next"):
        topic.producers.begin("p", epoch, 4, unit="t1")
    with pytest.raises(InvalidArgument, match="2 to 3, of which some"):
        topic.producers.begin("p", epoch, 2, 2, unit="t1")
    topic.producers.fail(one)
    assert one.ended and two.ended
    topic.producers.fail(two)
    three, four = topic.begin(epoch, 0, unit="t2"), topic.begin(epoch, 1, unit="t2")
    topic.write(three.record)
    topic.write(four.record)
    assert topic.producers.check("p", epoch, 2) == New()


def test_sends_under_way_are_limited() -> None:
    topic = Topic()
    epoch = topic.open().epoch
    for number in range(SENDING_MAX):
        topic.begin(epoch, number, unit="t1")
    with pytest.raises(Backpressure, match="'p' of topic 'audit' has 10,000 sends under way"):
        topic.begin(epoch, SENDING_MAX, unit="t1")


def test_fact_61_a_producer_opened_again_fences_the_older_one() -> None:
    topic = Topic()
    old = topic.open().epoch
    topic.send(old, 0)
    new = topic.open()
    assert new.epoch > old and new.last == 0
    with pytest.raises(LeaseLost, match="'p' of topic 'audit' was opened again"):
        topic.producers.begin("p", old, 1)
    topic.send(new.epoch, 1)


def test_fact_62_a_repeat_by_the_zombie_is_refused_as_well() -> None:
    topic = Topic()
    old = topic.open().epoch
    topic.send(old, 0)
    topic.open()
    with pytest.raises(LeaseLost):
        topic.producers.check("p", old, 0)


def test_opening_fences_at_once_and_counts_what_was_under_way() -> None:
    """Else the new client would number its first message like the last one of the older."""
    topic = Topic()
    old = topic.open().epoch
    sending = topic.begin(old, 0)
    opening = topic.producers.begin_open("p", ms(9))
    assert opening.after == (sending,) and not opening.is_ready
    with pytest.raises(LeaseLost):
        topic.producers.begin("p", old, 1)
    with pytest.raises(Conflict, match="being opened by another client"):
        topic.producers.begin_open("p", ms(9))
    topic.write(sending.record)
    assert opening.is_ready
    assert topic.write(opening.record) == Opened("p", old + 1, 0)
    assert opening.ended


def test_opening_before_the_sends_under_way_have_ended_is_a_defect() -> None:
    topic = Topic()
    topic.begin(topic.open().epoch, 0)
    opening = topic.producers.begin_open("p", ms(9))
    with pytest.raises(InvariantBroken, match="before its sends under way had ended"):
        topic.write(opening.record)


def test_fact_65_an_opening_that_fails_raises_no_epoch_and_the_older_one_goes_on() -> None:
    topic = Topic()
    old = topic.open().epoch
    opening = topic.producers.begin_open("p", ms(9))
    topic.producers.fail(opening)
    assert opening.ended
    topic.send(old, 0)
    assert topic.open().epoch == old + 1


def test_a_producer_that_is_not_open_is_told_so() -> None:
    with pytest.raises(NotFound, match="'p' of topic 'audit' is not open, or was forgotten after 86,400 s"):
        Topic().producers.begin("p", 1, 0)


def test_an_idle_producer_is_forgotten_when_another_opens_and_its_epoch_never_comes_back() -> None:
    """The documented price: what it repeats after that is new. A zombie of it stays refused."""
    topic = Topic()
    old = topic.open().epoch
    topic.send(old, 7)
    topic.now_ms += DAY_MS - 1
    topic.open("other")
    assert len(topic.producers) == 2, "not longer than a day yet"
    topic.now_ms += 1
    topic.open("third")
    assert len(topic.producers) == 2
    with pytest.raises(NotFound):
        topic.producers.begin("p", old, 7)
    again = topic.open()
    assert again.last is None and again.epoch == 4
    with pytest.raises(LeaseLost):
        topic.producers.begin("p", old, 8)
    topic.send(again.epoch, 7)


def test_one_that_comes_back_before_it_is_forgotten_keeps_its_place_however_late() -> None:
    topic = Topic()
    topic.send(topic.open().epoch, 7)
    topic.now_ms += 5 * DAY_MS
    assert topic.open().last == 7


def test_the_number_of_producers_is_limited_by_those_that_are_active() -> None:
    topic = Topic(producers_max=2)
    topic.open("a")
    topic.open("b")
    with pytest.raises(LimitExceeded, match="producers_max"):
        topic.producers.begin_open("c", ms(topic.now_ms))
    topic.open("a")
    topic.now_ms += DAY_MS + 10
    topic.producers.begin_open("c", ms(topic.now_ms))
    topic.producers.begin_open("d", ms(topic.now_ms))
    with pytest.raises(LimitExceeded):
        topic.producers.begin_open("e", ms(topic.now_ms))


@pytest.mark.parametrize("name", ["", "x" * 201, "\ud800", None, 7], ids=lambda name: repr(name)[:10])
def test_a_bad_name_is_refused(name: Any) -> None:
    with pytest.raises(InvalidArgument, match="a producer's name is text"):
        Topic().producers.begin_open(name, ms(0))


@pytest.mark.parametrize(
    ("first", "count"), [(-1, 1), (0, 0), (0, 1 << 32), ("0", 1), (1 << 63, 1), ((1 << 63) - 1, 2)]
)
def test_numbers_that_cannot_be_are_refused(first: Any, count: Any) -> None:
    topic = Topic()
    with pytest.raises(InvalidArgument, match="producer 'p' of topic 'audit': "):
        topic.producers.check("p", topic.open().epoch, first, count)


def test_a_log_that_holds_a_number_twice_or_a_gap_is_a_defect() -> None:
    topic = Topic()
    epoch = topic.open().epoch
    record = topic.begin(epoch, 5).record
    topic.write(record)
    with pytest.raises(InvariantBroken, match="5 is in the log, 6 was next"):
        topic.write(record)
    with pytest.raises(InvariantBroken, match="is after"):
        topic.producers.apply(record, ms(0))
    for junk in (b"", b"\x01", b"\xff" * 30, record[:19] + b"\xff"):
        with pytest.raises(InvariantBroken, match="topic 'audit': "):
            topic.producers.apply(junk, ms(99))
    for snapshot in (b"", b"{}", b'{"format":2}'):
        with pytest.raises(InvariantBroken, match="topic 'audit': "):
            Producers.restore("audit", snapshot)


def test_the_records_on_disk_are_fixed() -> None:
    topic = Topic()
    assert topic.producers.begin_open("né", ms(0)).record == b"\x01\x01\x01" + bytes(16) + "né".encode()
    epoch = topic.open().epoch
    assert topic.begin(epoch, 258, 3).record == (
        b"\x01\x02\x01" + b"\x01\x00\x00\x00" + b"\x02\x01\x00\x00\x00\x00\x00\x00" + b"\x03\x00\x00\x00" + b"p"
    )
