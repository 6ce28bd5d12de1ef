"""The demo's bank, the process that writes: tellers who move money through the owner, and say what was acknowledged.

Each transfer is a transaction of its own: two accounts and a row of `transfers`. A teller serves several customers at
a time: it begins their transactions, notes what they will read, looks at all accounts once, and commits one after the
other. If somebody else has written one of the accounts since, the commit fails with `Conflict`, and the transfer is
tried again. What it prints, a line each:

    try ID ...              these are under way from now on
    ack ID TIMESTAMP        committed
    busy ID                 a conflict; nothing of it remains, and it will be tried again
    read TIMESTAMP SUM N    what all accounts were, at the cut that was looked at
    token TOKEN ID          a session that has written everything up to this transfer
    error TEXT              it gives up

On its standard input, `slow` and `fast` say how much of the machine it may take, slow being how it begins, and `stop`
ends it in good order. The end of that input means that the demo is gone: it ends at once.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from typing import Any, Final

from tidegate.database.database import Database
from tidegate.database.session import Session
from tidegate.database.transaction import Transaction
from tidegate.errors import Conflict, TidegateError, TransactionAborted

TELLERS: Final = 4
CUSTOMERS: Final = 8
"""That a teller serves at a time."""
_AMOUNT_MAX: Final = 100
_REST_S: Final = {"slow": 0.25, "fast": 0.02}
"""Between two rounds of a teller. Spark and the readers share the machine, and Spark needs it most when it starts."""
_TIMEOUT_S: Final = 30.0
BOOK: Final = "SELECT id, owner, balance FROM accounts"
"""Always the same text, so that it is translated once."""


@dataclass(frozen=True, slots=True)
class Order:
    """What a customer wants."""

    id: str
    sender: int
    receiver: int
    amount: int


class Teller:
    """One thread's work. Its transfers' ids are its own."""

    def __init__(self, name: str, accounts: int, rng: random.Random) -> None:
        self.name: Final = name
        self._accounts: Final = accounts
        self._rng = rng
        self._number = 0
        self.again: list[Order] = []
        """Met a conflict."""

    def next_orders(self) -> list[Order]:
        """The customers to serve now; no account twice, or they would be in each other's way."""
        orders, self.again = self.again, []
        busy = {each for order in orders for each in (order.sender, order.receiver)}
        while len(orders) < CUSTOMERS:
            sender, receiver = self._rng.sample(range(self._accounts), 2)
            if busy.isdisjoint((sender, receiver)):
                busy |= {sender, receiver}
                self._number += 1
                amount = self._rng.randint(1, _AMOUNT_MAX)
                orders.append(Order(f"{self.name}-{self._number}", sender, receiver, amount))
        return orders

    def serve(self, session: Session) -> None:
        """Serve some customers. Ordering: reads are noted before the accounts are looked at, at a later cut."""
        orders = self.next_orders()
        say("try", *[each.id for each in orders])
        txns: list[Transaction] = []
        try:
            for order in orders:
                txns.append(session.transaction(_TIMEOUT_S))
                txns[-1].read("accounts", [order.sender, order.receiver])
            found = session.query(BOOK, "strong")
            book = {row["id"]: row for row in found.rows()}
            say("read", int(found.timestamp), sum(row["balance"] for row in book.values()), len(book))
            done = [order for order, txn in zip(orders, txns, strict=True) if self._commit(order, txn, book)]
            if done:
                say("token", session.token, done[-1].id)
        finally:
            for txn in txns:
                if txn.state == "OPEN":
                    with suppress(TidegateError):
                        txn.abort()

    def _commit(self, order: Order, txn: Transaction, book: dict[int, dict[str, Any]]) -> bool:
        sender, receiver = book[order.sender], book[order.receiver]
        amount = min(order.amount, sender["balance"])  # No account goes below zero.
        try:
            txn.upsert(
                "accounts",
                [
                    {**sender, "balance": sender["balance"] - amount},
                    {**receiver, "balance": receiver["balance"] + amount},
                ],
            )
            txn.insert(
                "transfers",
                {"id": order.id, "sender": order.sender, "receiver": order.receiver, "amount": amount},
            )
            at = txn.commit()
        except (Conflict, TransactionAborted):
            say("busy", order.id)
            self.again.append(order)
            return False
        say("ack", order.id, int(at))
        return True


def say(*words: object) -> None:
    """One line, in one write, so that lines of several threads do not mix and nothing is left in a buffer."""
    with suppress(BrokenPipeError):  # Whoever listened is gone, and soon this process is.
        os.write(1, (" ".join(map(str, words)) + "\n").encode())


def run(path: Path, life: str, accounts: int) -> bool:
    """Write until `stop` is heard; whether all went well."""
    stop, failed = Event(), Event()
    pace = ["slow"]

    def listen() -> None:
        for line in sys.stdin:
            word = line.strip()
            if word == "stop":
                stop.set()
            elif word in _REST_S:
                pace[0] = word
        os._exit(1)

    def work(teller: Teller, session: Session) -> None:
        try:
            while not stop.wait(_REST_S[pace[0]]):
                teller.serve(session)
        except Exception as error:
            failed.set()
            stop.set()
            say("error", f"teller {teller.name}:", " ".join((str(error) or repr(error)).split()))

    Thread(target=listen, daemon=True).start()
    with Database(path, name=f"writer {life}") as database:
        session = database.session()
        tellers = [Teller(f"{life}{number}", accounts, random.Random()) for number in range(TELLERS)]
        threads = [Thread(target=work, args=(each, session)) for each in tellers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return not failed.is_set()


def main(arguments: Sequence[str]) -> int:
    """Path of the database, name of this life, number of accounts."""
    path, life, accounts = arguments
    try:
        return 0 if run(Path(path), life, int(accounts)) else 1
    except TidegateError as error:
        say("error", " ".join(str(error).split()))
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
