"""`Places`: how far each capture has come and what its tables look like, in tables of the database itself.

A row in each belongs to the same transaction as the rows it tells of, so neither can be there without the other:

- `capture_positions`: where a capture goes on, and what it has taken so far;
- `capture_tables`: its tables: what they are called here, and what they looked like at the source;
- `capture_transactions`: every transaction of a source, with its id, position and time there, where it first happened,
  and the number of its rows. Rows that nobody needs any more can be deleted;
- `capture_holders`: which process's capture of a name goes on: the one that began last.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from tidegate.capture.source import Column, SourceTable, SourceTransaction

if TYPE_CHECKING:
    from tidegate.clock.timestamp import Timestamp
    from tidegate.database.database import Database
    from tidegate.database.transaction import Transaction

POSITIONS: Final = "capture_positions"
TABLES: Final = "capture_tables"
TRANSACTIONS: Final = "capture_transactions"
HOLDERS: Final = "capture_holders"
BESIDE: Final = f"TBLPROPERTIES ('beside' = '{POSITIONS}')"
"""All tables of captures lie in one channel, so that a transaction of a source is one write."""
_CREATE: Final = (
    f"CREATE TABLE IF NOT EXISTS {POSITIONS} (capture STRING PRIMARY KEY, source STRING, position STRING,"
    f" source_txn STRING, committed_at TIMESTAMP, transactions BIGINT, rows BIGINT, wanted STRING)",
    f"CREATE TABLE IF NOT EXISTS {TABLES} (capture STRING, source_table STRING, target STRING, shape STRING,"
    f" PRIMARY KEY (capture, source_table)) {BESIDE}",
    f"CREATE TABLE IF NOT EXISTS {TRANSACTIONS} (capture STRING, position STRING, source_txn STRING,"
    f" committed_at TIMESTAMP, origin STRING, rows BIGINT, PRIMARY KEY (capture, position)) {BESIDE}",
    f"CREATE TABLE IF NOT EXISTS {HOLDERS} (capture STRING PRIMARY KEY, holder STRING) {BESIDE}",
)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(slots=True)
class Target:
    """A captured table: what it is called here, and what its rows look like from now on."""

    name: str
    shape: SourceTable
    is_dropped: bool = False
    """At the source. One that is made there under this name begins without rows."""
    order: tuple[str, ...] | None = None
    """The names of its columns here when they are in another order than at the source."""
    is_anew: bool = False
    """All is being read anew. Until that is done, columns may be missing that what follows the position would need."""


@dataclass(slots=True)
class Place:
    """How far a capture has come."""

    position: str
    transactions: int = 0
    rows: int = 0
    targets: dict[str, Target] = field(default_factory=dict)
    """By the table's name at the source."""
    wanted: tuple[str, ...] | None = None
    """The tables that were asked for when it began; None for all."""

    @property
    def is_anew(self) -> bool:
        """Whether somebody has begun to read everything anew and was interrupted."""
        return any(each.is_anew for each in self.targets.values())


