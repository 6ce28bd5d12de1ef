"""Subscriptions on views: their changes as messages (issue 6, "A change feed for each view")."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from view_feed_rig import Copy, Followed

import tidegate
from tidegate import Consumer, Database
from tidegate.database import sub_view_feed
from tidegate.database.received import Received
from tidegate.database.sub_dead_letters import MESSAGE_ID, SUBSCRIPTION, TOPIC
from tidegate.errors import InvalidArgument, LeaseLost, NotFound, Truncated
from tidegate.runtime.steps import run
from tidegate.topics.message_id import MessageId

WAIT_S = 5.0


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Followed]:
    found = Followed(tmp_path / "shop.tide", monkeypatch)
    found.create("sums")
    found.db.upsert("o", [{"id": 1, "g": "a", "n": 1}, {"id": 2, "g": "b", "n": 2}])
    found.db.flush()
    yield found
    found.close()


@pytest.fixture(params=["owner", "client"])
def db(shop: Followed, request: pytest.FixtureRequest) -> Iterator[Database]:
    """The owner, and another process as far as anybody can tell."""
    if request.param == "owner":
        yield shop.db
    else:
        with tidegate.open(shop.path) as client:
            yield client


def take(consumer: Consumer, count: int) -> list[Received]:
    found: list[Received] = []
    while len(found) < count and (some := consumer.receive_many(count - len(found), WAIT_S)):
        found += some
    assert len(found) == count, found
    return found


def drain(consumer: Consumer) -> list[Received]:
    found: list[Received] = []
    while some := consumer.receive_many(50, 0.3):
        found += some
    return found


def short(messages: Sequence[Received]) -> list[tuple[Any, ...]]:
    return [(each.value["_change"], each.value["g"], each.value["s"]) for each in messages]


# -- where it starts -------------------------------------------------------------------------------------------------


def test_a_subscription_gives_the_rows_of_a_view_and_then_its_changes(shop: Followed, db: Database) -> None:
    """Issue 6. From `earliest`; the rows are inserts of the checkpoint they are read at."""
    consumer = db.subscribe("sums", "all")
    first = take(consumer, 2)
    assert short(first) == [("insert", "a", 1), ("insert", "b", 2)]
    shop.db.upsert("o", [{"id": 1, "g": "a", "n": 5}])
    shop.db.delete("o", [{"id": 2}])
    at = shop.db.flush()
    then = take(consumer, 3)
    assert short(then) == [("update_before", "a", 1), ("update_after", "a", 5), ("delete", "b", 2)]
    assert {each.value["_epoch"] for each in then} == {shop.store.pointer().epoch}
    assert [each.id for each in then] == [MessageId(0, int(at), number) for number in (1, 2, 3)]
    assert then[0].timestamp == at and then[0].topic == "sums" and then[0].key is None
    assert then[1].value == {"g": "a", "s": 5, "k": 1, "_change": "update_after", **_epoch(then[1])}


def _epoch(message: Received) -> dict[str, Any]:
    return {name: message.value[name] for name in ("_epoch", "_ts")}


def test_a_subscription_from_latest_gives_what_changes_from_then_on(shop: Followed, db: Database) -> None:
    consumer = db.subscribe("sums", "new", start="latest")
    assert consumer.receive(0.3) is None
    shop.db.upsert("o", [{"id": 1, "g": "a", "n": 5}])
    shop.db.flush()
    assert short(take(consumer, 2)) == [("update_before", "a", 1), ("update_after", "a", 5)]


def test_a_subscription_may_start_at_a_timestamp(shop: Followed, db: Database) -> None:
    """The checkpoint at the Timestamp itself is delivered, as a topic's message is."""
    ends = []
    for n in (5, 6, 7):
        shop.db.upsert("o", [{"id": 1, "g": "a", "n": n}])
        ends.append(shop.db.flush())
    found = take(db.subscribe("sums", "since", start=ends[1]), 4)
    assert [each.value["s"] for each in found] == [5, 6, 6, 7]


