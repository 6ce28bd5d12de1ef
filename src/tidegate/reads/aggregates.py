"""Functions of Spark SQL over many rows: aggregates, and those of windows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from tidegate.reads.casts import cast
from tidegate.reads.spark_functions import WrongArguments, check, double, integer, together
from tidegate.reads.spark_types import (
    BINARY,
    BOOL,
    DIGITS_MAX,
    DOUBLE,
    INT,
    LONG,
    STRING,
    VOID,
    NeedsSpark,
    Typed,
    decimal,
    duck,
    has_float,
    is_decimal,
    is_float,
    is_integer,
    is_map,
    is_nested,
    shown,
)


@dataclass(frozen=True, slots=True)
class Aggregate:
    """A call over rows: FILTER and OVER go behind `call`, and `around` goes around all of it."""

    call: str
    type: pa.DataType
    around: str = "{}"
    where: str = ""
    """Which rows count; together with a FILTER of the query's own."""
    second: str = ""
    """Another call over the same rows, `{#}` in `around`."""

    def sql(self, where: str = "", over: str = "") -> str:
        conditions = " AND ".join(f"({each})" for each in (self.where, where) if each)
        filtered = f" FILTER (WHERE {conditions})" if conditions else ""
        found = self.around.replace("{}", f"{self.call}{filtered}{over}")
        return found.replace("{#}", f"{self.second}{filtered}{over}")


AGGREGATES: Final[dict[str, Callable[[Sequence[Typed], str], Aggregate]]] = {}


def one_zero(sql: str, type: pa.DataType) -> str:
    """As Spark groups: -0.0 is 0.0. Raises: `NeedsSpark` for such numbers inside of others."""
    if is_float(type):
        return f"({sql} + 0.0::{duck(type)})"
    if has_float(type) or is_map(type):
        raise NeedsSpark(f"a group of {shown(type)}")
    return sql


def _aggregate(*names: str) -> Callable[[Callable[[Sequence[Typed], str], Aggregate]], None]:
    def add(found: Callable[[Sequence[Typed], str], Aggregate]) -> None:
        for name in names:
            AGGREGATES[name] = found

    return add


@_aggregate("count")
def _count(args: Sequence[Typed], distinct: str) -> Aggregate:
    if not args:
        raise WrongArguments
    where = " AND ".join(f"{each.sql} IS NOT NULL" for each in args)
    if not distinct:
        return Aggregate("count(*)", LONG, where="" if _sure(args) else where)
    keys = [one_zero(each.sql, each.type) for each in args]
    key = keys[0] if len(keys) == 1 else f"row({', '.join(keys)})"
    return Aggregate(f"count(DISTINCT {key})", LONG, where=where)


def _sure(args: Sequence[Typed]) -> bool:
    return len(args) == 1 and args[0].value is not None


@_aggregate("count_if")
def _count_if(args: Sequence[Typed], distinct: str) -> Aggregate:
    check(args, 1)
    if args[0].type != BOOL or distinct:
        raise WrongArguments
    return Aggregate("count(*)", LONG, where=args[0].sql)


@_aggregate("sum")
def _sum(args: Sequence[Typed], distinct: str) -> Aggregate:
    check(args, 1)
    type = args[0].type
    if is_integer(type):
        return Aggregate(f"sum({distinct}{args[0].sql})", LONG, "CAST({} AS BIGINT)")
    if is_decimal(type):
        found = decimal(min(DIGITS_MAX, type.precision + 10), type.scale)
        return Aggregate(f"sum({distinct}{args[0].sql})", found, f"CAST({{}} AS {duck(found)})")
    if is_float(type):
        return Aggregate(f"sum({distinct}{cast(args[0].sql, type, DOUBLE)})", DOUBLE)
    raise WrongArguments


@_aggregate("avg", "mean")
def _avg(args: Sequence[Typed], distinct: str) -> Aggregate:
    check(args, 1)
    type = args[0].type
    if is_decimal(type):
        found = decimal(type.precision + 4, type.scale + 4)
        if type.precision + 14 > DIGITS_MAX - 1 or distinct:
            raise NeedsSpark(f"avg of {shown(type)}")
        around = f"CAST(spark_average({{}}, {{#}}, {found.scale}) AS {duck(found)})"
        return Aggregate(f"sum({args[0].sql})", found, around, second=f"count({args[0].sql})")
    return Aggregate(f"avg({distinct}{double(args[0])})", DOUBLE)


