"""Literals and types of Spark SQL: their types, DuckDB's SQL for them, and their names."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
from sqlglot import exp

from tidegate.errors import InvalidArgument
from tidegate.reads.casts import cast
from tidegate.reads.spark_types import (
    BOOL,
    DATE,
    DOUBLE,
    INT,
    LONG,
    STRING,
    TIMESTAMP,
    NeedsSpark,
    Typed,
    decimal,
    duck,
    is_decimal,
    is_integer,
    text,
)
from tidegate.tables.spark_sql import Source

TYPES: Final[dict[str, pa.DataType]] = {
    "int": INT,
    "bigint": LONG,
    "double": DOUBLE,
    "string": STRING,
    "date": DATE,
    "timestamp": TIMESTAMP,
    "boolean": BOOL,
}
"""Types that are called as functions too."""


def literal(written: str, is_string: bool) -> Typed:
    """A text or a number. Raises: `NeedsSpark`."""
    if is_string:
        if "\0" in written:
            raise NeedsSpark("a literal with the character 0")
        return Typed(f"CAST({text(written)} AS VARCHAR)", STRING, written, written)
    if re.fullmatch(r"-?\d+", written):
        value = int(written)
        if -(2**31) <= value < 2**31:
            return Typed(f"CAST({value} AS INTEGER)", INT, str(value), value)
        if -(2**63) <= value < 2**63:
            return Typed(f"CAST({value} AS BIGINT)", LONG, str(value), value)
        return _decimal(str(value))
    if re.fullmatch(r"-?\d*\.\d*", written):
        return _decimal(written)
    if re.fullmatch(r"-?(\d+\.?\d*|\.\d+)[eE][+-]?\d+", written):
        return _double(float(written))
    raise NeedsSpark(f"the literal {written}")


def _decimal(written: str) -> Typed:
    value = Decimal(written)
    _, digits, exponent = value.as_tuple()
    scale = max(0, -int(exponent))
    type = decimal(max(len(digits) if any(digits) else 1, scale), scale)
    return Typed(f"CAST('{value:f}' AS {duck(type)})", type, f"{value:f}", value)


def _double(value: float) -> Typed:
    return Typed(f"CAST('{value!r}' AS DOUBLE)", DOUBLE, java_double(value), value)


def java_double(value: float) -> str:
    """A DOUBLE as Java writes it."""
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return repr(value)
    digits, exponent = f"{Decimal(repr(value)):E}".split("E")
    digits = digits.rstrip("0").rstrip(".") if "." in digits else digits
    return f"{digits if '.' in digits else digits + '.0'}E{int(exponent)}"


def typed_literal(node: exp.Expr, target: pa.DataType, sign: str = "") -> Typed:
    """`1L`, `DATE '2020-01-01'` and the like: a literal that says its type. Raises: `NeedsSpark`."""
    written = sign + node.name
    if is_integer(target) and re.fullmatch(r"-?\d+", written):
        return Typed(f"CAST({int(written)} AS {duck(target)})", target, str(int(written)), int(written))
    if is_decimal(target):
        return _decimal(written)
    if target == DOUBLE:
        return _double(float(written))
    if target == DATE and re.fullmatch(r"\d{4}-\d\d-\d\d", written):
        return Typed(f"DATE {text(written)}", target, f"DATE '{written}'", written)
    if target == TIMESTAMP and re.fullmatch(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d{1,6})?", written):
        whole, _, fraction = written.replace("T", " ").partition(".")
        shown = f"{whole}.{fraction}".rstrip("0").rstrip(".") if fraction else whole
        return Typed(cast(text(written), STRING, TIMESTAMP), target, f"TIMESTAMP '{shown}'", written)
    raise NeedsSpark(f"the literal {node.parent.sql('spark') if node.parent else written}")


def type_of(node: exp.Expr) -> pa.DataType:
    """The type that a CAST names. Raises: `NeedsSpark`."""
    try:
        return Source("").type(node)
    except InvalidArgument as error:
        raise NeedsSpark(f"the type {node.sql('spark')}") from error


def like_is_broken(pattern: str, sign: str) -> bool:
    """Whether a pattern of LIKE escapes something that needs no escape: Spark refuses it."""
    escape = re.escape(sign)
    return re.fullmatch(rf"([^{escape}]|{escape}([%_]|{escape}))*", pattern, re.DOTALL) is None


def plain(name: str) -> str:
    """A name that needs no quotes."""
    return re.sub(r"\W", "_", name.lower())


def frame(spec: Any, is_ordered: bool, function: str, offset: str) -> str:
    """The frame of a window, written out as Spark shows it. Raises: `NeedsSpark`."""
    if spec is None:
        if function in ("row_number", "rank", "dense_rank", "percent_rank", "cume_dist", "ntile"):
            kind = "RANGE" if function == "cume_dist" else "ROWS"
            return f"{kind} BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW"
        if function in ("lag", "lead"):
            bound = f"{'-' if function == 'lag' else ''}{offset} FOLLOWING"
            return f"ROWS BETWEEN {bound} AND {bound}"
        if is_ordered:
            return "RANGE BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW"
        return "ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING"
    for name, value in spec.args.items():
        if value and name not in ("kind", "start", "start_side", "end", "end_side"):
            raise NeedsSpark(f"{name} in the frame of a window")
    if function in ("row_number", "rank", "dense_rank", "percent_rank", "cume_dist", "ntile", "lag", "lead"):
        raise NeedsSpark(f"a frame for {function}")
    kind = str(spec.args["kind"]).upper()
    start = _bound(spec.args.get("start"), spec.args.get("start_side"), kind)
    end = _bound(spec.args.get("end") or "CURRENT ROW", spec.args.get("end_side"), kind)
    return f"{kind} BETWEEN {start} AND {end}"


def _bound(value: Any, side: Any, kind: str) -> str:
    if isinstance(value, exp.Literal) and not value.is_string and value.name.isdigit() and kind == "ROWS":
        return f"{value.name} {str(side).upper()}"
    if str(value).upper() == "CURRENT ROW":
        return "CURRENT ROW"
    if str(value).upper() == "UNBOUNDED":
        return f"UNBOUNDED {str(side).upper()}"
    raise NeedsSpark("such a frame of a window")
