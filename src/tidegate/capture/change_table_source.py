"""`ChangeTableSource`: a database whose application writes a change table (seed 003) as a source.

What is read is committed. A transaction is all rows with its id, wherever COMMIT rows stand; one of many pages is given
as it is read. A position is checked against the table whenever it was changed: see `tidegate.cdc.position`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from tidegate.capture.change_log import ChangeLog, Reader
from tidegate.capture.key_storage import check_all, check_one
from tidegate.capture.row_changes import APPLIED, Follower, is_drop
from tidegate.capture.source import Altered, Change, Rows, Snapshot, Source, SourceTable, SourceTransaction
from tidegate.capture.sqlite_ddl import VERSION_TABLE
from tidegate.capture.sqlite_shape import Shape, checked_types, shape_as_known, shape_of
from tidegate.capture.sqlite_triggers import quoted
from tidegate.capture.table_snapshot import TableSnapshot
from tidegate.capture.unrecorded_rows import unrecorded_rows
from tidegate.cdc.change_table import ChangeRow, Groups, settled
from tidegate.cdc.position import LogPosition, Mark, check_dense, follow
from tidegate.cdc.record import decode
from tidegate.errors import InvalidArgument, InvariantBroken, NotFound, Unavailable

PAGE: Final = 5_000
"""Rows of the change table that are read at once."""
BATCH: Final = 20_000
"""Rows of a snapshot that are read at once."""
_DEFAULT: Final = "turso_cdc"
_LOOK_S: Final = 0.02
"""How often to look for changes while waiting."""
_UNSAID: Final = 10_000
"""Rows of the change table that concern no captured table, before a position behind them is given all the same."""
_MOST_COUNTED: Final = 1_000_000


class ChangeTableSource(Source):
    """What SQLite and Turso have in common."""

    def __init__(
        self,
        reader: Reader,
        *,
        identity: str,
        log: str = _DEFAULT,
        types: Mapping[str, str] | None = None,
        pruned: str | None = None,
        is_concurrent: bool = False,
        page: int = PAGE,
        batch: int = BATCH,
    ) -> None:
        """`types`: other types than the declared ones, by `table.column`. `pruned="confirmed"`: the application
        says that it removes only confirmed changes, so that ids may begin anew. Raises: `InvalidArgument`."""
        if pruned not in (None, "confirmed"):
            raise InvalidArgument(f"pruned: {pruned!r} says nothing; only 'confirmed' does")
        self.identity = identity
        self._reader = reader
        self._types = checked_types(types or {})
        self._only_confirmed = pruned == "confirmed"
        self._page, self._batch = _number("page", page), _number("batch", batch)
        self._wanted: frozenset[str] | None = None
        names = {name.lower(): name for name in self._names()}
        if log.lower() not in names:
            raise InvalidArgument(
                f"{identity} has no change table {log!r}: nothing would follow a snapshot. Let the application record"
                f" its changes: open the database with tidegate.capture.sqlite.connect(path), or in Turso with PRAGMA"
                f" capture_data_changes_conn('full')"
            )
        self._log = ChangeLog(reader, names[log.lower()], has_watermark=is_concurrent)
        logs = {log.lower(), _DEFAULT}
        if VERSION_TABLE in names:
            # Others record into tables of their own.
            logs |= {str(row[0]).lower() for row in reader.query(f"SELECT table_name FROM {VERSION_TABLE}")}
        self._excluded = frozenset((*logs, VERSION_TABLE, APPLIED))
        self._follower: Follower | None = None
        self._shapes: list[Shape] = []
        self._position: LogPosition | None = None
        self._seen: object = None
        """What the reader's version was when everything had been read."""
        self._schema: Sequence[tuple[Any, ...]] = ()
        """The source's schema when it was last compared with what was recorded of it."""

    # Tables.

    def _names(self) -> list[str]:
        rows = self._reader.query(
            "SELECT name FROM sqlite_schema WHERE type = 'table' AND sql IS NOT NULL ORDER BY name"
        )
        return [str(name) for (name,) in rows]

    def _ordinary(self) -> list[str]:
        """Tables that can be captured."""
        rows = self._reader.query("SELECT name, sql FROM sqlite_schema WHERE type = 'table' ORDER BY name")
        found = []
        for name, sql in rows:
            low = str(name).lower()
            if low.startswith(("sqlite_", "__turso_internal")) or low in self._excluded or sql is None:
                continue
            if str(sql).lstrip()[:40].upper().split()[:2] != ["CREATE", "VIRTUAL"]:
                found.append(str(name))
        virtual = self._reader.query("PRAGMA table_list")
        shadows = {str(row[1]).lower() for row in virtual if row[0] == "main" and row[2] in ("shadow", "virtual")}
        return [name for name in found if name.lower() not in shadows]

    def tables(self, wanted: Sequence[str] | None) -> list[SourceTable]:
        """See `Source`. Names are of any case."""
        there = {name.lower(): name for name in self._ordinary()}
        if wanted is None:
            names = [name for name in there.values() if self._takes(name)]
        else:
            names = []
            for each in wanted:
                if each.lower() in self._excluded or each.lower().startswith("sqlite_"):
                    raise InvalidArgument(f"table {each!r} is not captured: it is no table of the application")
                if each.lower() not in there:
                    said = ", ".join(there.values()) or "none"
                    raise NotFound(f"{self.identity} has no table {each!r} that can be captured; there are: {said}")
                names.append(there[each.lower()])
            names = list(dict.fromkeys(names))  # One may be given in several cases.
        for place in self._types:
            table = place.rpartition(".")[0]
            if table not in there:
                said = ", ".join(there.values()) or "none"
                raise InvalidArgument(f"types: {self.identity} has no table {table!r}; there are: {said}")
        self._wanted = None if wanted is None else frozenset(each.lower() for each in names)
        self._shapes = [self._shape(name) for name in names]
        for shape in self._shapes:
            self._check_types(shape)
        return [shape.table for shape in self._shapes]

    def _shape(self, name: str) -> Shape:
        shape = shape_of(self._reader.query, name, self._types)
        if shape.has_own_rowid and shape.rowid is None:
            raise InvalidArgument(
                f"table {name!r} has no key, and its columns hide the rowid; leave it out, or give it a primary key"
            )
        return shape

    def _check_types(self, shape: Shape) -> None:
        for place in self._types:
            table, _, column = place.rpartition(".")
            if table == shape.name.lower() and column not in {each.lower() for each in shape.columns}:
                raise InvalidArgument(f"types: table {shape.name!r} has no column {column!r}")

    def _now(self, name: str) -> Shape | None:
        there = {each.lower(): each for each in self._ordinary()}
        return self._shape(there[name.lower()]) if name.lower() in there else None

    def _made(self, shape: Shape, by: int) -> Sequence[Rows]:
        """Rows that a table had when it was made, if it is still that one."""
        self._reader.begin()
        try:
            now = self._now(shape.name)
            schema = self._log.rows_of("sqlite_schema", by, self._log.last_id())
            if now is None or any(is_drop(row, shape.name) for row in schema):
                return ()
            return list(unrecorded_rows(self._reader, self._log, shape, now, by))
        finally:
            self._reader.end()

    def _unrecorded(self, at: LogPosition) -> Iterator[SourceTransaction]:
        """What happened to the schema without a record of it, once all that is recorded was given."""
        sql = "SELECT name, sql FROM sqlite_schema WHERE type = 'table' ORDER BY name"
        if self._reader.query(sql) == self._schema:
            return
        self._reader.begin()
        try:
            if self._log.has_behind(at.id):
                return  # There is more by now, and it may say what happened.
            self._schema = self._reader.query(sql)
            there = {name.lower(): self._shape(name) for name in self._ordinary() if self._following.is_captured(name)}
        finally:
            self._reader.end()
        changes = self._following.reconciled(there)
        if changes:
            yield SourceTransaction(f"schema behind {at.id}", str(at), changes)

    def _follow(self, shapes: Sequence[Shape]) -> Follower:
        return Follower(
            shapes,
            wanted=self._wanted,
            excluded=self._excluded,
            takes=self._takes,
            types=self._types,
            now=self._now,
            made=self._made,
            check_key=partial(check_one, self._reader),
        )

    # Snapshot.

    def snapshot(self) -> Snapshot:
        """See `Source`."""
        before = self._log.watermark() if self._log.is_concurrent else None
        self._reader.begin()
        try:
            if before is None:
                position = self._log.position(self._log.last_id())
            else:
                # What ends below it is all there; of what ends behind it some may be, and is not to come again.
                ahead = tuple(sorted(each.txn for each in self._log.extents(before - 1) if each.txn >= 0))
                position = replace(self._log.position(self._log.last_id(before)), ahead=ahead)
            for shape in self._shapes:
                if not shape.same_images(self._shape(shape.name)):
                    raise Altered(f"table {shape.name!r} was altered meanwhile: open the source again")
                check_all(self._reader, shape)
            rows = {
                shape.table.name: int(self._reader.query(f"SELECT count(*) FROM {quoted(shape.name)}")[0][0])
                for shape in self._shapes
            }
        except BaseException:
            self._reader.end()
            raise
        self._position = position
        self._follower = self._follow(self._shapes)
        self._seen, self._schema = None, ()
        return TableSnapshot(self._reader, self._shapes, str(position), rows, self._batch)

    # Transactions.

    def resume(self, position: str, known: Sequence[SourceTable]) -> None:
        """See `Source`."""
        self._position = LogPosition.parse(position)
        shapes = [shape_as_known(each, self._now(each.name)) for each in known]
        self._follower = self._follow(shapes)
        self._seen, self._schema = None, ()
        self._check()

    def _check(self) -> LogPosition:
        """Compares the position with the change table. Raises: `SourceGone`."""
        if self._position is None:
            raise InvariantBroken("transactions are read behind a snapshot or a position: call one first")
        log = self._log
        self._position = follow(
            self._position,
            log.state(self._position),
            table=log.name,
            has_gaps=log.is_concurrent,
            only_confirmed=self._only_confirmed,
        )
        return self._position

    def transactions(self, wait_s: float) -> Iterator[SourceTransaction]:
        """See `Source`."""
        until = time.monotonic() + wait_s
        while True:
            version = self._reader.version()
            if version is None or version != self._seen:
                found = False
                for each in self._settled() if self._log.is_concurrent else self._in_turn():
                    found = True
                    yield each
                self._seen = version
                if found:
                    return
            left = until - time.monotonic()
            if left <= 0:
                return
            time.sleep(min(_LOOK_S, left))

    def _in_turn(self) -> Iterator[SourceTransaction]:
        """Of writers that take turns."""
        log, follower = self._log, self._following
        at = self._check()
        first = log.first()
        at = replace(at, first=Mark.of(first)) if first else at
        yield from self._retyped(at)
        given = at.id
        is_end = False
        while not is_end:
            rows = log.page(at.id, self._page)
            check_dense([row.id for row in rows], after=at.id, table=log.name)
            is_end = len(rows) < self._page
            parts = list(Groups(at.id).page(rows, is_end=is_end))
            if len(parts) == 1 and not parts[0].is_last:
                large = self._large(at, parts[0].rows, rows)
                at = self._position = LogPosition.parse(large.position)
                given = at.id
                yield large
                continue
            for part in parts:
                if not part.is_last:
                    break
                changes = follower.changes(part.rows)
                if part.rows:
                    last = part.rows[-1]
                    at = LogPosition(at.epoch, part.upto, Mark.of(last), at.first, last.time or 0)
                else:
                    at = replace(at, id=part.upto)
                self._position = at
                if changes or at.id - given > _UNSAID:
                    given = at.id
                    yield self._transaction(part.rows, at, changes)
            if rows and not (parts and not parts[-1].is_last):
                # COMMITs of nothing behind the last transaction are passed over.
                at = self._position = replace(at, id=rows[-1].id)
        yield from self._unrecorded(at)

    def _transaction(self, rows: Sequence[ChangeRow], at: LogPosition, changes: list[Change]) -> SourceTransaction:
        first = rows[0] if rows else None
        id = at.id if first is None else first.id if first.txn is None else first.txn
        time_us = None if first is None or rows[-1].time is None else rows[-1].time * 1_000_000
        return SourceTransaction(
            str(id), str(at), changes, time_us, self._origin(rows) if self._following.has_applied else None
        )

    def _large(self, at: LogPosition, head: Sequence[ChangeRow], page: Sequence[ChangeRow]) -> SourceTransaction:
        """A transaction of more than a page."""
        log = self._log
        txn = head[0].txn if head else page[-1].txn
        end = log.end_of(txn, at.id)
        last = log.last_change(at.id, end)
        if last is None:
            return SourceTransaction(str(txn), str(replace(at, id=end)), ())
        behind = LogPosition(at.epoch, end, Mark.of(last), at.first, last.time or 0)
        id = last.id if txn is None else txn
        time_us = None if last.time is None else last.time * 1_000_000
        origin = self._origin(log.rows_of(APPLIED, at.id, end))
        return SourceTransaction(str(id), str(behind), self._pages(at.id, end, None), time_us, origin)

    def _pages(self, after: int, upto: int, txn: int | None) -> Iterator[Change]:
        """The changes between two ids: of one transaction, or of all."""
        log, follower = self._log, self._following
        while after < upto:
            rows = log.page(after, self._page, upto) if txn is None else log.page_of(txn, after, self._page, upto)
            if not rows:
                raise Unavailable(f"changes up to {upto} were removed from {log.name!r} while they were read; resume")
            if txn is None:
                check_dense([row.id for row in rows], after=after, table=log.name)
            after = rows[-1].id
            yield from follower.changes([row for row in rows if row.kind != 2])

    def _settled(self) -> Iterator[SourceTransaction]:
        """Of writers side by side: in the order of their last rows, and never past the watermark (rule 5)."""
        log = self._log
        at = self._check()
        watermark = log.watermark()
        taken = set(at.ahead)
        yield from self._retyped(at)
        for extent in settled(log.extents(at.id), after=at.id, watermark=watermark):
            ahead = tuple(txn for txn in at.ahead if txn != extent.txn)
            if extent.txn in taken:
                at = self._position = replace(at, id=extent.last, ahead=ahead)
                continue
            begin = min(extent.txn, extent.first) - 1
            last = next(iter(reversed(log.page_of(extent.txn, extent.last - 1, 1, extent.last))), None)
            first = log.first()
            if last is None or first is None:
                raise Unavailable(f"transaction {extent.txn} was removed from {log.name!r} while it was read; resume")
            at = LogPosition(at.epoch, extent.last, Mark.of(last), Mark.of(first), last.time or 0, ahead)
            self._position = at
            time_us = None if last.time is None else last.time * 1_000_000
            applied = [row for row in log.rows_of(APPLIED, begin, extent.last) if row.txn == extent.txn]
            changes = self._pages(begin, extent.last, extent.txn)
            yield SourceTransaction(str(extent.txn), str(at), changes, time_us, self._origin(applied))
        yield from self._unrecorded(at)

    def _retyped(self, at: LogPosition) -> Iterator[SourceTransaction]:
        changes = self._following.retype()
        if changes:
            yield SourceTransaction(f"types behind {at.id}", str(at), changes)

    @property
    def _following(self) -> Follower:
        if self._follower is None:
            raise InvariantBroken("transactions are read behind a snapshot or a position: call one first")
        return self._follower

    def _origin(self, rows: Sequence[ChangeRow]) -> str | None:
        """Who wrote a transaction, as it says itself."""
        for row in rows:
            if row.table is not None and row.table.lower() == APPLIED and row.after is not None:
                names = [str(each[1]).lower() for each in self._reader.query(f"PRAGMA table_info({APPLIED})")]
                values = dict(zip(names, decode(row.after)))
                origin = values.get("origin")
                if isinstance(origin, str):
                    return origin
        return None

    def confirm(self, position: str) -> None:
        """Nothing is kept for a capture: what the application may remove is its own affair."""

    def behind(self) -> dict[str, Any]:
        """How many rows of the change table were not given yet."""
        if self._position is None:
            return {}
        return {"changes": self._log.count_behind(self._position.id, _MOST_COUNTED)}

    def close(self) -> None:
        self._reader.close()


def _number(option: str, given: object) -> int:
    """Raises: `InvalidArgument` for what is no number of rows."""
    try:
        found = int(given)  # type: ignore[call-overload]
    except (TypeError, ValueError):
        found = 0
    if found < 1:
        raise InvalidArgument(f"{option} is a number of rows, at least 1, not {given!r}")
    return int(found)
