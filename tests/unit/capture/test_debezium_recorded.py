"""Side by side with Debezium's own engine (issue 7; capture.md section 5): events that it sent, beside the truth.

`tests/debezium/record.py` ran Debezium 3.6.3 on a real PostgreSQL: transactions of two tables, cut by batches of four
events, and an engine that was killed within a transaction and sent some again. Applied as they come, these events show
states that the database never had. Through a capture they never do.
"""

from __future__ import annotations

import json
import random
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import pytest

import tidegate
from debezium.recordings import applied_as_they_come, recording
from tidegate.capture import debezium_source
from tidegate.database.settings import DatabaseSettings

COLUMNS = {"orders": ("id", "customer", "total", "paid"), "items": ("id", "order_id", "what")}
TOTAL = {"orders.total": "DECIMAL(10, 2)"}
"""Events without schemas do not say what their bytes are."""
SNAPSHOT = 3


@pytest.fixture
def db(tmp_path):
    with tidegate.open(tmp_path / "x.tide", settings=DatabaseSettings(pipeline=False)) as found:
        yield found


def shown(db, columns=COLUMNS):
    """The captured tables as one cut has them."""
    with db.snapshot("strong") as cut:
        rows = {table: cut.query(f"SELECT * FROM {table}").rows() for table in columns}
    return {
        table: {row[names[0]]: tuple(row.get(name) for name in names) for row in rows[table]}
        for table, names in columns.items()
    }


def places_of(seen, states):
    """Where each of what was seen stands in the history; all of it must, and none before another."""
    found = [states.index(each) for each in seen]
    assert found == sorted(found)
    return found


@pytest.mark.parametrize("name", ["shop", "plain"])
def test_the_engine_does_what_the_tests_below_are_about(name):
    """Ids that differ in every event, tombstones, numbers of LSNs that fall, a restart within a transaction."""
    recorded = recording(name)
    payloads = recorded.payloads
    changes = [each for each in payloads if each and each.get("transaction")]
    ids = {}
    for each in changes:
        txn, _, place = each["transaction"]["id"].partition(":")
        ids.setdefault(txn, set()).add(place)
    assert all(len(places) > 1 for txn, places in ids.items() if txn in list(ids)[:3])
    assert payloads.count(None) >= 10
    lsns = [each["source"]["lsn"] for each in changes]
    assert lsns != sorted(lsns)
    ended = [each["id"].partition(":")[0] for each in payloads if each and each.get("status") == "END"]
    begun = [each["id"].partition(":")[0] for each in payloads if each and each.get("status") == "BEGIN"]
    again = [each for each in dict.fromkeys(ended) if ended.count(each) > begun.count(each)]
    assert again  # It went on within a transaction whose BEGIN it had sent.
    assert len(set(ended)) == len(recorded.truth) - 1  # Nothing of the rolled back one, and of the table left out.
    assert {each["op"] for each in payloads if each and "op" in each} == {"r", "c", "u", "d", "t"}


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("name", ["shop", "plain"])
def test_applied_as_they_come_the_events_show_what_never_was(name, batch):
    recorded = recording(name)
    states = [{table: {row["id"] for row in rows} for table, rows in state.items()} for state in recorded.truth]
    seen = list(applied_as_they_come(recorded.payloads))[SNAPSHOT - 1 :: batch]
    torn = [each for each in seen if each not in states]
    assert len(torn) > len(seen) // 4


@pytest.mark.parametrize(("name", "step"), [("shop", 1), ("shop", 13), ("plain", 4)])
def test_through_a_capture_every_cut_is_a_state_that_the_database_had(db, tmp_path, name, step):
    recorded = recording(name)
    states = recorded.states(COLUMNS)
    file = tmp_path / "events.jsonl"
    file.write_text("".join(f"{line}\n" for line in recorded.lines[:SNAPSHOT]))
    url, options = f"debezium:///{file}", {"types": TOTAL} if name == "plain" else {}
    capture = db.capture(url, **options)
    capture.catch_up()
    seen = [shown(db)]
    for number, start in enumerate(range(SNAPSHOT, len(recorded.lines), step)):
        with file.open("a") as more:
            more.writelines(f"{line}\n" for line in recorded.lines[start : start + step])
        if number % 10 == 9:
            capture.stop()
            capture = db.capture(url, **options)
        capture.catch_up()
        seen.append(shown(db))
    capture.stop()
    places = places_of(seen, states)
    assert places[0] == 0 and places[-1] == len(states) - 1
    if step == 1:
        assert sorted(set(places)) == list(range(len(states)))
    taken = db.query("SELECT count(*) AS n FROM capture_transactions", "strong").rows()[0]["n"]
    assert taken == len(states) - 1


