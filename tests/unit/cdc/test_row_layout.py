"""Records read by their headers: the same as `record.decode` and `convert`, value by value."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.cdc.record import decode, encode
from tidegate.cdc.row_layout import Layout, TooLong
from tidegate.cdc.sqlite_types import TYPES, convert
from tidegate.errors import SourceUnreadable

VALUES = st.one_of(
    st.none(),
    st.sampled_from((0, 1, -1, 127, 128, -32769, 8388608, 1 << 31, 1 << 40, -(1 << 63))),
    st.floats(allow_nan=False),
    st.text(st.characters(codec="utf-8"), max_size=5),
    st.sampled_from(("x" * 57, "x" * 58, "y" * 3000, b"z" * 200)),
    st.binary(max_size=5),
)


@given(st.lists(st.tuples(VALUES, st.sampled_from(TYPES)), min_size=1, max_size=6), st.data())
def test_a_record_is_read_as_its_values_are(columns: list[tuple[Any, str]], data: st.DataObject) -> None:
    """All of it, and some columns of it; twice, because the second time the way is known."""
    values = [value for value, _ in columns]
    types = [type for _, type in columns]
    names = [f"c{at}" for at in range(len(columns))]
    picked = sorted(data.draw(st.sets(st.sampled_from(range(len(columns))), min_size=1)))
    record = encode(values)
    assert decode(record) == values
    for layout, chosen in (
        (Layout("t", names, types, [None] * len(names)), range(len(columns))),
        (Layout("t", names, types, [None] * len(names), picked), picked),
    ):
        for _ in range(2):
            try:
                expected = tuple(convert(values[at], types[at]) for at in chosen)
            except ValueError:
                with pytest.raises(SourceUnreadable, match="table 't'"):
                    layout.read(record, 7)
            else:
                assert layout.read(record, 7) == expected


def test_a_record_older_than_a_column_has_its_default() -> None:
    """capture.md fact 23: records from before ADD COLUMN."""
    layout = Layout("t", ["x", "y", "z"], ["BIGINT", "STRING", "STRING"], [None, None, "d"])
    assert layout.read(encode([1, "a"])) == (1, "a", "d")
    assert layout.read(encode([1])) == (1, None, "d")
    assert layout.read(encode([1, "a", None])) == (1, "a", None)


def test_a_record_longer_than_the_table_is_noticed() -> None:
    with pytest.raises(TooLong, match="a record of 2 values, and 1 columns"):
        Layout("t", ["x"], ["BIGINT"], [None]).read(encode([1, 2]))


@pytest.mark.parametrize("record", [b"", b"\x03\x01", b"\x02\x0a", b"\x02\x01\x05\x06", b"\x05\x01\x01\x01\x01"])
def test_bytes_that_are_no_record_are_refused(record: bytes) -> None:
    with pytest.raises(SourceUnreadable):
        Layout("t", ["x", "y"], ["BIGINT", "BIGINT"], [None, None]).read(record)


def test_a_value_that_does_not_fit_is_found_though_its_header_is_known() -> None:
    """0 and 1 are in the header; 2 is not, and neither is how large an integer of eight bytes is."""
    layout = Layout("t", ["y", "n"], ["BOOLEAN", "DOUBLE"], [None, None])
    assert layout.read(encode([1, 1 << 50])) == (True, float(1 << 50))
    with pytest.raises(SourceUnreadable, match=r"column 'n', row 3: 9007199254740993 is no DOUBLE"):
        layout.read(encode([1, (1 << 53) + 1]), 3)
    with pytest.raises(SourceUnreadable, match=r"column 'y': 2 is no BOOLEAN"):
        layout.read(encode([2, 1 << 50]))


def test_texts_that_are_no_utf8_are_refused() -> None:
    with pytest.raises(SourceUnreadable):
        Layout("t", ["x"], ["STRING"], [None]).read(b"\x02\x0f\xff")
