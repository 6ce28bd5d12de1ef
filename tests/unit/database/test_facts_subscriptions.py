"""What transactions.md section 6 says of subscriptions and is not proven beside them: facts 20, 21, 40, 45 and 59."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import tidegate
from engine_rig import House
from helpers import BROKEN, FailingFiles
from tidegate import Database, DatabaseSettings, LogSettings
from tidegate.errors import Conflict, InvalidArgument, StorageFailed
from tidegate.runtime import log as log_module
from tidegate.stores.local_files import LocalFiles

SETTINGS = DatabaseSettings(channels=2, log=LogSettings(tick_interval_ms=20))


@pytest.mark.parametrize("again", ["", "restart", "crash"])
def test_asking_for_redelivery_brings_back_nothing_of_what_was_aborted(house: House, again: str) -> None:
    """Fact 20: aborted messages lie between others in the log; no way of delivering again leads to them, and they hold
    nothing up: what is acknowledged is acknowledged to the end."""
    house.topic("t")
    sub = house.subscribe("t")
    txn = house.engine.begin()
    for number in range(10):
        house.send("t", number)
        house.write_ahead(txn, "t", f"aborted {number}")
    assert sub.values(10) == list(range(10))
    house.engine.abort(txn)
    sub.redeliver()
    if again:
        getattr(house, again)()
        sub = house.subscribe("t")
    found = sub.receive(10)
    assert [each.value for each in found] == list(range(10))
    sub.nack(*found)
    found = sub.receive(10)
    sub.ack(found)
    assert sub.nothing()
    assert (sub.stats()["backlog"], sub.stats()["in_memory"]) == (0, 0)


def test_what_another_one_commits_is_seen_before_what_is_still_open_and_older(house: House) -> None:
    """Facts 21 and 59, where they differ: the end of a topic is its newest visible message; nobody waits for the first
    open one, and a subscription that begins now, at the latest, gets what is committed later."""
    house.topic("t")
    one, two = house.engine.begin(), house.engine.begin()
    for number in range(4):
        house.write_ahead(one if number % 2 else two, "t", number)
    house.engine.wait_until_visible(house.engine.commit(two, {}))
    assert house.engine.subscriptions.host("t", house.subscribe("t", "all").name).stats()["backlog"] == 2
    later = house.subscribe("t", "later", start="latest")
    assert later.nothing()
    at = house.engine.commit(one, {})
    assert [(each.value, each.timestamp) for each in later.receive(2)] == [(1, at), (3, at)]
    assert house.subscribe("t", "all").values(4) == [0, 2, 1, 3]


def test_acknowledged_messages_take_no_room_and_pending_ones_do(open_house: Callable[..., House]) -> None:
    """Fact 40: what was acknowledged and is read again takes nobody's room. What is pending may come again, so it
    stays in memory and counts: a bound that no transaction gets around."""
    house = open_house(receive_buffer=10)
    house.topic("t")
    sub = house.subscribe("t")
    house.send_together("t", *range(30))
    one, two = house.engine.begin(), house.engine.begin()
    found = sub.receive(10)
    sub.ack(found[:5], one)
    sub.ack(found[5:], two)
    house.engine.commit(two, {})
    house.restart()
    sub = house.subscribe("t")
    assert sub.values(10, 0.3) == [10, 11, 12, 13, 14]
    house.engine.abort(one)
    again = sub.receive(5)
    assert [each.value for each in again] == [0, 1, 2, 3, 4]
    sub.ack(again)
    assert sub.values(5) == [15, 16, 17, 18, 19]


def test_a_subscription_whose_state_could_not_be_read_can_be_opened_later(
    open_house: Callable[..., House], monkeypatch: Any
) -> None:
    """Fact 45: the error is the caller's, nothing is half open, and the next attempt succeeds with all that was
    acknowledged."""
    disks: dict[str, FailingFiles] = {}
    monkeypatch.setattr(log_module, "LocalFiles", lambda at: disks.setdefault(str(at), FailingFiles(LocalFiles(at))))
    house = open_house()
    house.topic("t")
    sub = house.subscribe("t")
    house.send("t", *range(4))
    found = sub.receive(4)
    sub.ack(found[0])
    house.restart()
    disk = disks[str(house.engine.path / "log")]
    before = disk.count("read")
    with disk.failing(BROKEN, "read", only="data-"), pytest.raises(StorageFailed, match="Input/output error"):
        house.subscribe("t")
    assert disk.count("read") > before
    sub = house.subscribe("t")
    assert sub.values(4, 0.3) == [1, 2, 3]
    txn = house.engine.begin()
    with pytest.raises(Conflict, match="acknowledged already"):
        sub.ack(found[0], txn)


# -- through the API -----------------------------------------------------------------------------------------------


@pytest.fixture(params=["owner", "client"])
def db(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    with tidegate.open(tmp_path / "t.tide", settings=SETTINGS) as owner:
        owner.sql("CREATE TOPIC t SHARDS 2")
        if request.param == "owner":
            yield owner
            return
        with tidegate.open(owner.path, settings=SETTINGS, name="client") as client:
            yield client


def test_a_subscription_begins_where_it_is_told_to(db: Database) -> None:
    """docs/topics.md: at the earliest message unless told otherwise; a Timestamp is that of the first it gets."""
    db.send("t", 0)
    at = db.send("t", 1).timestamp
    db.send("t", 2)
    with db.subscribe("t", "latest", start="latest") as latest:
        db.send("t", 3)
        assert [latest.receive(timeout=5).value, latest.receive(timeout=0.2)] == [3, None]
    for name, start, expected in (("all", {}, [0, 1, 2, 3]), ("some", {"start": at}, [1, 2, 3])):
        with db.subscribe("t", name, **start) as sub:
            found = [sub.receive(timeout=5) for _ in expected]
            assert sorted(each.value for each in found) == expected
            assert sub.receive(timeout=0.1) is None
    with pytest.raises(InvalidArgument, match="earliest, latest or a Timestamp"):
        db.subscribe("t", "wrong", start="yesterday")


def test_whoever_comes_to_a_subscription_need_not_say_what_kind_it_is(db: Database) -> None:
    """docs/topics.md: a new one is exclusive; the kind of one that exists is what it was created as."""
    db.subscribe("t", "new").close()
    db.subscribe("t", "shared", kind="shared").close()
    for name, kind in (("new", "exclusive"), ("shared", "shared")):
        with db.subscribe("t", name) as sub:
            assert sub.stats()["kind"] == kind
    with pytest.raises(InvalidArgument, match=r"kind='shared'.*leave it out"):
        db.subscribe("t", "shared", kind="exclusive")