@pytest.mark.parametrize("seed", range(3))
def test_topics_that_lag_behind_each_other_are_waited_for(db, tmp_path, seed):
    """A file a topic, as consumers of a broker see them, each as far as it happens to be."""
    chance = random.Random(seed)
    recorded = recording("shop")
    states = recorded.states(COLUMNS)
    topics = {}
    for line, record in zip(recorded.lines, recorded.records):
        topics.setdefault(record["topic"], []).append((line, record))
    capture, seen = None, []
    while any(topics.values()):
        topic = chance.choice([name for name, left in topics.items() if left])
        count = chance.randint(1, 25)
        if capture is None:  # All of the snapshot, before anything else.
            for name, left in topics.items():
                first = [each for each in left if (each[1]["value"] or {}).get("payload", {}).get("op") == "r"]
                _add(tmp_path / "topics" / f"{name}.jsonl", first)
                topics[name] = left[len(first) :]
            capture = db.capture(f"debezium:///{tmp_path}/topics")
        _add(tmp_path / "topics" / f"{topic}.jsonl", topics[topic][:count])
        topics[topic] = topics[topic][count:]
        if chance.random() < 0.2:
            capture.stop()
            capture = db.capture(f"debezium:///{tmp_path}/topics")
        capture.catch_up()
        seen.append(shown(db))
    capture.stop()
    assert places_of(seen, states)[-1] == len(states) - 1


def _add(path, lines):
    path.parent.mkdir(exist_ok=True)
    with path.open("a") as file:
        file.writelines(f"{line}\n" for line, _ in lines)


def test_values_of_all_common_types_are_postgresqls(db, tmp_path):
    recorded = recording("types")
    file = tmp_path / "events.jsonl"
    file.write_text("".join(f"{line}\n" for line in recorded.lines))
    with db.capture(f"debezium:///{file}") as capture:
        capture.catch_up()
    rows = {row["id"]: row for row in db.query("SELECT * FROM kinds", "strong").rows()}
    assert rows[1] == {
        "id": 1,
        "flag": True,
        "small": -32768,
        "mid": 2147483646,
        "single": 1.5,
        "double": -0.1,
        "price": Decimal("123456789.125"),
        "anything": "1.5",
        "words": None,
        "short": "short",
        "fixed": "ab   ",
        "raw": b"\x00\xff\x10",
        "day": date(2024, 2, 29),
        "clock": 86_399_123_456,
        "zoned_clock": "10:00:00Z",
        "at": datetime(2024, 2, 29, 12, 34, 56, 789012),
        "at_ms": datetime(2024, 2, 29, 12, 34, 56, 789000),
        "zoned": datetime(2024, 2, 29, 10, 34, 56, 789012, tzinfo=UTC),
        "span": 31_741_445_600_000,
        "uid": "8c5df0f5-52ea-4b17-8d2e-6e0a6f1e5d11",
        "doc": '{"a": [1, 2]}',
        "docb": '{"b": null}',
        "host": "10.0.0.1/8",
        "numbers": [1, None, 3],
        "names": ["a", None, "c d"],
        "feeling": "ok",
    }
    assert {name for name, value in rows[2].items() if value is not None} == {"id"}
    third = rows[3]
    assert third["single"] != third["single"] and third["double"] == float("-inf")
    assert third["price"] == Decimal("-0.001") and third["anything"] == "-12345678901234567890.123456789"
    assert third["day"] == date(1, 1, 1) and third["raw"] == b"" and third["words"] == ""
    assert third["at"] == datetime(1969, 12, 31, 23, 59, 59, 999999)
    assert third["zoned"] == datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)
    assert db.query("SELECT * FROM pairs", "strong").rows() == recorded.truth[-1]["pairs"]


def test_rows_that_were_there_get_the_defaults_of_new_columns(db, tmp_path):
    """But for what is computed, like now(): the engine does not tell it. NULL stays NULL as the converter is set."""
    recorded = recording("altered")
    file = tmp_path / "events.jsonl"
    file.write_text(f"{recorded.lines[0]}\n")
    with db.capture(f"debezium:///{file}") as capture:
        capture.catch_up()
        with file.open("a") as more:
            more.writelines(f"{line}\n" for line in recorded.lines[1:])
        capture.catch_up()
    rows = {row["id"]: row for row in db.query("SELECT * FROM goods", "strong").rows()}
    assert [rows[id].pop("since") is None for id in (1, 2, 3)] == [True, True, False]
    assert rows == {
        row["id"]: {**{name: value for name, value in row.items() if name != "since"}, "day": date(2024, 2, 29)}
        for row in recorded.truth[-1]["goods"]
    }
    assert rows[1]["stars"] == 5 and rows[3]["stars"] is None


