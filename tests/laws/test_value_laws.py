"""Laws of message bodies: whatever is accepted comes back as it was, and nothing else is accepted."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.errors import InvalidArgument
from tidegate.topics.value import decode, encode

scalars = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text()
)
values = st.recursive(scalars, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20)
keys = st.one_of(st.none(), st.text(), st.binary(), st.integers(-(1 << 63), (1 << 63) - 1))
headers = st.none() | st.dictionaries(st.text(), st.text())
anything = st.recursive(
    st.one_of(scalars, st.floats(), st.binary(), st.text(st.characters(exclude_categories=[])), st.decimals()),
    lambda inner: st.one_of(
        st.lists(inner), st.dictionaries(st.text() | st.integers(), inner), st.tuples(inner), st.just(frozenset())
    ),
    max_leaves=10,
)


def shape(value: Any) -> Any:
    """The value with its types, so that 1, 1.0 and True differ, and so do 0.0 and -0.0."""
    if type(value) is dict:
        return ("dict", [(shape(name), shape(each)) for name, each in value.items()])
    if type(value) is list:
        return ("list", [shape(each) for each in value])
    return (type(value).__name__, repr(value))


@given(values | st.binary(), keys, headers)
@settings(max_examples=400, deadline=None)
def test_a_round_trip_changes_neither_value_nor_key_nor_headers(
    value: Any, key: Any, given_headers: dict[str, str] | None
) -> None:
    read = decode(encode(value, key, given_headers))
    assert shape(read.value) == shape(value)
    assert shape(read.key) == shape(key)
    assert read.headers == (given_headers or {})


@given(anything)
@settings(max_examples=400, deadline=None)
def test_a_value_is_refused_or_comes_back_unchanged(value: Any) -> None:
    try:
        body = encode(value)
    except InvalidArgument as error:
        assert "value" in str(error)
    else:
        assert shape(decode(body).value) == shape(value)


@given(st.binary(max_size=40))
@settings(max_examples=300, deadline=None)
def test_junk_is_refused_or_has_readable_bounds(body: bytes) -> None:
    try:
        read = decode(body)
    except InvalidArgument:
        return
    assert read.nbytes == len(body)
