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

from tidegate.capture.debezium_source import DebeziumSource

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


@pytest.mark.parametrize("is_split", [True, False])
@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**9))
def test_whatever_arrives_when_each_transaction_is_taken_once_and_whole(is_split: bool, seed: int) -> None:
    draw = random.Random(seed)
    shop = Shop(draw)
    with tempfile.TemporaryDirectory() as folder:
        queues: dict[str, list[dict]] = {}
        file = Path(folder) / "events.jsonl"

        def arrive(record: dict) -> None:
            write(Path(folder) / f"{record['topic']}.jsonl" if is_split else file, [record])

        for record in shop.first():
            arrive(record)
        path = folder if is_split else str(file)
        source = DebeziumSource(path)
        model = captured(source)
        taken: list[str] = []

        def take() -> None:
            for each in source.transactions(0):
                model.take(each)
                assert rows_of(model) == shop.states[each.id]
                assert each.id not in taken
                taken.append(each.id)

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
        assert rows_of(model) == shop.rows
        assert taken == sorted(taken, key=int)
