"""Debezium's events (capture.md section 5): a transaction is all of its changes and its END, or it is not taken."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.cdc.debezium import Assembly, Began, Changed, Ended, event_of, key_of
from tidegate.errors import SourceUnreadable

SOURCE = {"connector": "postgresql", "schema": "public", "table": "orders", "lsn": 757, "ts_ms": 1}


def change(op: str = "c", **more: Any) -> dict[str, Any]:
    found = {"op": op, "before": None, "after": {"id": 1}, "source": SOURCE, "ts_ms": 2}
    transaction = {"id": "730:23885032", "total_order": 1, "data_collection_order": 1}
    return {**found, "transaction": transaction, **more}


def test_every_event_of_a_transaction_has_another_id_and_they_belong_together() -> None:
    """Observed with PostgreSQL: the part behind the colon is the place of the event. A GTID of MySQL is whole."""
    assert key_of("730:23885032") == key_of("730:23885480") == "730"
    gtid = "0e4d5dcd-a33b-11ea-80f1-02010a22a99e:10"
    assert key_of(gtid) == gtid
    assert key_of("file=mysql-bin.000003,pos=1234") == "file=mysql-bin.000003,pos=1234"


@pytest.mark.parametrize("wrap", [lambda each: each, lambda each: {"schema": {"type": "struct"}, "payload": each}])
def test_what_events_say(wrap: Any) -> None:
    """With schemas in the message and without."""
    assert event_of(wrap({"status": "BEGIN", "id": "730:1", "ts_ms": 1, "event_count": None})) == Began("730")
    ended = {
        "status": "END",
        "id": "730:9",
        "event_count": 2,
        "data_collections": [{"data_collection": "t", "event_count": 2}],
    }
    assert event_of(wrap(ended)) == Ended("730", 2)
    assert event_of(wrap(change())) == Changed("public.orders", "insert", None, {"id": 1}, "730", 1, SOURCE)
    found = event_of(wrap(change("u", before={"id": 1}, after={"id": 1, "n": 2})))
    assert isinstance(found, Changed) and (found.op, found.before, found.after) == (
        "update",
        {"id": 1},
        {"id": 1, "n": 2},
    )
    assert event_of(wrap(change("r", transaction=None))) == Changed(
        "public.orders", "snapshot", None, {"id": 1}, None, 0, SOURCE
    )


def test_tombstones_and_messages_of_applications_are_no_changes() -> None:
    """A delete is followed by a null value for Kafka's compaction, which no event_count counts."""
    assert event_of(None) is None
    assert event_of({"op": "m", "message": {"prefix": "x"}, "source": SOURCE}) is None


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (change(transaction=None), r"provide\.transaction\.metadata=true"),
        (change(transaction={"id": "1:2"}), "transaction that is none"),
        (change("q"), "no event of Debezium"),
        ({"hello": 1}, "no event of Debezium"),
        ({"status": "END", "id": "1"}, "no boundary"),
        ({"status": "MAYBE", "id": "1"}, "no boundary"),
    ],
)
def test_what_cannot_be_placed_is_refused_and_says_what_to_do(value: dict[str, Any], said: str) -> None:
    """Metadata exists only after it was switched on: what was sent before can belong to no transaction."""
    with pytest.raises(SourceUnreadable, match=said):
        event_of(value)


def test_a_batch_that_ends_within_a_transaction_completes_nothing() -> None:
    """Engine batches of 4 cut a transaction of 5."""
    assembly: Assembly[str] = Assembly()
    assembly.began("7")
    for order in range(1, 5):
        assembly.changed("7", order, f"e{order}")
    assert list(assembly.complete()) == []
    assembly.ended("7", 5)
    assert list(assembly.complete()) == [] and assembly.waiting == {"7": (4, 5)}
    assembly.changed("7", 5, "e5")
    assert list(assembly.complete()) == [("7", ["e1", "e2", "e3", "e4", "e5"])]
    assert assembly.waiting == {} and list(assembly.complete()) == []


def test_an_end_without_changes_is_a_transaction_without_any() -> None:
    """Historically sent for transactions on tables that are not captured."""
    assembly: Assembly[str] = Assembly()
    assembly.ended("7", 0)
    assert list(assembly.complete()) == [("7", [])]


def test_a_later_transaction_waits_for_one_that_ended_before_it() -> None:
    """Its tables' topics may be ahead; its commit was not."""
    assembly: Assembly[str] = Assembly()
    assembly.ended("7", 1)
    assembly.ended("8", 1)
    assembly.changed("8", 1, "b")
    assert list(assembly.complete()) == []
    assembly.changed("7", 1, "a")
    assert list(assembly.complete()) == [("7", ["a"]), ("8", ["b"])]


def test_what_a_connector_sends_again_after_a_restart_is_passed_over() -> None:
    """At least once: the last transactions before, or the rest of one, and without end it does not wait for it."""
    assembly: Assembly[str] = Assembly(remembered=2)
    for txn in ("5", "6", "7"):
        assembly.changed(txn, 1, "a")
        assembly.ended(txn, 1)
        assert [each for each, _ in assembly.complete()] == [txn]
    assembly.began("6")
    assembly.changed("7", 1, "a")
    assembly.ended("7", 1)
    assert assembly.waiting == {}
    assembly.changed("8", 1, "b")
    assembly.ended("8", 1)
    assert list(assembly.complete()) == [("8", ["b"])]


@pytest.mark.parametrize(
    "calls",
    [
        [("ended", "7", 1), ("changed", "7", 2, "x")],
        [("changed", "7", 2, "x"), ("ended", "7", 1)],
        [("changed", "7", 0, "x")],
        [("ended", "7", 1), ("ended", "7", 2)],
    ],
)
def test_counts_that_contradict_each_other_are_refused(calls: list[tuple[Any, ...]]) -> None:
    assembly: Assembly[str] = Assembly()
    with pytest.raises(SourceUnreadable, match="transaction 7"):
        for name, *arguments in calls:
            getattr(assembly, name)(*arguments)


@given(st.integers(0, 100_000))
def test_in_any_order_and_with_repetitions_each_comes_once_whole_and_in_commit_order(seed: int) -> None:
    """Topics are read at different speeds; within one they keep their order, and delivery is at least once."""
    rng = random.Random(seed)
    sizes = {str(txn): rng.randrange(4) for txn in range(rng.randrange(1, 6))}
    boundaries = [("ended", txn, size) for txn, size in sizes.items()]
    tables: list[list[tuple[Any, ...]]] = [[], [], []]
    for txn, size in sizes.items():
        for order in range(1, size + 1):
            rng.choice(tables).append(("changed", txn, order, (txn, order)))
    topics = [boundaries, *tables]
    assembly: Assembly[tuple[str, int]] = Assembly()
    found = []
    while any(topics):
        topic = rng.choice([each for each in topics if each])
        name, *arguments = topic.pop(0)
        for _ in range(1 + (rng.random() < 0.3)):
            getattr(assembly, name)(*arguments)
        found += list(assembly.complete())
    assert found == [(txn, [(txn, order) for order in range(1, size + 1)]) for txn, size in sizes.items()]