NULLED = (
    "numeric", "bit varying", "numeric(10,2)[]", "float8[]", "real[]", "boolean[]", "smallint[]", "timestamp[]",
    "timestamptz[]", "time[]", "inet[]",
)  # fmt: skip
TOLD = ("bytea[]", "varchar(9)[]", "jsonb[]", "json", "varchar", "tsvector")
PAPERS = {f"c{number}": type for number, type in enumerate((*NULLED, *TOLD))}
"""As `record.py` makes the table."""
LARGE = ("id", "read", "body", "raw", "doc", "words", "small", "big", "uids", "days")


@pytest.mark.parametrize("page", [1, 5_000])
def test_large_values_that_the_engine_did_not_send_are_those_that_were_there(db, tmp_path, monkeypatch, page):
    """PostgreSQL does not log what an update leaves alone; each type has a placeholder of its own. Keys change too."""
    monkeypatch.setattr(debezium_source, "PAGE", page)
    recorded = recording("unsent")
    states = [
        {
            "letters": {row["id"]: tuple(as_shown(name, row[name]) for name in LARGE) for row in state["letters"]},
            "kept": {row["id"]: tuple(row.values()) for row in state["kept"]},
        }
        for state in recorded.truth
    ]
    columns = {"letters": LARGE, "kept": tuple(recorded.truth[0]["kept"][0])}
    file = tmp_path / "events.jsonl"
    file.write_text("".join(f"{line}\n" for line in recorded.lines[:3]))
    with db.capture(f"debezium:///{file}") as capture:
        seen = [shown(db, columns)]
        for line in recorded.lines[3:]:
            with file.open("a") as more:
                more.write(f"{line}\n")
            capture.catch_up()
            seen.append(shown(db, columns))
    assert sorted(set(places_of(seen, states))) == list(range(len(states)))


def test_the_types_of_which_the_engine_says_null_are_those_that_the_docs_name():
    """A null for a large value that was left alone cannot be told from NULL: what to do is in docs/capture.md."""
    (sent,) = (each["after"] for each in updates("papers") if each["after"]["id"] == 1)
    lost = [name for name, type in PAPERS.items() if sent[name] is None]
    assert [PAPERS[name] for name in lost] == list(NULLED)
    docs = (Path(__file__).parents[3] / "docs" / "capture.md").read_text()
    said = " ".join(docs.split())
    assert all(f"`{type.replace('(10,2)', '')}`" in said for type in NULLED)


def test_what_has_a_placeholder_is_taken_over_and_with_replica_identity_full_all_values_come(db, tmp_path):
    recorded = recording("nulled")
    file = tmp_path / "events.jsonl"
    file.write_text("".join(f"{line}\n" for line in recorded.lines[:4]))
    with db.capture(f"debezium:///{file}") as capture:
        capture.catch_up()
        (before,) = db.query("SELECT * FROM papers WHERE id = 1", "strong").rows()
        (before_full,) = db.query("SELECT * FROM papers_full WHERE id = 1", "strong").rows()
        assert None not in before.values() and before == before_full
        with file.open("a") as more:
            more.writelines(f"{line}\n" for line in recorded.lines[4:])
        capture.catch_up()
        (after,) = db.query("SELECT * FROM papers WHERE id = 1", "strong").rows()
        rows = {row["id"]: row for row in db.query("SELECT * FROM papers_full", "strong").rows()}
    told = [name for name, type in PAPERS.items() if type in TOLD]
    assert {name: after[name] for name in told} == {name: before[name] for name in told}
    assert rows[11] == {**before_full, "id": 11, "read": True}
    assert set(rows) == {11, 12} and set(list(rows[12].values())[2:]) == {None}


def updates(table):
    payloads = recording("nulled").payloads
    return [each for each in payloads if each and each.get("op") == "u" and each["source"]["table"] == table]


def as_shown(name, value):
    """A value of PostgreSQL's JSON as a capture has it."""
    if value is None:
        return None
    match name:
        case "raw":
            return bytes.fromhex(value.removeprefix("\\x"))
        case "doc":
            return json.dumps(value)
        case "days":
            return [date.fromisoformat(each) for each in value]
    return value
