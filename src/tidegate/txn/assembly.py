"""Transactions put together on the reader's side (seed 000): all of one at its COMMIT's TimeTick, or nothing of it.

Messages go in as a reader delivers them, in TimeTick order; they come out in the order in which they become visible.
A message outside any transaction passes at its own TimeTick, and no open transaction holds it back (promise 3). The
messages of a committed one come out where its COMMIT stands, all at the COMMIT's TimeTick and LastConfirmedMessageID,
in physical order and next to each other. BEGIN, COMMIT and ROLLBACK do not come out.

The COMMIT names its messages (`Marker`). What memory no longer holds, or what the reader never saw because it started
behind it, is fetched by position; if all are not there, nothing is delivered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from tidegate.errors import InvariantBroken
from tidegate.log.batch import BODY_SCHEMA, U64, Batch
from tidegate.log.message import MessageType
from tidegate.txn.gather import (
    CONTROL,
    Mask,
    Rows,
    are_exactly,
    by_position,
    choose,
    copied,
    grouped,
    ids_of,
    joined,
    only,
    txns_of,
    where,
)
from tidegate.txn.marker import Marker, Run, as_runs, at_once_counts

Fetch = Callable[[list[Run]], list[Batch]]
"""The messages at these positions, from the files; batches may hold others beside them."""

HELD_BYTES: Final = 64 << 20
ENDED_MAX: Final = 1 << 16
"""So many ended transactions are remembered at least, so that a late message of one is not taken for an open one's."""

_COMMIT: Final = int(MessageType.COMMIT)
_ROLLBACK: Final = int(MessageType.ROLLBACK)
_PIECE_BYTES: Final = 512
"""What a batch costs beside its messages."""


@dataclass(frozen=True, slots=True)
class AssemblyStatus:
    """What an assembler holds and has done."""

    held_bytes: int
    open_transactions: int
    """With messages in memory and no end seen."""
    committed: int
    rolled_back: int
    fetched_transactions: int
    """That had to be fetched from the files, at least in part."""
    fetched_messages: int
    forgotten: int
    """How often a transaction's messages were dropped to save memory."""
    unnamed: int
    """Messages of committed transactions that the COMMIT did not name, or that came behind it; not delivered."""


class _Piece(NamedTuple):
    batch: Batch
    is_part: bool
    """Whether it shares memory with other messages, which it would keep from being freed."""


@dataclass(slots=True)
class _Holding:
    """Messages of an open transaction."""

    batches: list[Batch] = field(default_factory=list)
    nbytes: int = 0

    def add(self, piece: _Piece) -> int:
        batch = copied(piece.batch) if piece.is_part else piece.batch
        size = batch.nbytes + 16 * len(batch) + _PIECE_BYTES
        self.batches.append(batch)
        self.nbytes += size
        return size


class _Ended:
    """Which transactions have ended, and how. Those committed at once are entered as a column and looked at later."""

    __slots__ = ("_columns", "_how", "_waiting")

    def __init__(self) -> None:
        self._how: dict[bytes, int] = {}
        self._columns: list[npt.NDArray[np.void]] = []
        self._waiting = 0

    def add(self, txn: bytes, how: int) -> None:
        self._flush()
        self._how[txn] = how

    def add_committed(self, txns: npt.NDArray[np.void]) -> None:
        self._columns.append(txns)
        self._waiting += len(txns)
        if self._waiting > 2 * ENDED_MAX:
            # Only the newest count, so there is no need to look at the others.
            newest = np.concatenate(self._columns)[-ENDED_MAX:].copy()
            self._columns, self._waiting = [newest], ENDED_MAX

    def get(self, txn: bytes) -> int | None:
        self._flush()
        return self._how.get(txn)

    def __iter__(self) -> Iterator[bytes]:
        self._flush()
        return iter(self._how)

    def update(self, newer: _Ended) -> None:
        if newer._how:
            self._flush()
            self._how.update(newer._how)
        for column in newer._columns:
            self.add_committed(column)
        if len(self._how) > 2 * ENDED_MAX:
            self._how = dict(islice(self._how.items(), len(self._how) - ENDED_MAX, None))

    def _flush(self) -> None:
        for column in self._columns:
            self._how.update(dict.fromkeys(column.tolist(), _COMMIT))
        self._columns, self._waiting = [], 0