MACROS: Final = (
    "spark_place(a, p) AS (len(a) - 1)::DOUBLE * p",
    "spark_weighed(a, b, i, j, x) AS CASE WHEN i = j OR a = b THEN a ELSE (j - x) * a + (x - i) * b END",
    "spark_rank(a, p) AS CASE WHEN a IS NOT NULL THEN spark_weighed(a[floor(spark_place(a, p))::BIGINT + 1],"
    " a[ceil(spark_place(a, p))::BIGINT + 1], floor(spark_place(a, p)), ceil(spark_place(a, p)), spark_place(a, p))"
    " END",
    "spark_average(a, n, s) AS CASE WHEN n > 0 THEN spark_scaled(spark_half_up(spark_digits(a) * 10000, n), s) END",
)


for _name in ("min", "max"):

    @_aggregate(_name)
    def _extreme(args: Sequence[Typed], distinct: str, name: str = _name) -> Aggregate:
        check(args, 1)
        if is_nested(args[0].type):
            raise WrongArguments
        return Aggregate(f"{name}({distinct}{args[0].sql})", args[0].type)


def _of_doubles(name: str, count: int) -> Callable[[Sequence[Typed], str], Aggregate]:
    def found(args: Sequence[Typed], distinct: str) -> Aggregate:
        check(args, count)
        if distinct:
            raise WrongArguments
        return Aggregate(f"{name}({', '.join(double(each) for each in args)})", DOUBLE)

    return found


for _name, _duck in (
    ("stddev", "stddev_samp"), ("std", "stddev_samp"), ("stddev_samp", "stddev_samp"), ("stddev_pop", "stddev_pop"),
    ("variance", "var_samp"), ("var_samp", "var_samp"), ("var_pop", "var_pop"),
):  # fmt: skip
    AGGREGATES[_name] = _of_doubles(_duck, 1)
for _name in ("covar_pop", "covar_samp"):
    AGGREGATES[_name] = _of_doubles(_name, 2)


@_aggregate("corr")
def _corr(args: Sequence[Typed], distinct: str) -> Aggregate:
    check(args, 2)
    if distinct:
        raise WrongArguments
    x, y = (double(each) for each in args)
    # Where all values of a side are the same, DuckDB says NaN, and Spark NULL.
    around = "CASE WHEN isnan({}) AND isfinite({#}) THEN NULL ELSE {} END"
    return Aggregate(f"corr({x}, {y})", DOUBLE, around, second=f"sum({x} + {y})")


@_aggregate("median")
def _median(args: Sequence[Typed], distinct: str) -> Aggregate:
    check(args, 1)
    if distinct:
        raise WrongArguments
    return _at_rank(args[0], 0.5)


@_aggregate("percentile")
def _percentile(args: Sequence[Typed], distinct: str) -> Aggregate:
    check(args, 2)
    if distinct or args[1].value is None or not 0 <= float(args[1].value) <= 1:
        raise WrongArguments
    return _at_rank(args[0], float(args[1].value))


def _at_rank(arg: Typed, share: float) -> Aggregate:
    """Between two values by Spark's own formula: DuckDB's rounds otherwise in the last digit."""
    x = double(arg)
    return Aggregate(f"list({x})", DOUBLE, f"spark_rank(list_sort({{}}), {share!r}::DOUBLE)", f"{x} IS NOT NULL")


def _of_conditions(name: str) -> Callable[[Sequence[Typed], str], Aggregate]:
    def found(args: Sequence[Typed], distinct: str) -> Aggregate:
        check(args, 1)
        if args[0].type != BOOL or distinct:
            raise WrongArguments
        return Aggregate(f"{name}({args[0].sql})", BOOL)

    return found


def _of_bits(name: str) -> Callable[[Sequence[Typed], str], Aggregate]:
    def found(args: Sequence[Typed], distinct: str) -> Aggregate:
        check(args, 1)
        if not is_integer(args[0].type) or distinct:
            raise WrongArguments
        return Aggregate(f"{name}({args[0].sql})", args[0].type, f"CAST({{}} AS {duck(args[0].type)})")

    return found


for _name in ("bit_and", "bit_or", "bit_xor"):
    AGGREGATES[_name] = _of_bits(_name)


def joined(args: Sequence[Typed], order: str) -> Aggregate:
    """`listagg(x, between) WITHIN GROUP (ORDER BY ..)`: texts in an order. Raises: `NeedsSpark`."""
    if not 1 <= len(args) <= 2 or any(each.type != STRING for each in args) or (len(args) == 2 and not _sure(args[1:])):
        raise NeedsSpark(f"listagg of ({', '.join(shown(each.type) for each in args)})")
    between = args[1].sql if len(args) == 2 else "''"
    return Aggregate(f"string_agg({args[0].sql}, {between} ORDER BY {order})", STRING)


