"""Acknowledging without a transaction: what it does, when it is refused, and what a failed append leaves. Seed 002."""

from __future__ import annotations

from typing import Any

import pytest

from tidegate.errors import Conflict, InvalidArgument, InvariantBroken
from tidegate.topics import sub_records as records
from tidegate.topics import sub_shard
from tidegate.topics.acknowledgements import Acknowledgements
from tidegate.topics.message_id import MessageId
from tidegate.topics.subscription import Subscription
from tidegate.txn.txn_id import TxnId

T1 = TxnId.make(0, 0x18C2F).to_bytes16()


def m(n: int) -> MessageId:
    return MessageId(0, 1000 + n, n)


def opened(kind: Any = "shared", count: int = 5, consumers: str = "a", **settings: Any) -> Subscription:
    """With all messages in the hands of the first consumer."""
    sub = Subscription("audit/billing", kind, **settings)
    for name in consumers:
        sub.add_consumer(name)
    sub.feed(0, [(m(n), n) for n in range(1, count + 1)])
    sub.take(consumers[0], count, 0)
    return sub


def again(sub: Subscription, consumer: str = "a") -> list[int]:
    """What comes when the consumer asks for everything again."""
    sub.redeliver(consumer)
    return [each.id.position for each in sub.take(consumer, 1000, 0)]


# -- one by one ------------------------------------------------------------------------------------------------------


def test_an_acknowledgement_holds_at_once_and_is_durable_when_confirmed() -> None:
    """Promise 6: a snapshot never claims what the log may not hold."""
    sub = opened()
    change = sub.ack("a", [m(1), m(2)])
    assert again(sub) == [3, 4, 5]
    assert sub.snapshot() == Acknowledgements().snapshot()
    sub.confirm(change)
    assert sub.marks() == {0: m(2)}
    assert change.record is not None
    assert records.decode(change.record).ids == (m(1), m(2))


def test_a_failed_append_leaves_the_message_with_its_consumer() -> None:
    sub = opened(consumers="ab")
    sub.revert(sub.ack("a", [m(1)]))
    assert sub.take("b", 9, 0) == [], "nobody else gets it while the consumer may try again"
    assert sub.status().consumers == {"a": 5, "b": 0}
    sub.confirm(sub.ack("a", [m(1)]))
    assert again(sub) == [2, 3, 4, 5]


def test_a_failed_append_of_a_consumer_that_left_gives_the_message_to_others() -> None:
    sub = opened(consumers="ab")
    change = sub.ack("a", [m(1)])
    assert sub.remove_consumer("a") == [m(2), m(3), m(4), m(5)]
    sub.revert(change)
    assert [each.id.position for each in sub.take("b", 9, 0)] == [1, 2, 3, 4, 5]


def test_the_mark_waits_for_the_acknowledgement_before_it() -> None:
    """The second append may succeed where the first fails; its message must not be skipped then."""
    sub = opened()
    first, second = sub.ack("a", [m(1)]), sub.ack("a", [m(2)])
    sub.confirm(second)
    assert (sub.marks(), sub.acknowledgements.acked_above_mark) == ({}, 1)
    sub.revert(first)
    assert again(sub) == [1, 3, 4, 5]
    sub.confirm(sub.ack("a", [m(1)]))
    assert (sub.marks(), sub.acknowledgements.acked_above_mark) == ({0: m(2)}, 0)


def test_acknowledging_what_is_acknowledged_is_no_error_and_needs_no_record() -> None:
    sub = opened()
    sub.confirm(sub.ack("a", [m(1), m(3)]))
    change = sub.ack("a", [m(1), m(3), m(1)])
    assert (change.record, change.ids) == (None, ())
    sub.confirm(change)


def test_a_repeated_request_does_not_rely_on_the_first_being_written() -> None:
    """Promise 6, a repeated request: each answer stands for its own record."""
    sub = opened()
    first, second = sub.ack("a", [m(1)]), sub.ack("a", [m(1)])
    assert second.record is not None
    sub.revert(first)
    assert again(sub) == [2, 3, 4, 5]
    sub.confirm(second)
    assert sub.marks() == {0: m(1)}


def test_a_message_named_twice_is_acknowledged_once() -> None:
    sub = opened()
    sub.confirm(sub.ack("a", [m(1), m(1)]))
    assert (sub.marks(), sub.status().acknowledged_total, sub.status().consumers) == ({0: m(1)}, 1, {"a": 4})


def test_a_change_is_settled_once() -> None:
    sub = opened()
    change = sub.ack("a", [m(1)])
    sub.confirm(change)
    for call in (sub.confirm, sub.revert):
        with pytest.raises(InvariantBroken, match="twice"):
            call(change)


