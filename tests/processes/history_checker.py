"""Whether a history of transfers and reads is one that Tidegate may give. Knows nothing of how it came about.

A history is what clients wrote down: each transfer and each read with the times of the shared clock at which it was
asked for and answered, and its Timestamp; and what the log holds in the end. One machine, one monotonic clock: a call
answered before another was asked for came before it, whichever processes made them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

TOLERANCE_NS = 50_000_000
"""Of the bound of a bounded read. The owner counts back by the wall clock, in whole milliseconds; time daemons let that
run up to 0.05 % slower than the clock of the history, 2 ms in the longest bound here, and the owner takes a clock that
is set back by 10 ms and more for one that jumped. Nothing is allowed for load: a read is asked for before the owner
counts, and a transfer acknowledged after it has its Timestamp."""

Balances = Mapping[str, int]
"""By account; an account's name says its table."""


@dataclass(frozen=True)
class Transfer:
    """What a client did to move money. `at` is None when nothing was answered, or that it was not done."""

    id: str
    session: str
    invoked_ns: int
    at: int | None = None
    responded_ns: int | None = None
    is_refused: bool = False


@dataclass(frozen=True)
class Read:
    """An answer that a client had."""

    session: str
    level: str
    """strong, session, bounded, eventual, timestamp, or snapshot: a further query on one that was read before."""
    invoked_ns: int
    responded_ns: int
    at: int
    balances: Balances
    count: int
    """How many transfers it has."""
    bound_ns: int = 0
    named: int = 0
    snapshot: str = ""


@dataclass
class History:
    """All that happened."""

    start: Balances
    """What everybody had at first."""
    committed: dict[str, tuple[int, Balances]]
    """What the log holds: each transfer's commit Timestamp, and what it adds to which accounts."""
    transfers: list[Transfer] = field(default_factory=list)
    reads: list[Read] = field(default_factory=list)


class Refused(AssertionError):
    """A property that does not hold: its name first, then the answer that breaks it."""


def check(history: History) -> Counter[str]:
    """What was checked, and how often. Raises: `Refused`."""
    done: Counter[str] = Counter()
    for each in (_outcomes, _one_cut, _named, _session_order, _own_writes, _real_time, _bounds, _snapshots):
        done[each.__name__.strip("_")] += each(history)
    return done


def _refuse(name: str, why: str) -> None:
    raise Refused(f"{name}: {why}")


def _outcomes(history: History) -> int:
    """What was acknowledged is in the log, at the Timestamp that was told; what was refused is not (promise 6)."""
    for each in history.transfers:
        found = history.committed.get(each.id)
        if each.is_refused and found is not None:
            _refuse("outcome", f"{each.id} was refused and is in the log at {found[0]}")
        if each.at is not None and (found is None or found[0] != each.at):
            _refuse("outcome", f"{each.id} was acknowledged at {each.at}; the log has {found}")
    known = {each.id for each in history.transfers}
    if unknown := sorted(set(history.committed) - known):
        _refuse("outcome", f"nobody asked for {unknown[:3]}")
    return len(history.transfers)


def _one_cut(history: History) -> int:
    """An answer is all transfers at or below its Timestamp, each whole, and no other (promises 2 and 4)."""
    total = sum(history.start.values())
    order = sorted(history.committed.values(), key=lambda each: each[0])
    state, done = dict(history.start), 0
    for read in sorted(history.reads, key=lambda each: each.at):
        if sum(read.balances.values()) != total:
            _refuse("one cut", f"the sum is {sum(read.balances.values())} and not {total}: {_told(read)}")
        while done < len(order) and order[done][0] <= read.at:
            for account, delta in order[done][1].items():
                state[account] += delta
            done += 1
        if dict(read.balances) != state or read.count != done:
            wrong = {
                name: (read.balances.get(name), state.get(name))
                for name in sorted({*state, *read.balances})
                if read.balances.get(name) != state.get(name)
            }
            _refuse(
                "one cut", f"{read.count} transfers, by the log {done}; (answer, log) differ in {wrong}: {_told(read)}"
            )
    return len(history.reads)


def _named(history: History) -> int:
    """A Timestamp that is named is the Timestamp of the answer (seed 004)."""
    reads = [each for each in history.reads if each.level == "timestamp"]
    for read in reads:
        if read.at != read.named:
            _refuse("named", f"{read.named} was asked for: {_told(read)}")
    return len(reads)


