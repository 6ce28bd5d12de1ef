"""Transactions of a change table: the rules that a safe consumer needs (capture.md section 2), each with what breaks
without it. Rows are (id, transaction, type), as Turso 0.8.3 wrote them."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.cdc.change_table import ChangeRow, Extent, Groups, Kind, Part, kind_of, settled
from tidegate.errors import SourceUnreadable

Short = tuple[int, int | None, int]


def rows(*short: Short) -> list[ChangeRow]:
    return [ChangeRow(id, Kind(kind), txn) for id, txn, kind in short]


def parts(found: Sequence[ChangeRow], page: int = 1000, after: int = 0) -> Iterator[Part]:
    groups = Groups(after)
    for at in range(0, max(len(found), 1), page):
        yield from groups.page(found[at : at + page], is_end=at + page >= len(found))
    assert not groups.is_open


def taken(found: Sequence[ChangeRow], page: int = 1000) -> list[list[int]]:
    """The ids of changes, transaction by transaction."""
    whole: list[list[int]] = []
    current: list[int] = []
    for part in parts(found, page):
        current += [each.id for each in part.rows]
        if part.is_last:
            whole.append(current)
            current = []
    assert not current
    return whole


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        pytest.param(
            [(1, 1, 1), (2, 1, 1), (3, 1, 2), (4, 4, 0), (5, 4, 2), (6, 6, -1), (7, 6, 2)],
            [[1, 2], [4], [6]],
            id="three statements",
        ),
        pytest.param(
            [(1, 1, 1), (2, 1, 2), (3, 1, 1), (4, 1, 1), (5, 1, 2), (6, 1, 1), (7, 1, 2)],
            [[1, 3, 4, 6]],
            id="COMMIT rows in the midst, by triggers",
        ),
        pytest.param([(1, 1, 1), (2, 1, 1), (3, 3, 1), (4, 3, 2)], [[1, 2], [3]], id="no COMMIT row, by a savepoint"),
        pytest.param([(1, 1, 1), (2, 1, 2), (3, 3, 2), (4, 4, 1)], [[1], [], [4]], id="a COMMIT row alone"),
        pytest.param([(1, 1, 1), (2, 1, 2), (3, 1, 1), (4, 1, 2)], [[1, 3]], id="a commit that was refused at first"),
        pytest.param([(1, 1, -1), (2, 1, -1), (3, 1, -1), (4, 1, 2), (5, 1, 2)], [[1, 2, 3]], id="two COMMIT rows"),
        pytest.param([(1, -1, 2), (2, -1, 2)], [], id="statements that changed nothing"),
        pytest.param([(1, 1, 1), (2, -1, 2), (3, 3, 1)], [[1], [3]], id="nothing changed in between"),
        pytest.param([(1, 3, 1), (2, 3, 2), (3, 3, 1), (4, 3, 2)], [[1, 3]], id="an id used twice, which merges"),
        pytest.param([(1, None, 1), (2, None, 0), (3, None, 1)], [[1, 2, 3]], id="version 1: the snapshot is one"),
        pytest.param([], [], id="nothing"),
    ],
)
def test_transactions_are_told_apart_by_their_ids(log: list[Short], expected: list[list[int]]) -> None:
    """Rules 1, 2, 4, 6 and 8."""
    for page in (1, 2, 3, 1000):
        assert taken(rows(*log), page) == expected


def test_the_position_behind_a_transaction_passes_its_commit_rows() -> None:
    """So a restart does not meet them again; and empty ones are passed with the next."""
    log = rows((1, 1, 1), (2, 1, 2), (3, -1, 2), (4, 4, 1), (5, 4, 2))
    assert [each.upto for each in parts(log) if each.is_last] == [3, 5]
    assert [each.upto for each in parts(log[3:], after=3)] == [5]


def test_a_page_that_ends_within_a_transaction_does_not_end_it() -> None:
    """Rule 3: what is given is a part, and memory holds a page."""
    groups = Groups()
    log = rows(*((id, 1, 1) for id in range(1, 8)), (8, 8, 1))
    first = list(groups.page(log[:4], is_end=False))
    assert [(len(each.rows), each.is_last) for each in first] == [(4, False)] and groups.is_open
    rest = list(groups.page(log[4:], is_end=True))
    assert [([row.id for row in each.rows], each.upto, each.is_last) for each in rest] == [
        ([5, 6, 7], 7, True),
        ([8], 8, True),
    ]


def test_a_change_table_that_was_rewritten_is_noticed() -> None:
    """Rule 7: ids begin again when it was emptied."""
    groups = Groups(after=7)
    with pytest.raises(SourceUnreadable, match="change 1 follows change 7"):
        list(groups.page(rows((1, 1, 1)), is_end=True))


def test_a_type_that_is_not_known_is_refused() -> None:
    """Capture.md 1.2: anything else is an error, and a missing one is a COMMIT row (1.4)."""
    assert [kind_of(each, 1) for each in (1, 0, -1, 2, None)] == [
        Kind.INSERT, Kind.UPDATE, Kind.DELETE, Kind.COMMIT, Kind.COMMIT,
    ]  # fmt: skip
    with pytest.raises(SourceUnreadable, match="change 9 has the type 3"):
        kind_of(3, 9)


# -- writers side by side ------------------------------------------------------------------------------------------


def test_what_is_not_visible_yet_holds_back_what_is_behind_it() -> None:
    """Rule 5, the observed history: after the second has committed, its rows are there and the watermark is 1."""
    assert settled([Extent(2, 2, 4)], after=0, watermark=1) == []
    both = [Extent(1, 1, 5), Extent(2, 2, 4)]
    assert settled(both, after=0, watermark=6) == [Extent(2, 2, 4), Extent(1, 1, 5)]
    assert settled(both, after=4, watermark=6) == [Extent(1, 1, 5)]
    assert settled([Extent(-1, 3, 3)], after=0, watermark=9) == []


def test_a_transaction_that_reaches_above_the_watermark_is_left_for_later() -> None:
    assert settled([Extent(1, 1, 5), Extent(3, 3, 3)], after=0, watermark=4) == [Extent(3, 3, 3)]


@given(st.integers(0, 10_000))
def test_with_any_interleaving_every_transaction_is_taken_once_and_whole(seed: int) -> None:
    """Writers that take ids and commit in any order; a reader that looks at any time, and may start anew."""
    rng = random.Random(seed)
    next_id, open_, committed, taken_ = 1, {}, {}, {}
    position = 0
    for _ in range(rng.randrange(5, 60)):
        match rng.randrange(4):
            case 0 | 1:
                txn = rng.choice([*open_, None])
                if txn is None:
                    txn = next_id
                open_.setdefault(txn, []).append(next_id)
                next_id += 1
            case 2 if open_:
                txn = rng.choice([*open_])
                if rng.random() < 0.8:
                    committed[txn] = open_[txn]
                del open_[txn]
            case _:
                watermark = min([each[0] for each in open_.values()], default=next_id)
                seen = [Extent(txn, each[0], each[-1]) for txn, each in committed.items()]
                for each in settled(seen, after=position, watermark=watermark):
                    assert each.txn not in taken_, "once"
                    taken_[each.txn] = committed[each.txn]
                    position = each.last
                    if rng.random() < 0.3:
                        break  # A crash: only the position is known.
    watermark = min([each[0] for each in open_.values()], default=next_id)
    seen = [Extent(txn, each[0], each[-1]) for txn, each in committed.items()]
    for each in settled(seen, after=position, watermark=watermark):
        assert each.txn not in taken_
        taken_[each.txn] = committed[each.txn]
    assert set(taken_) == {txn for txn, each in committed.items() if each[-1] < watermark}
