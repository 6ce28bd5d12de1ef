"""A source that gives what a test tells it to, for tests of the capture itself."""

from __future__ import annotations

from tidegate.capture.source import Column, Rows, Source, SourceTable, SourceTransaction
from tidegate.errors import SourceGone

ORDERS = SourceTable("orders", (Column("id", "BIGINT"), Column("who", "STRING"), Column("total", "DOUBLE")), ("id",))
ITEMS = SourceTable("items", (Column("order", "BIGINT"), Column("n", "INT")), ("order", "n"))


class History:
    """What has happened at the source: shared by all that open it. A position is the number of transactions taken."""

    def __init__(self, tables=(ORDERS, ITEMS), rows=()):
        self.tables = list(tables)
        self.rows = list(rows)
        """The snapshot, as `Rows`."""
        self.transactions = []
        self.confirmed = []
        self.opened = 0
        self.snapshots = 0
        self.before = {}
        """What is called before the transaction of a number is given: to fail there."""
        self.left_out = {}
        self.forgotten = 0
        """How many transactions are not there any more."""

    def commit(self, *changes, **known):
        number = len(self.transactions) + 1
        self.transactions.append((number, list(changes), known))
        return number

    def insert(self, *orders):
        return self.commit(Rows("orders", list(orders)))

    def open(self, url, name=None, db=None, **options):
        self.opened += 1
        return FakeSource(self)


class FakeSnapshot:
    def __init__(self, history):
        self.position = str(len(history.transactions))
        self.rows = {each.table: len(each.rows) for each in history.rows}
        self._batches = list(history.rows)

    def batches(self):
        return iter(self._batches)

    def close(self):
        pass


class FakeSource(Source):
    kind = "fake"
    identity = "fake:shop"

    def __init__(self, history):
        self.history = history
        self.at = 0
        self.known = None

    @property
    def left_out(self):
        return self.history.left_out

    def tables(self, wanted):
        return [each for each in self.history.tables if wanted is None or each.name in wanted]

    def snapshot(self):
        self.history.snapshots += 1
        found = FakeSnapshot(self.history)
        self.at = int(found.position)
        return found

    def resume(self, position, known):
        if int(position) < self.history.forgotten:
            raise SourceGone(f"the source has nothing behind {position} any more; capture with restart=True")
        self.at = int(position)
        self.known = list(known)

    def transactions(self, wait_s):
        for number, changes, known in self.history.transactions[self.at :]:
            if number in self.history.before:
                self.history.before[number]()
            self.at = number
            yield SourceTransaction(str(number), str(number), iter(changes), **known)

    def confirm(self, position):
        self.history.confirmed.append(int(position))

    def close(self):
        pass
