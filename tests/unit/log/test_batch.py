"""The bodies of a batch as bytes: the same that Arrow gives, whatever part of a column they are."""

from __future__ import annotations

import pytest

from tidegate.log.batch import bodies_of, body_rows

BODIES = [b"", b"a", b"bc" * 500, b"", b"d"]


@pytest.mark.parametrize("start", range(len(BODIES) + 1))
@pytest.mark.parametrize("count", range(len(BODIES) + 1))
def test_bodies_of_a_slice_are_those_that_arrow_gives(start: int, count: int) -> None:
    """What was appended is what is read, also out of the middle of a batch."""
    rows = body_rows(BODIES).slice(start, count)
    assert bodies_of(rows) == rows.column(0).to_pylist() == BODIES[start : start + count]


@pytest.mark.parametrize("bodies", [[], [b""], [b"", b""]])
def test_empty_bodies_are_bodies_too(bodies: list[bytes]) -> None:
    assert bodies_of(body_rows(bodies)) == bodies