def _by_session(reads: Iterable[Read]) -> dict[str, list[Read]]:
    found: dict[str, list[Read]] = defaultdict(list)
    for each in sorted(reads, key=lambda each: each.invoked_ns):
        found[each.session].append(each)
    return found


def _session_order(history: History) -> int:
    """A session's answers never go back, whatever level and process they were asked for in (promise 5)."""
    done = 0
    for session, reads in _by_session(history.reads).items():
        newest: Read | None = None
        for read in reads:
            if read.level in ("timestamp", "snapshot"):
                continue  # Asked for by name.
            if newest is not None and newest.responded_ns <= read.invoked_ns:
                done += 1
                if read.at < newest.at:
                    _refuse("session order", f"{session} has seen {newest.at} already: {_told(read)}")
            if newest is None or read.at > newest.at:
                newest = read
    return done


def _own_writes(history: History) -> int:
    """A read at session level has all that its session was told was done (promise 5)."""
    written: dict[str, list[Transfer]] = defaultdict(list)
    for each in history.transfers:
        if each.at is not None:
            written[each.session].append(each)
    done = 0
    for read in history.reads:
        if read.level != "session":
            continue
        for each in written[read.session]:
            assert each.responded_ns is not None and each.at is not None
            if each.responded_ns <= read.invoked_ns:
                done += 1
                if each.at > read.at:
                    _refuse("own writes", f"{each.id} of this session was done at {each.at}: {_told(read)}")
    return done


class _Acknowledged:
    """The newest Timestamp that anybody had been told by a time: of a transfer, or of an answer."""

    def __init__(self, told: Sequence[tuple[int, int, str]]) -> None:
        self._times: list[int] = []
        self._newest: list[tuple[int, str]] = []
        for responded_ns, at, what in sorted(told):
            if not self._newest or at > self._newest[-1][0]:
                self._times.append(responded_ns)
                self._newest.append((at, what))

    def before(self, time_ns: int) -> tuple[int, str] | None:
        place = bisect_right(self._times, time_ns)
        return self._newest[place - 1] if place else None


def _told_of_transfers(history: History) -> list[tuple[int, int, str]]:
    return [
        (each.responded_ns, each.at, each.id)
        for each in history.transfers
        if each.at is not None and each.responded_ns is not None
    ]


def _real_time(history: History) -> int:
    """A strong read has everything that anybody was told or shown before it was asked for (seed 004, strong)."""
    shown = [(each.responded_ns, each.at, f"a read of {each.session}") for each in history.reads]
    acknowledged, done = _Acknowledged(_told_of_transfers(history) + shown), 0
    for read in history.reads:
        if read.level == "strong" and (found := acknowledged.before(read.invoked_ns - 1)) is not None:
            done += 1
            if found[0] > read.at:
                _refuse("real time", f"{found[1]} at {found[0]} had been answered: {_told(read)}")
    return done


def _bounds(history: History) -> int:
    """A bounded read has everything that was acknowledged its bound, and the tolerance, before it was asked for."""
    acknowledged, done = _Acknowledged(_told_of_transfers(history)), 0
    for read in history.reads:
        if read.level != "bounded":
            continue
        found = acknowledged.before(read.invoked_ns - read.bound_ns - TOLERANCE_NS)
        if found is not None:
            done += 1
            if found[0] > read.at:
                _refuse(
                    "bound",
                    f"{found[1]} at {found[0]} was more than {read.bound_ns / 1e9:g} s old: {_told(read)}",
                )
    return done


def _snapshots(history: History) -> int:
    """Whatever is asked of a snapshot, and whenever, it is of the same cut and the same (issue 5)."""
    first: dict[str, Read] = {}
    done = 0
    for read in sorted(history.reads, key=lambda each: each.invoked_ns):
        if not read.snapshot:
            continue
        other = first.setdefault(read.snapshot, read)
        if other is not read:
            done += 1
            if (read.at, read.balances, read.count) != (other.at, other.balances, other.count):
                _refuse("snapshot", f"{read.snapshot} was at {other.at}, with {other.count} transfers: {_told(read)}")
    return done


def _told(read: Read) -> str:
    return (
        f"a {read.level} read of session {read.session} at {read.at} with {read.count} transfers,"
        f" asked for at {read.invoked_ns}"
    )
