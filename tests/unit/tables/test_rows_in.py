"""What users hand in: everything that says rows is taken, exactly or not at all, and errors name column and row."""

from __future__ import annotations

import datetime as dt
import subprocess
import sys
from decimal import Decimal

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from tidegate.clock.timestamp import Timestamp
from tidegate.errors import InvalidArgument
from tidegate.tables.row_decode import decode_bodies
from tidegate.tables.rows_in import RowsIn, encode_keys, encode_rows, keys_in, rows_in
from tidegate.tables.schema import Column, TableSchema

ACCOUNTS = TableSchema(
    2,
    Timestamp(1),
    (
        Column(1, "id", pa.int64(), nullable=False),
        Column(2, "Owner", pa.string()),
        Column(3, "balance", pa.int32()),
    ),
    (1,),
)
PAIRS = TableSchema(
    1,
    Timestamp(1),
    (
        Column(1, "value", pa.float64()),
        Column(2, "day", pa.date32(), nullable=False),
        Column(3, "name", pa.string(), nullable=False),
    ),
    (3, 2),
)
ROWS = [{"id": 1, "Owner": "ann", "balance": 90}, {"id": 2, "Owner": None, "balance": None}]


def one(kind: pa.DataType, nullable: bool = True) -> TableSchema:
    return TableSchema(1, Timestamp(1), (Column(1, "c", kind, nullable),))


@pytest.mark.parametrize(
    "rows",
    [
        ROWS,
        tuple(ROWS),
        (each for each in ROWS),
        [{"OWNER": "ann", "ID": 1, "Balance": 90}, {"id": 2}],
        [(1, "ann", 90), [2, None, None]],
        pa.Table.from_pylist(ROWS),
        pa.RecordBatch.from_pylist(ROWS),
        pa.Table.from_pylist(ROWS).to_reader(max_chunksize=1),
        pa.table({"id": pa.array([1, 2], pa.uint8()), "owner": pa.array(["ann", None]).dictionary_encode(),
                  "balance": pa.chunked_array([[90.0], [None]])}),
        pl.DataFrame(ROWS),
        pd.DataFrame(ROWS),
        pd.DataFrame(ROWS).astype({"Owner": object, "id": object}),
        pd.DataFrame(ROWS, index=["x", "y"]).convert_dtypes(),
    ],
    ids=["dicts", "tuple", "generator", "any case", "in order", "table", "batch", "reader", "other types", "polars",
         "pandas", "pandas objects", "pandas nullable"],
)  # fmt: skip
def test_rows_come_in_many_forms_and_are_the_same(rows):
    """Issue 4: `insert` through Python with dicts, pandas, Polars, Arrow. Bytes where rows may be read twice."""
    if not isinstance(rows, pa.RecordBatchReader) and not hasattr(rows, "send"):
        assert decode_bodies(ACCOUNTS, pa.array(encode_rows(ACCOUNTS, rows), pa.binary())).to_pylist() == ROWS
    batch = rows_in(ACCOUNTS, rows)
    assert batch.schema.equals(ACCOUNTS.arrow, check_metadata=True)
    assert batch.to_pylist() == ROWS


def test_a_dict_is_one_row_and_nothing_is_none():
    assert rows_in(ACCOUNTS, ROWS[0]).to_pylist() == ROWS[:1]
    assert rows_in(ACCOUNTS, []).to_pylist() == [] == encode_rows(ACCOUNTS, [])
    assert rows_in(ACCOUNTS, []).schema.equals(ACCOUNTS.arrow, check_metadata=True)
    assert rows_in(ACCOUNTS, pa.table({"id": pa.array([], pa.int64())})).num_rows == 0


@pytest.mark.parametrize(
    "keys",
    [[2, 7], (2, 7), {2: None, 7: None}.keys(), np.array([2, 7]), [np.int64(2), 7.0], [(2,), (7,)],
     [{"ID": 2}, {"id": 7}],
     pa.array([2, 7]), pa.table({"id": [2, 7]}), pd.Series([2, 7]), pl.Series([2, 7]), pd.DataFrame({"Id": [2, 7]})],
    ids=lambda keys: type(keys).__name__,
)  # fmt: skip
def test_keys_to_delete_come_in_many_forms(keys):
    assert keys_in(ACCOUNTS, keys).to_pylist() == [{"id": 2}, {"id": 7}]
    assert keys_in(ACCOUNTS, keys).schema.equals(ACCOUNTS.arrow_key, check_metadata=True)
    assert encode_keys(ACCOUNTS, keys) == encode_keys(ACCOUNTS, [2, 7])


