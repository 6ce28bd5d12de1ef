"""`Joining`: tables that are created while all of a PostgreSQL database are captured.

    found -> locked, published, read as of one place in the log -> given there -> confirmed
             (a moment: nobody writes to it)

Whoever wrote to the table before that moment has committed, and is in what is read; whoever writes after it is
published. So what is read is given behind everything up to that place in the log, and before all else. Until it is
confirmed, a note in the publication's comment says that the table is joining: after a crash it joins once more.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tidegate.capture.pg_catalog import Shape, shapes_of, types_of
from tidegate.capture.pg_connect import Address, client, connect, explain
from tidegate.capture.pg_objects import Objects
from tidegate.capture.pg_snapshot import PgSnapshot
from tidegate.capture.source import Change, SourceTable, Truncated

if TYPE_CHECKING:
    import psycopg

_logger = logging.getLogger("tidegate.capture")
LOCK_MS: Final = 1000
"""How long those who write to the table may keep it from being locked; others wait behind that."""


class _Hidden(Exception):
    """Rows of the table that its user may not see."""


class Joined(NamedTuple):
    """A table that is published, and its rows as of a place in the log."""

    shape: Shape
    lsn: int
    snapshot: PgSnapshot
    again: bool
    """Whether rows of it may have come before, which then go."""

    @property
    def end(self) -> int:
        """The place behind its rows. No commit has one this near to another record's."""
        return self.lsn + 1

    def changes(self) -> Iterator[Change]:
        """Its rows, to be gone through once."""
        try:
            if self.again:
                yield Truncated(self.shape.table.name)
            yield from self.snapshot.batches()
        finally:
            self.snapshot.close()


class Joining:
    """The tables that join one capture, each in its turn."""

    def __init__(self, objects: Objects, address: Address, name: str, where: str) -> None:
        self._objects = objects
        self._address = address
        self._name = name
        self._where = where
        self._ready: list[Joined] = []
        """Not given yet."""
        self._given: list[Joined] = []
        """Given, and not confirmed yet."""

    @property
    def is_under_way(self) -> bool:
        """Whether a table waits for its place in the log to be reached."""
        return bool(self._ready)

    def begin(self, refuses: Callable[[SourceTable], str | None] | None) -> None:
        """Take up what was found meanwhile. What cannot join stays left out, with why."""
        for shape in self._objects.take_later():
            why_not = refuses(shape.table) if refuses is not None else None
            if why_not is not None:
                _logger.warning("table %r at %s is not captured: %s", shape.table.name, self._where, why_not)
                self._objects.left_out[shape.table.name] = why_not
                continue
            try:
                self._ready.append(self._begin(shape))
            except client().errors.LockNotAvailable:
                # Looked at again next time.
                self._objects.put_off(shape, "created later, and somebody keeps it from being locked for a moment")
            except client().errors.UndefinedTable:
                self._objects.left_out.pop(shape.table.name, None)
            except client().errors.InsufficientPrivilege as error:
                self._refused(shape, f"{str(error).splitlines()[0]}; grant it")
            except _Hidden:
                self._refused(shape, "its policies hide rows from the user; ALTER ROLE ... BYPASSRLS")
            except client().Error as error:
                raise explain(error, self._where, f"publishing table {shape.table.name!r}") from error

    def _refused(self, shape: Shape, said: str) -> None:
        why = f"created later, and refused: {said}, then restart=True"
        _logger.warning("table %r at %s is not captured: it was %s", shape.table.name, self._where, why)
        self._objects.left_out[shape.table.name] = why

    def _begin(self, shape: Shape) -> Joined:
        from psycopg import sql

        with ExitStack() as ends:
            writing = ends.enter_context(connect(self._address, self._name))
            reading = connect(self._address, self._name)
            keep = ends.enter_context(ExitStack())
            keep.callback(reading.close)
            table = sql.Identifier(shape.schema, shape.relation)
            with writing.transaction():
                writing.execute(f"SET LOCAL lock_timeout = {LOCK_MS}")
                writing.execute(sql.SQL("LOCK TABLE ONLY {} IN SHARE MODE").format(table))
                row = writing.execute("SELECT row_security_active(%s::oid)", [shape.oid]).fetchone()
                if row is not None and row[0]:
                    raise _Hidden
                again = self._objects.publish_more(writing, shape)
                row = writing.execute(
                    "SELECT pg_export_snapshot(), pg_current_wal_insert_lsn() - '0/0'::pg_lsn"
                ).fetchone()
                exported, lsn = row if row is not None else ("", 0)
                reading.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
                reading.execute(f"SET TRANSACTION SNAPSHOT '{exported}'")
                seen = _look(reading, shape, self._address.schema)
                found = Joined(seen, int(lsn), PgSnapshot(reading, self._where, "", [seen], {}), again)
            keep.pop_all()
        return found

    def due(self, lsn: int) -> Joined | None:
        """The next whose place is reached: all that was committed before `lsn` was given."""
        if not self._ready or self._ready[0].end > lsn:
            return None
        joined = self._ready.pop(0)
        self._given.append(joined)
        self._objects.joined(joined.shape)
        return joined

    def confirmed(self, lsn: int) -> None:
        """Everything up to a place is safe."""
        done = [each for each in self._given if each.end <= lsn]
        if done:
            self._given = [each for each in self._given if each.end > lsn]
            self._objects.stays([each.shape for each in done])

    def close(self) -> None:
        """What was not confirmed joins once more another time."""
        for each in (*self._ready, *self._given):
            each.snapshot.close()
        self._ready.clear()
        self._given.clear()


def _look(reading: psycopg.Connection[Any], shape: Shape, schema: str) -> Shape:
    """The table as the rows that are read have it."""
    there = shapes_of(reading, types_of(reading), schema).values()
    return next((each for each in there if each.oid == shape.oid), shape)
