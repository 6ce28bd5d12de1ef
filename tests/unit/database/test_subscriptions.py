"""Subscriptions in the process that owns the database: delivery, acknowledgement, redelivery, figures (issue 3)."""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Thread
from typing import Any

import pyarrow as pa
import pytest

from engine_rig import House
from helpers import Calls, eventually
from tidegate.database.sub_dead_letters import MESSAGE_ID, REDELIVERIES, SUBSCRIPTION, TOPIC
from tidegate.errors import Closed, Conflict, InUse, InvalidArgument, LeaseLost, NotFound
from tidegate.log.message import Position
from tidegate.runtime.pieces import Piece
from tidegate.runtime.steps import run

# -- where it starts ---------------------------------------------------------------------------------------------


def test_a_new_subscription_gets_what_is_sent_from_then_on(house: House) -> None:
    """Issue 3: start from latest, which is the Timestamp of its creation."""
    house.topic("t")
    house.send("t", "before")
    sub = house.subscribe("t", start="latest")
    house.send("t", "after")
    assert sub.values(2, 0.3) == ["after"]


def test_a_subscription_may_start_at_the_earliest_message_or_at_a_timestamp(house: House) -> None:
    """Issue 3. The message at the Timestamp itself is delivered."""
    house.topic("t", shards=3)
    house.send("t", *range(6))
    at = house.send("t", "here")
    house.send("t", "there")
    assert sorted(house.subscribe("t", "all").values(8), key=str) == [0, 1, 2, 3, 4, 5, "here", "there"]
    assert sorted(house.subscribe("t", "some", start=at).values(3, 0.3)) == ["here", "there"]


def test_what_is_sent_before_and_committed_after_the_start_is_delivered_whole(house: House) -> None:
    """Promise 2: a transaction takes its place at its commit, whole, also where it was written ahead of the start."""
    house.topic("t")
    txn = house.engine.begin()
    house.write_ahead(txn, "t", 1, 2)
    sub = house.subscribe("t", start="latest")
    assert sub.nothing()
    house.engine.commit(txn, house.writes("t", [3]))
    assert sub.values(3) == [1, 2, 3]


def test_messages_of_a_shard_come_in_order_and_keys_keep_their_shard(house: House) -> None:
    """Promise 1."""
    house.topic("t", shards=3)
    sub = house.subscribe("t")
    for number in range(10):
        for key in ("a", "b", "c", "d"):
            house.send("t", f"{key}{number}", key=key)
    found = sub.receive(40)
    for key in ("a", "b", "c", "d"):
        of_key = [each for each in found if each.key == key]
        assert [each.value for each in of_key] == [f"{key}{number}" for number in range(10)]
        assert len({each.id.shard for each in of_key}) == 1


def test_a_message_carries_value_key_headers_topic_and_timestamp(house: House) -> None:
    house.topic("t")
    sub = house.subscribe("t")
    sent = house.send("t", {"x": [1, None]}, key="k")
    (message,) = sub.receive()
    assert (message.value, message.key, message.headers) == ({"x": [1, None]}, "k", {})
    assert (message.topic, message.timestamp, message.redelivery_count) == ("t", sent, 0)


def test_arrow_rows_are_delivered_as_rows(house: House) -> None:
    house.topic("t")
    sub = house.subscribe("t")
    topic = house.engine.topic("t")
    rows = pa.RecordBatch.from_pydict({"id": list(range(200)), "name": [f"n{each}" for each in range(200)]})
    house.engine.send({house.engine.channel_of(topic.id, 0): [Piece(topic.vchannel(0), rows)]})
    found = sub.receive(200)
    assert [each.row for each in found] == rows.to_pylist()
    assert found[7].value == {"id": 7, "name": "n7"}
    sub.ack(found)
    assert sub.stats()["backlog"] == 0


# -- waiting -----------------------------------------------------------------------------------------------------


def test_whoever_waits_gets_a_message_long_before_the_next_regular_tick(open_house: Callable[..., House]) -> None:
    """A waiting consumer makes the channel tick; regular ticks are as rare as can be here."""
    house = open_house(log={"tick_interval_ms": 60_000})
    house.topic("t", shards=3)
    sub = house.subscribe("t")
    found: list[tuple[float, Any]] = []

    def wait() -> None:
        for _ in range(9):
            found.append((sub.values(1)[0], time.monotonic()))

    thread = Thread(target=wait)
    thread.start()
    sent = []
    for number in range(9):
        eventually(lambda count=number: len(found) == count)
        time.sleep(0.01)
        sent.append(time.monotonic())
        house.send("t", number)
    thread.join(30)
    assert [value for value, _ in found] == list(range(9))
    late = sorted(got - at for at, (_, got) in zip(sent, found, strict=True))
    assert late[4] < 0.1, late


