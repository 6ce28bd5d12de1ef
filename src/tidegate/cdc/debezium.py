"""Debezium's events: what they say, and `Assembly`: when a transaction is complete, and in which order they come.

Debezium sends a transaction's changes one by one, table by table, between BEGIN and END events on a topic of their own;
they may come in any order across topics, and twice. A transaction is complete when its END has come and every number
from 1 to its `event_count` is there. Transactions are taken in the order of their ENDs, which is that of their commits.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Generic, Literal, TypeVar

from tidegate.errors import SourceUnreadable

H = TypeVar("H")
"""Where an event is kept: itself, or a place in a file."""
_POSTGRES: Final = re.compile(r"(\d+):\d+")
"""A transaction of PostgreSQL and a place in its log, which is another one for each event."""
_OPS: Final[dict[str, Literal["insert", "update", "delete", "truncate", "snapshot"]]] = {
    "c": "insert",
    "u": "update",
    "d": "delete",
    "t": "truncate",
    "r": "snapshot",
}
PASSED_MOST: Final = 4_096
"""Transactions that may be taken while an earlier one waits."""


@dataclass(frozen=True, slots=True)
class Began:
    txn: str


@dataclass(frozen=True, slots=True)
class Ended:
    txn: str
    count: int
    """Of changes; tombstones do not count."""


@dataclass(frozen=True, slots=True)
class Changed:
    """A change of one row. `order` is its number in the transaction, from 1; a row of a snapshot has neither."""

    table: str
    op: Literal["insert", "update", "delete", "truncate", "snapshot"]
    before: Mapping[str, Any] | None
    after: Mapping[str, Any] | None
    txn: str | None
    order: int
    source: Mapping[str, Any]
    """Where and when: `ts_ms`, `lsn` and the like, as the connector has them."""


def event_of(value: Mapping[str, Any] | None) -> Began | Ended | Changed | None:
    """What an event's value says, with or without its schema; None for a tombstone and for what is of no row.

    Raises: `SourceUnreadable` for what is no event of Debezium, or one that belongs to no transaction.
    """
    if value is None:
        return None
    if "payload" in value and "schema" in value:
        return event_of(value["payload"])
    if "status" in value and "id" in value:
        return _boundary(value)
    op = value.get("op")
    if op == "m":  # What an application wrote into the log.
        return None
    if op not in _OPS or not isinstance(value.get("source"), Mapping):
        raise SourceUnreadable(f"no event of Debezium: {str(dict(value))[:200]}")
    source = value["source"]
    table = str(source.get("table") or source.get("collection") or "")
    if source.get("schema"):
        table = f"{source['schema']}.{table}"
    if _OPS[op] == "snapshot":
        return Changed(table, "snapshot", None, value.get("after"), None, 0, source)
    said = value.get("transaction")
    if not isinstance(said, Mapping):
        raise SourceUnreadable(
            f"a change of {table!r} names no transaction: set provide.transaction.metadata=true in the connector, and"
            f" begin behind the events that it sent before"
        )
    try:
        return Changed(
            table,
            _OPS[op],
            value.get("before"),
            value.get("after"),
            key_of(said["id"]),
            int(said["total_order"]),
            source,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise SourceUnreadable(f"a change of {table!r} has a transaction that is none: {dict(said)}") from error


def _boundary(value: Mapping[str, Any]) -> Began | Ended:
    match value["status"]:
        case "BEGIN":
            return Began(key_of(value["id"]))
        case "END" if isinstance(value.get("event_count"), int):
            return Ended(key_of(value["id"]), value["event_count"])
    raise SourceUnreadable(f"no boundary of a transaction: {str(dict(value))[:200]}")


def key_of(id: object) -> str:
    """What all events of one transaction have in common."""
    text = str(id)
    found = _POSTGRES.fullmatch(text)
    return found[1] if found else text


def check_passed(waiting: Iterable[str], taken: int) -> None:
    """Of how many transactions were taken that came behind the beginning of one that waits: a position has them all.

    Raises: `SourceUnreadable` when it will hardly come any more.
    """
    if taken > PASSED_MOST:
        txn = next(iter(waiting), "")
        raise SourceUnreadable(
            f"transaction {txn} has begun, and {taken:,} that came later were taken while it waits for its END or for"
            f" changes: what it lacks is lost; take a new snapshot: restart=True, or --restart"
        )


@dataclass(slots=True)
class _Open(Generic[H]):
    count: int | None = None
    """Known once its END has come."""
    changes: dict[int, H] = field(default_factory=dict)

    @property
    def is_complete(self) -> bool:
        return self.count is not None and len(self.changes) == self.count


class Assembly(Generic[H]):
    """The transactions of one connector. Memory: a number and a place for each change that waits.

    A connector that starts anew sends again what it is not sure of: the last `remembered` transactions are known by
    their ids, and what comes again of them is passed over.
    """

    def __init__(self, remembered: int = 10_000) -> None:
        self._remembered = remembered
        self._taken: dict[str, None] = {}
        self._open: dict[str, _Open[H]] = {}
        self._ended: deque[str] = deque()
        """Those whose END has come, in its order, and that were not taken yet."""

    def remember(self, taken: Iterable[str]) -> None:
        """Transactions that were taken before, the latest last."""
        for txn in taken:
            self._taken[txn] = None
            if len(self._taken) > self._remembered:
                del self._taken[next(iter(self._taken))]

    def is_taken(self, txn: str) -> bool:
        """As far as it is remembered."""
        return txn in self._taken

    def began(self, txn: str) -> None:
        """It may have come before, or behind changes of other topics."""
        if txn not in self._taken:
            self._open.setdefault(txn, _Open())

    def changed(self, txn: str, order: int, place: H) -> None:
        """A change that comes twice is one.

        Raises: `SourceUnreadable` for a number that its transaction does not have.
        """
        if txn in self._taken:
            return
        found = self._open.setdefault(txn, _Open())
        if order < 1 or (found.count is not None and order > found.count):
            raise SourceUnreadable(f"transaction {txn}: change {order} of {found.count}")
        found.changes.setdefault(order, place)

    def ended(self, txn: str, count: int) -> None:
        """Raises: `SourceUnreadable` when there are more changes than it says."""
        if txn in self._taken:
            return
        found = self._open.setdefault(txn, _Open())
        if found.count is not None:
            if found.count != count:
                raise SourceUnreadable(f"transaction {txn} ended with {found.count} changes, and again with {count}")
            return
        if any(each > count for each in found.changes):
            raise SourceUnreadable(f"transaction {txn}: change {max(found.changes)} of {count}")
        found.count = count
        self._ended.append(txn)

    def complete(self) -> Iterator[tuple[str, list[H]]]:
        """The transactions that can be taken, in order, each with its changes in theirs. Each is given once."""
        while self._ended and self._open[self._ended[0]].is_complete:
            txn = self._ended.popleft()
            changes = self._open.pop(txn).changes
            self.remember((txn,))
            yield txn, [changes[each] for each in sorted(changes)]

    @property
    def waiting(self) -> dict[str, tuple[int, int | None]]:
        """How many changes of each there are, and of how many: None before its END."""
        return {txn: (len(each.changes), each.count) for txn, each in self._open.items()}
