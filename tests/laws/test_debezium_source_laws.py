"""Debezium's events in any arrival: after each transaction taken the fold is the database's, and each is taken once.

Topics do not keep step, batches cut transactions anywhere, the connector starts anew and sends again, and so does the
capture (issue 7; capture.md section 5).
"""

from __future__ import annotations

import random
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.capture import debezium_source
from tidegate.capture.debezium_source import DebeziumSource
from tidegate.capture.event_rows import EventTable, Fold
from tidegate.capture.source import Change, Patch, Rows
from tidegate.cdc.debezium_types import field_as

sys.path.append(str(Path(__file__).parents[1] / "unit" / "capture"))
from debezium_events import Connector, item, write
from source_model import Model, captured

Item = tuple[int, str]


class Shop:
    """Random transactions over one kind of rows in two tables, and what the tables are after each."""

    def __init__(self, draw: random.Random) -> None:
        self.draw = draw
        self.connector = Connector()
        self.rows: dict[str, dict[int, Item]] = {"items": {}, "parts": {}}
        self.states: dict[str, dict[str, dict[int, Item]]] = {}
        self.sent: list[list[dict]] = []

    def first(self) -> list[dict]:
        for table in self.rows:
            self.rows[table][0] = (0, "first")
        fields = STRUCT
        marks = ("first", "last")
        return [with_fields(self.connector.snapshot("items", item(0, 0, "first"), mark), table, fields)
                for table, mark in zip(self.rows, marks, strict=True)]  # fmt: skip

    def transaction(self, txn: int) -> list[dict]:
        """The records of one, in the order of its changes."""
        c, found = self.connector, [self.connector.begin(txn)]
        for _ in range(self.draw.randint(0, 5)):
            table = self.draw.choice(sorted(self.rows))
            key = self.draw.randrange(6)
            was = self.rows[table].get(key)
            if was is not None and self.draw.random() < 0.4:
                del self.rows[table][key]
                found.append(c.change(txn, "d", table, before=item(key, *was), fields=STRUCT))
                found.append(c.tombstone(table, key))
            else:
                now = (txn, self.draw.choice("abc"))
                self.rows[table][key] = now
                before = None if was is None or self.draw.random() < 0.5 else item(key, *was)
                found.append(
                    c.change(
                        txn, "c" if was is None else "u", table, before=before, after=item(key, *now), fields=STRUCT
                    )
                )
        found.append(c.end(txn))
        self.states[str(txn)] = {table: dict(rows) for table, rows in self.rows.items()}
        self.sent.append(found)
        return found


STRUCT = [
    {"field": "id", "type": "int64", "optional": False},
    {"field": "order_id", "type": "int64", "optional": True},
    {"field": "what", "type": "string", "optional": True},
]


def with_fields(record: dict, table: str, fields: list[dict]) -> dict:
    """A row of a snapshot, of another table."""
    record["topic"] = f"shop.public.{table}"
    record["value"]["payload"]["source"]["table"] = table
    for side in record["value"]["schema"]["fields"]:
        side["fields"] = fields
    return record


def rows_of(model: Model) -> dict[str, dict[int, Item]]:
    return {
        name: {row["id"]: (row["order_id"], row["what"]) for row in rows.values()} for name, rows in model.rows.items()
    }


@pytest.mark.parametrize("layout", ["a file for each topic", "one file", "files one after the other"])
@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**9))
def test_whatever_arrives_when_each_transaction_is_taken_once_and_whole(layout: str, seed: int) -> None:
    """However it lies in files; also read again from the first one that is left, behind a rotation."""
    draw = random.Random(seed)
    shop = Shop(draw)
    with tempfile.TemporaryDirectory() as folder:
        queues: dict[str, list[dict]] = {}
        numbers = [8]

        def arrive(record: dict) -> None:
            if layout == "files one after the other" and draw.random() < 0.1:
                numbers.append(numbers[-1] + 1)
            name = record["topic"] if layout == "a file for each topic" else f"events.{numbers[-1]}"
            write(Path(folder) / f"{name}.jsonl", [record])

        for record in shop.first():
            arrive(record)
        path = str(Path(folder) / "events.8.jsonl") if layout == "one file" else folder
        source = DebeziumSource(path)
        model = captured(source)
        taken: list[str] = []

        def take() -> None:
            for each in source.transactions(0):
                model.take(each)
                assert rows_of(model) == shop.states[each.id]
                assert each.id not in taken
                taken.append(each.id)

        # Files that follow each other come in short turns, or they would be read in one.
        patch = pytest.MonkeyPatch()
        patch.setattr(debezium_source, "TURN", draw.choice((1, 3, 200)))
        for txn in range(1, 15):
            for record in shop.transaction(txn):
                queues.setdefault(record["topic"], []).append(record)
            if draw.random() < 0.2:  # The connector starts anew, and sends what it is not sure of.
                for again in shop.sent[-draw.randint(1, 3) :]:
                    for record in again:
                        queues.setdefault(record["topic"], []).append(record)
            for _ in range(draw.randrange(12)):
                topic = draw.choice(sorted(queues))
                if queues[topic]:
                    arrive(queues[topic].pop(0))
                if draw.random() < 0.3:
                    take()
            if draw.random() < 0.3:
                source.close()
                source = DebeziumSource(path)
                source.tables(None)
                source.resume(model.position, list(model.shapes.values()))
        for topic in sorted(queues):
            for record in queues[topic]:
                arrive(record)
        take()
        patch.undo()
        assert rows_of(model) == shop.rows
        assert taken == sorted(taken, key=int)