def test_what_was_sent_before_somebody_waits_needs_no_regular_tick_either(open_house: Callable[..., House]) -> None:
    house = open_house(log={"tick_interval_ms": 60_000})
    house.topic("t", shards=3)
    sub = house.subscribe("t")
    house.send("t", 1, 2, 3)
    assert sorted(sub.values(3)) == [1, 2, 3]


def test_waiting_costs_no_processor_time(house: House) -> None:
    house.topic("t")
    sub = house.subscribe("t")
    sub.nothing(0.1)
    before = time.thread_time()
    sub.nothing(0.5)
    assert time.thread_time() - before < 0.1


def test_a_consumer_that_waits_is_told_when_the_database_closes(house: House, calls: Calls) -> None:
    house.topic("t")
    sub = house.subscribe("t")
    host = sub.host
    waiting = calls(lambda: host.receive(sub.consumer, 1, 30.0))
    time.sleep(0.05)
    house.engine.subscriptions.close()
    with pytest.raises(Closed, match="subscription 's' on 't' was closed"):
        waiting.result(5)


# -- kinds -------------------------------------------------------------------------------------------------------


def test_an_exclusive_subscription_has_one_consumer(house: House) -> None:
    """Issue 3: exclusive."""
    house.topic("t")
    first = house.subscribe("t", kind="exclusive")
    with pytest.raises(InUse, match="exclusive"):
        house.subscribe("t", kind="exclusive")
    first.close()
    house.send("t", 1)
    assert house.subscribe("t", kind="exclusive").values() == [1]


def test_of_a_failover_subscription_the_next_consumer_takes_over_in_order(house: House) -> None:
    """Issue 3: failover."""
    house.topic("t")
    first = house.subscribe("t", kind="failover", consumer="first")
    second = house.subscribe("t", consumer="second")
    house.send("t", *range(4))
    taken = first.receive(3)
    assert second.nothing()
    first.ack(taken[0])
    first.close()
    assert second.values(3) == [1, 2, 3]


def test_a_shared_subscription_gives_each_message_to_one_consumer(house: House) -> None:
    """Issue 3: shared."""
    house.topic("t", shards=2)
    first, second = house.subscribe("t", consumer="a"), house.subscribe("t", consumer="b")
    house.send("t", *range(20))
    eventually(lambda: first.stats()["backlog"] == 20)
    found = first.values(7) + second.values(13)
    assert sorted(found) == list(range(20))
    assert first.nothing()


def test_names_of_consumers_are_taken_once(house: House) -> None:
    house.topic("t")
    house.subscribe("t", consumer="a")
    with pytest.raises(InUse, match="a consumer 'a' already"):
        house.subscribe("t", consumer="a")


def test_what_was_decided_at_its_creation_stays(house: House) -> None:
    """A choice: another kind is refused, also while nobody is connected; `start` counts only at the creation."""
    house.topic("t")
    house.topic("dead")
    house.subscribe("t", kind="failover").close()
    with pytest.raises(InvalidArgument, match=r"kind='failover'.*not 'shared'"):
        house.subscribe("t", kind="shared")
    with pytest.raises(InvalidArgument, match="max_redeliveries=None"):
        house.subscribe("t", max_redeliveries=1, dead_letter_topic="dead")
    house.subscribe("t", start="latest")
    with pytest.raises(NotFound, match="no topic 'tt'"):
        house.subscribe("tt")


# -- acknowledging -----------------------------------------------------------------------------------------------


def test_what_is_acknowledged_never_comes_again_and_the_rest_does(house: House) -> None:
    """Promise 6: over a restart and over a crash."""
    house.topic("t", shards=3)
    sub = house.subscribe("t")
    house.send("t", *range(30))
    found = sub.receive(30)
    sub.ack([each for each in found if each.value % 3 == 0])
    house.restart()
    sub = house.subscribe("t")
    found = sub.receive(20)
    assert sorted(each.value for each in found) == [each for each in range(30) if each % 3]
    assert sub.nothing()
    sub.ack([each for each in found if each.value % 3 == 1])
    house.crash()
    sub = house.subscribe("t")
    assert sorted(sub.values(10)) == [each for each in range(30) if each % 3 == 2]
    assert sub.nothing()


