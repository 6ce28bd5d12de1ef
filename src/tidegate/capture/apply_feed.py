"""`LogFeed`: the committed transactions of some tables, from all channels, in the order of their Timestamps.

Works in every process: the owner reads its memory and files, others read the files. A `Window` is what became visible
above one Timestamp and up to another, complete: every channel has ticked past its end, so no transaction is in it in
part. How many rows it has is bounded, unless one transaction has more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.clock.timestamp import Timestamp
from tidegate.database.local import LocalBackend
from tidegate.errors import NotFound, Truncated, WaitTimeout
from tidegate.log.batch import Batch
from tidegate.log.message import MessageType
from tidegate.runtime.log_files import LogFiles
from tidegate.runtime.transaction_reader import TransactionReader
from tidegate.tables.changes import changes_of
from tidegate.tables.schema import SEQ, TS, Table
from tidegate.topics.routing import place

if TYPE_CHECKING:
    from tidegate.database.replication_calls import ReplicationCalls

_ORIGINS: Final = {"capture_positions": "source", "capture_transactions": "origin"}
"""The tables in which a capture writes, in each transaction, which source it was taken from; and, the second, what that
says of who wrote it."""
_WAIT_S: Final = 30.0
_ROWS: Final = frozenset({MessageType.INSERT, MessageType.UPSERT, MessageType.DELETE})
_I64 = npt.NDArray[np.int64]


@dataclass(slots=True)
class Window:
    """Whole transactions above `after` and up to `upto`."""

    after: Timestamp
    upto: Timestamp
    changes: dict[str, pa.Table] = field(default_factory=dict)
    """By table, those that changed: in order of `_ts`, then of `_seq`."""
    times: _I64 = field(default_factory=lambda: np.empty(0, np.int64))
    """The commit Timestamps of its transactions, in order."""
    rows: _I64 = field(default_factory=lambda: np.empty(0, np.int64))
    """How many rows of the tables each of them has."""
    sources: dict[int, str] = field(default_factory=dict)
    """Where captured ones were taken from, by their Timestamps."""
    origins: dict[int, str] = field(default_factory=dict)
    """What the source says of who wrote them; its own name when it does not say."""

    def source(self, time: int) -> str | None:
        """Where a transaction was taken from; None when it is of this database."""
        return self.sources.get(time, self.origins.get(time))

    def between(self, table: str, first: int, last: int) -> pa.Table:
        """A table's changes from one Timestamp up to and with another."""
        changes = self.changes[table]
        times = changes.column(TS).to_numpy()
        start, end = np.searchsorted(times, first, "left"), np.searchsorted(times, last, "right")
        return changes.slice(int(start), int(end - start))


