"""`Relay`: the transactions of one capture, each of which fails once another capture of its name has begun.

A transaction is opened, and claims that nobody else has begun, before the one ahead of it commits: there is no moment
between them. Where commits wait for a disk or an owner elsewhere, a thread of its own commits it while the next one is
read from the source and written; where they hardly wait, two threads would only be in each other's way. The next one
commits when this has come to a good end and not before: the log has everything up to a place, or nothing behind it.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Final

from tidegate.capture.places import Place, Places
from tidegate.errors import Conflict, InUse, TidegateError, Unavailable

if TYPE_CHECKING:
    from tidegate.clock.timestamp import Timestamp
    from tidegate.database.database import Database
    from tidegate.database.transaction import Transaction

TIMEOUT_S: Final = 900.0
"""What one transaction of a source may take to be written; a snapshot is one."""
FRESH_S: Final = 5.0
"""How long a claim waits for the transaction it is made for."""

WAITS_S: Final = 0.001
"""Commits that wait for longer than this are worth a thread."""
ASKED_EVERY: Final = 64
"""Of so many commits one is timed."""
COMMITS: Final = "tidegate-capture-commit"
"""The thread that commits is called so."""


class Relay:
    """Used by one thread. Invariant: `logged` is what the log has; one commit at most is under way."""

    def __init__(self, db: Database, name: str, places: Places) -> None:
        self._db = db
        self._name: Final = name
        self._places: Final = places
        self.holder: Final = secrets.token_hex(8)
        """By what this capture is told from others of its name."""
        self.logged = Place("")
        self._under_way: tuple[Transaction, Future[Timestamp], Place] | None = None
        self._next: Transaction | None = None
        self._next_since = 0.0
        self._until_asked = 0
        """Commits that go to the thread before one is timed again."""
        self._commits: SimpleQueue[tuple[Transaction, Future[Timestamp]] | None] | None = None

    @contextmanager
    def writing(self, *, reads: bool = False) -> Iterator[Transaction]:
        """The next transaction, for `commit`; it is gone when what is done with it fails.

        One that `reads` tables does so as of a moment behind the last commit, which a claim made before it is not.
        """
        if reads:
            self.settle()
        txn = self._claimed(reads)
        try:
            yield txn
        except BaseException:
            _let_go(txn)
            raise

    def commit(self, txn: Transaction, place: Place) -> None:
        """Commit it, with which the log has `place`; `settle` says what became of it.

        Ordering: the last thing that is done with it inside `writing`.
        Raises: what became of the one ahead of it. This one is gone then.
        """
        self._next = self._open()
        self._next_since = time.monotonic()
        self.settle()
        future: Future[Timestamp] = Future()
        self._under_way = (txn, future, place)
        if self._until_asked:
            self._until_asked -= 1
            if self._commits is None:
                self._commits = SimpleQueue()
                Thread(target=_commit_all, args=(self._commits,), name=COMMITS, daemon=True).start()
            self._commits.put((txn, future))
            return
        began, worked = time.perf_counter(), time.thread_time()
        _commit_one(txn, future)
        waited = time.perf_counter() - began - (time.thread_time() - worked)
        self._until_asked = ASKED_EVERY - 1 if waited > WAITS_S else 0

    def settle(self) -> None:
        """Wait for the commit that is under way.

        Raises: what it failed with; `InUse` when another capture of this name has begun.
        """
        if self._under_way is None:
            return
        txn, future, place = self._under_way
        try:
            future.result()
        except Conflict as error:
            self._drop_next()
            if self._places.holder() == self.holder:
                # Another owner has taken over the database, and knows nothing of the claim.
                raise Unavailable(f"capture {self._name!r}: {error}") from error
            raise self._taken_over() from error
        except BaseException:
            _let_go(txn)
            self._drop_next()
            raise
        else:
            self.logged = place
        finally:
            self._under_way = None

    @property
    def seen(self) -> Place | None:
        """What other threads may take for logged while a commit is under way; None when none is."""
        under_way = self._under_way
        if under_way is None:
            return None
        _, future, place = under_way
        return place if future.done() and future.exception() is None else self.logged

    def rest(self) -> None:
        """Nothing comes: keep no transaction open for it."""
        self.settle()
        if time.monotonic() - self._next_since >= FRESH_S:
            self._drop_next()

    def close(self) -> None:
        """Let go of what was not committed. What became of the last commit is in the log.

        Raises: `InUse`, for whoever would go on from there.
        """
        try:
            self.settle()
        except InUse:
            raise
        except TidegateError:
            pass
        finally:
            self._drop_next()
            if self._commits is not None:
                self._commits.put(None)
                self._commits = None

    def begin(self, *, again: bool) -> None:
        """From now on the transactions of any other capture of this name fail.

        Raises: `InUse` when it is not the first time (`again`), and another one has begun since.
        """
        with self._db.transaction(TIMEOUT_S) as txn:
            if again:
                self._places.claim(txn)
                if self._places.holder(txn.read_at or "strong") != self.holder:
                    raise self._taken_over()
            self._places.take_over(txn, self.holder)

    def _claimed(self, reads: bool) -> Transaction:
        txn, self._next = self._next, None
        if txn is not None and not reads and time.monotonic() - self._next_since < FRESH_S:
            return txn
        if txn is not None:
            _let_go(txn)
        txn = self._open()
        try:
            if self._places.holder(txn.read_at or "strong") != self.holder:
                raise self._taken_over()
        except BaseException:
            _let_go(txn)
            raise
        return txn

    def _open(self) -> Transaction:
        txn = self._db.transaction(TIMEOUT_S)
        try:
            self._places.claim(txn)
        except BaseException:
            _let_go(txn)
            raise
        return txn

    def _drop_next(self) -> None:
        txn, self._next = self._next, None
        if txn is not None:
            _let_go(txn)

    def _taken_over(self) -> InUse:
        return InUse(
            f"another capture named {self._name!r} has begun on this database, and this one stops; give one of them"
            f" another name if both are meant"
        )


def _commit_all(commits: SimpleQueue[tuple[Transaction, Future[Timestamp]] | None]) -> None:
    while (each := commits.get()) is not None:
        _commit_one(*each)


def _commit_one(txn: Transaction, future: Future[Timestamp]) -> None:
    try:
        future.set_result(txn.commit())
    except BaseException as error:
        future.set_exception(error)


def _let_go(txn: Transaction) -> None:
    with suppress(TidegateError):  # It is aborted at its timeout anyway.
        txn.abort()
