"""`ConflictWindow`: optimistic checks for read-modify-write.

A transaction that reads keys and then writes is refused when another one committed to a key it had read in between.
What this gives: transactions that note all they read are serialisable, in the order of their commit timestamps.

    begin_read(r) ── note ── note ──▶ try_commit ──▶ Claim ──▶ finish(claim, commit timestamp, or None for an abort)
                                          ├─▶ MustWait    a commit under way decides: ask again when it has finished
                                          └─▶ Conflict    run the transaction again

Why that is enough. At `try_commit` no commit above r has written a key that was read; and until `finish` none can begin
to: while a claim is under way, whoever writes a key it read, or read a key it writes, has to wait. So nothing that was
read changes between r and the commit timestamp. Plain writes take part, as they would otherwise slip in between;
two writers of one key need not wait for each other, since their timestamps order them.

Why nobody waits for ever. Waiting comes before claiming: whoever waits holds no claim, and whoever holds one waits for
nobody here. A circle of waiting needs somebody who does both. (One may wait several times, for claim after claim.)

Keys are 64-bit hashes. Two keys of one hash are taken for one: a needless conflict now and then, never a missed one.
Who writes says to which tables, and nobody makes the hashes of what was written elsewhere than where somebody reads.

Bounds. Commits are kept only while a reader began below them, and at most `keys_max` keys; the oldest commits are
given up first. `floor` is the newest commit that may be missing: who began to read below it is refused, not waved
through. What a process that ended had seen is missing too, so after a start the floor is the time of the start.

Pure; the caller holds one lock around every call.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Final

import numpy as np
import numpy.typing as npt

from tidegate.clock.timestamp import Timestamp
from tidegate.errors import Conflict, InvariantBroken, LimitExceeded

U64 = npt.NDArray[np.uint64]
Hashes = U64 | Sequence[int]

KEYS_MAX: Final = 1_000_000
SMALL_MAX: Final = 4096
"""Up to this many keys a set is a Python set, which answers for single keys at once; above, a sorted array."""
UNMADE_MAX: Final = 64
"""Commits whose hashes are not made yet: until then they hold the rows that were written."""


class Written:
    """The keys that a commit writes: their hashes, for who needs them, and the tables and topics they belong to."""

    __slots__ = ("_hashes", "count", "names")

    def __init__(self, hashes: Callable[[], Hashes], names: frozenset[str], count: int) -> None:
        """`count` is how many they are at most."""
        self._hashes = hashes
        self.names: Final = names
        self.count: Final = count

    def __call__(self) -> Hashes:
        return self._hashes()


class KeySet:
    """Hashes of keys, made when they are first needed: for most writes that is never."""

    __slots__ = ("_sorted", "_source", "counted", "names", "small")

    def __init__(self, source: Hashes | Callable[[], Hashes]) -> None:
        self._source: Hashes | Callable[[], Hashes] | None = source
        self.small: frozenset[int] | None = None
        self._sorted: U64 | None = None
        self.names: frozenset[str] | None = None
        """Where they belong; None when that is not known, and once they were made."""
        self.counted = 0
        """As how many they count in the window."""
        if type(source) is Written:
            self.names = source.names
            self.counted = source.count

    def made(self) -> KeySet:
        """Itself, with its keys at hand."""
        source = self._source
        if source is not None:
            hashes = source() if callable(source) else source
            if len(hashes) <= SMALL_MAX:
                self.small = frozenset(hashes.tolist() if isinstance(hashes, np.ndarray) else hashes)
            else:
                ordered = np.sort(np.asarray(hashes, np.uint64))  # 50 times as fast as np.unique
                self._sorted = ordered[np.append(True, ordered[1:] != ordered[:-1])]
            self._source = self.names = None
        return self

    def may_be_of(self, table: str) -> bool:
        """Whether one of them may belong to a table; of no table in particular, to any."""
        return self.names is None or not table or table in self.names

    def __len__(self) -> int:
        self.made()
        return len(self.small) if self.small is not None else len(self.sorted())

    def sorted(self) -> U64:
        """Its keys as a sorted array."""
        if self.made()._sorted is None:
            self._sorted = np.array(sorted(self.small or ()), np.uint64)
        return self._sorted if self._sorted is not None else np.empty(0, np.uint64)

    def meets(self, other: KeySet) -> bool:
        """Whether they have a key in common."""
        self.made()
        other.made()
        if self.small is not None and other.small is not None:
            return not self.small.isdisjoint(other.small)
        return bool(len(_common(self.sorted(), other.sorted())))


def _common(one: U64, other: U64) -> U64:
    """What two sorted arrays share: the fewer looked up among the more."""
    few, many = (one, other) if len(one) <= len(other) else (other, one)
    if not len(few):
        return few
    places = np.searchsorted(many, few)
    places[places == len(many)] = 0  # above all of `many`: compared with its first, which it does not equal
    found: U64 = few[many[places] == few]
    return found


class ReadSet:
    """What a transaction has read since `timestamp`, by table."""

    __slots__ = ("_arrays", "_count", "_made", "_singles", "ended", "timestamp")

    def __init__(self, timestamp: Timestamp) -> None:
        self.timestamp: Final = timestamp
        self.ended = False
        self._singles: dict[str, set[int]] = {}
        self._arrays: list[tuple[str, KeySet]] = []
        self._count = 0
        self._made: list[tuple[str, KeySet]] | None = None

    def __len__(self) -> int:
        """How many keys were noted; one that was noted twice in large sets counts twice."""
        return self._count

    def add(self, table: str, hashes: Hashes) -> None:
        self._made = None
        if len(hashes) > SMALL_MAX:
            self._arrays.append((table, KeySet(hashes)))
            self._count += len(hashes)
            return
        singles = self._singles.setdefault(table, set())
        before = len(singles)
        singles.update(hashes.tolist() if isinstance(hashes, np.ndarray) else hashes)
        self._count += len(singles) - before

    def pieces(self) -> list[tuple[str, KeySet]]:
        """The keys of each table, in the order of their first reading."""
        if self._made is None:
            small = [(table, KeySet(tuple(keys))) for table, keys in self._singles.items() if keys]
            self._made = small + self._arrays
        return self._made


@dataclass(slots=True, eq=False)
class Claim:
    """A commit under way: nobody else may commit a write to `reads`, or a reading of `writes`, until it finishes."""

    number: int
    writes: KeySet
    reads: list[tuple[str, KeySet]]
    read_timestamp: Timestamp | None
    finished: bool = False


@dataclass(frozen=True, slots=True)
class MustWait:
    """Nothing was claimed. Call `try_commit` again when `claim` has finished."""

    claim: Claim


@dataclass(frozen=True, slots=True)
class ConflictStatus:
    """How the window stands."""

    floor: Timestamp
    keys: int
    commits: int
    readers: int
    oldest_reader: Timestamp | None
    claims: int


class ConflictWindow:
    """Recent commits, readers and commits under way.

    Invariants: every commit above `floor` that a reader began below is here; `floor` never goes back; at most
    `keys_max` keys are kept.
    """

    def __init__(self, floor: Timestamp, *, keys_max: int = KEYS_MAX, read_keys_max: int = KEYS_MAX) -> None:
        """`floor` is a fresh timestamp: what was committed before this start is not known here."""
        self.floor = floor
        self._keys_max = keys_max
        self._read_keys_max = read_keys_max
        self._numbers = count(1)
        self._readers: list[tuple[int, int, ReadSet]] = []
        """A heap; those that have ended are dropped when they come to its top."""
        self._active = 0
        self._claims: dict[int, Claim] = {}
        self._reading: dict[int, Claim] = {}
        """The claims that have read something."""
        self._commits: list[tuple[int, int, KeySet]] = []
        """A heap, the oldest commit on top."""
        self._newest: dict[int, int] = {}
        """For each key of a small commit, the newest of those that wrote it."""
        self._large: dict[int, tuple[int, KeySet]] = {}
        self._unmade: dict[int, tuple[int, KeySet]] = {}
        """Small commits whose keys nobody has asked for, in the order they came."""
        self._unmade_of: dict[str, set[int]] = {}
        """Their numbers, by each of the tables that they wrote."""
        self._keys = 0

    # -- reading ---------------------------------------------------------------------------------------------

    def begin_read(self, timestamp: Timestamp) -> ReadSet:
        """Begin to read at `timestamp`: as of then the transaction sees every key.

        Raises: `Conflict` when a commit above it may be missing already; take a fresh timestamp and begin again.
        """
        if timestamp < self.floor:
            raise Conflict(
                f"reading at {timestamp} is older than the window of recent writes, which begins at {self.floor};"
                f" begin again with a fresh timestamp"
            )
        reads = ReadSet(timestamp)
        heappush(self._readers, (timestamp, next(self._numbers), reads))
        self._active += 1
        return reads

    def note(self, reads: ReadSet, hashes: Hashes, table: str = "") -> None:
        """The transaction has read these keys. Raises: `LimitExceeded` above `read_keys_max`, with nothing noted."""
        if reads.ended:
            raise InvariantBroken(f"a reading that began at {reads.timestamp} has ended")
        total = len(reads) + len(hashes)
        if total > self._read_keys_max:
            what = "the number of keys a transaction reads"
            raise LimitExceeded(what, total, self._read_keys_max, "read_keys_max")
        reads.add(table, hashes)

    def end_read(self, reads: ReadSet) -> None:
        """The transaction will not commit. Ending twice does no harm."""
        if not reads.ended:
            reads.ended = True
            self._active -= 1
            if len(self._readers) > 2 * self._active + 16:  # ended ones pile up behind one that reads for long
                self._readers = [each for each in self._readers if not each[2].ended]
                heapify(self._readers)
            self._give_up_unneeded()

    # -- committing ------------------------------------------------------------------------------------------

    def try_commit(self, reads: ReadSet | None, writes: Hashes | Callable[[], Hashes]) -> Claim | MustWait:
        """Check what was read and claim what is written, in one step; the commit timestamp is taken after that.

        `writes` may be a function, called only if the hashes are needed. After a Claim or a Conflict `reads` has ended.
        Raises: `Conflict`, with nothing claimed.
        """
        pieces = [] if reads is None else reads.pieces()
        if reads is not None:
            if reads.ended:
                raise InvariantBroken(f"a reading that began at {reads.timestamp} has ended")
            if pieces:
                try:
                    self._check_commits(reads.timestamp, pieces)
                except Conflict:
                    self.end_read(reads)
                    raise
        written = KeySet(writes)
        for claim in self._claims.values():
            if any(claim.writes.may_be_of(table) and claim.writes.meets(piece) for table, piece in pieces):
                return MustWait(claim)
        for claim in self._reading.values():
            if any(written.may_be_of(table) and written.meets(piece) for table, piece in claim.reads):
                return MustWait(claim)
        claim = Claim(next(self._numbers), written, pieces, None if reads is None else reads.timestamp)
        self._claims[claim.number] = claim
        if pieces:
            self._reading[claim.number] = claim
        if reads is not None:
            self.end_read(reads)
        return claim

    def finish(self, claim: Claim, commit_timestamp: Timestamp | None) -> None:
        """The commit is durable at this timestamp, or, with None, known not to be and never to become so.

        Ordering: whoever begins to read above `commit_timestamp` sees what it wrote.
        """
        if claim.finished or (
            commit_timestamp is not None
            and claim.read_timestamp is not None
            and commit_timestamp <= claim.read_timestamp
        ):
            raise InvariantBroken(f"commit {claim.number} finished twice, or below its reads: {commit_timestamp}")
        claim.finished = True
        del self._claims[claim.number]
        self._reading.pop(claim.number, None)
        if commit_timestamp is None:
            return
        oldest = self._oldest_reader()
        if oldest is None or oldest >= commit_timestamp:
            # Nobody can conflict with it. Somebody who took a lower timestamp and has yet to begin is refused then.
            self.floor = max(self.floor, commit_timestamp)
            return
        self._keep(int(commit_timestamp), claim.number, claim.writes)

    def status(self) -> ConflictStatus:
        oldest = self._oldest_reader()
        return ConflictStatus(
            floor=self.floor,
            keys=self._keys,
            commits=len(self._commits),
            readers=self._active,
            oldest_reader=None if oldest is None else Timestamp(oldest),
            claims=len(self._claims),
        )

    # -- the window ------------------------------------------------------------------------------------------

    def _check_commits(self, timestamp: Timestamp, pieces: list[tuple[str, KeySet]]) -> None:
        if timestamp < self.floor:
            raise Conflict(
                f"the transaction began to read at {timestamp}, older than the window of recent writes, which begins at"
                f" {self.floor}: what it read may have changed; run it again, and keep it shorter"
            )
        for table, piece in pieces:
            self._make_of(table)
            by = self._written_since(timestamp, piece)
            if by is not None:
                what = f"a key of {table!r}" if table else "a key"
                raise Conflict(
                    f"{what} that the transaction had read at {timestamp} was written by the one that committed at"
                    f" {Timestamp(by)}; run it again"
                )

    def _written_since(self, timestamp: int, keys: KeySet) -> int | None:
        """A commit above `timestamp` that wrote one of the keys."""
        newest = self._newest
        for key in self._candidates(keys):
            by = newest.get(key, 0)
            if by > timestamp:
                return by
        for by, written in self._large.values():
            if by > timestamp and written.meets(keys):
                return by
        return None

    def _candidates(self, keys: KeySet) -> Collection[int]:
        """The keys to look up among those of small commits; of a large set only those that are there."""
        if not self._newest:
            return ()
        small = keys.made().small
        if small is not None:
            return small
        there = np.fromiter(self._newest, np.uint64, len(self._newest))
        there.sort()
        found: list[int] = _common(there, keys.sorted()).tolist()
        return found

    def _keep(self, timestamp: int, number: int, keys: KeySet) -> None:
        if keys.counted > SMALL_MAX:
            keys.made()
        if keys.names is None:
            keys.counted = len(keys)
        if not keys.counted:
            return
        heappush(self._commits, (timestamp, number, keys))
        self._keys += keys.counted
        if keys.names is None:
            self._index(timestamp, number, keys)
        else:
            self._unmade[number] = timestamp, keys
            for name in keys.names:
                self._unmade_of.setdefault(name, set()).add(number)
            if len(self._unmade) > UNMADE_MAX:
                self._make(next(iter(self._unmade)))
        while self._keys > self._keys_max:
            self._give_up_oldest()

    def _make_of(self, table: str) -> None:
        """Make the keys of all commits that may have written to a table; of no table in particular, of all."""
        for number in list(self._unmade_of.get(table, ()) if table else self._unmade):
            self._make(number)

    def _make(self, number: int) -> None:
        timestamp, keys = self._unmade[number]
        self._forget_unmade(number, keys)
        self._index(timestamp, number, keys.made())

    def _forget_unmade(self, number: int, keys: KeySet) -> None:
        del self._unmade[number]
        for name in keys.names or ():
            there = self._unmade_of[name]
            there.discard(number)
            if not there:
                del self._unmade_of[name]

    def _index(self, timestamp: int, number: int, keys: KeySet) -> None:
        if keys.made().small is None:
            self._large[number] = (timestamp, keys)
            return
        newest = self._newest
        for key in keys.small or ():
            if newest.get(key, 0) < timestamp:
                newest[key] = timestamp

    def _give_up_oldest(self) -> None:
        timestamp, number, keys = heappop(self._commits)
        self._keys -= keys.counted
        if keys.names is not None:
            self._forget_unmade(number, keys)
        elif keys.small is None:
            del self._large[number]
        else:
            for key in keys.small:
                if self._newest.get(key) == timestamp:
                    del self._newest[key]
        self.floor = max(self.floor, Timestamp(timestamp))

    def _give_up_unneeded(self) -> None:
        """Commits that every reader began above."""
        oldest = self._oldest_reader()
        while self._commits and (oldest is None or self._commits[0][0] <= oldest):
            self._give_up_oldest()

    def _oldest_reader(self) -> int | None:
        while self._readers and self._readers[0][2].ended:
            heappop(self._readers)
        return self._readers[0][0] if self._readers else None