@dataclass(slots=True)
class _Step:
    """What one `take` has found; becomes part of the assembler when it succeeds."""

    out: list[Batch] = field(default_factory=list)
    fresh: dict[bytes, list[_Piece]] = field(default_factory=dict)
    ended: _Ended = field(default_factory=_Ended)
    committed: int = 0
    rolled_back: int = 0
    fetched_transactions: int = 0
    fetched_messages: int = 0
    unnamed: int = 0


class Assembler:
    """Puts the transactions of one channel together. Feed it everything: filter by virtual channel and type behind it.

    Invariants: TimeTicks that come out ascend, and are equal only within one transaction. A transaction comes out
    whole, from one `take`, and once. What it holds stays within `bytes_max` between calls.
    """

    def __init__(self, fetch: Fetch, bytes_max: int = HELD_BYTES) -> None:
        self._fetch = fetch
        self._bytes_max = bytes_max
        self._open: dict[bytes, _Holding] = {}
        self._ended = _Ended()
        self._held_bytes = 0
        self._forgotten = 0
        self._total = _Step()

    @property
    def status(self) -> AssemblyStatus:
        total = self._total
        return AssemblyStatus(
            held_bytes=self._held_bytes,
            open_transactions=len(self._open),
            committed=total.committed,
            rolled_back=total.rolled_back,
            fetched_transactions=total.fetched_transactions,
            fetched_messages=total.fetched_messages,
            forgotten=self._forgotten,
            unnamed=total.unnamed,
        )

    def take(self, batches: Sequence[Batch]) -> list[Batch]:
        """What becomes visible by the messages of one tick, given and returned in TimeTick order.

        Raises: `InvariantBroken` when a transaction is not whole; whatever `fetch` raises. Nothing has happened then,
        and the same call may be repeated.
        """
        step: _Step | None = None
        for at, batch in enumerate(batches):
            if batch.txns is None:
                if step is not None:
                    step.out.append(batch)
            else:
                if step is None:
                    step = _Step(out=list(batches[:at]))
                self._take(batch, step)
        if step is None:
            return list(batches)
        self._finish(step)
        return step.out

    # One batch

    def _take(self, batch: Batch, step: _Step) -> None:
        ids = ids_of(batch)
        types = batch.types
        control = CONTROL[types]
        if len(ids) and ids[0].any() and (ids == ids[0]).all():
            # One transaction and nothing else: a large append, or the only one of its time.
            bodies, ends = np.flatnonzero(~control), np.flatnonzero((types == _COMMIT) | (types == _ROLLBACK))
            groups = {txns_of(batch)[0].tobytes(): bodies} if len(bodies) else {}
            self._take_odd(batch, groups, ends, None, step)
            return
        in_txn = (ids[:, 0] | ids[:, 1]) != 0
        if not in_txn.any():
            step.out.append(batch)
            return
        if (control & ~in_txn).any():
            row = int(np.flatnonzero(control & ~in_txn)[0])
            raise InvariantBroken(
                f"the {MessageType(int(types[row])).name} at position {int(batch.positions[row])} names no transaction"
            )
        commits = np.flatnonzero(types == _COMMIT)
        whole, bodies, owners = _at_once(batch, ids, control, commits)
        if len(whole):
            step.committed += len(whole)
            step.ended.add_committed(txns_of(batch)[whole])
        shown = _Shown.of(batch, in_txn, bodies, owners)
        odd = in_txn & ~control
        odd[bodies] = False
        others = types == _ROLLBACK
        others[commits] = True
        others[whole] = False
        if odd.any() or others.any():
            self._take_odd(batch, grouped(batch, ids, np.flatnonzero(odd)), np.flatnonzero(others), shown, step)
        else:
            step.out.extend(shown.between(0, len(batch)))

    def _take_odd(self, batch: Batch, groups: dict[bytes, Rows], ends: Rows, shown: _Shown | None, step: _Step) -> None:
        """One transaction after the other: those with messages in `groups`, and those that end at the rows `ends`."""
        txns = txns_of(batch)
        done = 0
        for row in ends.tolist():
            txn = txns[row].tobytes()
            rows = groups.pop(txn, None)
            if batch.types[row] == _ROLLBACK:
                self._roll_back(txn, int(batch.positions[row]), step)
                continue
            pieces = [*step.fresh.pop(txn, ())]
            if rows is not None:
                pieces.append(_piece(batch, rows))
            found = self._commit(batch, row, txn, [each.batch for each in pieces], step)
            if shown is not None and found:
                step.out.extend(shown.between(done, row))
                done = row
            step.out.extend(found)
        if shown is not None:
            step.out.extend(shown.between(done, len(batch)))
        for txn, rows in groups.items():
            if self._outcome(txn, step) is None:
                step.fresh.setdefault(txn, []).append(_piece(batch, rows))
            else:
                step.unnamed += len(rows)

    def _outcome(self, txn: bytes, step: _Step) -> int | None:
        """How the transaction has ended, as far as that is remembered."""
        how = step.ended.get(txn)
        # What is open has not ended, and that is the quicker question.
        return how if how is not None or txn in self._open else self._ended.get(txn)

    def _roll_back(self, txn: bytes, position: int, step: _Step) -> None:
        how = self._outcome(txn, step)
        if how == _COMMIT:
            raise InvariantBroken(f"transaction {txn.hex()}: ROLLBACK at position {position} though it was committed")
        if how is None:
            step.rolled_back += 1
            step.ended.add(txn, _ROLLBACK)

    # One transaction

    def _commit(self, batch: Batch, row: int, txn: bytes, fresh: list[Batch], step: _Step) -> list[Batch]:
        """All messages of the transaction whose COMMIT is at `row`, as they become visible."""
        position = int(batch.positions[row])
        how = self._outcome(txn, step)
        if how == _ROLLBACK:
            raise InvariantBroken(f"transaction {txn.hex()}: COMMIT at position {position} though it was rolled back")
        if how is not None:
            # Delivered already: a coordinator that recovers may write its marker again.
            step.unnamed += sum(map(len, fresh))
            return []
        _check_markers(batch, row)
        marker = Marker.decode(batch.rows.column(0)[row].as_py())
        held = self._open.get(txn)
        pieces = fresh if held is None else [*held.batches, *fresh]
        wanted = marker.positions_at(position)
        if not are_exactly(pieces, wanted):
            pieces = self._complete(txn, position, wanted, pieces, step)
        step.committed += 1
        step.ended.add(txn, _COMMIT)
        tick, last_confirmed = batch.time_ticks[row], batch.last_confirmed[row]
        return [
            replace(
                each,
                time_ticks=np.full(len(each), tick, np.uint64),
                last_confirmed=np.full(len(each), last_confirmed, np.uint64),
            )
            for each in joined(pieces)
        ]

    def _complete(self, txn: bytes, position: int, wanted: U64, pieces: list[Batch], step: _Step) -> list[Batch]:
        """The messages at the positions `wanted`, in that order: those of `pieces`, the others fetched."""
        found = np.zeros(len(wanted), np.bool_)
        chosen = choose(pieces, wanted, found)
        step.unnamed += sum(map(len, pieces)) - sum(map(len, chosen))
        if not found.all():
            fetched = [each for each in map(only(txn), self._fetch(as_runs(wanted[~found]))) if each is not None]
            added = choose(fetched, wanted, found)
            step.fetched_transactions += 1
            step.fetched_messages += sum(map(len, added))
            chosen += added
        count = sum(map(len, chosen))
        if not found.all() or count != len(wanted):
            gap = "" if found.all() else f", the first that is missing at position {int(wanted[~found][0])}"
            raise InvariantBroken(
                f"transaction {txn.hex()}: its COMMIT at position {position} names {len(wanted)} messages and"
                f" {count} were found{gap}; nothing of it is delivered. Run `tidegate log verify`"
            )
        return by_position(chosen)

    # Between calls

    def _finish(self, step: _Step) -> None:
        """Everything went well: keep what is open, let go of what has ended."""
        if self._open:
            for txn in self._open.keys() & set(step.ended):
                self._let_go(txn)
        for txn, pieces in step.fresh.items():
            how = step.ended.get(txn)
            if how is not None:
                step.unnamed += sum(len(piece.batch) for piece in pieces) if how == _COMMIT else 0
                continue
            holding = self._open.setdefault(txn, _Holding())
            for piece in pieces:
                self._held_bytes += holding.add(piece)
        self._ended.update(step.ended)
        total = self._total
        total.committed += step.committed
        total.rolled_back += step.rolled_back
        total.fetched_transactions += step.fetched_transactions
        total.fetched_messages += step.fetched_messages
        total.unnamed += step.unnamed
        if self._held_bytes > self._bytes_max:
            self._forget()

    def _let_go(self, txn: bytes) -> None:
        self._held_bytes -= self._open.pop(txn).nbytes

    def _forget(self) -> None:
        """Make room: first whatever takes more than a quarter, the largest first, then the oldest.

        Only the largest would let small abandoned transactions crowd out all others; only the oldest would
        have many small ones fetched again for the sake of one large one.
        """
        goal = self._bytes_max * 3 // 4
        sizes = [(holding.nbytes, txn) for txn, holding in self._open.items()]
        large = sorted((each for each in sizes if each[0] > self._bytes_max // 4), reverse=True)
        small = [each for each in sizes if each[0] <= self._bytes_max // 4]
        for _, txn in (*large, *small):
            if self._held_bytes <= goal:
                return
            self._let_go(txn)
            self._forgotten += 1


class _Shown(NamedTuple):
    """The messages of a batch that come out where they stand: plain ones, and transactions whole within it."""

    batch: Batch
    mask: Mask
    source: Rows
    """The row whose TimeTick and LastConfirmedMessageID a row takes."""

    @classmethod
    def of(cls, batch: Batch, in_txn: Mask, bodies: Rows, owners: Rows) -> _Shown:
        mask = ~in_txn
        mask[bodies] = True
        source = np.arange(len(batch))
        source[bodies] = owners
        return cls(batch, mask, source)

    def between(self, start: int, stop: int) -> list[Batch]:
        """Those in rows from `start` up to `stop`: one batch or none."""
        mask = self.mask[start:stop]
        count = int(np.count_nonzero(mask))
        if not count:
            return []
        first = start + int(mask.argmax())
        if self.mask[first : first + count].all():
            part, source = self.batch.slice(first, first + count), self.source[first : first + count]
        else:
            part, source = where(self.batch.slice(start, stop), mask), self.source[start:stop][mask]
        ticks, confirmed = self.batch.time_ticks[source], self.batch.last_confirmed[source]
        return [replace(part, time_ticks=ticks, last_confirmed=confirmed)]


def _at_once(batch: Batch, ids: U64, control: Mask, commits: Rows) -> tuple[Rows, Rows, Rows]:
    """COMMIT rows of transactions that lie whole and in order before them, the rows of their messages, and the COMMIT
    row of each of those."""
    none = commits[:0]
    if not len(commits):
        return none, none, none
    _check_markers(batch, int(commits[0]))
    counts = at_once_counts(batch.rows.column(0), commits)
    starts = commits - counts
    fits = counts >= 0
    fits[0] &= starts[0] >= 0
    fits[1:] &= starts[1:] > commits[:-1]
    if not fits.all():
        commits, counts, starts = commits[fits], counts[fits], starts[fits]
    owners = np.repeat(commits, counts)
    skipped = np.cumsum(counts) - counts
    bodies = np.arange(len(owners)) + np.repeat(starts - skipped, counts)
    positions = batch.positions
    wrong = control[bodies]
    for half in (ids[:, 0], ids[:, 1]):
        wrong |= half[bodies] != half[owners]
    wrong |= positions[owners] - positions[bodies] != (owners - bodies).astype(np.uint64)
    if wrong.any():
        good = np.ones(len(batch), np.bool_)
        good[owners[wrong]] = False
        commits = commits[good[commits]]
        kept = good[owners]
        bodies, owners = bodies[kept], owners[kept]
    return commits, bodies, owners


def _check_markers(batch: Batch, row: int) -> None:
    if not batch.rows.schema.equals(BODY_SCHEMA):
        raise InvariantBroken(f"the COMMIT at position {int(batch.positions[row])} has columns and no commit marker")


def _piece(batch: Batch, rows: Rows) -> _Piece:
    first, count = int(rows[0]), len(rows)
    if count == len(batch):
        return _Piece(batch, is_part=False)
    if int(rows[-1]) - first + 1 == count:
        return _Piece(batch.slice(first, first + count), is_part=True)
    mask = np.zeros(len(batch), np.bool_)
    mask[rows] = True
    return _Piece(where(batch, mask), is_part=False)
