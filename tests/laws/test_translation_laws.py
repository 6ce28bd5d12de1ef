"""Laws of the translation of queries: computed by DuckDB as a dumb twin in Python computes by Spark's rules."""

from __future__ import annotations

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.reads.translate import SETUP, translate

BITS = 32


class Overflow(Exception):
    pass


def fits(value: int | None) -> int | None:
    if value is not None and not -(2 ** (BITS - 1)) <= value < 2 ** (BITS - 1):
        raise Overflow
    return value


def compute(tree) -> int | None:
    """Spark's INT: NULL spreads, an overflow and a division by zero are errors, % has the sign of the dividend."""
    if not isinstance(tree, tuple):
        return tree
    operator, left, right = tree[0], compute(tree[1]), compute(tree[2])
    if left is None or right is None:
        return None
    if operator == "%":
        if right == 0:
            raise Overflow
        return left - right * (abs(left) // abs(right)) * (1 if (left < 0) == (right < 0) else -1)
    return fits({"+": left + right, "-": left - right, "*": left * right}[operator])


def written(tree) -> str:
    if isinstance(tree, tuple):
        return f"({written(tree[1])} {tree[0]} {written(tree[2])})"
    return "CAST(NULL AS INT)" if tree is None else str(tree)


NUMBERS = st.one_of(st.integers(-9, 9), st.integers(-(2**31) + 1, 2**31 - 1), st.none())
TREES = st.recursive(NUMBERS, lambda inner: st.tuples(st.sampled_from("+-*%"), inner, inner), max_leaves=6)


@pytest.fixture(scope="module")
def duck():
    with duckdb.connect() as connection:
        for each in SETUP:
            connection.execute(each)
        yield connection


@settings(max_examples=150, deadline=None)
@given(tree=TREES)
def test_integers_are_computed_as_in_spark_or_both_fail(duck, tree):
    sql = translate(f"SELECT {written(tree)} AS x").sql
    try:
        expected = compute(tree)
    except Overflow:
        try:
            found = duck.execute(sql).fetchall()
        except duckdb.Error:
            return
        # A side beside NULL need not be computed at all.
        assert "NULL" in written(tree)
        assert found == [(None,)]
    else:
        assert duck.execute(sql).fetchall() == [(expected,)]


@settings(max_examples=150, deadline=None)
@given(text=st.text("abcé日", max_size=6), start=st.integers(-9, 9), length=st.integers(-3, 9))
def test_a_part_of_a_text_is_the_one_between_its_ends(duck, text, start, length):
    """The start counts from 1, or from behind; 0 is 1. What lies outside is left out, and nothing takes its place."""
    begin = start - 1 if start > 0 else len(text) + start if start < 0 else 0
    expected = text[max(begin, 0) : max(begin + length, 0)] if length > 0 else ""
    assert duck.execute(translate(f"SELECT substring('{text}', {start}, {length})").sql).fetchall() == [(expected,)]