AGGREGATES["bool_and"] = AGGREGATES["every"] = _of_conditions("bool_and")
AGGREGATES["bool_or"] = AGGREGATES["some"] = AGGREGATES["any"] = _of_conditions("bool_or")


@_aggregate("collect_list", "array_agg")
def _collect_list(args: Sequence[Typed], distinct: str) -> Aggregate:
    check(args, 1)
    x = one_zero(args[0].sql, args[0].type) if distinct else args[0].sql
    type = pa.list_(args[0].type)
    if args[0].type == VOID:
        raise WrongArguments
    return Aggregate(
        f"list({distinct}{x})", type, f"coalesce({{}}, CAST([] AS {duck(type)}))", f"{args[0].sql} IS NOT NULL"
    )


@_aggregate("collect_set")
def _collect_set(args: Sequence[Typed], distinct: str) -> Aggregate:
    return AGGREGATES["collect_list"](args, distinct or "DISTINCT ")


for _name in ("max_by", "min_by"):

    @_aggregate(_name)
    def _by(args: Sequence[Typed], distinct: str, name: str = _name) -> Aggregate:
        check(args, 2)
        if distinct or is_nested(args[1].type) or args[1].type == BINARY:
            raise WrongArguments
        call = "arg_max_null" if name == "max_by" else "arg_min_null"
        return Aggregate(f"{call}({args[0].sql}, {args[1].sql})", args[0].type)


def _one_of(name: str) -> Callable[[Sequence[Typed], str], Aggregate]:
    def found(args: Sequence[Typed], distinct: str) -> Aggregate:
        check(args, 1, 2)
        if distinct or (len(args) == 2 and args[1].type != BOOL):
            raise WrongArguments
        return Aggregate(f"{name}({args[0].sql})", args[0].type, where=_known(args))

    return found


def _known(args: Sequence[Typed]) -> str:
    """Where the second argument says so, NULLs do not count."""
    if len(args) == 2 and not isinstance(args[1].value, bool):
        raise WrongArguments
    return f"{args[0].sql} IS NOT NULL" if len(args) == 2 and args[1].value else ""


AGGREGATES["first"] = AGGREGATES["first_value"] = AGGREGATES["any_value"] = _one_of("first")
AGGREGATES["last"] = AGGREGATES["last_value"] = _one_of("last")


def aggregate(name: str, args: Sequence[Typed], distinct: bool) -> Aggregate:
    """Raises: `NeedsSpark`."""
    try:
        return AGGREGATES[name](args, "DISTINCT " if distinct else "")
    except WrongArguments:
        raise NeedsSpark(f"the function {name} of ({', '.join(shown(each.type) for each in args)})") from None


RANKS: Final = {
    "row_number": ("row_number()", INT),
    "rank": ("rank()", INT),
    "dense_rank": ("dense_rank()", INT),
    "percent_rank": ("percent_rank()", DOUBLE),
    "cume_dist": ("cume_dist()", DOUBLE),
}


def ranked(name: str, args: Sequence[Typed]) -> Aggregate | None:
    """A function that there is over windows only; None: no such one. Raises: `NeedsSpark`."""
    try:
        if name in RANKS:
            check(args, 0)
            call, type = RANKS[name]
            return Aggregate(call, type, f"CAST({{}} AS {duck(type)})")
        if name == "ntile":
            check(args, 1)
            if args[0].value is None:
                raise WrongArguments
            return Aggregate(f"ntile({integer(args[0])})", INT, "CAST({} AS INTEGER)")
        if name in ("lag", "lead"):
            check(args, 1, 2, 3)
            offset = integer(args[1]) if len(args) > 1 else "1"
            if len(args) < 3:
                return Aggregate(f"{name}({args[0].sql}, {offset})", args[0].type)
            (value, default), type = together([args[0], args[2]], name)
            if type != args[0].type:
                raise WrongArguments
            return Aggregate(f"{name}({value}, {offset}, {default})", type)
        if name in ("first", "first_value", "last", "last_value"):
            check(args, 1, 2)
            nulls = " IGNORE NULLS" if _known(args) else ""
            return Aggregate(f"{name.removesuffix('_value')}_value({args[0].sql}{nulls})", args[0].type)
        if name == "nth_value":
            check(args, 2)
            return Aggregate(f"nth_value({args[0].sql}, {integer(args[1])})", args[0].type)
    except WrongArguments:
        raise NeedsSpark(f"the function {name} of ({', '.join(shown(each.type) for each in args)})") from None
    return None
