"""Events made as Debezium 3.6.3 sends them for PostgreSQL (capture.md section 5), and one history of a shop.

Made, so that a test can have what it wants; what a real engine sent is in `tests/debezium`. `debezium_history.jsonl` is
that history, a record a line, in an order in which consumers may see them: the topics do not keep step.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path

HISTORY = Path(__file__).parent / "debezium_history.jsonl"
PREFIX = "shop"
STRUCTS = {
    "orders": [
        {"field": "id", "type": "int64", "optional": False},
        {"field": "customer", "type": "string", "optional": True},
        {
            "field": "total",
            "type": "bytes",
            "optional": True,
            "name": "org.apache.kafka.connect.data.Decimal",
            "version": 1,
            "parameters": {"scale": "2", "connect.decimal.precision": "10"},
        },
    ],
    "items": [
        {"field": "id", "type": "int64", "optional": False},
        {"field": "order_id", "type": "int64", "optional": True},
        {"field": "what", "type": "string", "optional": True},
    ],
}


def decimal(cents):
    return base64.b64encode(cents.to_bytes(4, "big", signed=True)).decode()


def order(id, customer, cents):
    return {"id": id, "customer": customer, "total": decimal(cents)}


def item(id, order_id, what):
    return {"id": id, "order_id": order_id, "what": what}


class Connector:
    """Makes records; the LSN is another one in every event, and so is a transaction's id."""

    def __init__(self, schemas=True):
        self.lsn = 23_885_000
        self.schemas = schemas
        self.order = {}

    def _record(self, topic, key, value, struct=None):
        if value is not None and self.schemas:
            fields = [] if struct is None else [{"field": side, "fields": struct} for side in ("before", "after")]
            value = {"schema": {"type": "struct", "fields": fields}, "payload": value}
            key = None if key is None else {"schema": {"type": "struct"}, "payload": key}
        return {"topic": f"{PREFIX}.{topic}", "key": key, "value": value}

    def _id(self, txn):
        self.lsn += 56
        return f"{txn}:{self.lsn}"

    def begin(self, txn):
        self.order[txn] = 0
        return self._record(
            "transaction", None, {"status": "BEGIN", "id": self._id(txn), "event_count": None, "ts_ms": 1}
        )

    def end(self, txn, count=None, ts_ms=1_700_000_000_000):
        value = {"status": "END", "id": self._id(txn), "event_count": self.order[txn] if count is None else count}
        return self._record("transaction", None, {**value, "data_collections": [], "ts_ms": ts_ms})

    def change(self, txn, op, table, *, before=None, after=None, schema="public", fields=None):
        self.order[txn] = self.order.get(txn, 0) + 1
        said = {"id": self._id(txn), "total_order": self.order[txn], "data_collection_order": 1}
        value = {
            "op": op,
            "before": before,
            "after": after,
            "source": {
                "connector": "postgresql",
                "schema": schema,
                "table": table,
                "lsn": self.lsn,
                "snapshot": "false",
            },
            "transaction": said,
            "ts_ms": 1,
        }
        row = after or before
        key = None if row is None else {"id": row["id"]}
        return self._record(f"{schema}.{table}", key, value, STRUCTS.get(table) if fields is None else fields)

    def snapshot(self, table, row, mark="true", fields=None):
        source = {"connector": "postgresql", "schema": "public", "table": table, "snapshot": mark}
        value = {"op": "r", "before": None, "after": row, "source": source, "transaction": None}
        return self._record(f"public.{table}", {"id": row["id"]}, value, STRUCTS[table] if fields is None else fields)

    def tombstone(self, table, id):
        return self._record(f"public.{table}", {"id": id}, None)


def history():
    """How `debezium_history.jsonl` was written."""
    c = Connector()
    first = [
        c.snapshot("orders", order(1, "ann", 1000), "first"),
        c.snapshot("items", item(10, 1, "tea"), "last"),
    ]
    t730 = [
        c.begin(730),
        c.change(730, "c", "orders", after=order(2, "bo", 2599)),
        c.change(730, "c", "items", after=item(20, 2, "cup")),
        c.change(730, "c", "items", after=item(21, 2, "pot")),
        c.change(730, "c", "items", after=item(22, 2, "tray")),
        c.end(730),
    ]
    t731 = [
        c.begin(731),
        c.change(731, "d", "items", before=item(10, None, None)),
        c.tombstone("items", 10),
        c.change(731, "d", "orders", before={"id": 1, "customer": None, "total": None}),
        c.tombstone("orders", 1),
        c.end(731),
    ]
    nothing = [c.begin(733), c.end(733, 0)]
    t732 = [  # The key of order 2 becomes 3.
        c.begin(732),
        c.change(732, "d", "orders", before=order(2, "bo", 2599)),
        c.tombstone("orders", 2),
        c.change(732, "c", "orders", after=order(3, "bo", 2599)),
        *(
            c.change(732, "u", "items", after=item(id, 3, what))
            for id, what in ((20, "cup"), (21, "pot"), (22, "tray"))
        ),
        c.end(732),
    ]
    t734 = [
        c.begin(734),
        c.change(734, "c", "orders", after=order(4, "cy", -5)),
        c.change(734, "c", "items", after=item(40, 4, "jug")),
        c.end(734),
    ]
    # The items' topic lags: END of 734 before its last change. Then the connector starts anew and sends 732 again.
    return [*first, *t730, *t731, *nothing, *t732, t734[0], t734[1], t734[3], *t732, t734[2]]


def after(txn):
    """The shop's tables as (orders, items) after a transaction of the history; None is the snapshot."""
    orders = {1: ("ann", "10.00")}
    items = {10: (1, "tea")}
    if txn is None:
        return orders, items
    orders[2] = ("bo", "25.99")
    items |= {20: (2, "cup"), 21: (2, "pot"), 22: (2, "tray")}
    if txn >= 731:
        del orders[1], items[10]
    if txn >= 732:
        orders[3] = orders.pop(2)
        items = {id: (3, what) for id, (_, what) in items.items()}
    if txn >= 734:
        orders[4] = ("cy", "-0.05")
        items[40] = (4, "jug")
    return orders, items


def write(path, records):
    """Adds records to a file, one a line."""
    with path.open("a") as file:
        file.writelines(json.dumps(each) + "\n" for each in records)


def by_topic(records):
    found = {}
    for each in records:
        found.setdefault(each["topic"], []).append(each)
    return found


if __name__ == "__main__":
    HISTORY.unlink(missing_ok=True)
    write(HISTORY, history())
