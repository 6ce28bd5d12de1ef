"""`DebeziumSource`: the events of a Debezium connector with transaction metadata, as a source.

A transaction is given when its END and all of its changes have come (`tidegate.cdc.debezium.Assembly`), whatever topics
they came by. A position is where to read each part from so that transactions that were open then are met whole again,
and which of those met again were taken.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from tidegate.capture.event_files import TURN, EventFiles, Events, Place, Record
from tidegate.capture.event_rows import EventTable, Fold, Names, database_of, name_of, schema_of
from tidegate.capture.row_changes import APPLIED
from tidegate.capture.source import (
    Change,
    Reshaped,
    Rows,
    Snapshot,
    Source,
    SourceTable,
    SourceTransaction,
    Truncated,
)
from tidegate.cdc.debezium import Assembly, Began, Changed, Ended, check_passed, event_of
from tidegate.cdc.debezium_types import Field, defaults_of, field_as, fields_by_values, fields_of, row_of
from tidegate.errors import InvalidArgument, NotFound, SourceGone, SourceUnreadable, Unavailable

PAGE: Final = 5_000
"""Changes of a transaction that are read at once."""
_GLANCE: Final = 10_000
"""Events of a part, behind its snapshot, that are looked at to find out which tables there are."""
_GUESSED: Final = 1_000
"""Rows of a table by which its types are told where events bring no schema."""
_CACHED: Final = 10_000
"""Events that are kept until their transaction is complete; others are read again."""
_LOOK_S: Final = 0.05


class DebeziumSource(Source):
    """The events of one connector, in files or whatever else can be read again."""

    kind = "debezium"

    def __init__(
        self,
        path: str | None = None,
        *,
        events: Events | None = None,
        keys: Mapping[str, Sequence[str]] | None = None,
        types: Mapping[str, str] | None = None,
    ) -> None:
        """`keys` are those of tables whose events bring none, `types` other types than the events', by `table.column`.

        Raises: `InvalidArgument`, `NotFound`.
        """
        if (path is None) == (events is None):
            raise InvalidArgument("a source of Debezium has a path, or events, and not both")
        self._events: Events = EventFiles(path) if path is not None else events  # type: ignore[assignment]
        self.identity = self._events.identity
        self._keys = {table.lower(): tuple(key) for table, key in (keys or {}).items()}
        self._types = {place.lower(): type for place, type in (types or {}).items()}
        self._wanted: frozenset[str] | None = None
        self._tables: dict[str, EventTable] = {}
        self._names = Names()
        self._assembly: Assembly[Place] = Assembly()
        self._offsets: dict[str, int] = {}
        self._given: dict[str, int] = {}
        """Up to where rows of a snapshot were given, in parts that are read once more from an earlier place."""
        self._first: dict[str, dict[str, int]] = {}
        """Where each open transaction begins, by part."""
        self._recent: dict[str, dict[str, int]] = {}
        """Where transactions end that were taken and may be met again."""
        self._ended_ms: dict[str, int] = {}
        self._origins: dict[str, str] = {}
        self._cache: dict[Place, Record] = {}
        self._heads: dict[str, str] = {}
        self._bounded: dict[str, bool] = {}
        """Which parts have boundaries of transactions: see `Events.parts`."""

    # Tables.

    def tables(self, wanted: Sequence[str] | None) -> list[SourceTable]:
        """See `Source`. A table is known by its events: one of none is not there yet."""
        self._wanted = None if wanted is None else frozenset(each.lower() for each in wanted)
        met: dict[tuple[str, str], list[tuple[Record, Changed]]] = {}
        for record, event in self._glance():
            place = database_of(event), name_of(event.table)
            some = met.setdefault(place, [])
            is_captured = self._is_captured(place[1]) or self._is_captured(".".join(place))
            if is_captured and len(some) < (1 if schema_of(record, event) else _GUESSED):
                some.append((record, event))
        databases = {place[0] for place in met if place[0] and self._is_captured(place[1])}
        is_named = any(place[0] and ".".join(place).lower() in (self._wanted or ()) for place in met)
        is_with = is_named or len(databases) > 1
        self._names = Names("" if is_with else "".join(databases), is_with)
        found: dict[str, list[tuple[Record, Changed]]] = {}
        for place, some in met.items():
            name = ".".join(place) if is_with and place[0] else place[1]
            found.setdefault(name, []).extend(some if self._is_captured(name) else ())
        lost = sorted((self._wanted or set()) - {name.lower() for name in found})
        if lost:
            said = ", ".join(sorted(found)) or "none"
            raise NotFound(f"{self.identity} has no event of table {lost[0]!r} so far; there are events of: {said}")
        self._tables = {name: self._table(name, some) for name, some in found.items() if some}
        self._check_types()
        return [each.table for each in self._tables.values()]

    def _check_types(self) -> None:
        """Raises: `InvalidArgument` for a type of what is not there. A table of none so far may come."""
        known = {name.lower(): each for name, each in self._tables.items()}
        for place in self._types:
            table, _, column = place.rpartition(".")
            if table in known and column not in {each.name.lower() for each in known[table].table.columns}:
                raise InvalidArgument(f"types: table {table!r} has no column {column!r}")
            if not table or (self._wanted is not None and table not in self._wanted):
                raise InvalidArgument(f"types: {place!r} is no column of a table that is captured; write table.column")

    def _glance(self) -> Iterator[tuple[Record, Changed]]:
        for part in self._events.parts():
            offset, behind = 0, 0
            # Tables that are asked for are looked for to the end; others are met when their events are.
            while (behind < _GLANCE or self._wanted) and (read := self._events.read(part, offset, TURN)):
                offset = read[-1][2]
                for _, record, _ in read:
                    event = event_of(record.value)
                    behind += not (isinstance(event, Changed) and event.op == "snapshot")
                    if isinstance(event, Changed) and event.op != "truncate":
                        yield record, event

    def _is_captured(self, name: str) -> bool:
        is_own = name.lower().rpartition(".")[2] == APPLIED
        return not is_own and (self._takes(name) if self._wanted is None else name.lower() in self._wanted)

    def _name(self, event: Changed) -> str:
        return self._names.of(event, self._is_captured)

    def _table(self, name: str, some: Sequence[tuple[Record, Changed]]) -> EventTable:
        record, event = some[0]
        schema = schema_of(record, event)
        if schema is not None:
            fields = self._fields(name, schema)
        else:
            said = fields_by_values(image for _, each in some for image in (each.after or each.before,) if image)
            fields = [self._chosen(name, each) for each in said]
        names = [each.name for each in fields]
        key = self._keys.get(name.lower()) or next((tuple(each.key) for each, _ in some if each.key), ())
        if not key or any(each not in names for each in key):
            raise InvalidArgument(
                f"table {name!r}: its events have no key that is among its columns ({', '.join(names)}); write records"
                f' with their keys, {{"key": ..., "value": ...}}, or say it: keys={{"{name}": [...]}}'
            )
        return EventTable(name, fields, key, schema)

    def _fields(self, table: str, schema: Sequence[Mapping[str, Any]]) -> list[Field]:
        return [self._chosen(table, *each) for each in zip(fields_of(schema), schema, strict=True)]

    def _chosen(self, table: str, field: Field, schema: Mapping[str, Any] | None = None) -> Field:
        type = self._types.get(f"{table}.{field.name}".lower())
        return field if type is None else field_as(field.name, type, schema)

    # Snapshot.

    def snapshot(self) -> Snapshot:
        """See `Source`: what the connector has sent as its own, before anything else.

        Raises: `Unavailable` if the connector is not through with it.
        """
        ends: dict[str, int] = {}
        counts = {each.name: 0 for each in self._tables.values()}
        marks: set[object] = set()
        is_streaming = False
        for part in self._events.parts():
            ends[part] = 0
            for event, behind in self._prefix(part):
                if event is None:
                    is_streaming = True
                    break
                ends[part] = behind
                name = self._name(event)
                counts[name] = counts.get(name, 0) + 1
                marks.add(event.source.get("snapshot"))
        if marks & {"first", "true", True} and "last" not in marks and not is_streaming:
            raise Unavailable(f"{self.identity}: the connector's snapshot is not complete yet: capture it later")
        self._begin({part: (end, end) for part, end in ends.items()}, ())
        rows = {name: count for name, count in counts.items() if name in self._tables}
        return _EventSnapshot(self, ends, self._position(), rows)

    def _prefix(self, part: str) -> Iterator[tuple[Changed | None, int]]:
        """Rows of a snapshot that a part begins with; None for what follows them."""
        offset = 0
        while read := self._events.read(part, offset, TURN):
            for _, record, behind in read:
                offset = behind
                event = event_of(record.value)
                if isinstance(event, Changed) and event.op == "snapshot":
                    yield event, behind
                elif event is not None:
                    yield None, behind
                    return

    def snapshot_rows(self, ends: Mapping[str, int]) -> Iterator[Rows]:
        """Batches of the snapshot."""
        for part, end in ends.items():
            offset = 0
            while offset < end:
                found: dict[str, list[tuple[Any, ...]]] = {}
                for _ in range(max(PAGE // TURN, 1)):
                    read = self._events.read(part, offset, TURN)
                    for at, record, behind in read:
                        if at >= end:
                            break
                        offset = behind
                        event = event_of(record.value)
                        if isinstance(event, Changed) and event.after is not None:
                            table = self._tables.get(self._name(event))
                            if table is not None:
                                row = row_of(table.name, table.fields, event.after)
                                found.setdefault(table.name, []).append(row)
                    if not read or offset >= end:
                        break
                yield from (Rows(name, rows) for name, rows in found.items())

    # Positions.

    def _begin(self, parts: Mapping[str, tuple[int, int]], taken: Iterable[str]) -> None:
        self._offsets = {part: at for part, (at, _) in parts.items()}
        self._given = {part: given for part, (_, given) in parts.items()}
        self._assembly = Assembly()
        for part, at in self._offsets.items():
            if part in self._events.parts():
                ended = (event_of(value) for value in self._events.ended(part, at))
                self._assembly.remember(each.txn for each in ended if isinstance(each, Ended))
        self._assembly.remember(taken)
        self._first.clear()
        self._recent = {txn: {} for txn in taken}
        self._cache.clear()

    def _position(self) -> str:
        """Behind what was taken. Invariant: an END before it is of a transaction that was taken."""
        at = dict(self._offsets)
        for part, offset in (each for first in self._first.values() for each in first.items()):
            at[part] = min(at[part], offset)
        self._recent = {
            txn: last
            for txn, last in self._recent.items()
            if at != self._offsets and (not last or any(offset >= at[part] for part, offset in last.items()))
        }
        check_passed(self._first, len(self._recent))
        parts: dict[str, list[object]] = {}
        for part, offset in sorted(at.items()):
            read = max(self._offsets[part], self._given.get(part, 0))
            if read:
                head = self._heads.get(part) or self._events.head(part)
                self._heads[part] = head
                parts[part] = [offset, head, read] if read != offset else [offset, head]
        said: dict[str, object] = {"at": parts, "taken": sorted(self._recent)}
        if self._names != Names():
            said["database"] = True if self._names.is_with else self._names.database
        return json.dumps(said, separators=(",", ":"))

    def resume(self, position: str, known: Sequence[SourceTable]) -> None:
        """See `Source`."""
        try:
            said = json.loads(position)
            parts = {
                str(part): (int(each[0]), str(each[1]), int(each[-1] if len(each) > 2 else each[0]))
                for part, each in said["at"].items()
            }
            taken = [str(each) for each in said["taken"]]
            database = said.get("database", "")
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise SourceUnreadable(
                f"no position in events: {position[:200]!r}; take a new snapshot: restart=True, or --restart"
            ) from error
        there = set(self._events.parts())
        for part, (at, head, read) in parts.items():
            if part not in there and at < read:
                raise SourceGone(
                    f"{self.identity}: {part} is gone, and transactions that were not complete begin in it; take a new"
                    f" snapshot: restart=True, or --restart"
                )
            if part in there and head and self._events.head(part) != head:
                raise SourceGone(
                    f"{self.identity}: {part} is another one than was read; take a new snapshot: restart=True, or"
                    f" --restart"
                )
            if part in there:
                self._events.read(part, at, 1)  # Whether it is as long as that.
        self._names = Names(is_with=True) if database is True else Names(str(database))
        self._tables = {
            each.name: EventTable(each.name, [field_as(column.name, column.type) for column in each.columns], each.key)
            for each in known
        }
        self._begin({part: (at, read) for part, (at, _, read) in parts.items() if part in there}, taken)

    # Transactions.

    def transactions(self, wait_s: float) -> Iterator[SourceTransaction]:
        """See `Source`."""
        until = time.monotonic() + wait_s
        while True:
            found = False
            for each in self._read():
                found = True
                yield each
            left = until - time.monotonic()
            if found or left <= 0:
                return
            time.sleep(min(_LOOK_S, left))

    def _read(self) -> Iterator[SourceTransaction]:
        is_more = True
        while is_more:
            is_more = is_before_its_turn = False
            if len(parts := self._events.parts()) > 1 and not self._bounded.keys() >= set(parts):
                self._find_boundaries(parts)
            for part in parts:
                rows: list[tuple[Record, Changed]] = []
                records = self._events.read(part, self._offsets.setdefault(part, 0), TURN)
                for at, record, behind in records:
                    event = event_of(record.value)
                    if is_before_its_turn and not (isinstance(event, Changed) and event.op != "snapshot"):
                        break
                    is_more = True
                    if isinstance(event, Changed) and event.op == "snapshot":
                        if at >= self._given.get(part, 0):
                            rows.append((record, event))
                        self._offsets[part] = behind
                        continue
                    yield from self._late_rows(rows)
                    self._offsets[part] = behind
                    self._feed(Place(part, at), record, event)
                    yield from self._complete()
                yield from self._late_rows(rows)
                is_before_its_turn |= len(records) == TURN and self._bounded.get(part, False)

    def _find_boundaries(self, parts: Iterable[str]) -> None:
        """When there is a new part: in all of which none is known so far."""
        for part in parts:
            if not self._bounded.get(part):
                self._bounded[part] = self._events.may_have_boundaries(part, self._offsets.get(part, 0))

    def _late_rows(self, rows: list[tuple[Record, Changed]]) -> Iterator[SourceTransaction]:
        """Rows of a snapshot that came behind changes: a transaction of their own."""
        if rows:
            found: list[Change] = []
            fold = Fold(found)
            for record, event in rows:
                self._change(fold, record, event)
            fold.flush()
            rows.clear()
            yield SourceTransaction("snapshot", self._position(), found)

    def _feed(self, place: Place, record: Record, event: Began | Ended | Changed | None) -> None:
        if event is None or event.txn is None or self._assembly.is_taken(event.txn):
            return
        txn = event.txn
        self._first.setdefault(txn, {}).setdefault(place.part, place.offset)
        match event:
            case Began():
                self._assembly.began(txn)
            case Ended():
                said = record.value or {}
                ended_ms = said.get("payload", said).get("ts_ms")
                if isinstance(ended_ms, int):
                    self._ended_ms[txn] = ended_ms
                self._assembly.ended(txn, event.count)
            case Changed():
                if name_of(event.table).lower() == APPLIED and event.after and event.after.get("origin"):
                    self._origins[txn] = str(event.after["origin"])
                if len(self._cache) < _CACHED:
                    self._cache[place] = record
                self._assembly.changed(txn, event.order, place)

    def _complete(self) -> Iterator[SourceTransaction]:
        for txn, places in self._assembly.complete():
            last: dict[str, int] = {}
            for place in places:
                last[place.part] = max(last.get(place.part, 0), place.offset)
            for part in self._first.pop(txn, {}):
                last[part] = max(last.get(part, 0), self._offsets[part] - 1)
            self._recent[txn] = last
            ended_ms = self._ended_ms.pop(txn, None)
            time_us = None if ended_ms is None else ended_ms * 1000
            origin = self._origins.pop(txn, None)
            if places:
                yield SourceTransaction(txn, self._position(), self._changes(places), time_us, origin)

    def _changes(self, places: Sequence[Place]) -> Iterator[Change]:
        found: list[Change] = []
        fold, count = Fold(found), 0
        for place in places:
            record = self._cache.pop(place, None) or self._events.fetch(place)
            event = event_of(record.value)
            if isinstance(event, Changed):
                self._change(fold, record, event)
            count += 1
            if count >= PAGE:
                fold.flush_all_but_moving()
                yield from found
                found.clear()
                count = 0
        fold.flush()
        yield from found

    def _change(self, fold: Fold, record: Record, event: Changed) -> None:
        name = self._name(event)
        if not self._is_captured(name):
            return
        if event.op == "truncate":
            if name in self._tables:
                fold.flush()
                fold.found.append(Truncated(name))
            return
        table = self._tables.get(name)
        if table is None:
            table = self._tables[name] = self._table(name, [(record, event)])
            fold.flush()
            fold.found.append(Reshaped(table.table))
        elif (reshaped := self._reshaped(table, record, event)) is not None:
            fold.flush()
            fold.found.append(reshaped)
        was = None
        if event.op == "delete" or (event.op == "update" and event.before):
            was = self._key_before(table, record, event)
        if event.op == "delete":
            fold.gone(table, was or ())
            return
        if event.after is None:
            raise SourceUnreadable(f"{event.op} of table {name!r} has no row: transaction {event.txn}")
        unsent: list[str] = []
        row, key = row_of(name, table.fields, event.after, unsent), table.key_of(event.after)
        if unsent and (was is not None or event.op == "update"):
            fold.patched(table, was or key, key, row, unsent)
        elif unsent and (moved := fold.deleted_last(table)) is not None:
            fold.patched(table, moved, key, row, unsent)
        elif unsent:
            row_of(name, table.fields, event.after)  # Raises.
        else:
            if was is not None:
                fold.gone(table, was)
            fold.came(table, key, row)

    def _key_before(self, table: EventTable, record: Record, event: Changed) -> tuple[Any, ...]:
        before = event.before
        image = before if before and all(before.get(each) is not None for each in table.key) else record.key
        if image is None:
            raise SourceUnreadable(f"a delete of table {table.name!r} has no key: write records with their keys")
        return table.key_of(image)

    def _reshaped(self, table: EventTable, record: Record, event: Changed) -> Reshaped | None:
        """What an event's columns make of its table if they are others than those that are known; then they are."""
        schema = schema_of(record, event)
        was = {each.name: each.type for each in table.fields}
        filled: dict[str, Any] = {}
        if schema is not None:
            if schema == table.schema:
                return None
            table.schema = schema
            fields = self._fields(table.name, schema)
            filled = defaults_of(table.name, [each for each in fields if each.name not in was], schema)
        else:
            new = [each for each in event.after or () if each not in was]
            if not new:
                return None
            said = fields_by_values([{each: (event.after or {})[each] for each in new}])
            fields = [*table.fields, *(self._chosen(table.name, each) for each in said)]
        table.fields = fields
        is_same = [(each.name, each.type) for each in fields] == list(was.items())
        return None if is_same else Reshaped(table.table, filled=filled)

    def confirm(self, position: str) -> None:
        """Nothing is kept for a capture."""

    def behind(self) -> dict[str, Any]:
        """Transactions of which something is missing."""
        return {"incomplete_transactions": len(self._assembly.waiting)}

    def close(self) -> None:
        self._cache.clear()


class _EventSnapshot:
    """See `Snapshot`."""

    def __init__(self, source: DebeziumSource, ends: Mapping[str, int], position: str, rows: Mapping[str, int]) -> None:
        self.position = position
        self.rows = rows
        self._source = source
        self._ends = ends

    def batches(self) -> Iterator[Rows]:
        return self._source.snapshot_rows(self._ends)

    def close(self) -> None:
        return