def test_a_single_key_needs_no_list():
    named = TableSchema(1, Timestamp(1), (Column(1, "name", pa.string(), nullable=False),), (1,))
    assert keys_in(named, "ann").to_pylist() == [{"name": "ann"}]
    assert keys_in(ACCOUNTS, 7).to_pylist() == [{"id": 7}]


def test_compound_keys_are_in_the_order_of_the_key():
    day = dt.date(2024, 5, 1)
    for keys in ([("ann", day)], [{"day": day, "name": "ann"}], pa.table({"day": [day], "NAME": ["ann"]})):
        assert keys_in(PAIRS, keys).to_pylist() == [{"name": "ann", "day": day}]
    assert RowsIn(PAIRS).encode_keyed([(1.0, day, "ann")])[1] == [("ann", 19844)]
    assert RowsIn(PAIRS, key_only=True).encode_keyed([("ann", day)])[1] == [("ann", 19844)]


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        ([{"id": 1, "blance": 3}], "row 0: there is no column 'blance'; did you mean balance"),
        ([{"id": 1}, {"id": 1, "xyz": 3}], "row 1: there is no column 'xyz'; there are id, Owner, balance"),
        ([{"id": 1, 5: 3}], "there is no column 5"),
        ([{"id": 1, "ID": 2}], "column 'id' is given twice"),
        ([{"Owner": "ann"}], r"row 0, column 'id' \(BIGINT\): it is NULL and may not be"),
        ([ROWS[0], {"id": None}], r"row 1, column 'id' \(BIGINT\): it is NULL"),
        ([{"id": 1}, {"id": 2, "balance": 1 << 31}], r"row 1, column 'balance' \(INT\): 2147483648 is out of range"),
        ([(1, "ann")], "row 0 has 2 values for 3 columns: id, Owner, balance"),
        ([1, 2], "row 0 is a int; give a dict"),
        (7, "rows are dicts, tuples, a DataFrame or Arrow, not a int"),
        ("id", "rows are dicts, tuples, a DataFrame or Arrow, not a str"),
    ],
)
def test_what_does_not_fit_is_refused_the_same_way_in_bytes_and_arrow(rows, why):
    for take in (rows_in, encode_rows):
        with pytest.raises(InvalidArgument, match=why):
            take(ACCOUNTS, rows)


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        (pa.table({"id": [1], "blance": [1]}), "there is no column 'blance'; did you mean balance"),
        (pa.table([[1], [2]], ["id", "ID"]), "column 'id' is given twice"),
        (pa.table({"owner": ["ann"]}), "column 'id' .BIGINT.: it is missing"),
        (pa.table({"id": [1, None]}), r"row 1, column 'id' \(BIGINT\): it is NULL and may not be"),
        (pa.table({"id": [1, 2, 3], "balance": [1, 2, 1 << 31]}), r"row 2, column 'balance' \(INT\): 2147483648 is"),
        (pa.table({"id": [1.0, 2.5]}), r"row 1, column 'id' \(BIGINT\): 2.5 is not a whole number"),
        (pa.table({"id": [float(1 << 54)]}), "may be rounded already"),
        (pa.table({"id": ["7"]}), "'7' is a str, and an int is wanted"),
        (pa.table({"id": [True]}), "True is a bool, and an int is wanted"),
        (pd.DataFrame({"id": [1.0, None]}), r"row 1, column 'id' \(BIGINT\): it is NULL"),
        (pa.array([1, 2]), "has no column names"),
    ],
)  # fmt: skip
def test_columns_that_do_not_fit_are_refused_with_their_row(rows, why):
    with pytest.raises(InvalidArgument, match=why):
        rows_in(ACCOUNTS, rows)


def test_a_delete_takes_the_key_alone():
    """A row is deleted by its key; other columns would look like conditions."""
    with pytest.raises(
        InvalidArgument, match="'balance' is not part of the key; a row is deleted by its key alone: id"
    ):
        keys_in(ACCOUNTS, [{"id": 1, "balance": 5}])
    with pytest.raises(InvalidArgument, match="a tuple or dict of the key's columns name, day"):
        keys_in(PAIRS, ["ann"])
    with pytest.raises(InvalidArgument, match="row 0 has 1 values for 2 columns: name, day"):
        keys_in(PAIRS, [("ann",)])
    with pytest.raises(InvalidArgument, match="without a primary key only grows"):
        keys_in(one(pa.int64()), [1])