@pytest.mark.parametrize("unknown", [6, 99])
def test_what_was_never_delivered_cannot_be_acknowledged(unknown: int) -> None:
    sub = opened()
    sub.feed(0, [(m(6), 6)])
    with pytest.raises(InvalidArgument, match=f"message 0:{1000 + unknown}:{unknown} was not delivered"):
        sub.ack("a", [m(1), m(unknown)])
    assert again(sub)[:5] == [1, 2, 3, 4, 5], "all or nothing"


def test_a_consumer_may_acknowledge_what_was_given_to_another_in_the_meantime() -> None:
    sub = opened(consumers="ab")
    sub.nack("a", [m(1)], 0)
    assert [each.id for each in sub.take("b", 1, 0)] == [m(1)]
    sub.confirm(sub.ack("a", [m(1)]))
    assert sub.ack("b", [m(1)]).record is None
    assert sub.status().consumers == {"a": 4, "b": 0}


def test_an_ordinary_acknowledgement_of_a_pending_message_is_refused_and_names_the_transaction() -> None:
    """Seed 002, 3.3: it cannot be acknowledged by others until the transaction ends. Section 0 of the reference."""
    sub = opened("exclusive")
    sub.confirm(sub.ack_in_txn("a", [m(2)], T1))
    for call in (lambda: sub.ack("a", [m(1), m(2)]), lambda: sub.ack_cumulative("a", m(3))):
        with pytest.raises(Conflict, match="0:1002:2 is being acknowledged by transaction 0-18c2f"):
            call()
    assert again(sub) == [1, 3, 4, 5], "all or nothing"


# -- cumulative ------------------------------------------------------------------------------------------------------


def test_a_cumulative_acknowledgement_takes_everything_up_to_it() -> None:
    sub = opened("exclusive")
    sub.confirm(sub.ack("a", [m(2)]))
    change = sub.ack_cumulative("a", m(3))
    assert again(sub) == [4, 5]
    sub.confirm(change)
    assert (sub.marks(), sub.acknowledgements.acked_above_mark) == ({0: m(3)}, 0)
    assert sub.ack_cumulative("a", m(1)).record is None


def test_a_reverted_cumulative_acknowledgement_gives_everything_back() -> None:
    sub = opened("exclusive")
    sub.revert(sub.ack_cumulative("a", m(3)))
    assert (sub.marks(), again(sub)) == ({}, [1, 2, 3, 4, 5])


def test_on_a_shared_subscription_there_is_no_cumulative_acknowledgement() -> None:
    """Section 3.3; Pulsar ignores it with a warning, which nobody reads."""
    sub = opened("shared")
    for call in (lambda: sub.ack_cumulative("a", m(3)), lambda: sub.ack_cumulative_in_txn("a", m(3), T1)):
        with pytest.raises(InvalidArgument, match="is shared"):
            call()


def test_a_cumulative_acknowledgement_never_covers_what_was_not_read_again_after_a_restart() -> None:
    acks = Acknowledgements()
    acks.apply(records.ack([m(4)]))
    acks.apply(records.pending(T1, [m(2)]))
    sub = Subscription("audit/billing", "exclusive", acknowledgements=acks)
    sub.add_consumer("a")
    with pytest.raises(InvalidArgument, match="was not delivered"):
        sub.ack_cumulative("a", m(4))
    sub.feed(0, [(m(n), n) for n in range(1, 6)])
    with pytest.raises(InvalidArgument, match="0:1001:1 was not delivered"):
        sub.ack_cumulative("a", m(4))


# -- memory ----------------------------------------------------------------------------------------------------------


def test_a_message_that_is_never_acknowledged_does_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """What follows it is kept as one range, not message by message."""
    monkeypatch.setattr(sub_shard, "COMPACT_ABOVE", 50)
    sub = opened(count=1, buffer_max=20)
    for start in range(2, 2002, 10):
        ids = [m(n) for n in range(start, start + 10)]
        sub.feed(0, [(id, None) for id in ids])
        sub.take("a", 10, 0)
        sub.confirm(sub.ack("a", ids))
        assert sub.acknowledgements.acked_above_mark <= 64
        assert len(sub._shards[0].order) <= 64
    assert len(sub.snapshot()) < 2000
    # Another life reads on from there.
    later = Subscription("audit/billing", "shared", acknowledgements=Acknowledgements.restore(sub.snapshot()))
    later.add_consumer("a")
    later.feed(0, [(m(n), None) for n in range(1, 2003)])
    assert [each.id.position for each in later.take("a", 10, 0)] == [1, 2002]
    later.confirm(later.ack("a", [m(1)]))
    assert (later.marks(), later.acknowledgements.acked_above_mark) == ({0: m(2001)}, 0)