def test_a_view_that_is_not_filled_yet_begins_with_inserts(shop: Followed) -> None:
    """Its rows come into being with its first checkpoint: whoever subscribed before gets them as changes."""
    shop.create("kept")
    consumers = [shop.db.subscribe("kept", start, start=start) for start in ("latest", "earliest")]  # type: ignore[arg-type]
    shop.db.upsert("o", [{"id": 3, "g": "a", "n": 5}])
    shop.db.flush()
    for each in consumers:
        assert [message.value["_change"] for message in take(each, 1)] == ["insert"]


# -- acknowledging ---------------------------------------------------------------------------------------------------


def test_what_is_acknowledged_is_not_delivered_again_and_the_rest_is(shop: Followed) -> None:
    """Exactly once: also where a checkpoint is acknowledged in part, across a restart and a compaction."""
    consumer = shop.db.subscribe("sums", "s")
    rows = take(consumer, 2)
    for n in range(3, 7):
        shop.db.upsert("o", [{"id": 1, "g": "a", "n": n}, {"id": 2, "g": "b", "n": n}])
        shop.db.flush()
    found = take(consumer, 16)
    consumer.ack(rows)
    consumer.ack([found[0], found[1], found[5]])
    left = [found[2], found[3], found[4], *found[6:]]
    shop.compact()
    shop.open()
    again = take(shop.db.subscribe("sums", "s"), 13)
    assert [(each.id, each.value) for each in again] == [(each.id, each.value) for each in left]


def test_a_checkpoint_that_is_acknowledged_up_to_a_change_goes_on_behind_it(shop: Followed) -> None:
    """Everything up to one is acknowledged; the others of its checkpoint are not."""
    consumer = shop.db.subscribe("sums", "s", start="latest")
    for n in (3, 4):
        shop.db.upsert("o", [{"id": 1, "g": "a", "n": n}, {"id": 2, "g": "b", "n": n}])
        shop.db.flush()
    found = take(consumer, 8)
    consumer.ack_cumulative(found[1])
    shop.open()
    again = take(shop.db.subscribe("sums", "s"), 6)
    assert [(each.id, each.value) for each in again] == [(each.id, each.value) for each in found[2:]]


@pytest.mark.parametrize("cumulative", [False, True])
def test_first_rows_that_are_acknowledged_in_part_go_on_with_the_others(shop: Followed, cumulative: bool) -> None:
    """They are those of the checkpoint at which the subscription was created, however late they are read."""
    consumer = shop.db.subscribe("sums", "s")
    first = take(consumer, 2)
    if cumulative:
        consumer.ack_cumulative(first[0])
    else:
        consumer.ack(first[0])
    shop.db.upsert("o", [{"id": 2, "g": "b", "n": 9}])
    shop.db.flush()
    shop.open()
    found = take(shop.db.subscribe("sums", "s"), 3)
    assert found[0].id == first[1].id
    assert short(found) == [("insert", "b", 2), ("update_before", "b", 2), ("update_after", "b", 9)]


def test_a_change_is_given_back_and_acknowledged_cumulatively(shop: Followed, db: Database) -> None:
    """As for topics (issue 3)."""
    consumer = db.subscribe("sums", "s")
    first, second = take(consumer, 2)
    consumer.nack(first)
    [again] = take(consumer, 1)
    assert again.id == first.id and again.value == first.value and again.redelivery_count == 1
    consumer.ack_cumulative(second)
    stats = consumer.stats()
    assert stats["backlog"] == 0 and stats["acknowledged"] == 2
    shop.db.upsert("o", [{"id": 2, "g": "b", "n": 9}])
    shop.db.flush()
    assert consumer.stats()["backlog"] >= 1
    assert short(take(consumer, 2)) == [("update_before", "b", 2), ("update_after", "b", 9)]


