"""Commit markers: which messages a COMMIT commits. Seed 000, design "Cross-channel commit", time-log fact 58."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.errors import InvariantBroken
from tidegate.txn.marker import Marker, as_runs, at_once_counts


def test_the_marker_of_a_transaction_written_at_once_is_eight_bytes() -> None:
    """The layout is part of the log's format: little endian, count and then how many stand directly before."""
    assert Marker.at_once(3).encode() == bytes([3, 0, 0, 0, 3, 0, 0, 0])
    assert Marker.decode(bytes([3, 0, 0, 0, 3, 0, 0, 0])) == Marker(3, 3)


def test_messages_written_ahead_are_named_by_absolute_position() -> None:
    marker = Marker(7, 2, ((10, 1), (300, 4)))
    raw = bytes.fromhex("07000000 02000000  0a00000000000000 01000000  2c01000000000000 04000000")
    assert marker.encode() == raw
    assert Marker.decode(raw) == marker
    assert marker.runs_at(500) == ((10, 1), (300, 4), (498, 2))
    assert marker.positions_at(500).tolist() == [10, 300, 301, 302, 303, 498, 499]


def test_a_transaction_without_messages_has_a_marker_too() -> None:
    """Time-log section 7.3: zero bodies are legal."""
    assert Marker.decode(Marker.at_once(0).encode()).positions_at(5).tolist() == []


def test_runs_are_sorted_and_joined() -> None:
    marker = Marker.over([(20, 5), (1, 2), (3, 4)], before=1)
    assert marker == Marker(12, 1, ((1, 6), (20, 5)))


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Marker(3, 1, ((1, 1),)), "counts 3 messages and names 2"),
        (lambda: Marker(1, 1, ((1, 1),)), "counts 1 messages and names 2"),
        (lambda: Marker(1, 2), "counts 1 messages, 2 of them"),
        (lambda: Marker(1 << 32, 1 << 32), "counts 4294967296"),
        (lambda: Marker(2, 0, ((5, 1), (4, 1))), "a run of 1 at position 4"),
        (lambda: Marker(3, 0, ((5, 2), (6, 1))), "a run of 1 at position 6"),
        (lambda: Marker(0, 0, ((5, 0),)), "a run of 0 at position 5"),
        (lambda: Marker(1, 0, ((0, 1),)), "a run of 1 at position 0"),
        (lambda: Marker.over([(1, 3), (2, 3)]), "a run of 3 at position 2"),
        (lambda: Marker.decode(b""), "of 0 bytes"),
        (lambda: Marker.decode(bytes(19)), "of 19 bytes"),
        (lambda: Marker.decode(bytes([2, 0, 0, 0, 1, 0, 0, 0])), "counts 2 messages and names 1"),
        (lambda: Marker(2, 2).runs_at(2), "marker at position 2 names 2 messages directly before"),
        (lambda: Marker(3, 2, ((7, 1),)).runs_at(9), "others up to position 7"),
        (lambda: Marker(1, 0, ((9, 1),)).runs_at(9), "others up to position 9"),
    ],
)
def test_a_marker_that_contradicts_itself_is_refused_and_says_why(make: object, says: str) -> None:
    """Fact 58: what a COMMIT names is checked, so that a part of a transaction is never taken for all of it."""
    with pytest.raises(InvariantBroken, match=says):
        make()  # type: ignore[operator]


runs = st.lists(st.tuples(st.integers(1, 60), st.integers(1, 50)), max_size=5)


@given(runs, st.integers(0, 50))
def test_whatever_is_encoded_comes_back(gaps: list[tuple[int, int]], before: int) -> None:
    at, made = 0, []
    for gap, count in gaps:
        made.append((at + gap, count))
        at += gap + count
    marker = Marker(before + sum(count for _, count in made), before, tuple(made))
    assert Marker.decode(marker.encode()) == marker
    positions = marker.positions_at(at + before + 3)
    assert len(positions) == marker.count
    assert Marker.over(as_runs(positions)).positions_at(at + before + 3).tolist() == positions.tolist()


def test_as_runs_finds_the_runs() -> None:
    assert as_runs(np.array([], np.uint64)) == []
    assert as_runs(np.array([4], np.uint64)) == [(4, 1)]
    assert as_runs(np.array([4, 5, 6, 9, 11, 12], np.uint64)) == [(4, 3), (9, 1), (11, 2)]


def test_many_markers_are_read_at_once_also_from_a_part_of_an_array() -> None:
    raw = [
        b"a body",
        Marker.at_once(10).encode(),
        b"",
        Marker.at_once(0).encode(),
        Marker(3, 1, ((4, 2),)).encode(),
        bytes([2, 0, 0, 0, 1, 0, 0, 0]),
        Marker.at_once((1 << 32) - 1).encode(),
    ]
    bodies = pa.array([b"dropped", b"x", *raw, b"after"], pa.binary()).slice(2, len(raw))
    assert at_once_counts(bodies, np.array([1, 3, 4, 5, 6])).tolist() == [10, 0, -1, -1, (1 << 32) - 1]
    assert at_once_counts(bodies, np.array([2])).tolist() == [-1]
    assert at_once_counts(pa.array([b"", b""], pa.binary()), np.array([0, 1])).tolist() == [-1, -1]
    with pytest.raises(InvariantBroken, match="int64"):
        at_once_counts(pa.array([1]), np.array([0]))
