"""LastConfirmedMessageID: the largest position from which nothing later can be missed. Seed 000, reference 5.1."""

from __future__ import annotations

from tidegate.log.last_confirmed import AllResolved, LastConfirmed
from tidegate.log.message import Position


class Txn:
    def __init__(self, resolved_at: int | None = None) -> None:
        self.resolved_at = resolved_at

    def is_resolved(self, confirmed: int) -> bool:
        return self.resolved_at is not None and confirmed >= self.resolved_at


def test_a_position_counts_once_everything_allocated_meanwhile_is_confirmed() -> None:
    """Strictly: an `end` equal to the watermark may still be in flight with a smaller position."""
    last = LastConfirmed(Position(1))
    last.add(5, end=20)
    assert last.advance(19) == 1
    assert last.advance(20) == 1
    assert last.advance(21) == 5
    assert len(last) == 0


def test_positions_count_in_their_own_order_whatever_order_they_were_confirmed_in() -> None:
    last = LastConfirmed(Position(1))
    last.add(9, end=10)
    last.add(3, end=30)
    assert last.advance(20) == 1, "9 may not be passed while 3 waits"
    assert last.advance(31) == 9


def test_an_open_transaction_holds_everything_behind_its_message() -> None:
    """A long-lived transaction pins it; one that has ended, in whatever way, does not."""
    txn = Txn()
    last = LastConfirmed(Position(1))
    last.add(2, 10, txn)
    last.add(3, 10)
    assert last.advance(100) == 2
    assert last.resume == 3, "a reader that fetches what a commit names is not held"
    txn.resolved_at = 150
    assert last.advance(149) == 2
    assert last.advance(150) == 3


def test_an_open_transaction_costs_one_entry_however_much_is_appended_beside_it() -> None:
    """Promise 3: an open transaction blocks nobody, and does not make the others dearer."""
    txn = Txn()
    last = LastConfirmed(Position(1))
    for position in range(2, 1000):
        last.add(position, position, txn if position % 3 == 0 else None)
        last.advance(position + 1)
    assert len(last) == 1
    assert (last.position, last.resume) == (3, 999)
    txn.resolved_at = 1001
    assert last.advance(1001) == 999
    assert len(last) == 0


def test_appends_written_together_wait_for_all_their_transactions() -> None:
    first, second = Txn(5), Txn()
    both = AllResolved([first, second])
    assert not both.is_resolved(10)
    second.resolved_at = 7
    assert both.is_resolved(10)
    assert not both.is_resolved(6)


def test_a_group_that_encloses_another_does_not_pass_it() -> None:
    """A held message may be written inside a group: while it waits, only what lies before it counts."""
    last = LastConfirmed(Position(1))
    last.add(10, 20, first=2)
    last.add(5, 40)
    assert last.advance(30) == 5
    assert last.advance(41) == 10


def test_it_never_goes_back() -> None:
    last = LastConfirmed(Position(50))
    last.add(7, 10)
    assert last.advance(100) == 50
