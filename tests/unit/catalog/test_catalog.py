"""The catalog of topics and subscriptions: a fold over the log (design: one log, many folds; promise 6)."""

from __future__ import annotations

from typing import Any

import pytest

from tidegate.catalog.catalog import Catalog
from tidegate.catalog.entries import (
    Change,
    SubscriptionCreated,
    SubscriptionDropped,
    Topic,
    TopicCreated,
    TopicDropped,
)
from tidegate.clock.timestamp import Timestamp
from tidegate.errors import InvalidArgument, InvariantBroken, LimitExceeded, NotFound

NOON = Timestamp.compose(1_767_268_800_000)


def at(n: int) -> Timestamp:
    return Timestamp(NOON + n)


class Log:
    """A catalog with its log: plans are written and applied in order."""

    def __init__(self, **limits: int) -> None:
        self.catalog = Catalog(**limits)
        self.records: list[bytes] = []

    def do(self, record: bytes | None) -> Change | None:
        assert record is not None
        self.records.append(record)
        return self.catalog.apply(record, at(len(self.records)))

    def create(self, name: str, **how: Any) -> Topic:
        change = self.do(self.catalog.plan_create_topic(name, **how))
        assert isinstance(change, TopicCreated)
        return change.topic


def test_a_plan_changes_nothing_and_applying_it_does() -> None:
    """Write-ahead: what is not in the log has not happened (transactions.md 1.3)."""
    catalog = Catalog()
    record = catalog.plan_create_topic("audit", shards=4)
    assert catalog.topics() == () and catalog.version == 0
    assert record is not None
    change = catalog.apply(record, at(1))
    assert change == TopicCreated(Topic(1, "audit", 4, at(1), {}))
    assert catalog.topic("audit").created == at(1)
    assert (catalog.version, catalog.changed) == (1, at(1))


def test_a_topic_has_one_shard_unless_told_and_a_readable_virtual_channel_for_each() -> None:
    log = Log()
    assert log.create("audit").vchannels == ("topic/1.audit/0",)
    orders = log.create("shop.orders-eu", shards=3)
    assert orders.vchannels == tuple(f"topic/2.shop.orders-eu/{shard}" for shard in range(3))
    assert orders.producers_vchannel == "producers/2.shop.orders-eu"
    with pytest.raises(InvalidArgument, match="has the shards 0 to 2, not 3"):
        orders.vchannel(3)


def test_an_id_is_never_reused_so_a_topic_created_again_shares_no_virtual_channel_with_the_dropped_one() -> None:
    log = Log()
    first = log.create("audit")
    log.do(log.catalog.plan_drop_topic("audit"))
    second = log.create("audit")
    assert (first.id, second.id) == (1, 2)
    assert not set(first.vchannels) & set(second.vchannels)
    log.do(log.catalog.plan_drop_topic("audit"))
    restored = Catalog.restore(log.catalog.snapshot())
    record = restored.plan_create_topic("audit")
    assert record is not None
    assert restored.apply(record, at(99)) == TopicCreated(Topic(3, "audit", 1, at(99), {}))


def test_creating_what_exists_says_what_exists() -> None:
    log = Log()
    log.create("audit", shards=4)
    with pytest.raises(InvalidArgument, match=rf"'audit' exists since {at(1)} with 4 shards".replace("+", r"\+")):
        log.catalog.plan_create_topic("audit")
    assert log.catalog.plan_create_topic("audit", shards=8, if_not_exists=True) is None
    assert log.catalog.topic("audit").shards == 4


@pytest.mark.parametrize(
    "name", ["", "1st", "-a", ".a", "a b", "a/b", "größe", "a" * 201, "a\n", None, 7], ids=lambda name: repr(name)[:12]
)
def test_a_bad_name_is_refused_for_topics_and_subscriptions(name: Any) -> None:
    log = Log()
    log.create("audit")
    with pytest.raises(InvalidArgument, match="cannot name a topic"):
        log.catalog.plan_create_topic(name)
    with pytest.raises(InvalidArgument, match="cannot name a subscription"):
        log.catalog.plan_create_subscription("audit", name)


