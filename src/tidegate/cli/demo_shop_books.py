"""What the demo's shop is, and what must be so of every answer: tables, views, questions, and the books. Pure.

The application's tables are SQLite's; the views are Tidegate's, and the same SQL can be asked of SQLite. `Books` are
told the lines that the application's process prints.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple

TABLES: Final = {"orders": ("id",), "items": ("order_id", "n"), "payments": ("order_id",)}
"""The application's tables and their keys."""
SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, customer TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS items (
    order_id INTEGER NOT NULL REFERENCES orders (id), n INTEGER NOT NULL, product TEXT NOT NULL, cents INTEGER NOT NULL,
    PRIMARY KEY (order_id, n));
CREATE TABLE IF NOT EXISTS payments (order_id INTEGER PRIMARY KEY REFERENCES orders (id), cents INTEGER NOT NULL);
"""
RECEIPTS: Final = (
    "SELECT o.id, o.customer, count(i.n) AS items, sum(i.cents) AS total, p.cents AS paid"
    " FROM orders o JOIN items i ON i.order_id = o.id JOIN payments p ON p.order_id = o.id"
    " GROUP BY o.id, o.customer, p.cents"
)
"""Every order with its items and its payment."""
MISMATCHES: Final = (
    "SELECT o.id, r.total, r.paid FROM orders o LEFT JOIN receipts r ON r.id = o.id"
    " WHERE r.id IS NULL OR r.total <> r.paid"
)
"""Orders that lack items or their payment, or whose payment is not the sum of the items: there are none, ever."""
VIEWS: Final = {"receipts": RECEIPTS, "mismatches": MISMATCHES}
ASK_TABLES: Final = (
    "SELECT count(o.id) AS orders, count(p.order_id) AS receipts, sum(i.items) AS items, sum(i.total) AS total,"
    " sum(p.cents) AS paid, max(o.id) AS newest, sum(CASE WHEN i.total = p.cents THEN 0 ELSE 1 END) AS wrong"
    " FROM orders o FULL JOIN"
    " (SELECT order_id, count(*) AS items, sum(cents) AS total FROM items GROUP BY order_id) i ON i.order_id = o.id"
    " FULL JOIN payments p ON p.order_id = o.id"
)
ASK_VIEW: Final = (
    "SELECT (SELECT count(*) FROM orders) AS orders, count(*) AS receipts, sum(items) AS items, sum(total) AS total,"
    " sum(paid) AS paid, max(id) AS newest, (SELECT count(*) FROM mismatches) AS wrong FROM receipts"
)
NEWEST: Final = "SELECT id, customer, items, total, paid FROM receipts ORDER BY id DESC LIMIT 2"
_NAMED_MAX: Final = 3


class Read(NamedTuple):
    """The answer of one cut."""

    at: int
    orders: int
    receipts: int
    """Orders with items and a payment."""
    items: int
    total: int
    paid: int
    newest: int
    """The newest order's id."""
    wrong: int
    """Orders that are not whole, and parts of orders that are not there."""


def read_of(at: int, row: Mapping[str, Any]) -> Read:
    """What a row of `ASK_TABLES` or `ASK_VIEW` says; sums over nothing are 0."""
    return Read(at, *(int(row[name] or 0) for name in Read._fields[1:]))


def torn(read: Read) -> str | None:
    """Why no state between two transactions of the application can have given this answer; None when one can."""
    if read.wrong:
        return f"{read.wrong} orders are not whole at {read.at}"
    if read.orders != read.receipts:
        return f"{read.orders} orders and {read.receipts} with items and payment at {read.at}"
    if read.total != read.paid:
        return f"items for {read.total} and payments of {read.paid} at {read.at}"
    return None


class Books:
    """What the application said. One thread at a time tells it; others may look."""

    def __init__(self) -> None:
        self.done: Final = {"placed": 0, "changed": 0, "cancelled": 0, "declined": 0}
        """Transactions by what they did; `declined` ones were rolled back by the application."""
        self.newest = 0
        """The newest order that was committed."""
        self.under_way: tuple[str, int] | None = None
        """What was begun, and of which nothing was heard since: how it would end, and the order."""
        self.errors: Final[list[str]] = []

    @property
    def committed(self) -> int:
        return sum(count for what, count in self.done.items() if what != "declined")

    def hear(self, line: str) -> bool:
        """Take in a line; False when it is none of those that the application says."""
        match line.split():
            case ["try", what, id]:
                self.under_way = what, int(id)
            case [what, id] if what in self.done and id.isdecimal():
                self.done[what] += 1
                self.under_way = None
                if what == "placed":
                    self.newest = max(self.newest, int(id))
            case ["error", *_]:
                self.errors.append(f"the application stopped: {line.partition(' ')[2].strip()}")
            case _:
                return False
        return True

    def lose(self) -> tuple[str, int] | None:
        """The application is dead: what it was in the midst of."""
        lost, self.under_way = self.under_way, None
        return lost


Rows = Sequence[tuple[Any, ...]]


def differences(name: str, source: Rows, here: Rows) -> list[str]:
    """What is wrong with the rows of a table or view here, when these are the source's."""
    wanted, found = set(source), set(here)
    twice = len(here) - len(found)
    return [
        *_told(sorted(wanted - found), f"rows of {name} are missing"),
        *_told(sorted(found - wanted), f"rows of {name} are there that the source does not have"),
        *([f"{twice:,} rows of {name} are there twice"] if twice else []),
    ]


def _told(rows: Iterable[tuple[Any, ...]], what: str) -> list[str]:
    found = list(rows)
    if not found:
        return []
    named = ", ".join(map(str, islice(found, _NAMED_MAX)))
    return [f"{len(found):,} {what}: {named}{', ...' if len(found) > _NAMED_MAX else ''}"]
