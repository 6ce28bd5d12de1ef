"""Tables whose names can be none here: left out and said, when all tables are captured; refused when they are named.

Issue 7: bad input gets an error that names the thing, and loses nothing. One table that nobody asked for by name is no
reason to capture none, nor to end a capture that goes on.
"""

from __future__ import annotations

import pytest
from capture_rig import rows
from debezium_events import Connector, item, write

from tidegate.capture.sqlite import connect
from tidegate.errors import InvalidArgument

ODD = "my table"
HOW = "into={'my table': ...}"


@pytest.fixture
def app(tmp_path):
    with connect(tmp_path / "app.db", isolation_level=None) as found:
        found.execute("CREATE TABLE ok (id INTEGER PRIMARY KEY)")
        yield found
    found.close()


@pytest.fixture
def url(app, tmp_path):
    return f"sqlite:///{tmp_path}/app.db"


@pytest.mark.parametrize("when", ["before", "meanwhile", "while it is stopped"])
def test_it_is_left_out_and_said_and_the_others_are_captured(db, app, url, when, caplog):
    def make():
        app.execute(f'CREATE TABLE "{ODD}" (id INTEGER PRIMARY KEY)')
        app.execute(f'INSERT INTO "{ODD}" VALUES (1)')
        app.execute("INSERT INTO ok VALUES (1)")

    if when == "before":
        make()
    with db.capture(url) as capture:
        if when == "meanwhile":
            make()
        if when != "while it is stopped":
            capture.catch_up()
    if when == "while it is stopped":
        make()
    with db.capture(url) as capture:
        app.execute("INSERT INTO ok VALUES (2)")
        capture.catch_up()
        assert HOW in capture.status()["left_out"][ODD]
        assert capture.tables == {"ok": "ok"}
    assert rows(db, "ok") == [(1,), (2,)]
    assert ODD in caplog.text


def test_a_name_that_was_chosen_for_it_is_taken(db, app, url):
    app.execute(f'CREATE TABLE "{ODD}" (id INTEGER PRIMARY KEY)')
    with db.capture(url, into={ODD: "mine"}) as capture:
        app.execute(f'INSERT INTO "{ODD}" VALUES (1)')
        capture.catch_up()
        assert capture.status()["left_out"] == {}
    assert rows(db, "mine") == [(1,)]


def test_one_that_is_named_is_refused_with_what_to_do(db, app, url):
    app.execute(f'CREATE TABLE "{ODD}" (id INTEGER PRIMARY KEY)')
    with pytest.raises(InvalidArgument, match="into="):
        db.capture(url, tables=[ODD])


def test_it_is_the_same_with_events_of_debezium(db, tmp_path):
    connector = Connector()
    write(tmp_path / "events.jsonl", [connector.snapshot("items", item(1, 0, "x"), "last")])
    with db.capture(f"debezium:///{tmp_path}/events.jsonl") as capture:
        events = [connector.begin(1), connector.change(1, "c", "items", after=item(7, 7, "odd"))]
        events[-1]["value"]["payload"]["source"]["table"] = ODD
        events += [connector.change(1, "c", "items", after=item(2, 0, "x")), connector.end(1)]
        write(tmp_path / "events.jsonl", events)
        capture.catch_up()
        assert HOW in capture.status()["left_out"][ODD]
    assert [each[0] for each in rows(db, "items")] == [1, 2]
