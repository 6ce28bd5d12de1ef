"""Values that many small transactions left out are looked up together, and are as if each had been alone."""

from __future__ import annotations

import pytest
from capture_rig import captured, rows
from hypothesis import given
from hypothesis import strategies as st

from tidegate.capture.looking_ahead import ROWS_MOST, SMALL, TRANSACTIONS_MOST, groups
from tidegate.capture.source import Column, Dropped, Patch, Rows, SourceTable, SourceTransaction, Truncated
from tidegate.database.database import Database
from tidegate.errors import SourceGone, SourceUnreadable

NOTES = SourceTable("notes", (Column("id", "BIGINT"), Column("n", "BIGINT"), Column("big", "STRING")), ("id",))


def left_alone(id, n, key=None):
    """An update that has not touched `big`."""
    return Patch("notes", [(id if key is None else key,)], [(id, n, None)], [("big",)])


@pytest.fixture
def history(history):
    history.tables = [NOTES]
    history.rows = [Rows("notes", [(each, 0, f"large {each}") for each in range(5)])]
    return history


def commit_at_once(history, *transactions):
    """They are at hand when the source is asked."""
    first = len(history.transactions) + 1
    history.transactions.extend((first + at, list(changes), {}) for at, changes in enumerate(transactions))


def test_what_a_stream_of_transactions_left_alone_is_asked_for_a_few_times(db, history, monkeypatch):
    asked = []
    original = Database.query

    def query(self, sql, *given, **options):
        asked.append(sql)
        return original(self, sql, *given, **options)

    monkeypatch.setattr(Database, "query", query)
    with captured(db) as capture:
        asked.clear()
        commit_at_once(history, *([left_alone(each % 5, each)] for each in range(500)))
        capture.catch_up()
        assert len([sql for sql in asked if "notes" in sql]) <= 500 // 100
    assert rows(db, "notes") == [(each, 495 + each, f"large {each}") for each in range(5)]
    taken = db.query("SELECT count(*) AS n FROM capture_transactions", "strong").rows()
    assert taken == [{"n": 500}]


def test_each_finds_what_those_before_it_have_left(db, history):
    """New rows, new values, rows that went and came again, moved rows, exchanged keys: in one group."""
    with captured(db) as capture:
        commit_at_once(
            history,
            [left_alone(0, 1)],
            [Rows("notes", [(0, 2, "another")])],
            [left_alone(0, 3)],
            [Rows("notes", [(1,)], is_delete=True)],
            [Rows("notes", [(1, 4, "again")])],
            [left_alone(1, 5)],
            [left_alone(9, 6, key=2), Rows("notes", [(2,)], is_delete=True)],
            [left_alone(9, 7)],
            [Patch("notes", [(3,), (4,)], [(4, 8, None), (3, 9, None)], [("big",), ("big",)])],
            [left_alone(3, 10)],
        )
        capture.catch_up()
    assert rows(db, "notes") == [
        (0, 3, "another"),
        (1, 5, "again"),
        (3, 10, "large 4"),
        (4, 8, "large 3"),
        (9, 7, "large 2"),
    ]


def test_a_table_that_is_emptied_ends_what_is_known(db, history):
    with captured(db) as capture:
        commit_at_once(
            history,
            [left_alone(0, 1)],
            [left_alone(1, 1)],
            [Truncated("notes")],
            [Rows("notes", [(0, 2, "new")])],
            [left_alone(0, 3)],
            [left_alone(0, 4)],
        )
        capture.catch_up()
        assert rows(db, "notes") == [(0, 4, "new")]
        commit_at_once(history, [left_alone(0, 5)], [left_alone(7, 5)])
        with pytest.raises(SourceUnreadable, match=r"the key \(7,\) that is not here"):
            capture.catch_up()
    assert rows(db, "notes") == [(0, 5, "new")]  # What stood before it is in.


# -- the groups themselves -------------------------------------------------------------------------------------------

SIMPLE = st.sampled_from([left_alone(1, 1), Rows("notes", [(1, 1, "a")]), Rows("notes", [(1,)], is_delete=True)])
CHANGES = st.lists(SIMPLE | st.sampled_from([Truncated("notes"), Dropped("notes")]), max_size=4)
LARGE = st.just([left_alone(1, 1)] * (SMALL + 1))
MANY = st.just([Rows("notes", [(1, 1, "a")] * 1500)])


@given(st.lists(CHANGES | LARGE | MANY, max_size=30), st.booleans())
def test_groups_are_all_transactions_in_order_and_only_small_ones_of_rows_are_together(histories, fails):
    def source():
        for at, changes in enumerate(histories):
            yield SourceTransaction(str(at), str(at), iter(changes))
        if fails:
            raise SourceGone("it is gone")

    given_, error = [], None
    try:
        for group in groups(source()):
            members = [(each.id, list(each.changes)) for each in group]
            if len(members) > 1:
                assert any(isinstance(change, Patch) for change in members[0][1])
                assert all(isinstance(change, Rows | Patch) for _, changes in members for change in changes)
                assert all(len(changes) <= SMALL for _, changes in members)
                assert len(members) <= TRANSACTIONS_MOST
                assert sum(len(each.rows) for _, changes in members[:-1] for each in changes) < ROWS_MOST
            given_ += members
    except SourceGone as gone:
        error = gone
    assert given_ == [(str(at), changes) for at, changes in enumerate(histories)]
    assert (error is not None) == fails
