"""Who gets which message. Seed 002, transactions.md sections 3.6 and 6."""

from __future__ import annotations

from typing import Any

import pytest

from tidegate.errors import Backpressure, InUse, InvalidArgument, InvariantBroken, LeaseLost
from tidegate.topics import sub_records
from tidegate.topics.acknowledgements import Acknowledgements
from tidegate.topics.message_id import MessageId
from tidegate.topics.subscription import Subscription

NOW = 1_000


def m(n: int, shard: int = 0) -> MessageId:
    return MessageId(shard, 1000 + n, n)


def opened(kind: Any = "shared", count: int = 0, consumers: str = "a", **settings: Any) -> Subscription:
    sub = Subscription("audit/billing", kind, **settings)
    for name in consumers:
        sub.add_consumer(name)
    if count:
        feed(sub, *range(1, count + 1))
    return sub


def feed(sub: Subscription, *numbers: int, shard: int = 0) -> None:
    sub.feed(shard, [(m(n, shard), f"v{n}") for n in numbers])


def take(sub: Subscription, consumer: str = "a", count: int = 100, now_ms: int = NOW) -> list[int]:
    return [each.id.position for each in sub.take(consumer, count, now_ms)]


def ack(sub: Subscription, *numbers: int, consumer: str | None = "a") -> None:
    sub.confirm(sub.ack(consumer, [m(n) for n in numbers]))


# -- consumers -------------------------------------------------------------------------------------------------------


def test_an_exclusive_subscription_names_the_consumer_that_has_it() -> None:
    sub = opened("exclusive")
    with pytest.raises(InUse, match="belongs to consumer 'a'"):
        sub.add_consumer("b")
    sub.remove_consumer("a")
    sub.add_consumer("b")


def test_a_consumer_name_is_used_once() -> None:
    with pytest.raises(InUse, match="has a consumer 'a' already"):
        opened("shared").add_consumer("a")


def test_of_a_failover_subscription_the_first_consumer_receives_and_the_next_takes_over_in_order() -> None:
    sub = opened("failover", 4, "abc")
    assert (sub.active, take(sub, "b"), take(sub, "a", 3)) == ("a", [], [1, 2, 3])
    ack(sub, 2)
    assert sub.remove_consumer("a") == [m(1), m(3)]
    assert (sub.active, take(sub, "c"), take(sub, "b")) == ("b", [], [1, 3, 4])


def test_consumers_of_a_shared_subscription_never_hold_the_same_message() -> None:
    sub = opened("shared", 4, "ab")
    assert (take(sub, "a", 2), take(sub, "b", 9)) == ([1, 2], [3, 4])
    assert (sub.active, sub.consumers) == (None, ("a", "b"))


def test_what_a_lost_consumer_held_comes_again_first_in_order_and_counted() -> None:
    sub = opened("shared", 6, "ab")
    take(sub, "a", 4)
    ack(sub, 2)
    assert sub.remove_consumer("a") == [m(1), m(3), m(4)]
    assert sub.remove_consumer("a") == []
    got = sub.take("b", 10, NOW)
    assert [(each.id.position, each.redelivery_count) for each in got] == [(1, 1), (3, 1), (4, 1), (5, 0), (6, 0)]


def test_a_zombie_can_neither_take_nor_acknowledge_nor_give_back() -> None:
    sub = opened("shared", 2, "ab")
    take(sub)
    sub.remove_consumer("a")
    for call in (
        lambda: sub.take("a", 1, NOW),
        lambda: sub.ack("a", [m(1)]),
        lambda: sub.ack_in_txn("a", [m(1)], bytes(15) + b"\1"),
        lambda: sub.nack("a", [m(1)], NOW),
        lambda: sub.redeliver("a"),
    ):
        with pytest.raises(LeaseLost, match="consumer 'a' is not connected"):
            call()
    assert take(sub, "b") == [1, 2]


# -- feeding and bounds ----------------------------------------------------------------------------------------------


def test_the_buffer_is_bounded_and_says_how_much_it_wants() -> None:
    sub = opened("shared", 3, buffer_max=4)
    assert sub.wants() == 1
    with pytest.raises(Backpressure, match="2 messages were fed and 1 were wanted"):
        feed(sub, 4, 5)
    assert take(sub) == [1, 2, 3], "nothing of a refused feed stays"
    ack(sub, 1, 3)
    assert (sub.wants(), sub.backlog_in_memory) == (3, 1)


def test_a_consumer_with_too_much_unacknowledged_gets_nothing_more() -> None:
    sub = opened("shared", 5, unacked_max=2)
    assert (take(sub), take(sub)) == ([1, 2], [])
    ack(sub, 1)
    assert take(sub) == [3]


def test_messages_are_fed_once_and_in_order() -> None:
    sub = opened("shared", 3)
    for wrong in ([m(3)], [m(5), m(4)], [m(4, 1)]):
        with pytest.raises(InvariantBroken):
            sub.feed(0, [(id, None) for id in wrong])
    assert take(sub) == [1, 2, 3]


def test_after_a_restart_what_is_acknowledged_is_dropped_and_the_mark_moves_over_it() -> None:
    acks = Acknowledgements()
    acks.apply(sub_records.ack_cumulative([m(2)]))
    acks.apply(sub_records.ack([m(3), m(5)]))
    sub = opened("exclusive", 6, acknowledgements=acks)
    assert sub.marks() == {0: m(3)}
    assert take(sub) == [4, 6]


