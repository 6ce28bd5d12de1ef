"""`Relay`: the transactions of one capture, each of which fails once another capture of its name has begun.

A thread commits them while the next ones are read from the source and written: one by one where they come slowly, and
all that have gathered meanwhile as one write where the disk, or an owner elsewhere, is slower than the source. None
commits unless all before it have: the log has everything up to a place, and nothing behind it.

That nobody else has begun is what the *guard* has read, a transaction that writes nothing: every run of commits fails
when that is not so any more, and reads it anew otherwise, so there is no moment in between. A transaction that cannot
be one of a run, as it reads or is larger than memory, waits for those before it and then claims the same by itself.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from typing import TYPE_CHECKING, Final

from tidegate.capture.places import Place, Places
from tidegate.errors import Conflict, InUse, OutcomeUnknown, Retryable, TidegateError, Unavailable
from tidegate.ports.threads import Running, Threads

if TYPE_CHECKING:
    from tidegate.database.database import Database
    from tidegate.database.transaction import Transaction

TIMEOUT_S: Final = 900.0
"""What one transaction of a source may take to be written; a snapshot is one."""
FRESH_S: Final = 5.0
"""How long a guard is kept while nothing comes."""
GUARD_S: Final = 60.0
"""And in all: well below its timeout."""
RUN_MOST: Final = 64
"""Transactions of a run at most, and as many gather for the next one."""
RUN_BYTES: Final = 8 << 20
"""About how much memory those that gather may take."""
COMMITS: Final = "tidegate-capture-commit"
"""The thread that commits is called so."""


class Relay:
    """Used by one thread. Invariant: `logged` is what the log has, at least."""

    def __init__(self, db: Database, name: str, places: Places, threads: Threads) -> None:
        self._db = db
        self._name: Final = name
        self._places: Final = places
        self._threads: Final = threads
        self.holder: Final = secrets.token_hex(8)
        """By what this capture is told from others of its name."""
        self.logged = Place("")
        self._guard: Transaction | None = None
        self._guard_began = self._guard_used = 0.0
        self._channel: str | None = None
        """What those that gather write to."""
        self._thread: Running | None = None
        self._changed = threads.condition()
        """Covers all below."""
        self._gathered: deque[tuple[Transaction, Place, int]] = deque()
        """With their sizes. Those under way are among them."""
        self._bytes = 0
        self._failed: BaseException | None = None
        """What a run has failed with. Nothing is committed until it was told."""
        self._ends = False

    # -- what its user calls -------------------------------------------------------------------------------------

    @contextmanager
    def writing(self, *, reads: bool = False) -> Iterator[Transaction]:
        """The next transaction, for `commit`; it is gone when what is done with it fails.

        One that `reads` tables does so as of a moment behind the last commit.
        """
        if reads:
            self.settle()
        txn = self._claimed() if reads else self._db.transaction(TIMEOUT_S)
        try:
            yield txn
        except BaseException:
            _let_go(txn)
            raise

    def commit(self, txn: Transaction, place: Place) -> None:
        """Commit it, with which the log has `place`; `settle` says what became of it.

        Ordering: the last thing that is done with it inside `writing`.
        Raises: what became of one ahead of it. This one is gone then.
        """
        channel, size = txn.channel, txn.nbytes
        if channel is None or channel != self._channel:
            self.settle()
            self._channel = channel
        if channel is None:
            self._commit_alone(txn, place)
            return
        with self._changed:
            self._changed.wait_for(lambda: self._failed is not None or self._has_room(size))
            if self._failed is None:
                self._gathered.append((txn, place, size))
                self._bytes += size
                self._changed.notify_all()
        if self._failed is not None:
            self.settle()
        if self._thread is None:
            self._ends = False
            self._thread = self._threads.start(self._commit_all, COMMITS)

    def settle(self) -> None:
        """Wait for all that was to be committed.

        Raises: what it failed with; `InUse` when another capture of this name has begun.
        """
        with self._changed:
            self._changed.wait_for(lambda: not self._gathered)
            failed, self._failed = self._failed, None
        if failed is not None:
            raise self._told(failed) from failed

    @property
    def seen(self) -> Place | None:
        """What other threads may take for logged while commits are under way; None when none is."""
        return self.logged if self._gathered else None

    def rest(self) -> None:
        """Nothing comes: keep no transaction open for it."""
        self.settle()
        if self._threads.monotonic() - self._guard_used >= FRESH_S:
            self._drop_guard()

    def close(self) -> None:
        """Let go of what was not committed. What became of the last commits is in the log.

        Raises: `InUse`, for whoever would go on from there.
        """
        try:
            self.settle()
        except InUse:
            raise
        except TidegateError:
            pass
        finally:
            with self._changed:
                self._ends = True
                self._changed.notify_all()
            if self._thread is not None:
                self._thread.join()
                self._thread = None
            self._drop_guard()

    def begin(self, *, again: bool) -> None:
        """From now on the transactions of any other capture of this name fail.

        Raises: `InUse` when it is not the first time (`again`), and another one has begun since.
        """
        with self._db.transaction(TIMEOUT_S) as txn:
            if again:
                self._claim(txn)
            self._places.take_over(txn, self.holder)

    def change(self, statement: str) -> None:
        """Carry out a statement about a table: statements wait for those who write.

        Raises: what became of a commit; `InUse` when another capture of this name has begun, and nothing is changed:
        its rows would lose what one that was overtaken drops.
        """
        self.settle()
        try:
            self._db.change_behind(self._fresh_guard(), statement)
        except BaseException as error:
            self._drop_guard()
            raise self._told(error) from error

    @contextmanager
    def unless_taken_over(self) -> Iterator[None]:
        """What fails inside may do so for what another capture of this name has written: that is said, then.

        Raises: `InUse` instead; what the question fails with, as nobody knows then.
        """
        try:
            yield
        except (Retryable, Unavailable, OutcomeUnknown):
            raise
        except TidegateError as error:
            if self._places.holder() not in (self.holder, None):
                raise self._taken_over() from error
            raise

    # -- the thread that commits ---------------------------------------------------------------------------------

    def _commit_all(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._gathered or self._ends)
                run = list(islice(self._gathered, RUN_MOST))
            if not run:
                return
            failed = None
            try:
                self._commit_run([txn for txn, _, _ in run])
            except BaseException as error:
                failed = error
                self._drop_guard()
            with self._changed:
                if failed is None:
                    self.logged = run[-1][1]
                    done = len(run)
                else:
                    self._failed = failed
                    done = len(self._gathered)
                gone = [self._gathered.popleft() for _ in range(done)]
                self._bytes -= sum([size for _, _, size in gone])
                self._changed.notify_all()
            if failed is not None:
                for txn, _, _ in gone[len(run) :]:
                    _let_go(txn)

    def _commit_run(self, run: list[Transaction]) -> None:
        self._db.commit_run(self._fresh_guard(), run)

    # -- inside --------------------------------------------------------------------------------------------------

    def _fresh_guard(self) -> Transaction:
        now = self._threads.monotonic()
        if now - self._guard_began >= GUARD_S:
            self._drop_guard()
        if self._guard is None:
            self._guard, self._guard_began = self._claimed(), now
        self._guard_used = now
        return self._guard

    def _has_room(self, size: int) -> bool:
        count = len(self._gathered)
        return not count or (count < 2 * RUN_MOST and self._bytes + size <= RUN_BYTES)

    def _commit_alone(self, txn: Transaction, place: Place) -> None:
        """Ordering: nothing is under way."""
        try:
            if txn.read_at is None:
                self._claim(txn)
            txn.commit()
        except BaseException as error:
            _let_go(txn)
            raise self._told(error) from error
        self.logged = place

    def _claimed(self) -> Transaction:
        """One that fails if another capture begins, as none has so far."""
        txn = self._db.transaction(TIMEOUT_S)
        try:
            self._claim(txn)
        except BaseException:
            _let_go(txn)
            raise
        return txn

    def _claim(self, txn: Transaction) -> None:
        """Let it fail when another capture begins. Raises: `InUse` when one has begun already."""
        self._places.claim(txn)
        if self._places.holder(txn.read_at or "strong") != self.holder:
            raise self._taken_over()

    def _told(self, failed: BaseException) -> BaseException:
        """What became of a commit, for whoever waits for it."""
        if not isinstance(failed, Conflict):
            return failed
        if self._places.holder() == self.holder:
            # Another owner has taken over the database, and knows nothing of the claim.
            return Unavailable(f"capture {self._name!r}: {failed}")
        return self._taken_over()

    def _drop_guard(self) -> None:
        """Ordering: nothing is under way, or on the thread that commits."""
        guard, self._guard = self._guard, None
        if guard is not None:
            _let_go(guard)

    def _taken_over(self) -> InUse:
        return InUse(
            f"another capture named {self._name!r} has begun on this database, and this one stops; give one of them"
            f" another name if both are meant"
        )


def _let_go(txn: Transaction) -> None:
    with suppress(TidegateError):  # It is aborted at its timeout anyway.
        txn.abort()
