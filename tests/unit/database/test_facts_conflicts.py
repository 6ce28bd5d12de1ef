"""Whoever writes a key that a transaction has read is noticed, by whichever way it writes (docs/transactions.md)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import tidegate
from helpers import eventually
from tidegate import Database, DatabaseSettings, LogSettings
from tidegate.errors import Conflict

SETTINGS = DatabaseSettings(channels=3, transaction_buffer_bytes=2_000, log=LogSettings(tick_interval_ms=20))


def in_transaction(db: Database) -> None:
    with db.transaction() as txn:
        txn.send("t", 1, key="a")


def written_ahead(db: Database) -> None:
    with db.transaction() as txn:
        txn.send("t", "x" * 3_000, key="a")
        txn.send("t", 1, key="b")


def rows(db: Database) -> None:
    db.send("t", pa.table({"owner": ["b", "a"], "n": [1, 2]}), key="owner")


def produced(db: Database) -> None:
    producer = db.producer("t", "p")
    producer.send(1, key="a")


def produced_rows(db: Database) -> None:
    db.producer("t", "p").send(pa.table({"owner": ["b", "a"], "n": [1, 2]}), key="owner")


def dead_letter(db: Database) -> None:
    with db.subscribe("origin", "s", max_redeliveries=0, dead_letter_topic="t") as sub:
        db.send("origin", 1, key="a")
        message = sub.receive(timeout=5)
        assert message is not None
        sub.nack(message)
        eventually(lambda: sub.stats()["dead_lettered"] == 1)


WAYS: list[Callable[[Database], object]] = [
    in_transaction,
    written_ahead,
    lambda db: db.send("t", 1, key="a"),
    rows,
    produced,
    produced_rows,
    dead_letter,
]


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[Database]:
    with tidegate.open(tmp_path / "t.tide", settings=SETTINGS) as found:
        found.sql("CREATE TOPIC t SHARDS 3")
        found.sql("CREATE TOPIC origin")
        yield found


@pytest.mark.parametrize("who", ["owner", "client"])
@pytest.mark.parametrize(
    "way", WAYS, ids=["transaction", "ahead", "send", "rows", "producer", "producer of rows", "dead letter"]
)
def test_a_transaction_conflicts_with_whoever_wrote_what_it_had_read(
    owner: Database, way: Callable[[Database], object], who: str
) -> None:
    """What it read is as it was until its commit, or the commit is refused; other keys do not matter."""
    other = owner if who == "owner" else tidegate.open(owner.path, settings=SETTINGS, name="client")
    try:
        read, beside = owner.transaction(), owner.transaction()
        read.read("t", ["a"])
        beside.read("t", ["c"])
        way(other)
        beside.send("t", 2, key="c")
        beside.commit()
        read.send("t", 2, key="a")
        with pytest.raises(Conflict):
            read.commit()
        assert read.state == "ABORTED"
    finally:
        if other is not owner:
            other.close()
