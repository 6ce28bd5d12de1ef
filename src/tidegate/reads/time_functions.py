"""Functions of Spark SQL about dates and times; times are UTC."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from tidegate.reads.casts import cast, naive
from tidegate.reads.spark_functions import (
    FUNCTIONS,
    Function,
    Result,
    WrongArguments,
    check,
    function,
    integer,
    literal_string,
)
from tidegate.reads.spark_types import (
    DATE,
    INT,
    LONG,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    VOID,
    NeedsSpark,
    Typed,
    decimal,
    is_integer,
    is_time,
    text,
)

MACROS: Final = (
    "spark_last(d) AS day(d) = day(last_day(d))",
    # A month has 31 days where two times are neither on the same day of their months nor both on the last.
    "spark_months(a, b) AS round(CASE WHEN day(a) = day(b) OR (spark_last(a) AND spark_last(b))"
    " THEN ((year(a) - year(b)) * 12 + month(a) - month(b))::DOUBLE"
    " ELSE ((year(a) - year(b)) * 12 + month(a) - month(b))::DOUBLE"
    " + ((day(a) - day(b)) * 86400 + spark_time(a) - spark_time(b))::DOUBLE / 2678400.0::DOUBLE END, 8)",
    "spark_time(x) AS hour(x) * 3600 + minute(x) * 60 + second(x)",
    "spark_short(x, y) AS CASE WHEN year(x) BETWEEN 1 AND 9999 THEN y WHEN x IS NULL THEN NULL"
    " ELSE error('Spark alone answers this: a year beyond 9999') END",
)

_PARTS: Final = {
    "year": "year({x})",
    "quarter": "quarter({x})",
    "month": "month({x})",
    "day": "day({x})",
    "dayofmonth": "day({x})",
    "dayofweek": "dayofweek({x}) + 1",
    "weekday": "isodow({x}) - 1",
    "dayofyear": "dayofyear({x})",
    "weekofyear": "weekofyear({x})",
    "hour": "hour({x})",
    "minute": "minute({x})",
    "second": "second({x})",
}
_EXTRACTED: Final = {
    "YEAR": "year", "QUARTER": "quarter", "MONTH": "month", "DAY": "day", "DAYOFWEEK": "dayofweek", "DOW": "dayofweek",
    "DOY": "dayofyear", "WEEK": "weekofyear", "HOUR": "hour", "MINUTE": "minute",
}  # fmt: skip
_TRUNCATED: Final = {
    "year": "year", "yyyy": "year", "yy": "year", "quarter": "quarter", "month": "month", "mm": "month", "mon": "month",
    "week": "week", "day": "day", "dd": "day", "hour": "hour", "minute": "minute", "second": "second",
}  # fmt: skip
_FORMATS: Final = {
    "yyyy": "%Y", "yy": "%y", "MM": "%m", "M": "%-m", "MMM": "%b", "MMMM": "%B", "dd": "%d", "d": "%-d", "HH": "%H",
    "H": "%-H", "hh": "%I", "h": "%-I", "mm": "%M", "m": "%-M", "ss": "%S", "s": "%-S", "a": "%p", "EEEE": "%A",
    "EEE": "%a", "E": "%a", "EE": "%a", "SSS": "%g", "SSSSSS": "%f",
}  # fmt: skip
_PARSED: Final = {"yyyy": 4, "MM": 2, "dd": 2, "HH": 2, "mm": 2, "ss": 2}


def date(arg: Typed) -> str:
    """An argument where Spark wants a DATE."""
    if arg.type in (DATE, VOID, STRING) or is_time(arg.type):
        return cast(arg.sql, arg.type, DATE)
    raise WrongArguments


def time(arg: Typed) -> str:
    """An argument where Spark wants a TIMESTAMP, without the zone."""
    if arg.type in (DATE, STRING, TIMESTAMP, TIMESTAMP_NTZ):
        source = arg.type if is_time(arg.type) else TIMESTAMP
        return naive(cast(arg.sql, arg.type, source), source)
    if arg.type == VOID:
        return f"CAST({arg.sql} AS TIMESTAMP)"
    raise WrongArguments


def zoned(sql: str) -> str:
    return f"({sql} AT TIME ZONE 'UTC')"


def _part_of(name: str) -> Function:
    def found(args: Sequence[Typed]) -> Result:
        check(args, 1)
        x = time(args[0]) if name in ("hour", "minute", "second") else date(args[0])
        return f"CAST({_PARTS[name].format(x=x)} AS INTEGER)", INT

    return found


FUNCTIONS.update((each, _part_of(each)) for each in _PARTS)


def extract(part: str, arg: Typed) -> Result:
    """`EXTRACT(part FROM arg)`. Raises: `NeedsSpark`."""
    part = part.upper().removesuffix("S") if part.upper() not in ("DOW", "DAYOFWEEK") else part.upper()
    if part == "SECOND":
        return f"CAST(spark_scaled(microsecond({time(arg)}), 6) AS DECIMAL(8, 6))", decimal(8, 6)
    if part not in _EXTRACTED:
        raise NeedsSpark(f"EXTRACT({part})")
    return FUNCTIONS[_EXTRACTED[part]]([arg])


@function("date_part", "datepart")
def _date_part(args: Sequence[Typed]) -> Result:
    check(args, 2)
    return extract(literal_string(args[0]), args[1])


@function("date_add", "dateadd")
def _date_add(args: Sequence[Typed]) -> Result:
    check(args, 2)
    return f"({date(args[0])} + {integer(args[1])})", DATE


@function("date_sub")
def _date_sub(args: Sequence[Typed]) -> Result:
    check(args, 2)
    return f"({date(args[0])} - {integer(args[1])})", DATE


@function("datediff", "date_diff")
def _datediff(args: Sequence[Typed]) -> Result:
    check(args, 2)
    return f"CAST({date(args[0])} - {date(args[1])} AS INTEGER)", INT


@function("add_months")
def _add_months(args: Sequence[Typed]) -> Result:
    check(args, 2)
    return f"CAST({date(args[0])} + to_months({integer(args[1])}) AS DATE)", DATE


@function("last_day")
def _last_day(args: Sequence[Typed]) -> Result:
    check(args, 1)
    return f"last_day({date(args[0])})", DATE


@function("months_between")
def _months_between(args: Sequence[Typed]) -> Result:
    check(args, 2)
    return f"spark_months({time(args[0])}, {time(args[1])})", pa.float64()


@function("trunc")
def _trunc(args: Sequence[Typed]) -> Result:
    check(args, 2)
    part = _TRUNCATED.get(literal_string(args[1]).lower())
    if part not in ("year", "quarter", "month", "week"):
        raise NeedsSpark(f"trunc to {args[1].name}")
    return f"CAST(date_trunc({text(part)}, {date(args[0])}) AS DATE)", DATE


@function("date_trunc")
def _date_trunc(args: Sequence[Typed]) -> Result:
    check(args, 2)
    part = _TRUNCATED.get(literal_string(args[0]).lower())
    if part is None or args[1].type == TIMESTAMP_NTZ:
        raise NeedsSpark(f"date_trunc to {args[0].name}")
    return zoned(f"CAST(date_trunc({text(part)}, {time(args[1])}) AS TIMESTAMP)"), TIMESTAMP


@function("date_format")
def _date_format(args: Sequence[Typed]) -> Result:
    check(args, 2)
    wanted = literal_string(args[1])
    out = []
    for token in _tokens(wanted):
        if token[0].isalpha():
            if token not in _FORMATS:
                raise NeedsSpark(f"the format {wanted!r}")
            out.append(_FORMATS[token])
        else:
            out.append(token.strip("'").replace("%", "%%") if token[0] == "'" else token.replace("%", "%%"))
    x = time(args[0])
    return f"spark_short({x}, strftime({x}, {text(''.join(out))}))", STRING


def _tokens(wanted: str) -> list[str]:
    """Runs of one letter, quoted texts, and single other signs. Raises: `NeedsSpark`."""
    found = [each.group() for each in re.finditer(r"([A-Za-z])\1*|'[^']+'|[^A-Za-z']", wanted)]
    if "".join(found) != wanted or any(each in "[]{}#" for each in found):
        raise NeedsSpark(f"the format {wanted!r}")
    return found


def _parsed(arg: Typed, form: Typed) -> str:
    """A text read by a format of fields with a fixed width; an error where it does not fit."""
    wanted = literal_string(form)
    pattern, directive = "", ""
    for token in _tokens(wanted):
        if token[0].isalpha():
            if token not in _PARSED:
                raise NeedsSpark(f"the format {wanted!r}")
            pattern += f"[0-9]{{{_PARSED[token]}}}"
            directive += _FORMATS[token]
        elif token in "-/.: _":
            pattern += re.escape(token)
            directive += token
        else:
            raise NeedsSpark(f"the format {wanted!r}")
    if not {"yyyy", "MM", "dd"} <= set(_tokens(wanted)) or arg.type != STRING:
        raise NeedsSpark(f"the format {wanted!r}")
    return (
        f"CASE WHEN {arg.sql} IS NULL THEN NULL WHEN regexp_full_match({arg.sql}, {text(pattern)})"
        f" THEN strptime({arg.sql}, {text(directive)}) ELSE error('cannot parse ' || {arg.sql}) END"
    )


@function("to_date")
def _to_date(args: Sequence[Typed]) -> Result:
    check(args, 1, 2)
    return (date(args[0]) if len(args) == 1 else f"CAST({_parsed(*args)} AS DATE)"), DATE


@function("to_timestamp")
def _to_timestamp(args: Sequence[Typed]) -> Result:
    check(args, 1, 2)
    return zoned(time(args[0]) if len(args) == 1 else f"CAST({_parsed(*args)} AS TIMESTAMP)"), TIMESTAMP


@function("make_date")
def _make_date(args: Sequence[Typed]) -> Result:
    check(args, 3)
    return f"make_date({', '.join(f'CAST({integer(each)} AS BIGINT)' for each in args)})", DATE


@function("unix_timestamp", "to_unix_timestamp")
def _unix_timestamp(args: Sequence[Typed]) -> Result:
    check(args, 1)
    if args[0].type not in (DATE, TIMESTAMP):
        raise WrongArguments
    # Cut towards zero, other than in unix_seconds.
    return f"(epoch_us({time(args[0])}) // 1000000)", LONG


for _name, _unit in (("unix_seconds", 1000000), ("unix_millis", 1000), ("unix_micros", 1)):

    @function(_name)
    def _unix(args: Sequence[Typed], unit: int = _unit) -> Result:
        check(args, 1)
        if args[0].type != TIMESTAMP:
            raise WrongArguments
        micros = f"epoch_us({args[0].sql})"
        return micros if unit == 1 else f"(({micros} - ({micros} % {unit} + {unit}) % {unit}) // {unit})", LONG


for _name, _unit in (("timestamp_seconds", 1000000), ("timestamp_millis", 1000), ("timestamp_micros", 1)):

    @function(_name)
    def _timestamp(args: Sequence[Typed], unit: int = _unit) -> Result:
        check(args, 1)
        if not is_integer(args[0].type):
            raise WrongArguments
        return f"make_timestamptz(CAST({args[0].sql} AS BIGINT) * {unit})", TIMESTAMP


@function("current_timestamp", "now")
def _now(args: Sequence[Typed]) -> Result:
    check(args, 0)
    return "current_timestamp", TIMESTAMP


@function("current_date", "curdate")
def _today(args: Sequence[Typed]) -> Result:
    check(args, 0)
    return "CAST(current_timestamp AT TIME ZONE 'UTC' AS DATE)", DATE


def shown_shift(arg: Typed, count: int, unit: str, sign: str) -> str:
    """How Spark shows a date or time and an INTERVAL: always in this order, and with the unit that it kept."""
    unit = unit.removesuffix("S")
    if unit == "WEEK":
        count, unit = count * 7, "DAY"
    width = 2 if unit in ("HOUR", "MINUTE", "SECOND") else 1
    interval = f"INTERVAL '{count:0{width}}' {unit}"
    if arg.type == DATE and unit == "DAY":
        days = f"extractansiintervaldays({interval})"
        return f"date_add({arg.name}, {days if sign == '+' else f'(- {days})'})"
    return f"{arg.name} {sign} {interval}"


_UNITS: Final = {"YEAR": 12, "MONTH": 1, "WEEK": 7 * 86400, "DAY": 86400, "HOUR": 3600, "MINUTE": 60, "SECOND": 1}


def shift(arg: Typed, count: str, unit: str, sign: str) -> Result:
    """A date or time and an INTERVAL of one unit. Raises: `NeedsSpark`."""
    unit = unit.upper().removesuffix("S")
    if unit not in _UNITS or not re.fullmatch(r"\d{1,6}", count) or arg.type not in (DATE, TIMESTAMP):
        raise NeedsSpark(f"INTERVAL {count} {unit} with a value of the type {arg.type}")
    amount = int(count) * _UNITS[unit]
    if unit in ("YEAR", "MONTH"):
        moved = f"{naive(arg.sql, arg.type)} {sign} to_months({amount})"
        return (f"CAST({moved} AS DATE)", DATE) if arg.type == DATE else (zoned(f"({moved})"), TIMESTAMP)
    if arg.type == DATE and unit in ("DAY", "WEEK"):
        return f"({arg.sql} {sign} {amount // 86400})", DATE
    return zoned(f"({naive(arg.sql, arg.type)} {sign} to_seconds({amount}))"), TIMESTAMP
