"""Debezium's events captured into a database, from files and from a topic (capture.md section 5; issue 7).

The events are made; those of a real engine are in `test_debezium_recorded.py`.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from debezium_events import HISTORY, after, write

import tidegate
from tidegate.database.settings import DatabaseSettings
from tidegate.errors import NotFound, SourceUnreadable

RECORDS = [json.loads(line) for line in HISTORY.read_text().splitlines()]
STATES = [after(txn) for txn in (None, 730, 731, 732, 734)]


@pytest.fixture
def db(tmp_path):
    with tidegate.open(tmp_path / "x.tide", settings=DatabaseSettings(pipeline=False)) as found:
        found.sql("CREATE TOPIC events SHARDS 3")
        yield found


def shown(db):
    """The captured tables as one cut has them, in the form of `after`."""
    with db.snapshot("strong") as cut:
        orders = cut.query("SELECT * FROM orders").rows()
        items = cut.query("SELECT * FROM items").rows()
    return (
        {each["id"]: (each["customer"], str(each["total"])) for each in orders},
        {each["id"]: (each["order_id"], each["what"]) for each in items},
    )


def in_files(db, tmp_path):
    return f"debezium:///{tmp_path}/events.jsonl", lambda records: write(tmp_path / "events.jsonl", records)


def in_a_topic(db, tmp_path):
    return "debezium+topic:events", lambda records: [db.send("events", each) for each in records]


def in_transactions_of_a_topic(db, tmp_path):
    """Several events at one Timestamp, over shards, some as text."""

    def send(records):
        with db.transaction() as txn:
            for number, each in enumerate(records):
                txn.send("events", json.dumps(each) if number % 2 else each)

    return "debezium+topic:events", send


@pytest.mark.parametrize(
    ("how", "step"), [(in_files, 3), (in_files, 7), (in_a_topic, 7), (in_transactions_of_a_topic, 4)]
)
def test_whatever_is_cut_only_whole_transactions_are_shown_in_order_and_once(db, tmp_path, how, step):
    url, send = how(db, tmp_path)
    send(RECORDS[:2])
    seen = []
    capture = db.capture(url)
    for number, start in enumerate(range(2, len(RECORDS), step)):
        send(RECORDS[start : start + step])
        if number % 3 == 2:  # It starts anew in the midst of transactions.
            capture.stop()
            capture = db.capture(url)
        capture.catch_up()
        seen.append(shown(db))
    capture.stop()
    places = [STATES.index(each) for each in seen]  # Nothing else was ever shown.
    assert places == sorted(places) and places[-1] == len(STATES) - 1
    taken = db.query("SELECT source_txn FROM capture_transactions", "strong").rows()
    assert sorted(each["source_txn"] for each in taken) == ["730", "731", "732", "734"]


def test_a_topic_that_is_not_there_and_what_is_no_event_are_named(db):
    with pytest.raises(NotFound, match="'none'"):
        db.capture("debezium+topic:none")
    for each in RECORDS[:2]:
        db.send("events", each)
    with db.capture("debezium+topic:events") as capture:
        db.send("events", "no json {")
        with pytest.raises(SourceUnreadable, match=r"topic 'events' at .*: no JSON: 'no json {'"):
            capture.catch_up()


def test_the_first_snippet_of_the_docs_runs_as_it_is_written(tmp_path, monkeypatch):
    """It captures SQLite: what Debezium's part of the page builds on."""
    monkeypatch.chdir(tmp_path)
    docs = (Path(__file__).parents[3] / "docs" / "capture.md").read_text()
    names = {}
    try:
        exec(docs.split("```python\n")[1].split("```")[0], names)
        assert names["db"].query("SELECT count(*) AS n FROM orders", "strong").rows() == [{"n": 2}]
    finally:
        for each in {"db", "app"} & names.keys():
            names[each].close()
