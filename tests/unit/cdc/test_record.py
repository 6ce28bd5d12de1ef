"""SQLite's record format (capture.md 1.2), byte for byte."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tidegate.cdc.record import Value, decode, encode
from tidegate.errors import InvalidArgument, SourceUnreadable

VALUES = st.one_of(
    st.none(),
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.floats(allow_nan=False),
    st.text(st.characters(exclude_categories=["Cs"])),
    st.binary(max_size=300),
)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1, 2], "03 09 01 02"),
        ([1, 3], "03 09 01 03"),
        ([0, 1, None, 3], "05 08 09 00 01 03"),
        ([200, 1.5, "hello"], "04 02 07 17 00c8 3ff8000000000000 68656c6c6f"),
        ([70000, -1.0, b"\x01\x02"], "04 03 07 10 011170 bff0000000000000 0102"),
        ([5, 9007199254740993], "03 01 06 05 0020000000000001"),
        ([-128, -129, 127, 128], "05 01 02 01 02 80 ff7f 7f 0080"),
        ([2**47 - 1, 2**47, -(2**47)], "04 05 06 05 7fffffffffff 0000800000000000 800000000000"),
        ([-(2**63)], "02 06 8000000000000000"),
        (["", b""], "03 0d 0c"),
        ([], "01"),
        ([True, False], "03 09 08"),
    ],
)  # fmt: skip
def test_known_records(values: list[Value], expected: str) -> None:
    """Those of capture.md section 2, and what Turso 0.8.3 wrote."""
    assert encode(values) == bytes.fromhex(expected)
    assert decode(bytes.fromhex(expected)) == values


@given(st.lists(VALUES, max_size=20))
@example([None] * 126)
@example([None] * 127)
@example([None] * 20_000)
@example(["x" * 57, "x" * 58, "x" * 8_185, b"x" * 8_186, b"x" * 2_000_000])
def test_what_is_written_is_read_again(values: list[Value]) -> None:
    """Also where a header's length needs more bytes because it counts itself."""
    found = decode(encode(values))
    assert found == values and [type(each) for each in found] == [type(each) for each in values]


def test_a_number_that_is_none_is_null() -> None:
    """As SQLite stores it."""
    assert decode(encode([math.nan, math.inf])) == [None, math.inf]


@pytest.fixture
def stored(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(tmp_path / "rows.db", isolation_level=None)) as connection:
        yield connection


def test_sqlite_itself_stores_these_bytes(stored: sqlite3.Connection, tmp_path: Path) -> None:
    """A row without a rowid lies in its page as exactly such a record."""
    rows: list[list[Value]] = [
        ["a", None, 0, 1, -1, 2.5, "ü", b"\x00\xff"],
        ["b", 2**40, -(2**23), 255, 65_536, -1e300, "x" * 70, b""],
        ["c", *range(126, 133)],
    ]
    stored.execute("CREATE TABLE t (k PRIMARY KEY, a, b, c, d, e, f, g) WITHOUT ROWID")
    for each in rows:
        stored.execute("INSERT INTO t VALUES (?, ?, ?, ?, ?, ?, ?, ?)", each)
    file = (tmp_path / "rows.db").read_bytes()
    for each in rows:
        assert encode(each) in file


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1, 1j, [1], {"a": 1}])
def test_what_sqlite_has_no_value_for_is_refused(value: object) -> None:
    with pytest.raises(InvalidArgument, match=r"SQLite"):
        encode([value])  # type: ignore[list-item]


@pytest.mark.parametrize(
    "bad", ["", "05", "02 0a", "02 0b", "02 01", "03 09 01 02 03", "02 13 ff ff ff", "80", "00", "02 80"]
)
def test_bytes_that_are_no_record_are_refused(bad: str) -> None:
    with pytest.raises(SourceUnreadable, match="no record of SQLite"):
        decode(bytes.fromhex(bad))


@given(st.binary(max_size=40))
def test_junk_is_refused_or_is_a_record(junk: bytes) -> None:
    """Never another error, and never for long."""
    try:
        values = decode(junk)
    except SourceUnreadable:
        return
    assert isinstance(values, list)
