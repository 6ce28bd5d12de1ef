"""The tables of the corpus of queries: small, with what is awkward in each type."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa

STAMP = pa.timestamp("us", tz="UTC")


def _table(schema: list[tuple[str, pa.DataType]], *rows: tuple[object, ...]) -> pa.Table:
    columns = list(zip(*rows))
    return pa.table([pa.array(values, type) for (_, type), values in zip(schema, columns)], schema=pa.schema(schema))


NUMS = _table(
    [
        ("id", pa.int32()),
        ("t", pa.int8()),
        ("s", pa.int16()),
        ("i", pa.int32()),
        ("l", pa.int64()),
        ("f", pa.float32()),
        ("d", pa.float64()),
        ("dec", pa.decimal128(10, 2)),
        ("big", pa.decimal128(20, 4)),
    ],
    (1, 127, 32767, 2147483647, 9223372036854775807, 1.5, 2.5, Decimal("1.50"), Decimal("1234567890123456.7891")),
    (2, -128, -32768, -2147483648, -9223372036854775808, -2.25, -0.5, Decimal("-99999999.99"), Decimal("-0.0001")),
    (3, 0, 0, 0, 0, 0.0, -0.0, Decimal("0.00"), Decimal("0.0000")),
    (4, 1, 1, 1, 1, 0.5, 0.0, Decimal("0.05"), Decimal("1.0000")),
    (5, 2, 2, -7, 5, float("nan"), float("nan"), Decimal("-1.25"), Decimal("2.5000")),
    (6, None, None, None, None, None, None, None, None),
    (7, 5, 300, 12, 12, float("inf"), float("inf"), Decimal("12.34"), None),
)

WORDS = _table(
    [("id", pa.int32()), ("s", pa.string()), ("p", pa.string())],
    (1, "hello", "h"),
    (2, "", "x"),
    (3, None, None),
    (4, "Éa l", "é"),
    (5, "日本語", ""),
    (6, "  pad ", "a%b"),
    (7, "Zebra", None),
    (8, "a\\b_c", "_"),
)

DAYS = _table(
    [("id", pa.int32()), ("d", pa.date32()), ("ts", STAMP), ("n", pa.timestamp("us"))],
    (1, date(2020, 2, 29), datetime(2020, 2, 29, 12, 34, 56, 789000, UTC), datetime(2020, 2, 29, 12, 34, 56, 789000)),
    (2, date(1969, 12, 31), datetime(1969, 12, 31, 23, 59, 59, 999999, UTC), datetime(1969, 12, 31, 23, 59, 59)),
    (3, None, None, None),
    (4, date(2019, 12, 30), datetime(2019, 12, 30, 0, 0, 0, 0, UTC), datetime(1582, 10, 4)),
    (5, date(1582, 10, 15), datetime(1900, 1, 31, 3, 4, 5, 60, UTC), datetime(2000, 1, 1, 0, 0, 0, 100)),
    (6, date(9999, 12, 31), datetime(2023, 1, 1, 18, 0, 0, 120000, UTC), datetime(9999, 12, 31, 23, 59, 59)),
)

NEST = _table(
    [
        ("id", pa.int32()),
        ("a", pa.list_(pa.int32())),
        ("w", pa.list_(pa.string())),
        ("m", pa.map_(pa.string(), pa.int32())),
        ("st", pa.struct([("x", pa.int32()), ("y", pa.string())])),
    ],
    (1, [3, 1, 2], ["b", "a"], [("k", 1), ("j", None)], {"x": 1, "y": "one"}),
    (2, [], [], [], {"x": None, "y": None}),
    (3, None, None, None, None),
    (4, [1, None, 1], [None, "", "é"], [("", 5)], {"x": 4, "y": ""}),
    (5, [None], ["z"], [("k", -1)], {"x": 4, "y": "q"}),
)

ORDERS = _table(
    [
        ("id", pa.int32()),
        ("customer", pa.string()),
        ("amount", pa.decimal128(10, 2)),
        ("day", pa.date32()),
        ("qty", pa.int32()),
    ],
    (1, "ann", Decimal("10.00"), date(2020, 1, 31), 1),
    (2, "bob", Decimal("20.55"), date(2020, 1, 31), 4),
    (3, "ann", Decimal("0.01"), date(2020, 2, 29), 4),
    (4, None, Decimal("7.77"), date(2021, 2, 28), 2),
    (5, "cid", Decimal("-3.30"), date(2020, 2, 29), 5),
    (8, "bob", Decimal("100.00"), None, 3),
    (9, "ann", Decimal("33.33"), date(2021, 2, 28), 1),
)

CUSTOMERS = _table(
    [("name", pa.string()), ("city", pa.string())],
    ("ann", "Oslo"),
    ("bob", "Rome"),
    ("dan", "Oslo"),
    (None, "Paris"),
)

TABLES = {"nums": NUMS, "words": WORDS, "days": DAYS, "nest": NEST, "orders": ORDERS, "customers": CUSTOMERS}