UTC, LOCAL = dt.UTC, dt.timezone(dt.timedelta(hours=2))
NOON = dt.datetime(2024, 5, 1, 12)
STRUCT = pa.struct([("a", pa.int32()), ("B", pa.string())])


@pytest.mark.parametrize(
    ("kind", "value", "stored"),
    [
        (pa.int8(), 3.0, 3),
        (pa.int64(), Decimal("3.00"), 3),
        (pa.float64(), 1 << 53, float(1 << 53)),
        (pa.float64(), Decimal("0.1"), 0.1),
        (pa.float64(), float("inf"), float("inf")),
        (pa.decimal128(5, 2), 9.99, Decimal("9.99")),
        (pa.decimal128(38, 20), 0.1, Decimal("0.10000000000000000000")),
        (pa.decimal128(5, 2), -3, Decimal("-3.00")),
        (pa.decimal128(5, 2), Decimal("1.5000"), Decimal("1.50")),
        (pa.decimal128(5, 2), Decimal("0e99"), Decimal("0.00")),
        (pa.binary(), memoryview(b"ab"), b"ab"),
        (pa.date32(), dt.datetime(2024, 5, 1), dt.date(2024, 5, 1)),
        (pa.date32(), dt.datetime(2024, 5, 1, 2, tzinfo=LOCAL), dt.date(2024, 5, 1)),
        (pa.timestamp("us", "UTC"), NOON, NOON.replace(tzinfo=UTC)),
        (pa.timestamp("us", "UTC"), NOON.replace(tzinfo=LOCAL), NOON.replace(hour=10, tzinfo=UTC)),
        (pa.timestamp("us", "UTC"), dt.date(2024, 5, 1), dt.datetime(2024, 5, 1, tzinfo=UTC)),
        (pa.timestamp("us", "UTC"), pd.Timestamp("2024-05-01 12:00"), NOON.replace(tzinfo=UTC)),
        (pa.timestamp("us", "UTC"), np.datetime64("2024-05-01T12:00", "ns"), NOON.replace(tzinfo=UTC)),
        (pa.timestamp("us"), NOON, NOON),
        (pa.int64(), pd.NA, None),
        (pa.timestamp("us"), pd.NaT, None),
        (pa.list_(pa.int8()), np.array([1, 2]), [1, 2]),
        (pa.list_(pa.int8()), (1, None), [1, None]),
        (STRUCT, {"A": 1}, {"a": 1, "B": None}),
        (STRUCT, (1, "x"), {"a": 1, "B": "x"}),
        (pa.map_(pa.string(), pa.int8()), {"x": 1, "y": None}, [("x", 1), ("y", None)]),
        (pa.map_(pa.string(), pa.int8()), [("x", 1)], [("x", 1)]),
    ],
)
def test_values_are_taken_over_where_nothing_is_lost(kind, value, stored):
    schema = one(kind)
    assert rows_in(schema, [{"c": value}]).to_pylist() == [{"c": stored}]
    assert decode_bodies(schema, pa.array(encode_rows(schema, [{"c": value}]), pa.binary())).to_pylist() == [
        {"c": stored}
    ]


