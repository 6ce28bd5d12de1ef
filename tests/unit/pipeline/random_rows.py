"""Random types of columns, all that tables have, and values of them, edges first; a seed repeats them."""

from __future__ import annotations

import datetime as dt
import random
import struct
from decimal import Decimal
from typing import Any

import pyarrow as pa

KEY_KINDS = [
    pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.string(), pa.binary(), pa.date32(),
    pa.timestamp("us", "UTC"), pa.timestamp("us"), pa.decimal128(5, 2), pa.decimal128(38, 10), pa.decimal128(18, 0),
]  # fmt: skip
FLAT_KINDS = [*KEY_KINDS, pa.float32(), pa.float64()]
TEXTS = ["", "a", "ä€😀", "quote ' and \\", "line\nbreak", "x" * 300, "\x00"]
DAYS = (dt.date(1, 1, 1).toordinal(), dt.date(9999, 12, 31).toordinal())


def any_kind(dice: random.Random, depth: int = 2) -> pa.DataType:
    """Mostly flat ones; nested up to so deep."""
    if not depth or dice.random() < 0.7:
        return dice.choice(FLAT_KINDS)
    inner = any_kind(dice, depth - 1)
    match dice.randrange(3):
        case 0:
            return pa.list_(inner)
        case 1:
            return pa.map_(dice.choice([pa.string(), pa.int32(), pa.date32(), pa.decimal128(5, 2)]), inner)
        case _:
            return pa.struct([("f0", inner), ("f1", any_kind(dice, depth - 1))])


def any_value(dice: random.Random, kind: pa.DataType, nullable: bool = True) -> Any:
    """In the form in which rows have it."""
    if nullable and dice.random() < 0.2:
        return None
    is_ = pa.types
    if is_.is_boolean(kind):
        return dice.random() < 0.5
    if is_.is_integer(kind):
        most = (1 << kind.bit_width - 1) - 1
        return dice.choice([0, 1, -1, most, -most - 1, dice.randint(-most - 1, most)])
    if is_.is_floating(kind):
        found = dice.choice([0.0, -0.0, 1.5, float("inf"), float("-inf"), float("nan"), dice.uniform(-1e9, 1e9)])
        return struct.unpack("f", struct.pack("f", found))[0] if kind == pa.float32() else found
    if is_.is_decimal(kind):
        most = 10**kind.precision - 1
        return Decimal(f"{dice.choice([0, 1, most, -most, dice.randint(-most, most)])}e-{kind.scale}")
    if is_.is_string(kind):
        return dice.choice(TEXTS)
    if is_.is_binary(kind):
        return dice.choice([b"", b"\x00\xff", dice.randbytes(20)])
    if is_.is_date(kind):
        return dt.date.fromordinal(dice.choice([*DAYS, dice.randint(*DAYS)]))
    if is_.is_timestamp(kind):
        day = dt.date.fromordinal(dice.randint(*DAYS))
        time = dt.time(dice.randrange(24), dice.randrange(60), dice.randrange(60), dice.choice([0, 1, 999_999]))
        return dt.datetime.combine(day, time, dt.UTC if kind.tz else None)
    if is_.is_map(kind):
        keys = {said(key := any_value(dice, kind.key_type, False)): key for _ in range(dice.randrange(3))}
        return {key: any_value(dice, kind.item_type) for key in keys.values()}
    if is_.is_struct(kind):
        return {each.name: any_value(dice, each.type) for each in kind}
    return [any_value(dice, kind.value_type) for _ in range(dice.randrange(4))]


def said(value: Any) -> str:
    """So that NaN equals NaN, 0.0 differs from -0.0, and rows can be sorted."""
    match value:
        case dict():
            return "{" + ", ".join(f"{said(name)}: {said(each)}" for name, each in value.items()) + "}"
        case list() | tuple():
            return "[" + ", ".join(map(said, value)) + "]"
        case Decimal():
            return f"Decimal {value.normalize()}" if value else "Decimal 0"
        case dt.datetime() if value.tzinfo is not None:
            return f"{value.replace(tzinfo=None).isoformat()} {value.utcoffset()}"
        case _:
            return repr(value)
