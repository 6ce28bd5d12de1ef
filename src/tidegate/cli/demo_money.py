"""The demo's second scene: threads move money over four channels, a reader adds it all up at every cut.

Each transfer is one transaction with a message in every channel. Seen one channel at a time, money is missing or
there twice; at a cut, a Timestamp that every channel has ticked past, the sum is always the same.
"""

from __future__ import annotations

import random
from collections import deque
from pathlib import Path
from threading import Event, Thread
from time import monotonic, sleep
from typing import Final

from tidegate.database.database import Database
from tidegate.database.received import Received
from tidegate.errors import TidegateError
from tidegate.runtime.transaction_reader import TransactionReader
from tidegate.topics.message_id import MessageId
from tidegate.topics.routing import shard_of
from tidegate.topics.value import decode

MOVES: Final = "moves"
LEDGER: Final = "ledger"
SUBSCRIPTION: Final = "bookkeeper"
ACCOUNTS: Final = 100
EACH: Final = 100
TOTAL: Final = ACCOUNTS * EACH
SHARDS: Final = 4
_MOVERS: Final = ("ann", "bo", "cy", "di")
_PAUSE_S: Final = 0.005
_CUT_EVERY_S: Final = 0.01
_TICK_EVERY_S: Final = 0.05
_CHANGE_OF_MIND: Final = 0.08
_BATCH: Final = 200
_END_MAX_S: Final = 20.0
_LARGE: Final = 1_200_000
"""Bytes; more than a transaction keeps in memory, so that it is written ahead of its commit."""
_WINDOW_S: Final = 1.0


class ChangeOfMind(Exception):
    """Why a transaction is rolled back on purpose."""


class Mover:
    """One thread that moves money, and what it has done. Written by its own thread, read by the display."""

    def __init__(self, name: str) -> None:
        self.name: Final = name
        self.committed = 0
        self.rolled_back = 0
        self.latency_s = 0.0
        self.rate = 0.0
        self.error: str | None = None
        self._marks: deque[tuple[float, int]] = deque()

    def update_rate(self, now: float) -> None:
        """Transfers a second over the last second."""
        self._marks.append((now, self.committed))
        while len(self._marks) > 2 and now - self._marks[0][0] > _WINDOW_S:
            self._marks.popleft()
        began, committed = self._marks[0]
        self.rate = (self.committed - committed) / (now - began) if now > began else 0.0


class Cuts:
    """Reads every channel, and adds up the money at every cut through all of them."""

    def __init__(self, readers: dict[str, TransactionReader], accounts: int) -> None:
        self._readers = readers
        self._waiting: dict[str, deque[tuple[int, int, int]]] = {name: deque() for name in readers}
        """Messages above the cut: TimeTick, account, amount."""
        self._ticks = dict.fromkeys(readers, 0)
        self.cut = 0
        self.cuts = 0
        self.balances = [0] * accounts
        self.torn = 0
        """Cuts whose sum was wrong. It stays 0, or Tidegate is broken."""
        self.sum = 0
        self.careless_sum = 0
        """Of all that was received, with no regard to cuts."""
        self.careless_looks = 0
        self.careless_wrong = 0
        self.ledger = 0
        """Messages that the bookkeeper has entered, as its own messages say."""
        self.error: str | None = None

    def look(self) -> None:
        """Read on in every channel, and move the cut as far as all of them have come."""
        for name, reader in self._readers.items():
            delivery = reader.poll()  # One at a time: whoever reads one channel to its end never comes to the others.
            if delivery is not None:
                for message in delivery.messages():
                    self._take(name, int(message.time_tick), message.vchannel, message.body or b"")
                self._ticks[name] = int(delivery.tick.time_tick)
                self.careless_looks += 1
                self.careless_wrong += self.careless_sum not in (0, TOTAL)
        cut = min(self._ticks.values())
        if cut > self.cut:
            self.cut, self.cuts = cut, self.cuts + 1
            self._apply(cut)
            # Before the first deposit there is nothing; it is one transaction, so there is never a part of it.
            self.torn += self.sum not in (0, TOTAL)

    def _take(self, channel: str, tick: int, vchannel: str, body: bytes) -> None:
        value = decode(body).value
        if vchannel.split("/")[1].endswith(LEDGER):
            self.ledger += value["entered"]
            return
        self.careless_sum += value["amount"]
        self._waiting[channel].append((tick, value["account"], value["amount"]))

    def _apply(self, cut: int) -> None:
        for waiting in self._waiting.values():
            while waiting and waiting[0][0] <= cut:
                _, account, amount = waiting.popleft()
                self.balances[account] += amount
                self.sum += amount


