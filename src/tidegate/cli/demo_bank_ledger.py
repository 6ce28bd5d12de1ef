"""What the demo's bank knows without the database: what its writers said, and what must be so. Pure.

`Ledger` is told the lines of the writer's process. What it was told is held against what the database has.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Final, NamedTuple

ACCOUNTS: Final = 1_000
EACH: Final = 1_000
TOTAL: Final = ACCOUNTS * EACH
_WORDS_MAX: Final = 5
_NAMED_MAX: Final = 3


class Read(NamedTuple):
    """The answer of one cut."""

    at: int
    total: int
    accounts: int


class Transfer(NamedTuple):
    """A row of `transfers`."""

    id: str
    sender: int
    receiver: int
    amount: int


def wrong_sum(read: Read) -> str | None:
    """What is wrong with the money at a cut, if anything is."""
    if read.total == TOTAL and read.accounts == ACCOUNTS:
        return None
    return f"{read.accounts:,} accounts with {read.total:,} at {read.at}, and not {ACCOUNTS:,} with {TOTAL:,}"


class Ledger:
    """What the writers said. One thread at a time tells it; others may look."""

    def __init__(self) -> None:
        self.acknowledged: Final[dict[str, int]] = {}
        """Transfers by id, and their commit Timestamps."""
        self.under_way: Final[dict[str, None]] = {}
        """Begun, and nothing was heard of them since; in their order."""
        self.conflicts = 0
        self.reads = 0
        """Of the whole book, in the writer's process."""
        self.last_read: Read | None = None
        self.newest = 0
        """The newest commit Timestamp."""
        self.token: tuple[str, str] | None = None
        """A session of the writer's, and a transfer that it has seen committed."""
        self.words: Final[deque[str]] = deque(maxlen=_WORDS_MAX)
        """What else it said: how it ended."""
        self.errors: Final[list[str]] = []

    def hear(self, line: str) -> Read | None:
        """Take in a line; the read that it tells of, if it does."""
        word, *rest = line.split()
        match word, rest:
            case "try", ids:
                self.under_way.update(dict.fromkeys(ids))
            case "ack", [id, at]:
                self._acknowledge(id, int(at))
            case "busy", [id]:
                self.under_way.pop(id, None)
                self.conflicts += 1
            case "read", [at, total, accounts]:
                self.reads += 1
                self.last_read = Read(int(at), int(total), int(accounts))
                return self.last_read
            case "token", [token, id]:
                self.token = token, id
            case "error", _:
                self.errors.append(f"the writer stopped: {line.partition(' ')[2].strip()}")
            case _:
                self.words.append(line.strip())
        return None

    def _acknowledge(self, id: str, at: int) -> None:
        if id in self.acknowledged:
            self.errors.append(f"transfer {id} was acknowledged twice, at {self.acknowledged[id]} and {at}")
        self.under_way.pop(id, None)
        self.acknowledged[id] = at
        self.newest = max(self.newest, at)

    def lose(self) -> list[str]:
        """The writer is dead: what was under way, of which nobody will say what became of it."""
        lost = list(self.under_way)
        self.under_way.clear()
        return lost

    def audit(self, balances: Mapping[int, int], transfers: Iterable[Transfer], lost: Iterable[str]) -> list[str]:
        """What is wrong with the accounts and transfers of one cut, after everything was heard.

        Every acknowledged transfer is there once; beside them only what a dead writer had under way, once; and each
        balance is what the transfers have made of it.
        """
        expected = dict.fromkeys(range(ACCOUNTS), EACH)
        count: Counter[str] = Counter()
        for each in transfers:
            count[each.id] += 1
            expected[each.sender] -= each.amount
            expected[each.receiver] += each.amount
        missing = [id for id in self.acknowledged if not count[id]]
        twice = [id for id, times in count.items() if times > 1]
        unknown = count.keys() - self.acknowledged.keys() - set(lost)
        differ = sorted(id for id in expected.keys() | balances.keys() if balances.get(id) != expected.get(id))
        return [
            *_told(missing, "acknowledged transfers are missing"),
            *_told(twice, "transfers are there more than once"),
            *_told(sorted(unknown), "transfers are there that nobody made"),
            *_told([str(id) for id in differ], "balances are not what the transfers make of them"),
        ]


def _told(ids: list[str], what: str) -> list[str]:
    if not ids:
        return []
    named = ", ".join(islice(ids, _NAMED_MAX))
    return [f"{len(ids):,} {what}: {named}{', ...' if len(ids) > _NAMED_MAX else ''}"]
