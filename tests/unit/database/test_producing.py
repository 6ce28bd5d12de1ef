"""Idempotent producers in the process that owns the database: a repeated send is recognised (issue 3)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from engine_rig import House
from helpers import BROKEN, Calls, FailingFiles, eventually
from tidegate.clock.timestamp import Timestamp
from tidegate.database.clients import OWNER
from tidegate.database.producing import Sent
from tidegate.errors import InvalidArgument, LeaseLost, NotFound, OutcomeUnknown, StorageFailed
from tidegate.runtime import log as log_module
from tidegate.stores.local_files import LocalFiles


class Producer:
    """One client's producer."""

    def __init__(self, house: House, topic: str = "t", name: str = "p") -> None:
        self.house, self.topic, self.name = house, topic, name
        self.epoch, self.last = house.engine.producing.open_producer(OWNER, topic, name)

    def send(self, first: int, *values: Any) -> Sent:
        writes = self.house.writes(self.topic, values)
        producing = self.house.engine.producing
        return producing.send(OWNER, self.topic, self.name, self.epoch, first, len(values), writes)


def everything(house: House, topic: str = "t") -> list[Any]:
    """All messages of a topic."""
    house.engine.wait_until_visible(house.engine.log.allocate(1))
    sub = house.subscribe(topic, f"look{int(house.engine.log.allocate(1))}")
    count = sub.stats()["backlog"]
    return sorted(sub.values(count)) if count else []


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("again", ["", "restart", "crash"])
def test_a_repeated_send_is_recognised(house: House, shards: int, again: str) -> None:
    """Issue 3: after reconnects and restarts; the answer is that of the first time."""
    house.topic("t", shards=shards)
    producer = Producer(house)
    assert (producer.last, producer.send(0, "a", "b").duplicate) == (None, False)
    sent = producer.send(2, "c", "d", "e")
    assert isinstance(sent.timestamp, Timestamp) and not sent.duplicate
    if again:
        getattr(house, again)()
    assert producer.send(2, "c", "d", "e") == Sent(sent.timestamp, True)
    other = Producer(house)
    assert other.last == 4
    assert other.send(2, "c", "d", "e") == Sent(sent.timestamp, True)
    other.send(5, "f")
    assert everything(house) == ["a", "b", "c", "d", "e", "f"]


def test_who_opens_a_producer_takes_it_from_whoever_had_it(house: House) -> None:
    """Facts 61, 62: the older one is refused from then on, and has written nothing."""
    house.topic("t")
    old = Producer(house)
    old.send(0, "a")
    new = Producer(house)
    assert new.epoch > old.epoch
    with pytest.raises(LeaseLost, match="opened again by another client"):
        old.send(1, "lost")
    new.send(1, "b")
    house.restart()
    with pytest.raises(LeaseLost):
        old.send(2, "lost")
    assert everything(house) == ["a", "b"]


def test_a_gap_and_an_unknown_producer_are_refused(house: House) -> None:
    """Section 7: sequence numbers follow each other."""
    house.topic("t")
    producer = Producer(house)
    producer.send(7, "a")
    with pytest.raises(InvalidArgument, match="8 is next"):
        producer.send(9, "b")
    with pytest.raises(NotFound, match="producer 'q' of topic 't' is not open"):
        house.engine.producing.send(OWNER, "t", "q", 1, 0, 1, house.writes("t", ["x"]))
    with pytest.raises(NotFound, match="no topic 'u'"):
        house.engine.producing.open_producer(OWNER, "u", "p")
    assert everything(house) == ["a"]


def test_a_send_that_is_known_to_have_failed_may_be_repeated(house: House, monkeypatch: Any) -> None:
    """Promise 6: nothing of it is there, and its numbers are free."""
    house.topic("t", shards=2)
    producer = Producer(house)

    def refuse(*_: Any) -> Any:
        raise StorageFailed("planted")

    with monkeypatch.context() as patch:
        patch.setattr(house.engine.transactions, "_write_commit", refuse)
        with pytest.raises(StorageFailed, match="planted"):
            producer.send(0, "a", "b")
    assert not producer.send(0, "a", "b").duplicate
    assert everything(house) == ["a", "b"]
    host = house.engine.producing.host("t")
    assert host.journal.snapshot(host._snapshot, timeout_s=0.2), "it has left the journal"