def test_a_change_is_acknowledged_if_and_only_if_its_transaction_commits(shop: Followed) -> None:
    """Seed 002: what follows from a change and that it is done are one transaction."""
    shop.db.sql("CREATE TOPIC out")
    consumer = shop.db.subscribe("sums", "s")
    first, second = take(consumer, 2)
    txn = shop.db.transaction()
    txn.send("out", "lost")
    txn.ack([first, second])
    txn.abort()
    again = take(consumer, 2)
    assert [each.id for each in again] == [first.id, second.id]
    with shop.db.transaction() as txn:
        txn.send("out", again[0].value["g"])
        txn.ack(again[0])
    shop.open()
    assert short(take(shop.db.subscribe("sums", "s"), 1)) == [("insert", "b", 2)]
    assert [each.value for each in drain(shop.db.subscribe("out", "o"))] == ["a"]


def test_a_change_that_is_pending_in_an_open_transaction_stays_so_when_the_owner_goes(shop: Followed) -> None:
    """Seed 002. The subscription takes part again before anything else of the database is there."""
    consumer = shop.db.subscribe("sums", "s")
    first, second = take(consumer, 2)
    engine = shop.db.engine
    txn = engine.begin()
    run(engine.subscriptions.of(consumer.id).ack_in_txn(txn, consumer.id, [first.id]))
    shop.open()
    again = shop.db.subscribe("sums", "s")
    assert [each.id for each in take(again, 1)] == [second.id]
    assert again.stats()["pending"] == 1
    run(shop.db.engine.transactions.abort(txn))
    assert [each.id for each in take(again, 1)] == [first.id]


def test_a_change_that_is_given_back_too_often_becomes_a_dead_letter(shop: Followed) -> None:
    """Issue 3, for a view's changes: it goes to the topic as it is, and says where it came from."""
    shop.db.sql("CREATE TOPIC dead")
    consumer = shop.db.subscribe("sums", "s", max_redeliveries=1, dead_letter_topic="dead")
    for _ in range(2):
        message = take(consumer, 1)[0]
        assert message.value["g"] == "a"
        consumer.nack(message)
    assert take(consumer, 1)[0].value["g"] == "b"
    [letter] = take(shop.db.subscribe("dead", "d"), 1)
    assert letter.value == message.value
    assert letter.headers[TOPIC] == "sums" and letter.headers[SUBSCRIPTION] == "s"
    assert letter.headers[MESSAGE_ID] == str(message.id)


@pytest.mark.parametrize("seed", range(2))
def test_whatever_happens_a_consumer_has_the_view_in_the_end(shop: Followed, seed: int) -> None:
    """The law: every change is acknowledged once, means the same whenever it is delivered, and all of them give the
    view. With restarts, compaction, messages given back, and acknowledgements one by one."""
    rng = random.Random(seed)
    shop.create("joined")
    done: dict[MessageId, Any] = {}
    seen: dict[MessageId, Any] = {}
    consumer = shop.db.subscribe("joined", "s", kind="failover")

    def work(messages: list[Received]) -> None:
        for each in messages:
            assert each.id not in done, "acknowledged before"
            assert seen.setdefault(each.id, each.value) == each.value
            if rng.random() < 0.7:
                consumer.ack(each)
                done[each.id] = each.value
            elif rng.random() < 0.5:
                consumer.nack(each)

    for _ in range(12):
        for _ in range(rng.randrange(1, 4)):
            shop.change(rng)
        shop.db.flush()
        match rng.randrange(5):
            case 0:
                shop.open()
                consumer = shop.db.subscribe("joined", "s")
            case 1:
                shop.compact()
            case _:
                work(consumer.receive_many(rng.randrange(1, 9), 0.2))
    consumer.redeliver()
    while found := consumer.receive_many(50, 0.5):
        for each in found:
            assert seen.setdefault(each.id, each.value) == each.value
            done[each.id] = each.value
        consumer.ack(found)
    copy = Copy()
    copy.apply(value for _, value in sorted(done.items()))
    assert copy.rows == shop.rows("joined") and len(done) > 10


