"""A transaction whose END never comes: it is waited for, and not for ever (issue 7: truncated logs are detected)."""

from __future__ import annotations

import pytest
from debezium_events import Connector, item, write
from source_model import captured

from tidegate.capture.debezium_source import DebeziumSource
from tidegate.cdc import debezium
from tidegate.errors import SourceUnreadable


def test_what_waits_while_very_many_others_are_taken_counts_as_lost(tmp_path, monkeypatch):
    """Its position, which has all of them, would grow with each."""
    monkeypatch.setattr(debezium, "PASSED_MOST", 50)
    connector = Connector()
    write(tmp_path / "events.jsonl", [connector.snapshot("items", item(1, 0, "x"), "last")])
    source = DebeziumSource(str(tmp_path))
    model = captured(source)
    events = [connector.begin(7), connector.change(7, "u", "items", after=item(1, 7, "never ends"))]
    for txn in range(100, 200):
        events += [connector.begin(txn), connector.change(txn, "u", "items", after=item(1, txn, "x"))]
        events.append(connector.end(txn))
    write(tmp_path / "events.jsonl", events)
    taken = []
    with pytest.raises(SourceUnreadable, match="transaction 7 has begun, and 51 that came later were taken") as raised:
        for each in source.transactions(0):
            model.take(each)
            taken.append(int(each.id))
    assert "restart=True" in str(raised.value)
    assert taken == list(range(100, 150))
    assert [row["order_id"] for row in model.rows["items"].values()] == [149], "what came before it is whole"
