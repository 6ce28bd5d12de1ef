"""What is left of a table's changes within a transaction: column by column and row by row say the same."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.cdc import pg_rows
from tidegate.cdc.pg_rows import Keyless, Patched, Reduced, reduce, reduce_slowly
from tidegate.cdc.pgoutput import UNCHANGED, Unchanged
from tidegate.errors import SourceUnreadable

Cell = str | None | Unchanged
OID = struct.pack(">I", 16_385)


def cells(*values: Cell) -> bytes:
    found = struct.pack(">H", len(values))
    for each in values:
        if isinstance(each, str):
            found += b"t" + struct.pack(">I", len(each.encode())) + each.encode()
        else:
            found += b"n" if each is None else b"u"
    return found


def insert(*row: Cell) -> bytes:
    return b"I" + OID + b"N" + cells(*row)


def update(*row: Cell, was: tuple[Cell, ...] | None = None, whole: bool = False) -> bytes:
    before = b"" if was is None else (b"O" if whole else b"K") + cells(*was)
    return b"U" + OID + before + b"N" + cells(*row)


def delete(*was: Cell, whole: bool = False) -> bytes:
    return b"D" + OID + (b"O" if whole else b"K") + cells(*was)


def left(found: Reduced) -> dict[str, Any]:
    """In any order."""
    rows = list(zip(*(each.to_pylist() for each in found.columns))) if found.columns is not None else found.rows
    return {
        "rows": {row[0]: row for row in rows},
        "deletes": sorted(found.deletes),
        "patches": sorted((each.was, each.row[0], repr(each.row)) for each in found.patches),
    }


def test_of_each_key_the_last_change_counts():
    found = reduce(
        [
            insert("1", "a"),
            update("1", "b"),
            delete("2", None),
            insert("3", "c"),
            delete("3", None),
            delete("4", None),
            insert("4", "d"),
            update("6", "e", was=("5", None)),
        ],
        2,
        (0,),
    )
    assert sorted(found.rows) == [("1", "b"), ("4", "d"), ("6", "e")]
    assert sorted(found.deletes) == [("2",), ("3",), ("5",)]


def test_exchanged_keys_leave_two_rows_and_no_delete_of_theirs():
    found = reduce(
        [
            update("0", "a", was=("1", None)),
            update("1", "b", was=("2", None)),
            update("2", "a", was=("0", None)),
        ],
        2,
        (0,),
    )
    assert sorted(found.rows) == [("1", "b"), ("2", "a")] and found.deletes == [("0",)]


def test_a_value_that_was_not_sent_is_taken_from_where_it_is_known():
    """The whole row before, or an earlier change in the same transaction; otherwise it stays where it was."""
    known = reduce([insert("1", "big", "x"), update("1", UNCHANGED, "y")], 3, (0,))
    assert known.rows == [("1", "big", "y")] and not known.patches
    whole = reduce([update("1", UNCHANGED, "y", was=("1", "big", "x"), whole=True)], 3, (0,))
    assert whole.rows == [("1", "big", "y")]
    patch = reduce([update("1", UNCHANGED, "y")], 3, (0,))
    assert patch.patches == [Patched(("1",), ("1", UNCHANGED, "y"))] and not patch.rows
    moves = [update("2", UNCHANGED, "y", was=("1", None, None)), update("3", UNCHANGED, "z", was=("2", None, None))]
    moved = reduce(moves, 3, (0,))
    assert moved.patches == [Patched(("1",), ("3", UNCHANGED, "z"))]
    assert sorted(moved.deletes) == [("1",), ("2",)]
    later = reduce([update("1", UNCHANGED, "y"), update("1", "new", UNCHANGED)], 3, (0,))
    assert later.rows == [("1", "new", "y")] and not later.patches
    gone = reduce([update("1", UNCHANGED, "y"), delete("1", None, None)], 3, (0,))
    assert gone.deletes == [("1",)] and not gone.patches


def test_rows_without_a_key_only_come():
    assert reduce([insert("1"), insert("1")], 1, ()).rows == [("1",), ("1",)]
    for count in (1, 100):
        for message in (update("1", was=("1",), whole=True), update("1"), delete("1", whole=True)):
            with pytest.raises(Keyless):
                reduce([insert("1")] * count + [message], 1, ())


@pytest.mark.parametrize("count", [1, 100])
def test_bytes_that_are_no_row_are_refused(count):
    good = insert("1", "a")
    for wrong in (
        insert("1"),
        good[:-1],
        good + b"x",
        good[:8] + b"?" + good[9:],
        insert(None, "a"),
        insert("1", UNCHANGED),
        delete(None, "a"),
        b"I" + OID + b"K" + cells("1", "a"),
        b"U" + OID + b"K" + cells("1", "a") + b"X" + cells("1", "a"),
        b"I" + OID + b"N",
        good[:9] + b"\xff\xff\xff\xff" + good[13:],
    ):
        with pytest.raises(SourceUnreadable):
            reduce([good] * count + [wrong], 2, (0,))


TEXTS = st.sampled_from(["", "a", "ä中", "NULL", "long " * 40]) | st.none()


@st.composite
def histories(draw: Any) -> tuple[list[bytes], dict[str, tuple[str | None, str | None]]]:
    """Changes of a table with rows 0 to 4, as a server sends them, and what the table is then."""
    there: dict[str, tuple[str | None, str | None]] = {str(key): ("old", "x" * key) for key in range(5)}
    messages: list[bytes] = []
    whole = draw(st.booleans())
    for _ in range(draw(st.integers(1, 120))):
        key = str(draw(st.integers(0, 9)))
        if key not in there:
            there[key] = draw(TEXTS), draw(TEXTS)
            messages.append(insert(key, *there[key]))
            continue
        old = there[key]
        if draw(st.booleans()):
            messages.append(delete(key, *(old if whole else (None, None)), whole=whole))
            del there[key]
            continue
        new: list[Any] = [draw(TEXTS), draw(TEXTS)]
        sent = list(new)
        for at in range(2):
            if draw(st.integers(0, 9)) == 0:
                new[at], sent[at] = old[at], UNCHANGED if old[at] is not None else None
        to = str(draw(st.integers(0, 9)))
        to = to if to not in there else key
        was = (key, *(old if whole else (None, None))) if whole or to != key else None
        messages.append(update(to, *sent, was=was, whole=whole))
        del there[key]
        there[to] = tuple(new)
    return messages, there


@given(histories())
def test_what_is_left_makes_of_what_was_what_is(history):
    """Applied as `Patch` and `Rows` say, to the rows that were there before."""
    messages, there = history
    table = {str(key): (str(key), "old", "x" * key) for key in range(5)}
    found = reduce_slowly(messages, 3, (0,))
    writes = []
    for each in found.patches:
        old = table[each.was[0]]
        writes.append(tuple(old[at] if isinstance(cell, Unchanged) else cell for at, cell in enumerate(each.row)))
    for row in writes:
        table[row[0]] = row
    for (key,) in found.deletes:
        table.pop(key, None)
    for row in found.rows:
        table[row[0]] = row
    assert table == {key: (key, *row) for key, row in there.items()}
    keys = [each.row[0] for each in found.patches] + [key for (key,) in found.deletes] + [row[0] for row in found.rows]
    assert len(keys) == len(set(keys))


@given(histories())
def test_columns_and_rows_say_the_same(history):
    messages, _ = history
    slow = left(reduce_slowly(messages, 3, (0,)))
    many = pg_rows.MANY
    try:
        pg_rows.MANY = 1
        fast = left(reduce(messages, 3, (0,)))
    finally:
        pg_rows.MANY = many
    assert fast == slow