def test_a_cumulative_acknowledgement_covers_its_shard(house: House) -> None:
    house.topic("t")
    sub = house.subscribe("t", kind="exclusive")
    house.send("t", *range(6))
    found = sub.receive(6)
    sub.ack_cumulative(found[3])
    assert sub.stats()["backlog"] == 2
    house.crash()
    assert house.subscribe("t").values(3, 0.3) == [4, 5]


def test_a_shared_subscription_refuses_cumulative_acknowledgements(house: House) -> None:
    """3.3: others hold what lies before."""
    house.topic("t")
    sub = house.subscribe("t")
    house.send("t", 1)
    with pytest.raises(InvalidArgument, match="is shared"):
        sub.ack_cumulative(sub.receive()[0])


def test_a_negative_acknowledgement_has_the_message_delivered_again_with_a_count(house: House) -> None:
    """Issue 3: negative acknowledgement, redelivery with a count."""
    house.topic("t")
    sub = house.subscribe("t")
    house.send("t", 1, 2)
    one, two = sub.receive(2)
    sub.nack(one)
    assert [(each.value, each.redelivery_count) for each in sub.receive()] == [(1, 1)]
    started = time.monotonic()
    sub.nack(two, delay_ms=200)
    assert sub.nothing()
    (again,) = sub.receive()
    assert again.id == two.id and time.monotonic() - started >= 0.2


def test_redeliver_gives_back_all_that_was_not_acknowledged(house: House) -> None:
    house.topic("t")
    sub = house.subscribe("t")
    house.send("t", *range(5))
    found = sub.receive(5)
    sub.ack(found[1])
    sub.redeliver()
    assert sub.values(5, 0.3) == [0, 2, 3, 4]


def test_what_a_consumer_or_its_client_leaves_behind_goes_to_others(house: House) -> None:
    """A client that is silent for too long loses its consumers, and what it does later is refused."""
    house.topic("t")
    house.engine.clients.add("c1", "c1", 10_000)
    lost, other = house.subscribe("t", client="c1"), house.subscribe("t", consumer="other")
    house.send("t", *range(3))
    found = lost.receive(3)
    house.engine.client_gone("c1", lost=True)
    assert other.values(3) == [0, 1, 2]
    with pytest.raises(LeaseLost, match="subscribe again"):
        lost.receive()
    with pytest.raises(LeaseLost):
        run(other.host.ack(lost.consumer, [found[0].id]))


def test_a_full_buffer_holds_delivery_up_until_something_is_acknowledged(open_house: Callable[..., House]) -> None:
    """Bounds on everything: as many messages are in memory as `receive_buffer` says."""
    house = open_house(receive_buffer=10)
    house.topic("t")
    sub = house.subscribe("t")
    house.send_together("t", *range(35))
    found = sub.receive(10)
    assert [each.value for each in found] == list(range(10))
    assert sub.nothing() and sub.stats()["in_memory"] == 10 and sub.stats()["backlog"] == 35
    sub.ack(found[:4])
    assert sub.values(5, 0.3) == [10, 11, 12, 13]


# -- dead letters ------------------------------------------------------------------------------------------------


def test_a_message_given_back_too_often_goes_to_the_dead_letter_topic_once(house: House) -> None:
    """Issue 3: dead-letter topic; headers say where it came from."""
    house.topic("t")
    house.topic("dead", shards=2)
    dead = house.subscribe("dead")
    sub = house.subscribe("t", max_redeliveries=2, dead_letter_topic="dead")
    house.send("t", {"bad": 1}, key="k")
    house.send("t", "good")
    for count in range(3):
        bad = next(each for each in sub.receive(1 if count else 2) if each.value != "good")
        assert bad.redelivery_count == count
        sub.nack(bad)
    (letter,) = dead.receive()
    assert (letter.value, letter.key) == ({"bad": 1}, "k")
    expected = {TOPIC: "t", SUBSCRIPTION: "s", MESSAGE_ID: str(bad.id), REDELIVERIES: "3"}
    assert letter.headers == expected
    eventually(lambda: sub.stats()["dead_lettered"] == 1)
    house.crash()
    assert house.subscribe("t").values(2, 0.3) == ["good"]
    assert [each.value for each in house.subscribe("dead").receive(2, 0.3)] == [{"bad": 1}]