class LogFeed:
    """Reads on and on. One thread at a time."""

    def __init__(self, db: ReplicationCalls, names: list[str], after: Timestamp, rows_max: int) -> None:
        """`rows_max` is about how many rows a window has."""
        self._db = db
        self._names = names
        self._rows_max = rows_max
        self.after = after
        self._readers: dict[str, TransactionReader] = {}
        self._held: dict[str, list[Batch]] = {}
        self._count = 0
        """How many rows are held."""
        self._vchannels: frozenset[str] = frozenset()
        self._life = -1

    def windows(self, tables: Mapping[str, Table], upto: Timestamp) -> Iterator[Window]:
        """What became visible since the last window, up to a cut that every channel has reached.

        `tables` are those of the catalog at the cut. No window goes across a change of a table's schema.
        Raises: `Truncated` when retention has removed what comes next; `WaitTimeout`.
        """
        stops = {int(upto)}
        for table in tables.values():
            stops |= {int(each.since) - 1 for each in table.versions if self.after < int(each.since) - 1 < upto}
        origins = self._origin_tables()
        self._open(tables, origins)
        for stop in sorted(stops):
            yield from self._windows(tables, origins, Timestamp(stop))

    def check(self, tables: Mapping[str, Table], upto: Timestamp) -> None:
        """Whether the log has what comes next. Raises: as `windows`."""
        self._open(tables, self._origin_tables())
        for name, reader in self._readers.items():
            if reader.after < upto:
                self._read_on(name, reader, upto)

    def _windows(self, tables: Mapping[str, Table], origins: list[Table], upto: Timestamp) -> Iterator[Window]:
        while self.after < upto:
            bound = self._read(upto)
            window = Window(self.after, bound)
            taken = self._take(bound)
            if taken:
                self._fill(window, tables, origins, taken)
            self.after = bound
            yield window

    def close(self) -> None:
        for each in self._readers.values():
            each.close()
        self._readers.clear()
        self._held.clear()
        self._count = 0

    # -- reading ---------------------------------------------------------------------------------------------------

    def _origin_tables(self) -> list[Table]:
        found = []
        for name in _ORIGINS:
            with suppress(NotFound):  # Nothing was ever captured.
                found.append(self._db.again(partial(self._db.backend.table, name)))
        return found

    def _open(self, tables: Mapping[str, Table], origins: list[Table]) -> None:
        """Have a reader for each channel of the tables, from where the last window ended."""
        every = [*tables.values(), *origins]
        vchannels = frozenset(each for table in every for each in table.vchannels)
        if vchannels == self._vchannels and self._life == self._db.life and self._readers:
            return
        self.close()
        self._vchannels, self._life = vchannels, self._db.life
        backend = self._db.backend
        log = backend.engine.log if isinstance(backend, LocalBackend) else LogFiles(self._db.path)
        count = self._db.channels
        names = {f"data-{place(table.id, shard, count)}" for table in every for shard in range(table.shards)}
        for name in sorted(names):
            self._readers[name] = log.transaction_reader(name, after=self.after, vchannels=vchannels, types=_ROWS)
            self._held[name] = []

    def _read(self, upto: Timestamp) -> Timestamp:
        """Read until every channel has come to `upto`, or there is enough; how far all of them have come."""
        while True:
            name, reader = min(self._readers.items(), key=lambda each: each[1].after)
            come = Timestamp(min(reader.after, int(upto)))
            if come >= upto:
                return upto
            if come > self.after and self._count >= self._rows_max:
                return come
            self._read_on(name, reader, upto)

    def _read_on(self, name: str, reader: TransactionReader, upto: Timestamp) -> None:
        try:
            delivery = reader.read(_WAIT_S)
        except Truncated as error:
            raise Truncated(
                f"what was written after {self.after} is not in the log of {self._db.path} any more ({error});"
                f" start anew with the tables' rows: restart=True, or `tidegate apply --restart`"
            ) from error
        if delivery is None:
            raise WaitTimeout(
                f"channel {name!r} has come to {Timestamp(reader.after)} and not to {upto} within {_WAIT_S:g} s;"
                f" `tidegate status` says what holds it"
            )
        self._held[name].extend(delivery.batches)
        self._count += len(delivery)

    def _take(self, bound: Timestamp) -> list[Batch]:
        """What was read up to a Timestamp; the rest is kept."""
        found: list[Batch] = []
        for name, held in self._held.items():
            kept: list[Batch] = []
            for batch in held:
                mask = batch.time_ticks <= np.uint64(int(bound))
                if mask.all():
                    found.append(batch)
                elif mask.any():
                    found.append(batch.where(mask))
                    kept.append(batch.where(~mask))
                else:
                    kept.append(batch)
            self._held[name] = kept
        self._count = sum(len(each) for held in self._held.values() for each in held)
        return found

    def _fill(self, window: Window, tables: Mapping[str, Table], origins: list[Table], batches: list[Batch]) -> None:
        times = []
        for name, table in tables.items():
            if not table.existed(window.upto):
                continue
            changes = changes_of(table, batches, table.at(window.upto))
            if changes.num_rows:
                window.changes[name] = _in_order(changes)
                times.append(window.changes[name].column(TS).to_numpy())
        if times:
            window.times, window.rows = np.unique(np.concatenate(times), return_counts=True)
        for origin in origins:
            column = _ORIGINS[origin.name]
            found = changes_of(origin, batches, origin.schema)
            if found.num_rows and column in found.column_names:
                pairs = zip(found.column(TS).to_pylist(), found.column(column).to_pylist(), strict=True)
                into = window.sources if column == "source" else window.origins
                into |= {time: where for time, where in pairs if where is not None}


def _in_order(changes: pa.Table) -> pa.Table:
    ordered = pc.sort_indices(changes, sort_keys=[(TS, "ascending"), (SEQ, "ascending")])
    return changes.take(ordered).combine_chunks()
