"""Positions in a change table (capture.md rule 7): what may have happened to the table, and what then."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.cdc.change_table import ChangeRow, Kind
from tidegate.cdc.position import NOTHING, LogPosition, LogState, Mark, follow
from tidegate.errors import SourceGone, SourceUnreadable

NUMBERS = st.integers(0, 1 << 62)


@given(NUMBERS, NUMBERS, NUMBERS, st.integers(0, (1 << 32) - 1), NUMBERS, st.lists(NUMBERS, max_size=3))
def test_a_position_is_a_text_and_back(
    epoch: int, id: int, mark: int, digest: int, time: int, ahead: list[int]
) -> None:
    position = LogPosition(epoch, id, Mark(mark, digest), Mark(id, digest), time, tuple(ahead))
    assert LogPosition.parse(str(position)) == position


@pytest.mark.parametrize("text", ["", "1", "1:2:3", "a:b:c:d:e:f:g", "1:2:3:4:5:6:7:x"])
def test_what_is_no_position_is_refused(text: str) -> None:
    with pytest.raises(SourceUnreadable, match="no position"):
        LogPosition.parse(text)


class Table:
    """A change table whose rows differ by the time at which they were written."""

    def __init__(self, first: int = 1, last: int = 0, time: int = 100) -> None:
        self.rows = {id: row(id, time) for id in range(first, last + 1)}

    def add(self, count: int, time: int) -> None:
        """As Turso and the recorder number: one more than the highest."""
        for _ in range(count):
            id = max(self.rows, default=0) + 1
            self.rows[id] = row(id, time)

    def position(self) -> LogPosition:
        last = max(self.rows, default=0)
        if not last:
            return LogPosition(0, 0, NOTHING, NOTHING, 0)
        return LogPosition(0, last, self.mark(last), self.mark(min(self.rows)), self.rows[last].time or 0)  # type: ignore[arg-type]

    def mark(self, id: int) -> Mark | None:
        return Mark.of(self.rows[id]) if id in self.rows else None

    def state(self, position: LogPosition) -> LogState:
        if not self.rows:
            return LogState(None, None, None, None, None, None)
        first = min(self.rows)
        following = min((id for id in self.rows if id > position.id), default=None)
        return LogState(
            self.mark(first),
            self.rows[first].time,
            max(self.rows),
            self.mark(position.last.id),
            self.mark(position.first.id),
            following,
        )

    def follow(self, position: LogPosition, *, only_confirmed: bool = False, has_gaps: bool = False) -> LogPosition:
        state = self.state(position)
        return follow(position, state, table="turso_cdc", has_gaps=has_gaps, only_confirmed=only_confirmed)


def row(id: int, time: int) -> ChangeRow:
    return ChangeRow(id, Kind.INSERT, id, "t", id, None, b"\x02\x09", None, time)


@given(last=st.integers(0, 20), more=st.integers(0, 20), kept=st.integers(0, 20))
def test_what_was_read_may_go_and_more_may_come(last: int, more: int, kept: int) -> None:
    """Rows at or below the position are removed, after more have come."""
    table = Table(1, last)
    position = table.position()
    table.add(more, 101)
    table.rows = {id: row for id, row in table.rows.items() if id > min(kept, last)}
    assert table.follow(position) == position


@given(last=st.integers(0, 20), lost=st.integers(1, 20), more=st.integers(1, 20))
def test_rows_that_went_unread_are_missed(last: int, lost: int, more: int) -> None:
    table = Table(1, last)
    position = table.position()
    table.add(lost + more, 101)
    table.rows = {id: row for id, row in table.rows.items() if id > last + lost}
    with pytest.raises(SourceGone, match=rf"changes {last + 1} to {last + lost} were removed"):
        table.follow(position)
    assert table.follow(position, has_gaps=True) == position  # Concurrent writers leave ids out.


@given(last=st.integers(1, 20), more=st.integers(1, 40), first=st.integers(1, 20))
def test_ids_that_begin_anew_are_noticed_however_far_they_have_come(last: int, more: int, first: int) -> None:
    """Below the position's id, at it, and far behind it."""
    table = Table(min(first, last), last)
    position = table.position()
    table.rows.clear()
    assert table.follow(position) == position  # Nothing to tell by, and nothing to read.
    table.add(more, 101)
    with pytest.raises(SourceGone, match="begun anew"):
        table.follow(position)
    anew = table.follow(position, only_confirmed=True)
    assert (anew.epoch, anew.id) == (1, 0)
    assert table.follow(anew) == anew


@given(last=st.integers(1, 20), gone=st.integers(1, 20), more=st.integers(0, 40), trusted=st.booleans())
def test_an_older_copy_is_noticed_wherever_it_goes(last: int, gone: int, more: int, trusted: bool) -> None:
    """Restored from before the position, and written on from there by other changes."""
    table = Table(1, last)
    position = None
    table.add(gone, 101)
    position = table.position()
    table.rows = {id: row for id, row in table.rows.items() if id <= last}
    table.add(more, 102)
    with pytest.raises(SourceGone, match="went back"):
        table.follow(position, only_confirmed=trusted)


def test_an_older_copy_from_before_rows_were_removed_is_older_than_the_position() -> None:
    """Its first row is not the one that was known; by its time it cannot be a new beginning."""
    table = Table(5, 9, time=100)
    position = table.position()
    copy = Table(1, 3, time=90)
    with pytest.raises(SourceGone):
        copy.follow(position, only_confirmed=True)
