"""One connector's stream in several files, as a log is rotated: the order of commits is that of the files' names.

Issue 7: transactions come in the order in which the source committed them. Read side by side, as files of topics are, a
short new file would be through long before the old one.
"""

from __future__ import annotations

from debezium_events import Connector, item, write
from source_model import captured

from tidegate.capture.debezium_source import TURN, DebeziumSource


def updates(connector, first, last):
    """A transaction for each number, which sets the one row to it."""
    for txn in range(first, last):
        yield connector.begin(txn)
        yield connector.change(txn, "u", "items", after=item(1, txn, "x"))
        yield connector.end(txn)


def taken(source, model):
    found = []
    for each in source.transactions(0):
        model.take(each)
        found.append(int(each.id))
    return found


def test_a_file_goes_on_where_the_one_before_it_ends(tmp_path):
    connector = Connector()
    write(tmp_path / "events.9.jsonl", [connector.snapshot("items", item(1, 0, "x"), "last")])
    source = DebeziumSource(str(tmp_path))
    model = captured(source)
    write(tmp_path / "events.9.jsonl", updates(connector, 1, 2 * TURN))
    write(tmp_path / "events.10.jsonl", updates(connector, 2 * TURN, 2 * TURN + 10))
    assert taken(source, model) == list(range(1, 2 * TURN + 10))


def test_a_file_that_begins_with_more_rows_of_a_snapshot_than_are_read_at_once(tmp_path):
    """Nothing in its beginning says that it has boundaries."""
    connector = Connector()
    rows = [connector.snapshot("items", item(n, 0, "x"), "true") for n in range(2 * TURN)]
    rows.append(connector.snapshot("items", item(2 * TURN, 0, "x"), "last"))
    write(tmp_path / "events.1.jsonl", rows)
    source = DebeziumSource(str(tmp_path))
    model = captured(source)
    # A snapshot that comes again, and changes behind it.
    write(tmp_path / "events.1.jsonl", [*rows, *updates(connector, 1, 100)])
    write(tmp_path / "events.2.jsonl", updates(connector, 100, 110))
    found = []
    for each in source.transactions(0):
        model.take(each)
        found.append(each.id)
    assert [each for each in found if each != "snapshot"] == [str(n) for n in range(1, 110)]
    assert [row["order_id"] for row in model.rows["items"].values() if row["id"] == 1] == [109]


def test_a_transaction_that_goes_on_in_the_next_file(tmp_path):
    connector = Connector()
    write(tmp_path / "events.1.jsonl", [connector.snapshot("items", item(1, 0, "x"), "last")])
    source = DebeziumSource(str(tmp_path))
    model = captured(source)
    stream = list(updates(connector, 1, 3))
    write(tmp_path / "events.1.jsonl", stream[:4])
    assert taken(source, model) == [1]
    write(tmp_path / "events.2.jsonl", [*stream[4:], *updates(connector, 3, 5)])
    again = DebeziumSource(str(tmp_path))
    again.tables(None)
    again.resume(model.position, list(model.shapes.values()))
    assert taken(again, model) == [2, 3, 4]
