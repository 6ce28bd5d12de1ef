"""PostgreSQL's texts into values: one by one and column by column (tests/processes has what a real server writes)."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.cdc.pg_types import STRING, Reading, TypeInfo, reading_of
from tidegate.cdc.pg_values import Unfit, arrow_type, column, elements, value
from tidegate.tables.column_type import from_sql, may_be_key

TYPES = {
    1007: TypeInfo(element=23),
    1009: TypeInfo(element=25),
    50_000: TypeInfo(base=1700, modifier=(8 << 16 | 3) + 4),
    50_001: TypeInfo(base=50_000),
    50_002: TypeInfo(base=1007),
    50_003: TypeInfo(element=50_002),
    50_004: TypeInfo(element=50_001),
}
READINGS = {
    "bool": reading_of(16, -1, TYPES),
    "int": reading_of(20, -1, TYPES),
    "double": reading_of(701, -1, TYPES),
    "decimal": reading_of(1700, (10 << 16 | 2) + 4, TYPES),
    "text": STRING,
    "bytes": reading_of(17, -1, TYPES),
    "date": reading_of(1082, -1, TYPES),
    "time": reading_of(1114, -1, TYPES),
    "zoned": reading_of(1184, -1, TYPES),
    "ints": reading_of(1007, -1, TYPES),
    "texts": reading_of(1009, -1, TYPES),
}


def quoted(text: str | None) -> str:
    return "NULL" if text is None else '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


LETTERS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=8)
WRITTEN = {
    "bool": st.sampled_from("tf"),
    "int": st.integers(-(2**63), 2**63 - 1).map(str),
    "double": st.floats(allow_nan=False).map(repr).map(lambda text: text.replace("inf", "Infinity")),
    "decimal": st.decimals(-99_999_999, 99_999_999, places=2).map(str),
    "text": LETTERS,
    "bytes": st.binary(max_size=9).map(lambda data: "\\x" + data.hex()),
    "date": st.dates().map(str),
    "time": st.datetimes().map(str),
    "zoned": st.datetimes().map(lambda when: f"{when}+00"),
    "ints": st.lists(st.integers(-(2**31), 2**31 - 1) | st.none(), max_size=4).map(
        lambda found: "{" + ",".join("NULL" if each is None else str(each) for each in found) + "}"
    ),
    "texts": st.lists(LETTERS | st.none(), max_size=4).map(lambda found: "{" + ",".join(map(quoted, found)) + "}"),
}  # fmt: skip


@given(st.data(), st.sampled_from(sorted(WRITTEN)))
def test_a_column_has_the_values_that_its_texts_have(data, kind):
    """The law of the module."""
    texts = data.draw(st.lists(WRITTEN[kind] | st.none(), max_size=12))
    reading = READINGS[kind]
    found = column(pa.array(texts, pa.string()), reading)
    assert found.type == arrow_type(reading) == from_sql(reading.sql)
    found.validate(full=True)
    assert found.to_pylist() == [None if text is None else value(text, reading) for text in texts]
    # As a part of a longer one, too.
    part = column(pa.array(["t" if kind == "bool" else None, *texts], pa.string())[1:], reading)
    assert part.to_pylist() == found.to_pylist()


@given(st.lists(LETTERS | st.none(), max_size=5))
def test_the_elements_of_an_array_are_what_was_written(texts):
    assert elements("{" + ",".join(map(quoted, texts)) + "}") == texts


@pytest.mark.parametrize(
    ("type", "modifier", "sql"),
    [
        (1700, -1, "STRING"),
        (1700, (38 << 16 | 10) + 4, "DECIMAL(38, 10)"),
        (1700, (39 << 16) + 4, "STRING"),
        (1700, (2 << 16 | (-3 & 0x7FF)) + 4, "DECIMAL(5, 0)"),
        (1700, (37 << 16 | (-3 & 0x7FF)) + 4, "STRING"),
        (1700, (3 << 16 | 5) + 4, "DECIMAL(5, 5)"),
        (50_001, -1, "DECIMAL(8, 3)"),
        (50_002, -1, "ARRAY<INT>"),
        (50_003, -1, "STRING"),
        (50_004, -1, "ARRAY<DECIMAL(8, 3)>"),
        (999_999, -1, "STRING"),
    ],
)
def test_domains_arrays_and_numerics_are_what_they_are_based_on(type, modifier, sql):
    reading = reading_of(type, modifier, TYPES)
    assert reading.sql == sql
    assert reading.may_be_key == may_be_key(from_sql(sql))


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("bool", "yes"),
        ("int", "1.5"),
        ("int", "x"),
        ("double", "x"),
        ("decimal", "NaN"),
        ("decimal", "x"),
        ("bytes", "abc"),
        ("bytes", "\\xabc"),
        ("bytes", "\\xzz"),
        ("date", "infinity"),
        ("date", "0044-03-15 BC"),
        ("date", "12345-01-01"),
        ("time", "-infinity"),
        ("zoned", "12345-01-01 00:00:00+00"),
        ("ints", "{{1},{2}}"),
        ("ints", "1,2"),
        ("ints", "{x}"),
    ],
)
def test_what_is_no_value_is_refused_either_way(kind, text):
    reading: Reading = READINGS[kind]
    good = {"bytes": "\\x00", "date": "2024-01-01", "ints": "{1}", "bool": "t", "time": None, "zoned": None}
    for texts in ([text], [good.get(kind, "1"), None, text]):
        with pytest.raises(Unfit) as found:
            column(pa.array(texts, pa.string()), reading)
        with pytest.raises(Unfit) as alone:
            value(text, reading)
        assert str(found.value) == str(alone.value)


def test_bytes_that_are_no_text_are_refused():
    raw = pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\1\0\0\0"), pa.py_buffer(b"\xff")])
    with pytest.raises(Unfit, match="UTF-8"):
        column(raw, STRING)
