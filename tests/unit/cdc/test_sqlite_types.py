"""Types of SQLite's columns and their values as those: nothing becomes another value."""

from __future__ import annotations

import sqlite3
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tidegate.cdc.sqlite_types import ARROW, TYPES, array_of, convert, text_of, type_of

VALUES = st.one_of(
    st.none(),
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.sampled_from((0, 1)),
    st.floats(allow_nan=False),
    st.text(st.characters(codec="utf-8"), max_size=5),
    st.binary(max_size=5),
)


@pytest.mark.parametrize(
    ("declared", "expected"),
    [
        ("INTEGER", "BIGINT"),
        ("unsigned big int", "BIGINT"),
        ("CHARACTER(20)", "STRING"),
        ("clob", "STRING"),
        ("", "STRING"),
        ("BLOB", "BINARY"),
        ("double precision", "DOUBLE"),
        ("FLOAT", "DOUBLE"),
        ("NUMERIC", "DOUBLE"),
        ("DECIMAL(10,5)", "DOUBLE"),
        ("bool", "BOOLEAN"),
        ("BOOLEAN", "BOOLEAN"),
        ("DATE", "STRING"),
        ("DATETIME", "STRING"),
        ("timestamp", "STRING"),
        ("JSON", "STRING"),
        ("UUID", "STRING"),
    ],
)
def test_a_declared_type_means_one_of_ours(declared: str, expected: str) -> None:
    """SQLite's affinities, and what people write beside them."""
    assert type_of(declared) == expected


@given(st.one_of(st.decimals(-(10**9), 10**9, places=6).map(float), st.integers(-(1 << 63), (1 << 63) - 1)))
@example(1.0)
@example(1e300)
@example(1e-7)
@example(float("inf"))
@example(-0.0)
@example(123456789012345678.0)
def test_the_text_of_a_number_is_sqlites(number: float) -> None:
    """A number in a column of texts. (Near 1e100 SQLite 3.40 rounds some otherwise.)"""
    (expected,) = sqlite3.connect(":memory:").execute("SELECT CAST(? AS TEXT)", (number,)).fetchone()
    assert text_of(number) == expected


@given(st.lists(VALUES, max_size=6), st.sampled_from(TYPES))
def test_a_column_is_its_values_one_by_one(values: list[Any], type: str) -> None:
    """Arrow would take 1.5 for the integer 1 and bytes for a text: the fast way must refuse what the slow one does."""
    try:
        expected = [convert(each, type) for each in values]
    except ValueError:
        with pytest.raises(ValueError):
            array_of(values, type)
        return
    found = array_of(values, type)
    assert found.type == ARROW[type] and found.to_pylist() == expected
    assert found.equals(pa.array(expected, ARROW[type]))


@pytest.mark.parametrize(
    ("value", "type"),
    [(1.5, "BIGINT"), ("1", "BIGINT"), (b"a", "STRING"), ("a", "BINARY"), (2, "BOOLEAN"), ((1 << 53) + 1, "DOUBLE")],
)
def test_what_does_not_fit_is_refused(value: Any, type: str) -> None:
    with pytest.raises(ValueError, match=f"no {type}"):
        convert(value, type)


def test_integers_that_are_doubles_are_taken() -> None:
    assert convert(1 << 60, "DOUBLE") == float(1 << 60)