@pytest.mark.parametrize(("shards", "where"), [(1, "data-1"), (3, "system")], ids=["at once", "in two steps"])
@pytest.mark.parametrize("then", ["", "crash"])
def test_a_send_in_doubt_is_settled_before_it_is_repeated(
    open_house: Callable[..., House], monkeypatch: Any, shards: int, where: str, then: str
) -> None:
    """Promise 6: as long as the disk will not tell, nobody sends it twice; then it is there once."""
    disks: dict[str, FailingFiles] = {}
    monkeypatch.setattr(log_module, "LocalFiles", lambda at: disks.setdefault(str(at), FailingFiles(LocalFiles(at))))
    house = open_house(channels=2)
    disk = disks[str(house.engine.path / "log")]
    house.topic("t", shards=shards)
    producer = Producer(house)
    calls = ("write", "sync", "create", "sync_dir", "remove")
    with disk.failing(BROKEN, *calls, only=where):
        with pytest.raises(OutcomeUnknown):
            producer.send(0, "a", "b", "c")
        with pytest.raises(OutcomeUnknown, match="whether producer 'p' of topic 't' has sent 0 to 2 is not known"):
            producer.send(0, "a", "b", "c")
        with pytest.raises(OutcomeUnknown, match="whether producer 'p'"):
            Producer(house)
        if then:
            house.crash()

    def repeated() -> Sent | None:
        with suppress(OutcomeUnknown):
            return producer.send(0, "a", "b", "c")
        return None

    eventually(repeated, what="an answer")
    producer.send(3, "d")
    assert everything(house) == ["a", "b", "c", "d"]


def test_a_repeat_waits_while_the_first_is_under_way(house: House, calls: Calls) -> None:
    """Issue 3: one of them is appended, and both get its Timestamp."""
    house.topic("t")
    producer = Producer(house)
    host = house.engine.producing.host("t")
    first = host.send("p", producer.epoch, 0, 1, house.writes("t", ["a"]))
    (request,) = next(first)
    repeat = calls(lambda: producer.send(0, "a"))
    opening = calls(lambda: Producer(house))
    with pytest.raises(TimeoutError):
        repeat.result(0.1)
    request.wait()
    with pytest.raises(StopIteration) as end:
        next(first)
    sent = end.value.value
    assert not sent.duplicate
    assert opening.result(10).last == 0
    with suppress(LeaseLost):  # The other client may have been faster at opening it again.
        assert repeat.result(10) == Sent(sent.timestamp, True)
    assert everything(house) == ["a"]


def test_many_producers_send_at_the_same_time(house: House) -> None:
    """Each number once, over several channels, whichever is acknowledged first; and again after a crash."""
    house.topic("t", shards=3)
    failures: list[BaseException] = []

    def produce(name: str) -> None:
        try:
            producer = Producer(house, name=name)
            for number in range(0, 20, 2):
                sent = producer.send(number, f"{name}{number}", f"{name}{number + 1}")
                assert producer.send(number, f"{name}{number}", f"{name}{number + 1}") == Sent(sent.timestamp, True)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=produce, args=(name,)) for name in "abcdef"]
    for each in threads:
        each.start()
    for each in threads:
        each.join(60)
    assert not failures
    expected = sorted(f"{name}{number}" for name in "abcdef" for number in range(20))
    house.crash()
    for name in "abcdef":
        assert Producer(house, name=name).last == 19
    assert everything(house) == expected


def test_epochs_are_the_same_after_a_restart(house: House, calls: Calls) -> None:
    """Whoever has a producer keeps it: openings are counted in the order of the log, here and in every replay."""
    house.topic("t")
    opened = {name: calls(lambda name=name: Producer(house, name=name)) for name in "abcdefgh"}
    producers = [each.result(20) for each in opened.values()]
    house.crash()
    for each in producers:
        each.send(0, each.name)
    assert everything(house) == list("abcdefgh")


def test_snapshots_lose_nothing(open_house: Callable[..., House]) -> None:
    house = open_house(snapshot_records=5)
    house.topic("t")
    producer = Producer(house)
    for number in range(12):
        producer.send(number, number)
    host = house.engine.producing.host("t")
    eventually(lambda: not host.journal.wants_snapshot())
    sent = producer.send(12, 12)
    house.crash()
    assert producer.send(12, 12) == Sent(sent.timestamp, True)
    assert producer.send(3, 3).duplicate
    assert everything(house) == list(range(13))


def test_a_topic_of_the_same_name_has_producers_of_its_own(house: House) -> None:
    house.topic("t")
    Producer(house).send(0, "old")
    house.engine.change_catalog(lambda catalog: catalog.plan_drop_topic("t"))
    assert not any("producers" in name for each in house.engine.channels for name in house.engine.log.pins(each))
    house.topic("t")
    producer = Producer(house)
    assert producer.last is None
    producer.send(0, "new")
    assert everything(house) == ["new"]