class Places:
    """The rows of one capture in the three tables."""

    def __init__(self, db: Database, capture: str, source: str) -> None:
        self._db = db
        self._capture: Final = capture
        self._source: Final = source
        for statement in _CREATE:
            db.sql(statement)
        self._claimed: Final = db.table(HOLDERS).hashes_of([capture])

    def load(self) -> Place | None:
        """As of now, for certain; None when this capture has taken nothing yet."""
        # One cut: a position without the tables that it was written with would be of no use.
        with self._db.snapshot("strong") as cut:
            found = cut.query(f"SELECT * FROM {POSITIONS} WHERE capture = ?", params=[self._capture]).rows()
            tables = cut.query(f"SELECT * FROM {TABLES} WHERE capture = ?", params=[self._capture]).rows()
        if not found:
            return None
        row = found[0]
        targets = {each["source_table"]: target_of(each["target"], each["shape"]) for each in tables}
        wanted = None if row["wanted"] is None else tuple(json.loads(row["wanted"]))
        return Place(row["position"], row["transactions"], row["rows"], targets, wanted)

    def take_over(self, txn: Transaction, holder: str) -> None:
        """From then on the transactions of any other capture of this name fail."""
        txn.upsert(HOLDERS, [(self._capture, holder)])

    def holder(self, at: Timestamp | str = "strong") -> str | None:
        """Who has taken it over last."""
        found = self._db.query(f"SELECT holder FROM {HOLDERS} WHERE capture = ?", at, params=[self._capture]).rows()
        return found[0]["holder"] if found else None

    def source(self) -> str | None:
        """Which source the capture of this name reads, if it has begun."""
        found = self._db.query(
            f"SELECT source FROM {POSITIONS} WHERE capture = ?", "strong", params=[self._capture]
        ).rows()
        return found[0]["source"] if found else None

    def others(self) -> dict[str, str]:
        """The tables that other captures fill, by what they are called here, and which one does."""
        sql = f"SELECT target, capture FROM {TABLES} WHERE capture <> ?"
        found = self._db.query(sql, "strong", params=[self._capture]).rows()
        return {each["target"]: each["capture"] for each in found}

    def claim(self, txn: Transaction) -> None:
        """Let the transaction fail when another capture of the same name takes over meanwhile."""
        txn.read_hashes(HOLDERS, self._claimed)

    def write(self, txn: Transaction, place: Place, of: SourceTransaction | None = None, rows: int = 0) -> None:
        """Put the place into a transaction; and which transaction of the source it holds, if it holds one."""
        committed = None if of is None or of.committed_at_us is None else _moment(of.committed_at_us)
        source_txn = None if of is None else of.id
        wanted = None if place.wanted is None else json.dumps(place.wanted)
        counts = (place.transactions, place.rows)
        txn.upsert(POSITIONS, [(self._capture, self._source, place.position, source_txn, committed, *counts, wanted)])
        if of is not None:
            origin = of.origin or self._source
            txn.upsert(TRANSACTIONS, [(self._capture, of.position, of.id, committed, origin, rows)])

    def write_tables(self, txn: Transaction, targets: Iterable[Target]) -> None:
        """Put what tables look like into a transaction."""
        rows = [(self._capture, each.shape.name, each.name, to_json(each)) for each in targets]
        if rows:
            txn.upsert(TABLES, rows)

    def forget_tables(self, txn: Transaction, names: Iterable[str]) -> None:
        """Take tables away that the capture has nothing to do with any more."""
        keys = [(self._capture, name) for name in names]
        if keys:
            txn.delete(TABLES, keys)

    def forget(self, txn: Transaction, targets: Mapping[str, Target]) -> None:
        """Take the capture's own rows away; the transactions it has taken stay listed."""
        txn.delete(POSITIONS, [self._capture])
        txn.delete(HOLDERS, [self._capture])
        self.forget_tables(txn, targets)


def list_captures(db: Database) -> list[dict[str, Any]]:
    """Every capture that the database knows, with the tables it fills."""
    for statement in _CREATE:
        db.sql(statement)
    with db.snapshot("strong") as cut:
        found = cut.query(f"SELECT * FROM {POSITIONS} ORDER BY capture").rows()
        tables = cut.query(f"SELECT capture, source_table, target FROM {TABLES} ORDER BY source_table").rows()
    for row in found:
        row["tables"] = {each["source_table"]: each["target"] for each in tables if each["capture"] == row["capture"]}
    return found


def to_json(target: Target) -> str:
    """What is known of a table but its name here."""
    table = target.shape
    columns = [[each.name, each.type, each.is_nullable] for each in table.columns]
    facts: dict[str, Any] = {"name": table.name, "columns": columns, "key": table.key}
    if target.is_dropped:
        facts["dropped"] = True
    if target.order is not None:
        facts["order"] = target.order
    if target.is_anew:
        facts["anew"] = True
    return json.dumps(facts, ensure_ascii=False)


def target_of(name: str, text: str) -> Target:
    """What `to_json` has written."""
    found = json.loads(text)
    shape = SourceTable(found["name"], tuple(Column(*each) for each in found["columns"]), tuple(found["key"]))
    order = None if found.get("order") is None else tuple(found["order"])
    return Target(name, shape, bool(found.get("dropped")), order, bool(found.get("anew")))


def _moment(us: int) -> datetime:
    return _EPOCH + timedelta(microseconds=us)