@pytest.mark.parametrize("name", ["a", "_", "A.b-c_9", "a" * 200])
def test_a_good_name_is_taken(name: str) -> None:
    assert Log().create(name).name == name


@pytest.mark.parametrize("shards", [0, -1, 1025, 1.0, "4", True, None], ids=repr)
def test_the_number_of_shards_is_from_1_to_1024(shards: Any) -> None:
    with pytest.raises(InvalidArgument, match="from 1 to 1024"):
        Catalog().plan_create_topic("audit", shards=shards)
    assert len(Log().create("audit", shards=1024).vchannels) == 1024


def test_an_unknown_topic_is_answered_with_near_names() -> None:
    log = Log()
    with pytest.raises(NotFound, match="no topic 'audit'; none has been created yet"):
        log.catalog.topic("audit")
    log.create("audit")
    log.create("orders")
    with pytest.raises(NotFound, match="no topic 'audits'; did you mean 'audit'\\?"):
        log.catalog.topic("audits")
    with pytest.raises(NotFound, match=r"there are 'audit', 'orders'$"):
        log.catalog.plan_drop_topic("xyz")
    assert log.catalog.plan_drop_topic("xyz", if_exists=True) is None


def test_a_subscription_keeps_what_it_was_created_with() -> None:
    log = Log()
    log.create("audit")
    log.create("dead")
    change = log.do(
        log.catalog.plan_create_subscription(
            "audit", "billing", kind="failover", start=at(1), max_redeliveries=5, dead_letter_topic="dead"
        )
    )
    assert isinstance(change, SubscriptionCreated)
    made = change.subscription
    assert made == log.catalog.subscription("audit", "billing")
    assert (made.kind, made.start, made.max_redeliveries, made.dead_letter_topic) == ("failover", at(1), 5, "dead")
    assert isinstance(made.start, Timestamp)
    assert made.vchannel == "subscription/1.audit/billing"
    assert made.created == at(3)
    with pytest.raises(InvalidArgument, match=r"'billing' on 'audit' exists since .* as failover"):
        log.catalog.plan_create_subscription("audit", "billing")
    assert log.catalog.plan_create_subscription("audit", "billing", if_not_exists=True) is None


@pytest.mark.parametrize(
    ("how", "complaint"),
    [
        ({"kind": "private"}, "one of exclusive, failover, shared, not 'private'"),
        ({"start": "now"}, "earliest, latest or a Timestamp, not 'now'"),
        ({"start": 5}, "earliest, latest or a Timestamp, not 5"),
        ({"max_redeliveries": -1, "dead_letter_topic": "dead"}, "0 or more, not -1"),
        ({"max_redeliveries": 3}, "given together"),
        ({"dead_letter_topic": "dead"}, "given together"),
        ({"max_redeliveries": 3, "dead_letter_topic": "audit"}, "cannot go back to 'audit'"),
        ({"max_redeliveries": 3, "dead_letter_topic": "deed"}, "no topic 'deed'; did you mean 'dead'"),
    ],
    ids=str,
)
def test_a_subscription_that_makes_no_sense_is_refused(how: dict[str, Any], complaint: str) -> None:
    log = Log()
    log.create("audit")
    log.create("dead")
    with pytest.raises(InvalidArgument, match=complaint):
        log.catalog.plan_create_subscription("audit", "billing", **how)


def test_dropping_a_topic_drops_its_subscriptions_and_no_others() -> None:
    log = Log()
    for topic in ("a", "b"):
        log.create(topic)
        for name in ("x", "y"):
            log.do(log.catalog.plan_create_subscription(topic, name))
    change = log.do(log.catalog.plan_drop_topic("a"))
    assert isinstance(change, TopicDropped)
    assert [each.name for each in change.subscriptions] == ["x", "y"]
    assert [(each.topic, each.name) for each in log.catalog.subscriptions()] == [("b", "x"), ("b", "y")]
    with pytest.raises(NotFound, match="no topic 'a'"):
        log.catalog.subscriptions("a")
    assert isinstance(log.do(log.catalog.plan_drop_subscription("b", "x")), SubscriptionDropped)
    with pytest.raises(NotFound, match="topic 'b' has no subscription 'x'; there are 'y'"):
        log.catalog.plan_drop_subscription("b", "x")
    assert log.catalog.plan_drop_subscription("b", "x", if_exists=True) is None
    assert log.catalog.plan_drop_subscription("a", "x", if_exists=True) is None