def changed(rows: dict[int, tuple], changes: list[Change]) -> int:
    """Does what changes say to rows by their keys; how many patches there were."""
    count = 0
    for change in changes:
        match change:
            case Patch(_, keys, came, absent):
                count += 1
                assert len(set(keys)) == len(keys) == len(came) == len({row[0] for row in came})
                assert all(each == ("large",) for each in absent)
                read = [rows[key] for (key,) in keys]
                rows.update((new[0], (*new[:2], old[2])) for new, old in zip(came, read, strict=True))
            case Rows(_, gone, True):
                for (key,) in gone:
                    rows.pop(key, None)
            case Rows(_, came):
                rows.update((row[0], row) for row in came)
    return count


@settings(max_examples=300, deadline=None)
@given(seed=st.integers(0, 10**9))
def test_rows_that_lack_values_are_read_together_and_are_what_they_are_one_by_one(seed: int) -> None:
    """Updates that leave a large value alone, keys that go round, deletes and inserts, in two tables."""
    draw = random.Random(seed)
    fields = [field_as("id", "BIGINT"), field_as("n", "BIGINT"), field_as("large", "STRING")]
    tables = [EventTable(name, fields, ("id",)) for name in "ab"]
    truth: dict[str, dict[int, tuple]] = {each.name: {key: (key, 0, f"{key}") for key in range(5)} for each in tables}
    here = {name: dict(rows) for name, rows in truth.items()}
    found: list[Change] = []
    fold = Fold(found)
    for n in range(1, 30):
        table = draw.choice(tables)
        rows = truth[table.name]
        key = draw.choice(sorted(rows) or [0])
        free = [each for each in range(8) if each not in rows]
        match draw.choice(("insert", "update", "delete", "lacks", "lacks", "lacks", "moves", "moves")):
            case "insert" if free:
                rows[free[0]] = (free[0], n, f"new {n}")
                fold.came(table, (free[0],), rows[free[0]])
            case "update" if key in rows:
                rows[key] = (key, n, f"now {n}")
                fold.came(table, (key,), rows[key])
            case "delete" if key in rows:
                del rows[key]
                fold.gone(table, (key,))
            case "lacks" if key in rows:
                rows[key] = (key, n, rows[key][2])
                fold.patched(table, (key,), (key,), (key, n, None), ["large"])
            case "moves" if key in rows and free:
                new = draw.choice(free)
                rows[new] = (new, n, rows.pop(key)[2])
                fold.gone(table, (key,))
                fold.patched(table, (key,), (new,), (new, n, None), ["large"])
        if draw.random() < 0.1:
            fold.flush_all_but_moving()
    fold.flush()
    for name, rows in here.items():
        changed(rows, [each for each in found if each.table == name])
    assert here == truth


def test_a_thousand_rows_that_lack_values_are_one_patch() -> None:
    """Also with whole rows, moved ones and those of another table in between."""
    fields = [field_as("id", "BIGINT"), field_as("n", "BIGINT"), field_as("large", "STRING")]
    table, other = (EventTable(name, fields, ("id",)) for name in "ab")
    rows = {key: (key, 0, f"{key}") for key in range(1_000)}
    found: list[Change] = []
    fold = Fold(found)
    for key in range(0, 1_000, 4):
        fold.patched(table, (key,), (key,), (key, 1, None), ["large"])
        fold.came(table, (key + 1,), (key + 1, 1, "whole"))
        fold.patched(other, (key,), (key,), (key, 1, None), ["large"])
        fold.gone(table, (key + 2,))
        fold.patched(table, (key + 2,), (key + 5_000,), (key + 5_000, 1, None), ["large"])
    fold.flush()
    assert changed(rows, [each for each in found if each.table == "a"]) == 1
    assert len(rows) == 1_000 and rows[5_000] == (5_000, 1, "2") and rows[1] == (1, 1, "whole") and 2 not in rows
