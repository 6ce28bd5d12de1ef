"""Functions of Spark SQL that DuckDB can answer alike: a function is in `FUNCTIONS`, or it is for Spark alone.

Each takes typed arguments and gives DuckDB's SQL and Spark's type. Arguments of types it does not name are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import pyarrow as pa

from tidegate.reads.casts import cast
from tidegate.reads.regex import to_re2, to_re2_replacement
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
    text,
    wider,
)

Result = tuple[str, pa.DataType]
Function = Callable[[Sequence[Typed]], Result]
FUNCTIONS: Final[dict[str, Function]] = {}

MACROS: Final = (
    "spark_divide(a, b) AS CASE WHEN b = 0 AND a IS NOT NULL THEN error('division by zero') ELSE a / b END",
    "spark_modulo(a, b) AS CASE WHEN b = 0 AND a IS NOT NULL THEN error('division by zero') ELSE a % b END",
    "spark_start(s, p) AS CASE WHEN p > 0 THEN p - 1 WHEN p < 0 THEN length(s) + p ELSE 0 END",
    "spark_between(s, a, b) AS substr(s, greatest(a, 0) + 1, greatest(b - greatest(a, 0), 0))",
    "spark_substring(s, p, n) AS CASE WHEN s IS NULL OR p IS NULL OR n IS NULL THEN NULL"
    " ELSE spark_between(s, spark_start(s, p), spark_start(s, p) + n) END",
    # Letters whose upper and lower case both sides know alike: others are seldom, and Java has rules of its own.
    r"spark_letters(s, x) AS CASE WHEN regexp_matches(s, '[^\x00-\x{DE}\x{E0}-\x{FE}\x{400}-\x{45F}\x{3040}-\x{30FF}"
    r"\x{4E00}-\x{9FFF}\x{AC00}-\x{D7A3}\x{1F300}-\x{1F9FF}\x{2010}-\x{206F}\x{20AC}]|[\x{AA}\x{B5}\x{BA}]')"
    r" THEN error('Spark alone answers this: upper and lower case of ' || s) ELSE x END",
    r"spark_ascii(s, x) AS CASE WHEN regexp_matches(s, '[^\x00-\x7F]')"
    r" THEN error('Spark alone answers this: letters beyond ASCII in ' || s) ELSE x END",
    # Neither marks that belong to the letter before, nor flags, nor joined signs.
    r"spark_simple(s, x) AS CASE WHEN regexp_matches(s, '[\x{300}-\x{36F}\x{600}-\x{10FF}\x{1100}-\x{11FF}\x{1A00}-"
    r"\x{1DFF}\x{200B}-\x{200F}\x{20D0}-\x{20FF}\x{A000}-\x{ABFF}\x{FE00}-\x{FE2F}\x{1F000}-\x{10FFFF}]|\r\n')"
    r" THEN error('Spark alone answers this: joined letters in ' || s) ELSE x END",
    "spark_unless(s, p, x) AS CASE WHEN regexp_matches(s, p)"
    " THEN error('Spark alone answers this: the text ' || s) ELSE x END",
    "spark_round(x, d) AS CASE WHEN abs(x) < 1e17 THEN CAST(round(CAST(CAST(x AS VARCHAR) AS DECIMAL(38, 19)), d) AS DOUBLE)"
    " ELSE x END",
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


# -- texts ---------------------------------------------------------------------------------------------------


@function("length", "char_length", "character_length", "len")
def _length(args: Sequence[Typed]) -> Result:
    check(args, 1)
    if args[0].type == BINARY:
        return f"CAST(octet_length({args[0].sql}) AS INTEGER)", INT
    return f"CAST(length({string(args[0])}) AS INTEGER)", INT


@function("octet_length")
def _octet_length(args: Sequence[Typed]) -> Result:
    check(args, 1)
    return f"CAST(strlen({string(args[0])}) AS INTEGER)", INT


@function("substring", "substr")
def _substring(args: Sequence[Typed]) -> Result:
    check(args, 2, 3)
    # Positions are counted in 64 bits: the start and the length may add up to more than 32 hold.
    parts = [f"CAST({integer(each)} AS BIGINT)" for each in args[1:]]
    return (
        f"spark_substring({string(args[0])}, {parts[0]}, {parts[1] if len(parts) == 2 else '2147483647::BIGINT'})",
        STRING,
    )


@function("left")
def _left(args: Sequence[Typed]) -> Result:
    check(args, 2)
    return f"substr({string(args[0])}, 1, greatest({integer(args[1])}, CAST({args[1].sql} * 0 AS INTEGER)))", STRING


@function("right")
def _right(args: Sequence[Typed]) -> Result:
    check(args, 2)
    s, n = string(args[0]), integer(args[1])
    return f"CASE WHEN {n} <= 0 THEN CASE WHEN {s} IS NOT NULL THEN '' END ELSE right({s}, {n}) END", STRING


@function("concat")
def _concat(args: Sequence[Typed]) -> Result:
    if not args:
        raise WrongArguments
    if all(pa.types.is_list(each.type) for each in args):
        parts, type = together(args, "concat")
        missing = " OR ".join(f"{each} IS NULL" for each in parts)
        return f"CASE WHEN {missing} THEN NULL ELSE list_concat({', '.join(parts)}) END", type
    return "(" + " || ".join(string(each) for each in args) + ")", STRING


@function("concat_ws")
def _concat_ws(args: Sequence[Typed]) -> Result:
    if len(args) < 2:
        raise WrongArguments
    return f"concat_ws({', '.join(string(each) for each in args)})", STRING


for _name in ("upper", "lower"):

    @function(_name, "ucase" if _name == "upper" else "lcase")
    def _case(args: Sequence[Typed], name: str = _name) -> Result:
        check(args, 1)
        s = string(args[0])
        return f"spark_letters({s}, {name}({s}))", STRING


for _name in ("trim", "ltrim", "rtrim"):

    @function(_name)
    def _trim(args: Sequence[Typed], name: str = _name) -> Result:
        check(args, 1)
        return f"{name}({string(args[0])}, ' ')", STRING


for _name in ("lpad", "rpad"):

    @function(_name)
    def _pad(args: Sequence[Typed], name: str = _name) -> Result:
        check(args, 2, 3)
        pad = literal_string(args[2]) if len(args) == 3 else " "
        if not pad:
            raise WrongArguments
        return f"{name}({string(args[0])}, {integer(args[1])}, {text(pad)})", STRING


@function("replace")
def _replace(args: Sequence[Typed]) -> Result:
    check(args, 2, 3)
    parts = [string(each) for each in args] + (["''"] if len(args) == 2 else [])
    return f"replace({', '.join(parts)})", STRING


@function("repeat")
def _repeat(args: Sequence[Typed]) -> Result:
    check(args, 2)
    return f"repeat({string(args[0])}, greatest({integer(args[1])}, CAST({args[1].sql} * 0 AS INTEGER)))", STRING


@function("reverse")
def _reverse(args: Sequence[Typed]) -> Result:
    check(args, 1)
    if pa.types.is_list(args[0].type):
        return f"list_reverse({args[0].sql})", args[0].type
    s = string(args[0])
    return f"spark_simple({s}, reverse({s}))", STRING


@function("instr")
def _instr(args: Sequence[Typed]) -> Result:
    check(args, 2)
    return f"CAST(instr({string(args[0])}, {string(args[1])}) AS INTEGER)", INT


@function("locate", "position")
def _locate(args: Sequence[Typed]) -> Result:
    check(args, 2)
    return f"CAST(instr({string(args[1])}, {string(args[0])}) AS INTEGER)", INT


@function("startswith")
def _startswith(args: Sequence[Typed]) -> Result:
    check(args, 2)
    return f"starts_with({string(args[0])}, {string(args[1])})", BOOL


@function("endswith")
def _endswith(args: Sequence[Typed]) -> Result:
    check(args, 2)
    return f"ends_with({string(args[0])}, {string(args[1])})", BOOL


@function("contains")
def _contains(args: Sequence[Typed]) -> Result:
    check(args, 2)
    return f"contains({string(args[0])}, {string(args[1])})", BOOL


@function("initcap")
def _initcap(args: Sequence[Typed]) -> Result:
    check(args, 1)
    s = string(args[0])
    words = f"list_transform(string_split(lower({s}), ' '), lambda each: upper(substr(each, 1, 1)) || substr(each, 2))"
    return f"spark_ascii({s}, array_to_string({words}, ' '))", STRING


@function("translate")
def _translate(args: Sequence[Typed]) -> Result:
    check(args, 3)
    before, after = literal_string(args[1]), literal_string(args[2])
    if len(set(before)) != len(before) or not before:
        raise WrongArguments
    return f"spark_simple({string(args[0])}, translate({string(args[0])}, {text(before)}, {text(after)}))", STRING


@function("md5")
def _md5(args: Sequence[Typed]) -> Result:
    check(args, 1)
    return f"md5({string(args[0])})", STRING


@function("sha2")
def _sha2(args: Sequence[Typed]) -> Result:
    check(args, 2)
    if literal_int(args[1]) not in (0, 256):
        raise WrongArguments
    return f"sha256({string(args[0])})", STRING


@function("ascii")
def _ascii(args: Sequence[Typed]) -> Result:
    check(args, 1)
    return f"CAST(spark_simple({string(args[0])}, ascii({string(args[0])})) AS INTEGER)", INT


# -- regular expressions -------------------------------------------------------------------------------------


def _guarded(s: str, unless: Sequence[str], sql: str) -> str:
    for each in unless:
        sql = f"spark_unless({s}, {text(each)}, {sql})"
    return sql


@function("rlike", "regexp_like", "regexp")
def _rlike(args: Sequence[Typed]) -> Result:
    check(args, 2)
    regex, s = to_re2(literal_string(args[1])), string(args[0])
    return _guarded(s, regex.unless, f"regexp_matches({s}, {text(regex.pattern)})"), BOOL


@function("regexp_extract")
def _regexp_extract(args: Sequence[Typed]) -> Result:
    check(args, 2, 3)
    regex, s = to_re2(literal_string(args[1])), string(args[0])
    group = literal_int(args[2]) if len(args) == 3 else 1
    if not 0 <= group <= regex.groups:
        raise NeedsSpark(f"group {group} of {args[1].name}")
    return _guarded(s, regex.unless, f"regexp_extract({s}, {text(regex.pattern)}, {group})"), STRING


@function("regexp_replace")
def _regexp_replace(args: Sequence[Typed]) -> Result:
    check(args, 3)
    regex, s = to_re2(literal_string(args[1])), string(args[0])
    if regex.may_be_empty:
        raise NeedsSpark(f"{args[1].name} replaced, which matches nothing at all too,")
    by = to_re2_replacement(literal_string(args[2]), regex.groups)
    return _guarded(s, regex.unless, f"regexp_replace({s}, {text(regex.pattern)}, {text(by)}, 'g')"), STRING


@function("regexp_count")
def _regexp_count(args: Sequence[Typed]) -> Result:
    check(args, 2)
    regex, s = to_re2(literal_string(args[1])), string(args[0])
    if regex.may_be_empty:
        raise NeedsSpark(f"{args[1].name} counted, which matches nothing at all too,")
    return _guarded(s, regex.unless, f"CAST(len(regexp_extract_all({s}, {text(regex.pattern)})) AS INTEGER)"), INT


@function("split")
def _split(args: Sequence[Typed]) -> Result:
    check(args, 2)
    regex, s = to_re2(literal_string(args[1])), string(args[0])
    if regex.may_be_empty:
        raise NeedsSpark(f"a split at {args[1].name!r}")
    return _guarded(s, regex.unless, f"string_split_regex({s}, {text(regex.pattern)})"), pa.list_(STRING)


@function("split_part")
def _split_part(args: Sequence[Typed]) -> Result:
    check(args, 3)
    if not literal_string(args[1]) or literal_int(args[2]) < 1:
        raise WrongArguments
    return f"split_part({string(args[0])}, {text(args[1].value)}, {args[2].value})", STRING


def call(name: str, args: Sequence[Typed]) -> Result:
    """A function by its name. Raises: `NeedsSpark`."""
    found = FUNCTIONS.get(name)
    if found is None:
        raise NeedsSpark(f"the function {name}")
    try:
        return found(args)
    except WrongArguments:
        kinds = ", ".join(shown(each.type) for each in args)
        raise NeedsSpark(f"the function {name} of ({kinds})") from None
