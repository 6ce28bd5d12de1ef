"""The types of columns: those that Spark, Arrow, Parquet and DuckDB share, written as in Spark SQL (issue: DDL)."""

from __future__ import annotations

import re

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.errors import InvalidArgument
from tidegate.tables.column_type import from_sql, may_be_key, to_sql

READ = {
    "BOOLEAN": pa.bool_(),
    "TINYINT": pa.int8(),
    "byte": pa.int8(),
    "SMALLINT": pa.int16(),
    "SHORT": pa.int16(),
    "int": pa.int32(),
    "Integer": pa.int32(),
    "BIGINT": pa.int64(),
    "LONG": pa.int64(),
    "FLOAT": pa.float32(),
    "REAL": pa.float32(),
    "DOUBLE": pa.float64(),
    "DECIMAL": pa.decimal128(10, 0),
    "DECIMAL(5)": pa.decimal128(5, 0),
    "dec(38, 38)": pa.decimal128(38, 38),
    "NUMERIC(12,2)": pa.decimal128(12, 2),
    "STRING": pa.string(),
    "BINARY": pa.binary(),
    "DATE": pa.date32(),
    "TIMESTAMP": pa.timestamp("us", tz="UTC"),
    "TIMESTAMP_LTZ": pa.timestamp("us", tz="UTC"),
    "TIMESTAMP_NTZ": pa.timestamp("us"),
    " array < int > ": pa.list_(pa.int32()),
    "MAP<STRING, ARRAY<DATE>>": pa.map_(pa.string(), pa.list_(pa.date32())),
    "STRUCT<a: INT, b STRING>": pa.struct([("a", pa.int32()), ("b", pa.string())]),
    "STRUCT<`a b`: INT, `c``d`: INT, 1st: INT>": pa.struct(
        [("a b", pa.int32()), ("c`d", pa.int32()), ("1st", pa.int32())]
    ),
    "ARRAY<STRUCT<m: MAP<DATE, DECIMAL(3,1)>>>": pa.list_(
        pa.struct([("m", pa.map_(pa.date32(), pa.decimal128(3, 1)))])
    ),
}


@pytest.mark.parametrize("text", READ)
def test_the_types_of_spark_sql_are_read(text: str) -> None:
    assert from_sql(text) == READ[text]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("UUID", "UUID is not a type of a column: there are BOOLEAN, TINYINT, .*DECIMAL.*MAP<K, V>"),
        ("ARRAY<uuid>", r"uuid is not a type of a column: .* \(in ARRAY<uuid>\)"),
        ("VARCHAR(20)", r"lengths of strings are not checked; write STRING \(in VARCHAR\(20\)\)"),
        ("CHAR(3)", "write STRING"),
        ("DATETIME", "write TIMESTAMP"),
        ("BLOB", "write BINARY"),
        ("DECIMAL(39, 0)", r"DECIMAL\(39, 0\) is not a type of a column: it has 1 to 38 digits"),
        ("DECIMAL(0, 0)", "1 to 38 digits"),
        ("DECIMAL(3, 4)", "not more behind the point than in all"),
        ("DECIMAL(x)", "'x' at column 9 .*a number is expected"),
        ("", "ends where a type is expected"),
        ("INT NOT NULL", "'NOT' at column 5 of the type 'INT NOT NULL' is not understood: the end"),
        ("INT $", r"'\$' at column 5"),
        ("ARRAY", "ends where '<' is expected"),
        ("ARRAY<INT", "ends where '>' is expected"),
        ("MAP<INT>", "'>' at column 8 .* ',' is expected"),
        ("MAP<MAP<INT, INT>, INT>", "the keys of a MAP cannot be MAPs"),
        ("STRUCT<>", "the name of a field is expected"),
        ("STRUCT<a: INT, A: INT>", "two fields 'a' and 'A'"),
        ("STRUCT<a: INT, a: INT>", "two fields 'a' and 'a'"),
        ("5", "'5' at column 1 .*a type is expected"),
        ("ARRAY<" * 1000 + "INT" + ">" * 1000, "nests deeper than 50 levels"),
    ],
)
def test_what_is_no_type_is_answered_with_the_place_and_the_known_ones(text: str, complaint: str) -> None:
    with pytest.raises(InvalidArgument, match=complaint):
        from_sql(text)


@pytest.mark.parametrize(
    "type",
    [
        pa.uint8(),
        pa.float16(),
        pa.large_string(),
        pa.timestamp("ns"),
        pa.timestamp("us", tz="Europe/Berlin"),
        pa.decimal256(50, 1),
        pa.decimal128(5, -1),
        pa.dictionary(pa.int8(), pa.string()),
        pa.list_(pa.field("item", pa.int32(), nullable=False)),
        pa.struct([]),
        pa.list_(pa.null()),
    ],
    ids=str,
)
def test_an_arrow_type_without_a_spark_type_is_refused_by_name(type: pa.DataType) -> None:
    with pytest.raises(InvalidArgument, match=r"the Arrow type .* is not one of a column"):
        to_sql(type)


def test_keys_are_of_types_whose_equality_nobody_disputes() -> None:
    """Neither floats (NaN, -0.0) nor anything nested (issue: primary keys)."""
    keys = {text for text in READ if may_be_key(READ[text])}
    assert keys == {text for text in READ if not re.search("ARRAY|MAP|STRUCT|FLOAT|REAL|DOUBLE", text.upper())}


leaves = st.one_of(
    st.sampled_from([from_sql(text) for text in READ if "<" not in text]),
    st.integers(1, 38).flatmap(lambda p: st.integers(0, p).map(lambda s: pa.decimal128(p, s))),
)
field_names = st.lists(st.text(min_size=1, max_size=5), min_size=1, max_size=3, unique_by=str.casefold)
types = st.recursive(
    leaves,
    lambda inner: st.one_of(
        inner.map(pa.list_),
        st.tuples(leaves, inner).map(lambda pair: pa.map_(*pair)),
        field_names.flatmap(
            lambda names: st.tuples(*[inner for _ in names]).map(
                lambda of: pa.struct([pa.field(name, type) for name, type in zip(names, of)])
            )
        ),
    ),
    max_leaves=6,
)


@given(types)
@settings(max_examples=300, deadline=None)
def test_a_type_survives_its_text_and_the_text_survives_the_type(type: pa.DataType) -> None:
    text = to_sql(type)
    assert from_sql(text) == type
    assert to_sql(from_sql(text)) == text