class Bookkeeper:
    """Consumes every message once: acknowledges and writes to the ledger in one transaction."""

    def __init__(self) -> None:
        self.entered: set[MessageId] = set()
        self.twice = 0
        """Messages received again after their transaction was committed. It stays 0, or Tidegate is broken."""
        self.committed = 0
        self.rolled_back = 0
        self.error: str | None = None

    def enter(self, messages: list[Received]) -> None:
        """The transaction with these messages is committed."""
        self.committed += 1
        for each in messages:
            self.twice += each.id in self.entered
            self.entered.add(each.id)


class Money:
    """Everything that runs while the scene is shown."""

    def __init__(self, path: Path, rng: random.Random) -> None:
        self._rng = rng
        self.db: Final = Database(path, name="demo")
        for name in (MOVES, LEDGER):
            self.db.sql(f"DROP TOPIC IF EXISTS {name}")
            self.db.sql(f"CREATE TOPIC {name} SHARDS {SHARDS}")
        self.movers: Final = [Mover(name) for name in _MOVERS]
        self._by_shard: Final = [
            [account for account in range(ACCOUNTS) if shard_of(account, SHARDS) == shard] for shard in range(SHARDS)
        ]
        self._consumer = self.db.subscribe(MOVES, SUBSCRIPTION, kind="shared")
        self._sleeper = self.db.transaction(timeout=900)
        self.cuts: Final = Cuts(self._readers(), ACCOUNTS)
        self.bookkeeper: Final = Bookkeeper()
        self.started = monotonic()
        self._stop = Event()
        self._finishing = Event()
        self._done = Event()
        self._target = 0
        self._threads = [Thread(target=self._move, args=(each,), daemon=True) for each in self.movers]
        self._reader = Thread(target=self._read, daemon=True)
        self._keeper = Thread(target=self._keep_books, daemon=True)

    def _readers(self) -> dict[str, TransactionReader]:
        log = self.db.engine.log
        places = frozenset(self.db.topic(MOVES).vchannels + self.db.topic(LEDGER).vchannels)
        after = self.db.topic(MOVES).created
        return {name: log.transaction_reader(name, after=after, vchannels=places) for name in self.db.engine.channels}

    @property
    def committed(self) -> int:
        return sum(each.committed for each in self.movers)

    @property
    def rolled_back(self) -> int:
        return sum(each.rolled_back for each in self.movers)

    @property
    def messages(self) -> int:
        """What was committed for the bookkeeper by now, the deposits included."""
        return ACCOUNTS + SHARDS * self.committed

    @property
    def is_right(self) -> bool:
        """Whether everything came out as it must."""
        cuts, books = self.cuts, self.bookkeeper
        return (
            not cuts.torn
            and not books.twice
            and cuts.sum == TOTAL
            and len(books.entered) == self.messages == cuts.ledger
            and not self.errors
        )

    @property
    def errors(self) -> list[str]:
        who = [*[(each.name, each.error) for each in self.movers], ("the reader", self.cuts.error)]
        return [
            f"{name} stopped: {error}" for name, error in (*who, ("the bookkeeper", self.bookkeeper.error)) if error
        ]

    # -- its course --------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Pay in what is moved later, and let everything run."""
        self._sleeper.send(LEDGER, bytes(_LARGE))  # Never committed: open for the whole scene, and in nobody's way.
        with self.db.transaction() as txn:
            for account in range(ACCOUNTS):
                txn.send(MOVES, {"account": account, "amount": EACH}, key=account)
        self.started = monotonic()
        for mover in self.movers:
            mover.update_rate(self.started)
        for thread in (*self._threads, self._reader, self._keeper):
            thread.start()

    def finish(self) -> float:
        """Stop the movers and let the others come to the end; how many seconds the movers ran."""
        self._stop.set()
        for thread in self._threads:
            thread.join(_END_MAX_S)
        ran = monotonic() - self.started
        self._finishing.set()
        self._keeper.join(_END_MAX_S)
        self._target = int(self.db.engine.log.allocate(1))
        self._done.set()
        self._reader.join(_END_MAX_S)
        return ran

    def close(self) -> None:
        """End whatever still runs."""
        for event in (self._stop, self._finishing, self._done):
            event.set()
        for thread in (*self._threads, self._keeper, self._reader):
            if thread.ident is not None:
                thread.join(_END_MAX_S)
        self._sleeper.abort()
        self.db.close()

    # -- threads -----------------------------------------------------------------------------------------------------

    def _move(self, mover: Mover) -> None:
        rng = random.Random(self._rng.random())
        try:
            while not self._stop.wait(_PAUSE_S):
                began = monotonic()
                try:
                    with self.db.transaction() as txn:
                        for account, amount in self._transfer(rng):
                            txn.send(MOVES, {"account": account, "amount": amount}, key=account)
                        if rng.random() < _CHANGE_OF_MIND:
                            raise ChangeOfMind
                except ChangeOfMind:
                    mover.rolled_back += 1
                    continue
                mover.latency_s = monotonic() - began
                mover.committed += 1
        except TidegateError as error:
            mover.error = str(error)

    def _transfer(self, rng: random.Random) -> list[tuple[int, int]]:
        """From one account to three others, one in each channel."""
        accounts = [rng.choice(each) for each in self._by_shard]
        rng.shuffle(accounts)
        amount = rng.randrange(1, 10)
        return [(accounts[0], -3 * amount), *[(each, amount) for each in accounts[1:]]]

    def _read(self) -> None:
        writers = [self.db.engine.log.channel(name, create=False) for name in self.db.engine.channels]
        deadline, due = None, 0.0
        try:
            while True:
                sleep(_CUT_EVERY_S)
                is_done = self._done.is_set()
                if is_done and (self.cuts.cut >= self._target or _is_over(deadline)):
                    return
                deadline = deadline or (monotonic() + _END_MAX_S / 2 if is_done else None)
                if monotonic() >= due:
                    due = monotonic() + _TICK_EVERY_S
                    for writer in writers:
                        writer.tick()
                self.cuts.look()
        except TidegateError as error:
            self.cuts.error = str(error)

    def _keep_books(self) -> None:
        rng = random.Random(self._rng.random())
        books, consumer = self.bookkeeper, self._consumer
        deadline = None
        try:
            while True:
                is_done = self._finishing.is_set()
                if is_done and (len(books.entered) >= self.messages or _is_over(deadline)):
                    return
                deadline = deadline or (monotonic() + _END_MAX_S / 2 if is_done else None)
                messages = consumer.receive_many(_BATCH, 0.1)
                if not messages:
                    continue
                try:
                    with self.db.transaction() as txn:
                        txn.ack(messages)
                        txn.send(LEDGER, {"entered": len(messages)})
                        if rng.random() < _CHANGE_OF_MIND:
                            raise ChangeOfMind
                except ChangeOfMind:
                    books.rolled_back += 1  # They are delivered again.
                    continue
                books.enter(messages)
        except TidegateError as error:
            books.error = str(error)


def _is_over(deadline: float | None) -> bool:
    return deadline is not None and monotonic() > deadline