# -- its end -----------------------------------------------------------------------------------------------------------


def test_a_subscription_that_is_further_behind_than_the_retention_time_is_told_so(shop: Followed, db: Database) -> None:
    """Nothing is skipped. To go on it is dropped, and made anew."""
    consumer = db.subscribe("sums", "s")
    shop.db.upsert("o", [{"id": 2, "g": "b", "n": 9}])
    shop.db.flush()
    shop.forget()
    for _ in range(2):
        with pytest.raises(Truncated, match=r"view 'sums': its changes since .* are older than the retention time"):
            consumer.receive(1)
    consumer.close()
    db.unsubscribe("sums", "s")
    assert short(take(db.subscribe("sums", "s"), 2)) == [("insert", "a", 1), ("insert", "b", 9)]


def test_a_view_that_does_not_change_for_long_does_not_lose_its_subscriptions(
    shop: Followed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is acknowledged last may be older than anything that is kept: up to where all is done is written down."""
    monkeypatch.setattr(sub_view_feed, "_WRITE_MS", 0)
    consumer = shop.db.subscribe("sums", "s")
    consumer.ack(take(consumer, 2))
    shop.db.insert("e", [{"who": 1, "what": "x"}])
    shop.db.flush()
    assert consumer.receive(0.2) is None
    shop.db.engine.subscriptions.maintain()
    shop.forget()
    shop.open()
    consumer = shop.db.subscribe("sums", "s")
    assert consumer.receive(0.3) is None
    shop.db.upsert("o", [{"id": 2, "g": "b", "n": 9}])
    shop.db.flush()
    assert short(take(consumer, 2)) == [("update_before", "b", 2), ("update_after", "b", 9)]


def test_a_place_is_not_written_beyond_what_is_acknowledged(shop: Followed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sub_view_feed, "_WRITE_MS", 0)
    consumer = shop.db.subscribe("sums", "s", start="latest")
    for n in (8, 9):
        shop.db.upsert("o", [{"id": 2, "g": "b", "n": n}])
        shop.db.flush()
    found = take(consumer, 4)
    consumer.ack(found[1:])
    assert consumer.receive(0.2) is None
    shop.db.engine.subscriptions.maintain()
    shop.open()
    assert [each.id for each in drain(shop.db.subscribe("sums", "s"))] == [found[0].id]


def test_subscriptions_end_with_their_view(shop: Followed, db: Database) -> None:
    """Also when the table under it is dropped; a view of the same name begins anew."""
    shop.create("above")
    consumer = db.subscribe("above", "s")
    assert [row["topic"] for row in db.sql("SHOW SUBSCRIPTIONS ON above")] == ["above"]
    take(consumer, 1)
    shop.db.sql("DROP TABLE o CASCADE")
    with pytest.raises(LeaseLost, match="its subscription dropped"):
        consumer.receive(1)
    assert db.sql("SHOW SUBSCRIPTIONS") == []
    with pytest.raises(NotFound):
        db.subscribe("above", "s")
    shop.open()
    assert shop.db.sql("SHOW SUBSCRIPTIONS") == []
    assert not shop.store.metadata.list(sub_view_feed.PREFIX)


def test_a_subscription_on_a_table_is_refused(db: Database) -> None:
    """A table's changes are read from the log by Spark; a subscription is on a topic or a view."""
    with pytest.raises(NotFound, match="there is no topic 'o'"):
        db.subscribe("o", "s")
    with pytest.raises(NotFound, match="view 'sums' has no subscription 'x'"):
        db.unsubscribe("sums", "x")
    with pytest.raises(InvalidArgument, match="given together or not at all"):
        db.subscribe("sums", "s", max_redeliveries=1)