def test_an_arrow_row_can_be_a_dead_letter(house: House) -> None:
    house.topic("t")
    house.topic("dead")
    sub = house.subscribe("t", max_redeliveries=0, dead_letter_topic="dead")
    topic = house.engine.topic("t")
    rows = pa.RecordBatch.from_pydict({"id": [7], "raw": [b"\xff"], "part": [float("nan")]})
    house.engine.send({house.engine.channel_of(topic.id, 0): [Piece(topic.vchannel(0), rows)]})
    sub.nack(*sub.receive())
    assert house.subscribe("dead").values() == [{"id": 7, "raw": "b'\\xff'", "part": "nan"}]


# -- figures -----------------------------------------------------------------------------------------------------


def test_backlog_and_lag_are_exact_wherever_the_messages_are(open_house: Callable[..., House]) -> None:
    """Issue 3: backlog and lag figures: in memory, read and not fed, not read, and after a restart."""
    house = open_house(receive_buffer=10)
    house.topic("t", shards=3)
    sub = house.subscribe("t")
    first = house.send("t", *range(40))
    house.send_together("t", *range(40, 60))
    house.engine.wait_until_visible(house.send("t", 60))
    assert (sub.stats()["backlog"], sub.stats()["unacked"], sub.stats()["pending"]) == (61, 0, 0)
    found = sub.receive(5)
    sub.ack(found[2])
    stats = sub.stats()
    assert (stats["backlog"], stats["unacked"], stats["acknowledged"]) == (60, 4, 1)
    newest = max(house.engine.log.channel(each).latest_tick.time_tick for each in house.engine.channels)
    assert 0 <= newest.ms_since(first) - stats["lag_ms"] + 2_000 < 4_000
    house.restart()
    stats = house.engine.subscriptions.stats("t", "s")
    assert (stats["backlog"], stats["in_memory"], stats["consumers"]) == (60, 0, {})
    sub = house.subscribe("t")
    while found := sub.receive(10, 0.2):
        sub.ack(found)
    stats = sub.stats()
    assert (stats["backlog"], stats["lag_ms"]) == (0, 0)


def test_an_acknowledged_message_ahead_is_not_part_of_the_backlog_after_a_restart(house: House) -> None:
    house.topic("t")
    sub = house.subscribe("t")
    house.send("t", *range(10))
    found = sub.receive(10)
    sub.ack(found[4:7])
    house.crash()
    assert house.engine.subscriptions.stats("t", "s")["backlog"] == 7


def test_the_status_of_the_database_names_open_subscriptions(house: House) -> None:
    house.topic("t")
    house.subscribe("t", "one")
    assert [each["name"] for each in house.engine.status()["subscriptions"]] == ["one"]


# -- what is kept ------------------------------------------------------------------------------------------------


def test_snapshots_keep_opening_short_and_lose_nothing(open_house: Callable[..., House]) -> None:
    """Journal: reading begins at the newest snapshot."""
    house = open_house(snapshot_records=10)
    house.topic("t")
    sub = house.subscribe("t")
    house.send("t", *range(60))
    found = sub.receive(60)
    for each in found[::2]:
        sub.ack(each)
    eventually(lambda: not sub.host.journal.wants_snapshot())
    for each in found[1:9:2]:
        sub.ack(each)
    house.crash()
    sub = house.subscribe("t")
    assert sub.values(40, 0.3) == list(range(9, 60, 2))
    assert sub.host.journal._since < 25


def test_the_log_is_kept_for_what_is_not_acknowledged_and_let_go_after(open_house: Callable[..., House]) -> None:
    """Retention never removes what a subscription still needs, whether or not it is connected."""
    house = open_house(channels=2, snapshot_records=5)
    house.topic("t", shards=2)
    sub = house.subscribe("t")
    pins = [house.engine.log.pins(each) for each in house.engine.channels]
    assert all("unread subscription/1.t/s" in each for each in pins), "kept from the first moment on"
    house.send("t", *[b"x" * 8000] * 60)

    def removed() -> list[int]:
        house.engine.log.seal()
        return [len(house.engine.log.truncate(each, Position(1 << 40))) for each in house.engine.channels]

    assert removed() == [0, 0]
    house.restart()
    assert removed() == [0, 0]
    sub = house.subscribe("t")
    assert len(sub.receive(60)) == 60
    assert removed() == [0, 0]
    house.engine.subscriptions.unsubscribe("t", "s")
    assert all(each >= 2 for each in removed())


