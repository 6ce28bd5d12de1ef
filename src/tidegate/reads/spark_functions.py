"""Functions of Spark SQL that DuckDB can answer alike: a function is in `FUNCTIONS`, or it is for Spark alone.

Each takes typed arguments and gives DuckDB's SQL and Spark's type. Arguments of types it does not name are refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import pyarrow as pa

from tidegate.reads.casts import cast
from tidegate.reads.spark_types import (
    BINARY,
    BOOL,
    DOUBLE,
    INT,
    LONG,
    STRING,
    VOID,
    NeedsSpark,
    Typed,
    decimal,
    duck,
    is_decimal,
    is_integer,
    is_nested,
    is_number,
    shown,
    wider,
)

Result = tuple[str, pa.DataType]
Function = Callable[[Sequence[Typed]], Result]
FUNCTIONS: Final[dict[str, Function]] = {}

MACROS: Final = (
    "spark_divide(a, b) AS CASE WHEN b = 0 AND a IS NOT NULL THEN error('division by zero') ELSE a / b END",
    "spark_modulo(a, b) AS CASE WHEN b = 0 AND a IS NOT NULL THEN error('division by zero') ELSE a % b END",
    "spark_round(x, d) AS CASE WHEN abs(x) < 1e17"
    " THEN CAST(CAST(round(CAST(CAST(x AS VARCHAR) AS DECIMAL(38, 19)), d) AS VARCHAR) AS DOUBLE) ELSE x END",
    "spark_long(x) AS CASE WHEN isnan(x) THEN 0 WHEN x >= 9223372036854775807 OR x < -9223372036854775808"
    " THEN error('Spark alone answers this: a number beyond BIGINT') ELSE CAST(x AS BIGINT) END",
)


def function(*names: str) -> Callable[[Function], Function]:
    def add(found: Function) -> Function:
        for name in names:
            FUNCTIONS[name] = found
        return found

    return add


class WrongArguments(Exception):
    """The function is known; with these arguments it is not."""


def check(args: Sequence[Typed], *counts: int) -> None:
    if len(args) not in counts:
        raise WrongArguments


def string(arg: Typed) -> str:
    """An argument where Spark wants a STRING: others are cast, where their text is sure."""
    if is_nested(arg.type) or arg.type == BINARY:
        raise WrongArguments
    return cast(arg.sql, arg.type, STRING)


def integer(arg: Typed) -> str:
    """An argument where Spark wants an INT."""
    if arg.type == VOID or is_integer(arg.type):
        return cast(arg.sql, arg.type, INT)
    raise WrongArguments


def double(arg: Typed) -> str:
    if is_number(arg.type) or arg.type == VOID:
        return cast(arg.sql, arg.type, DOUBLE)
    raise WrongArguments


def literal_string(arg: Typed) -> str:
    if arg.type != STRING or not isinstance(arg.value, str):
        raise NeedsSpark(f"{arg.name} where a literal is expected")
    return arg.value


def literal_int(arg: Typed) -> int:
    if not is_integer(arg.type) or not isinstance(arg.value, int):
        raise NeedsSpark(f"{arg.name} where a literal is expected")
    return arg.value


def common(args: Sequence[Typed], what: str) -> pa.DataType:
    found: pa.DataType = VOID
    for each in args:
        found = wider(found, each.type, what)
    return found


def together(args: Sequence[Typed], what: str) -> tuple[list[str], pa.DataType]:
    """All of them brought to one type."""
    type = common(args, what)
    return [cast(each.sql, each.type, type) for each in args], type


# -- conditions ----------------------------------------------------------------------------------------------


@function("coalesce", "nvl", "ifnull")
def _coalesce(args: Sequence[Typed]) -> Result:
    if not args:
        raise WrongArguments
    found, type = together(args, "coalesce")
    return f"coalesce({', '.join(found)})", type


@function("nvl2")
def _nvl2(args: Sequence[Typed]) -> Result:
    check(args, 3)
    found, type = together(args[1:], "nvl2")
    return f"CASE WHEN {args[0].sql} IS NOT NULL THEN {found[0]} ELSE {found[1]} END", type


@function("nullif")
def _nullif(args: Sequence[Typed]) -> Result:
    check(args, 2)
    found, _ = together(args, "nullif")
    return f"CASE WHEN {found[0]} = {found[1]} THEN NULL ELSE {args[0].sql} END", args[0].type


def _extreme_of(name: str) -> Function:
    def found(args: Sequence[Typed]) -> Result:
        if len(args) < 2:
            raise WrongArguments
        parts, type = together(args, name)
        if is_nested(type):
            raise WrongArguments
        return f"{name}({', '.join(parts)})", type

    return found


FUNCTIONS["greatest"] = _extreme_of("greatest")
FUNCTIONS["least"] = _extreme_of("least")


@function("isnull")
def _isnull(args: Sequence[Typed]) -> Result:
    check(args, 1)
    return f"({args[0].sql} IS NULL)", BOOL


@function("isnotnull")
def _isnotnull(args: Sequence[Typed]) -> Result:
    check(args, 1)
    return f"({args[0].sql} IS NOT NULL)", BOOL


@function("isnan")
def _isnan(args: Sequence[Typed]) -> Result:
    check(args, 1)
    return f"coalesce(isnan({double(args[0])}), false)", BOOL


@function("nanvl")
def _nanvl(args: Sequence[Typed]) -> Result:
    check(args, 2)
    first, second = (double(each) for each in args)
    return f"CASE WHEN isnan({first}) THEN {second} ELSE {first} END", DOUBLE


@function("decode")
def _decode(args: Sequence[Typed]) -> Result:
    if len(args) < 3:
        raise WrongArguments
    pairs = list(zip(args[1::2], args[2::2]))
    last = [args[-1]] if len(args) % 2 == 0 else []
    (x, *keys), _ = together([args[0], *(key for key, _ in pairs)], "decode")
    values, type = together([*(value for _, value in pairs), *last], "decode")
    whens = " ".join(f"WHEN {x} IS NOT DISTINCT FROM {key} THEN {value}" for key, value in zip(keys, values))
    return f"CASE {whens}{f' ELSE {values[-1]}' if last else ''} END", type


# -- numbers -------------------------------------------------------------------------------------------------


@function("abs")
def _abs(args: Sequence[Typed]) -> Result:
    check(args, 1)
    if not is_number(args[0].type):
        raise WrongArguments
    return f"CAST(abs({args[0].sql}) AS {duck(args[0].type)})", args[0].type


def _towards(name: str) -> Function:
    def found(args: Sequence[Typed]) -> Result:
        check(args, 1)
        (arg,) = args
        if is_integer(arg.type):
            return cast(arg.sql, arg.type, LONG), LONG
        if is_decimal(arg.type):
            type = decimal(arg.type.precision - arg.type.scale + (1 if arg.type.scale else 0), 0)
            return f"CAST({name}({arg.sql}) AS {duck(type)})", type
        return f"spark_long({name}({double(arg)}))", LONG

    return found


FUNCTIONS["ceil"] = FUNCTIONS["ceiling"] = _towards("ceil")
FUNCTIONS["floor"] = _towards("floor")


@function("round")
def _round(args: Sequence[Typed]) -> Result:
    check(args, 1, 2)
    places = literal_int(args[1]) if len(args) == 2 else 0
    type = args[0].type
    if not 0 <= places <= 15:
        raise NeedsSpark(f"round to {places} places")
    if is_integer(type):
        return args[0].sql, type
    if is_decimal(type):
        kept = min(type.scale, places)
        rounded = decimal(type.precision - type.scale + 1 + kept, kept)
        return f"CAST(round({args[0].sql}, {kept}) AS {duck(rounded)})", rounded
    if type == DOUBLE:
        return f"spark_round({args[0].sql}, {places})", DOUBLE
    raise WrongArguments


def _of_double(template: str) -> Function:
    def found(args: Sequence[Typed]) -> Result:
        check(args, 1)
        return template.format(x=double(args[0])), DOUBLE

    return found


FUNCTIONS["sqrt"] = _of_double("sqrt({x})")
FUNCTIONS["exp"] = _of_double("exp({x})")
FUNCTIONS["ln"] = _of_double("CASE WHEN {x} > 0 THEN ln({x}) END")
FUNCTIONS["log10"] = _of_double("CASE WHEN {x} > 0 THEN log10({x}) END")
FUNCTIONS["log2"] = _of_double("CASE WHEN {x} > 0 THEN log2({x}) END")
FUNCTIONS["sign"] = FUNCTIONS["signum"] = _of_double(
    "CASE WHEN {x} > 0 AND NOT isnan({x}) THEN 1.0::DOUBLE WHEN {x} < 0 THEN -1.0::DOUBLE ELSE {x} END"
)
FUNCTIONS["radians"] = _of_double("radians({x})")
for _name in ("sin", "cos", "tan", "atan", "degrees"):
    FUNCTIONS[_name] = _of_double(_name + "({x})")


@function("pow", "power")
def _pow(args: Sequence[Typed]) -> Result:
    check(args, 2)
    return f"pow({double(args[0])}, {double(args[1])})", DOUBLE


def _tried(operator: str) -> Function:
    def found(args: Sequence[Typed]) -> Result:
        check(args, 2)
        (left, right), type = together(args, operator)
        if not is_integer(type):
            raise WrongArguments
        return f"TRY(CAST({left} {operator} {right} AS {duck(type)}))", type

    return found


FUNCTIONS["try_add"], FUNCTIONS["try_subtract"], FUNCTIONS["try_multiply"] = _tried("+"), _tried("-"), _tried("*")


@function("try_divide")
def _try_divide(args: Sequence[Typed]) -> Result:
    check(args, 2)
    if is_decimal(args[0].type) or is_decimal(args[1].type):
        raise WrongArguments
    left, right = double(args[0]), double(args[1])
    return f"CASE WHEN {right} <> 0 THEN {left} / {right} END", DOUBLE


@function("mod")
def _mod(args: Sequence[Typed]) -> Result:
    check(args, 2)
    (left, right), type = together(args, "mod")
    if not is_integer(type):
        raise WrongArguments
    return f"CAST(spark_modulo({left}, {right}) AS {duck(type)})", type


@function("pi")
def _pi(args: Sequence[Typed]) -> Result:
    check(args, 0)
    return "pi()", DOUBLE


@function("pmod")
def _pmod(args: Sequence[Typed]) -> Result:
    check(args, 2)
    (left, right), type = together(args, "pmod")
    if not is_integer(type):
        raise WrongArguments
    rest = f"spark_modulo({left}, {right})"
    return f"CASE WHEN {rest} < 0 THEN ({rest} + {right}) % {right} ELSE {rest} END", type


_SHORT: Final = re.compile(r's\d+\.("[^"]+"|c\d+)|x_\w+|v\.a\d+|NULL|true|false')


def held(args: Sequence[Typed], write: Function) -> Result:
    """What `write` gives, with arguments that it uses more than once computed once.

    Invariant: a query grows by its own length, however deep its calls nest.
    """
    long = [index for index, each in enumerate(args) if each.value is None and not _SHORT.fullmatch(each.sql)]
    names = {index: f"v.a{index}" for index in long}
    sql, type = write([replace(each, sql=names.get(index, each.sql)) for index, each in enumerate(args)])
    if "spark_" not in sql and all(sql.count(each) <= 1 for each in names.values()):
        return write(args)
    packed = ", ".join(f"a{index} := {args[index].sql}" for index in long)
    return (f"list_transform([struct_pack({packed})], lambda v: {sql})[1]" if long else sql), type


def call(name: str, args: Sequence[Typed]) -> Result:
    """A function by its name. Raises: `NeedsSpark`."""
    found = FUNCTIONS.get(name)
    if found is None:
        raise NeedsSpark(f"the function {name}")
    try:
        return held(args, found)
    except WrongArguments:
        kinds = ", ".join(shown(each.type) for each in args)
        raise NeedsSpark(f"the function {name} of ({kinds})") from None