@pytest.mark.parametrize(
    ("kind", "value", "why"),
    [
        (pa.int8(), 128, "128 is out of range: -128 to 127"),
        (pa.int64(), True, "True is a bool, and an int is wanted"),
        (pa.int64(), float("nan"), "not a whole number"),
        (pa.int64(), "1", "'1' is a str"),
        (pa.bool_(), 1, "a bool is wanted"),
        (pa.float64(), (1 << 53) + 1, "may not hold exactly"),
        (pa.float32(), (1 << 24) + 1, "may not hold exactly"),
        (pa.float32(), 1e39, "out of range"),
        (pa.float64(), "1.5", "a float is wanted"),
        (pa.float64(), Decimal("NaN"), "Decimal without a value"),
        (pa.decimal128(5, 2), 0.125, "more than 2 digits behind the point"),
        (pa.decimal128(5, 2), 1000, "more digits than 3 before the point"),
        (pa.decimal128(5, 2), Decimal("Infinity"), "no decimal number"),
        (pa.decimal128(5, 2), Decimal("1e9999"), "before the point"),
        (pa.decimal128(5, 2), "1.50", "a Decimal is wanted"),
        (pa.string(), b"ab", "a str is wanted"),
        (pa.string(), 5, "a str is wanted"),
        (pa.binary(), "ab", "bytes is wanted"),
        (pa.date32(), NOON, "has a time of day"),
        (pa.date32(), "2024-05-01", "a date is wanted"),
        (pa.timestamp("us", "UTC"), 1714564800, "a datetime is wanted"),
        (pa.timestamp("us", "UTC"), pd.Timestamp("2024-05-01 12:00:00.000000001"), "nanoseconds"),
        (pa.timestamp("us"), NOON.replace(tzinfo=UTC), "has a time zone, and TIMESTAMP_NTZ has none"),
        (pa.list_(pa.int8()), "ab", "a list is wanted"),
        (pa.list_(pa.int8()), [1, 300], "300 is out of range"),
        (STRUCT, {"a": 1, "c": 2}, "has not the fields a, B"),
        (STRUCT, (1,), "a dict with a, B is wanted"),
        (pa.map_(pa.string(), pa.int8()), {None: 1}, "a key of a MAP may not be NULL"),
        (pa.map_(pa.string(), pa.int8()), [1], "not a pair"),
    ],
)
def test_values_are_refused_where_something_would_be_lost_or_guessed(kind, value, why):
    for take in (rows_in, encode_rows):
        with pytest.raises(InvalidArgument, match=why) as caught:
            take(one(kind), [{"c": None}, {"c": value}])
        assert "row 1, column 'c'" in str(caught.value)


def test_nanoseconds_in_a_column_are_refused_only_where_they_would_be_lost():
    schema = one(pa.timestamp("us", "UTC"))
    whole = pd.DataFrame({"c": pd.to_datetime(["2024-05-01 12:00"]).astype("datetime64[ns]")})
    assert rows_in(schema, whole).to_pylist() == [{"c": NOON.replace(tzinfo=UTC)}]
    with pytest.raises(InvalidArgument, match=r"row 1, column 'c' \(TIMESTAMP\)"):
        rows_in(schema, pa.table({"c": pa.array([1000, 1001], pa.timestamp("ns"))}))


class Stream:
    """Somebody else's table: nothing but Arrow's C interface."""

    def __init__(self, table):
        self.table = table

    def __arrow_c_stream__(self, requested_schema=None):
        return self.table.__arrow_c_stream__(requested_schema)


def test_anything_that_streams_arrow_is_taken_and_a_stream_that_breaks_is_refused():
    assert rows_in(ACCOUNTS, Stream(pa.Table.from_pylist(ROWS))).to_pylist() == ROWS
    assert keys_in(ACCOUNTS, Stream(pa.chunked_array([[2], [7]]))).to_pylist() == [{"id": 2}, {"id": 7}]

    def broken():
        yield pa.RecordBatch.from_pylist(ROWS)
        raise ValueError("the cable was cut")

    reader = pa.RecordBatchReader.from_batches(pa.RecordBatch.from_pylist(ROWS).schema, broken())
    with pytest.raises(InvalidArgument, match=r"the Stream broke while its rows were read: .*the cable was cut"):
        rows_in(ACCOUNTS, Stream(reader))


def test_nested_columns_of_pandas_and_polars_are_taken_over():
    schema = one(pa.list_(STRUCT))
    rows = [{"c": [{"a": 1, "B": "x"}, None]}, {"c": None}]
    for given in (pd.DataFrame(rows), pl.DataFrame(rows), pa.Table.from_pylist(rows)):
        assert rows_in(schema, given).to_pylist() == rows
    maps = pd.DataFrame({"c": [{"x": 1}, None]})
    assert rows_in(one(pa.map_(pa.string(), pa.int64())), maps).to_pylist() == [{"c": [("x", 1)]}, {"c": None}]


def test_nan_is_a_value_in_a_dict_and_null_in_a_pandas_frame():
    """pandas does not tell them apart; everything else does."""
    schema = one(pa.float64())
    assert rows_in(schema, pd.DataFrame({"c": [float("nan"), 1.0]})).to_pylist() == [{"c": None}, {"c": 1.0}]
    for given in ([{"c": float("nan")}], pl.DataFrame({"c": [float("nan")]})):
        assert str(rows_in(schema, given).to_pylist()) == "[{'c': nan}]"


def test_pandas_and_polars_are_imported_by_nobody_but_the_user():
    code = (
        "import sys, tidegate.tables.rows_in, tidegate.tables.changes; print({'pandas', 'polars'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "set()\n"