def test_pins_move_on_with_what_is_acknowledged(open_house: Callable[..., House], monkeypatch: Any) -> None:
    monkeypatch.setattr("tidegate.database.sub_feed._MARGIN_MS", 0)
    house = open_house(channels=1, transaction_timeout_max_ms=1, transaction_timeout_ms=1)
    house.topic("t")
    sub = house.subscribe("t")
    for number in range(60):
        house.send("t", b"x" * 8000)
        if number % 4 == 3:
            sub.ack(sub.receive(4))
            time.sleep(0.01)
    house.send("t", "last")
    channel = house.engine.channels[0]
    eventually(lambda: house.engine.log.pins(channel)["unread subscription/1.t/s"] > 20)
    house.engine.log.seal()
    assert house.engine.log.truncate(channel, Position(1 << 40))
    house.restart()
    assert house.subscribe("t").values(2, 0.3) == ["last"]


# -- its end -----------------------------------------------------------------------------------------------------


def test_a_dropped_subscription_tells_its_consumers_and_leaves_nothing_for_one_of_its_name(house: House) -> None:
    house.topic("t")
    sub = house.subscribe("t")
    house.send("t", 1, 2)
    sub.ack(sub.receive(2))
    host = sub.host
    house.engine.subscriptions.unsubscribe("t", "s")
    with pytest.raises(NotFound, match="was dropped"):
        host.receive(sub.consumer, 1, 1.0)
    with pytest.raises(LeaseLost, match="its subscription dropped"):
        sub.receive()
    assert not any("subscription" in name for each in house.engine.channels for name in house.engine.log.pins(each))
    assert house.subscribe("t").values(2) == [1, 2]
    house.crash()
    assert house.subscribe("t").values(2) == [1, 2]


def test_a_dropped_topic_takes_its_subscriptions_along(house: House) -> None:
    house.topic("t")
    sub = house.subscribe("t")
    host = sub.host
    house.engine.change_catalog(lambda catalog: catalog.plan_drop_topic("t"))
    with pytest.raises(NotFound, match="was dropped"):
        host.receive(sub.consumer, 1, 1.0)
    house.topic("t")
    house.send("t", "new")
    assert house.subscribe("t").values(2, 0.3) == ["new"]


def test_an_acknowledgement_that_was_not_written_leaves_the_message_with_its_consumer(house: House) -> None:
    """Promise 6: what was not acknowledged is absent."""
    house.topic("t")
    sub = house.subscribe("t")
    house.send("t", 1)
    (message,) = sub.receive()
    journal = sub.host.journal
    steps = sub.host.ack(sub.consumer, [message.id])
    (request,) = next(steps)
    request.refused = Conflict("planted")  # type: ignore[attr-defined]
    with pytest.raises(Conflict, match="planted"):
        next(steps)
    assert sub.stats()["unacked"] == 1
    sub.ack(message)
    assert sub.stats()["backlog"] == 0
    assert journal.snapshot(sub.host.machine.snapshot, timeout_s=0.1), "whoever entered the journal has left it"


def test_an_acknowledgement_nobody_waits_for_any_more_is_finished_all_the_same(house: House) -> None:
    house.topic("t")
    sub = house.subscribe("t")
    house.send("t", 1)
    (message,) = sub.receive()
    steps = sub.host.ack(sub.consumer, [message.id])
    next(steps)
    steps.close()
    eventually(lambda: sub.stats()["backlog"] == 0)
    assert sub.host.journal.snapshot(sub.host.machine.snapshot, timeout_s=0.5)


def test_a_wrong_call_is_refused(house: House) -> None:
    house.topic("t")
    sub = house.subscribe("t")
    with pytest.raises(InvalidArgument, match="`max_messages` is at least 1, not 0"):
        sub.host.receive(sub.consumer, 0)
    with pytest.raises(NotFound, match="no subscription 'x'"):
        house.engine.subscriptions.stats("t", "x")
    with pytest.raises(InvalidArgument, match="earliest, latest or a Timestamp"):
        house.subscribe("t", "y", start="yesterday")