@pytest.mark.parametrize("wrong", [{"kind": "both"}, {"buffer_max": 0}, {"unacked_max": 0}, {"max_redeliveries": -1}])
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match="audit/billing"):
        Subscription("audit/billing", **{"kind": "shared", **wrong})


# -- giving back -----------------------------------------------------------------------------------------------------


def test_a_nack_brings_a_message_again_after_its_delay_and_before_new_ones() -> None:
    sub = opened("shared", 4)
    take(sub, count=3)
    assert sub.nack("a", [m(2), m(1)], NOW, delay_ms=50) == [m(1), m(2)]
    assert (sub.next_due_ms(), take(sub, count=1, now_ms=NOW + 49)) == (NOW + 50, [4])
    feed(sub, 5)
    assert take(sub, now_ms=NOW + 50) == [1, 2, 5]
    assert sub.next_due_ms() is None


def test_a_nack_has_no_effect_on_what_the_consumer_does_not_hold() -> None:
    sub = opened("shared", 3, "ab")
    take(sub, "a", 2), take(sub, "b", 1)
    ack(sub, 1)
    assert sub.nack("a", [m(1), m(3), m(9)], NOW) == []
    assert take(sub) == []


def test_a_nack_into_the_past_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="-1 ms"):
        opened("shared").nack("a", [m(1)], NOW, -1)


def test_a_message_acknowledged_while_it_waits_does_not_come() -> None:
    sub = opened("shared", 1)
    take(sub)
    sub.nack("a", [m(1)], NOW, 10)
    ack(sub, 1)
    assert (take(sub, now_ms=NOW + 99), sub.marks()) == ([], {0: m(1)})


def test_a_second_nack_counts_from_its_own_time() -> None:
    sub = opened("shared", 1)
    take(sub)
    sub.nack("a", [m(1)], NOW, 10)
    sub.revert(sub.ack("a", [m(1)]))
    assert take(sub) == [1], "a reverted acknowledgement does not wait"
    sub.nack("a", [m(1)], NOW, 100)
    assert (take(sub, now_ms=NOW + 10), take(sub, now_ms=NOW + 100)) == ([], [1])


def test_redeliver_gives_back_all_that_a_consumer_holds() -> None:
    sub = opened("shared", 4, "ab")
    take(sub, "a", 3), take(sub, "b", 1)
    ack(sub, 2)
    assert sub.redeliver("a") == [m(1), m(3)]
    assert take(sub, "b") == [1, 3]


def test_given_back_messages_of_all_shards_come_by_time() -> None:
    sub = opened("shared")
    feed(sub, 2, 4, shard=0)
    feed(sub, 1, 3, shard=1)
    take(sub)
    sub.redeliver("a")
    assert take(sub) == [1, 2, 3, 4]


# -- dead letters ----------------------------------------------------------------------------------------------------


def test_a_message_given_back_too_often_is_a_dead_letter_once() -> None:
    """Fact 43: one redelivery allowed, so the third delivery does not happen."""
    sub = opened("shared", 2, max_redeliveries=1)
    for _ in range(2):
        assert take(sub, count=1) == [1]
        sub.nack("a", [m(1)], NOW)
    assert take(sub) == [2]
    assert [(each.id, each.payload, each.redelivery_count) for each in sub.dead_letters()] == [(m(1), "v1", 2)]
    assert (sub.dead_letters(), sub.status().dead, sub.status().dead_total) == ([], 1, 1)
    sub.redeliver("a")
    assert take(sub) == [2]
    ack(sub, 1, consumer=None)
    assert (sub.status().dead, sub.marks()) == (0, {0: m(1)})


def test_dead_letters_that_could_not_be_moved_are_returned_again() -> None:
    sub = opened("shared", 1, max_redeliveries=0)
    take(sub)
    sub.remove_consumer("a")
    assert [each.id for each in sub.dead_letters()] == [m(1)]
    sub.return_dead_letters([m(1), m(1), m(7)])
    assert [each.id for each in sub.dead_letters()] == [m(1)]
    sub.revert(sub.ack(None, [m(1)]))
    assert [each.id for each in sub.dead_letters()] == [m(1)]
    assert sub.status().dead_total == 1


# -- status ----------------------------------------------------------------------------------------------------------


def test_status_tells_who_holds_what() -> None:
    sub = opened("shared", 6, "ab")
    take(sub, "a", 3), take(sub, "b", 1)
    ack(sub, 2)
    sub.nack("b", [m(4)], NOW, 10)
    sub.confirm(sub.ack_in_txn("a", [m(3)], bytes(15) + b"\7"))
    status = sub.status()
    assert status.consumers == {"a": 1, "b": 0}
    assert (status.backlog_in_memory, status.ready, status.waiting, status.pending) == (5, 2, 1, 1)
    assert (status.acked_above_mark, status.oldest_unacked) == (1, {0: m(1)})
    assert (status.delivered_total, status.redelivered_total, status.acknowledged_total) == (4, 0, 1)
    assert status.pending_txns == (bytes(15) + b"\7",)