def test_a_topic_that_takes_dead_letters_is_not_dropped_from_under_a_subscription() -> None:
    log = Log()
    log.create("audit")
    log.create("dead")
    log.do(log.catalog.plan_create_subscription("audit", "billing", max_redeliveries=1, dead_letter_topic="dead"))
    with pytest.raises(InvalidArgument, match="dead letters of subscription 'billing' on 'audit'"):
        log.catalog.plan_drop_topic("dead")
    log.do(log.catalog.plan_drop_topic("audit"))
    assert isinstance(log.do(log.catalog.plan_drop_topic("dead")), TopicDropped)


def test_of_two_plans_for_one_name_the_second_in_the_log_means_nothing() -> None:
    """Refused records are in the log; every replay ignores them alike (transactions.md 3.7)."""
    log = Log()
    one, two = log.catalog.plan_create_topic("audit"), log.catalog.plan_create_topic("audit", shards=9)
    assert isinstance(log.do(one), TopicCreated)
    before = (log.catalog.version, log.catalog.changed)
    assert log.do(two) is None
    assert log.catalog.topic("audit").shards == 1
    assert (log.catalog.version, log.catalog.changed) == before
    assert log.create("next").id == 2, "a refused record takes no id"


def test_a_late_drop_does_not_hit_a_topic_created_since() -> None:
    log = Log()
    log.create("audit")
    late, now = log.catalog.plan_drop_topic("audit"), log.catalog.plan_drop_topic("audit")
    late_subscription = log.catalog.plan_create_subscription("audit", "billing")
    log.do(now)
    log.create("audit")
    assert log.do(late) is None
    assert log.do(late_subscription) is None
    assert log.catalog.topic("audit").id == 2
    assert log.catalog.subscriptions() == ()


def test_numbers_of_topics_and_subscriptions_are_limited() -> None:
    log = Log(topics_max=1, subscriptions_max=1)
    log.create("a")
    with pytest.raises(LimitExceeded, match="topics_max"):
        log.catalog.plan_create_topic("b")
    log.do(log.catalog.plan_create_subscription("a", "x"))
    with pytest.raises(LimitExceeded, match="subscriptions_max"):
        log.catalog.plan_create_subscription("a", "y")


def test_records_come_in_order_and_are_records() -> None:
    log = Log()
    record = log.catalog.plan_create_topic("a")
    assert record is not None
    log.do(record)
    with pytest.raises(InvariantBroken, match="comes after the one at"):
        log.catalog.apply(record, NOON)
    for junk in (b"", b"\xff", b"[]", b"{}", b'{"format": 9, "what": "x"}', b'{"format": 1, "what": "x"}'):
        with pytest.raises(InvariantBroken, match="catalog: "):
            log.catalog.apply(junk, at(50))
    with pytest.raises(InvariantBroken, match="a snapshot says 'create_topic'"):
        Catalog.restore(record)


def test_options_are_kept_and_must_be_plain() -> None:
    log = Log()
    assert log.create("a", options={"retention_ms": 5}).options == {"retention_ms": 5}
    with pytest.raises(InvalidArgument, match="options are plain JSON values"):
        log.catalog.plan_create_topic("b", options={"x": object()})


def test_the_records_on_disk_are_fixed() -> None:
    """A log written today is read by every later version."""
    catalog = Catalog()
    written = b'{"format": 1, "name": "a", "options": {}, "shards": 2, "what": "create_topic"}'
    assert catalog.plan_create_topic("a", shards=2) == written
    catalog.apply(written, at(1))
    assert catalog.plan_drop_topic("a") == b'{"format": 1, "id": 1, "name": "a", "what": "drop_topic"}'
    assert catalog.plan_create_subscription("a", "s", start="earliest") == (
        b'{"dead_letter_topic": null, "format": 1, "kind": "shared", "max_redeliveries": null, "name": "s",'
        b' "start": "earliest", "topic": "a", "topic_id": 1, "what": "create_subscription"}'
    )
