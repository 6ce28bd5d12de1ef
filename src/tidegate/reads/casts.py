"""CAST as Spark 4 does it: cut towards zero, strict about texts, and an error for what does not fit."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from tidegate.reads.spark_types import (
    BINARY,
    BOOL,
    DATE,
    DOUBLE,
    FLOAT,
    LONG,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    VOID,
    NeedsSpark,
    duck,
    is_decimal,
    is_float,
    is_integer,
    is_list,
    is_number,
    is_time,
    shown,
)

UNANSWERED: Final = "Spark alone answers this"
"""In the text of an error of DuckDB: it met a value for which the translation does not hold."""

MACROS: Final = (
    # A text that Spark takes for a number, without the blanks around it.
    r"spark_trimmed(x) AS regexp_replace(x, '^[\x00-\x20]+|[\x00-\x20]+\z', '', 'g')",
    r"spark_integer(x) AS CASE WHEN x IS NULL THEN NULL WHEN regexp_full_match(spark_trimmed(x), '[+-]?[0-9]+')"
    r" THEN ltrim(spark_trimmed(x), '+') ELSE error('cannot cast ''' || x || ''' to an integer') END",
    r"spark_fraction(x) AS CASE WHEN x IS NULL THEN NULL WHEN regexp_full_match(spark_trimmed(x),"
    r" '[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,3})?') THEN ltrim(spark_trimmed(x), '+')"
    r" ELSE error('cannot cast ''' || x || ''' to a number') END",
    r"spark_double(x) AS CAST(CASE WHEN x IS NULL THEN NULL"
    r" WHEN regexp_full_match(lower(spark_trimmed(x)), 'nan|[+-]?(inf|infinity)') THEN ltrim(spark_trimmed(x), '+')"
    r" WHEN regexp_full_match(lower(spark_trimmed(x)), '.*[0-9.][fd]')"
    r" THEN error('Spark alone answers this: the number ''' || x || '''')"
    r" ELSE spark_fraction(x) END AS DOUBLE)",
    r"spark_boolean(x) AS CASE WHEN x IS NULL THEN NULL"
    r" WHEN lower(spark_trimmed(x)) IN ('t', 'true', 'y', 'yes', '1') THEN true"
    r" WHEN lower(spark_trimmed(x)) IN ('f', 'false', 'n', 'no', '0') THEN false"
    r" ELSE error('cannot cast ''' || x || ''' to BOOLEAN') END",
    r"spark_date(x) AS CAST(CASE WHEN x IS NULL THEN NULL"
    r" WHEN regexp_matches(spark_trimmed(x), '^[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}([ T]|\z)')"
    r" THEN regexp_extract(spark_trimmed(x), '^[0-9-]+')"
    r" WHEN regexp_full_match(spark_trimmed(x), '[0-9]{4}-[0-9]{1,2}') THEN spark_trimmed(x) || '-01'"
    r" WHEN regexp_full_match(spark_trimmed(x), '[0-9]{4}') THEN spark_trimmed(x) || '-01-01'"
    r" WHEN regexp_matches(spark_trimmed(x), '^[+-]?[0-9]{5,}') THEN error('Spark alone answers this: the date ' || x)"
    r" ELSE error('cannot cast ''' || x || ''' to DATE') END AS DATE)",
    r"spark_ntz(x) AS CAST(CASE WHEN x IS NULL THEN NULL"
    r" WHEN regexp_full_match(spark_trimmed(x),"
    r" '[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}([ T][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?)?')"
    r" THEN replace(spark_trimmed(x), 'T', ' ')"
    r" WHEN regexp_full_match(spark_trimmed(x), '[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}[ T][0-9]{2}:[0-9]{2}')"
    r" THEN replace(spark_trimmed(x), 'T', ' ') || ':00'"
    r" WHEN regexp_matches(spark_trimmed(x), '^[+-]?[0-9T]') THEN error('Spark alone answers this: the time ' || x)"
    r" ELSE error('cannot cast ''' || x || ''' to TIMESTAMP') END AS TIMESTAMP)",
    # Decimals: the digits as one integer, and back.
    "spark_digits(x) AS CAST(replace(CAST(x AS VARCHAR), '.', '') AS HUGEINT)",
    "spark_padded(d, s) AS CASE WHEN length(d) <= s THEN lpad(d, s + 1, '0') ELSE d END",
    "spark_pointed(d, s) AS left(d, length(d) - s) || '.' || right(d, s)",
    # A lambda over one element holds a value, which would be written out as often as it is used.
    "spark_scaled(x, s) AS list_transform([x], lambda held: CASE WHEN held < 0 THEN '-' ELSE '' END"
    " || spark_pointed(spark_padded(CAST(abs(held) AS VARCHAR), s), s))[1]",
    "spark_half_up(a, b) AS list_transform([struct_pack(a := a, b := b)], lambda held: held.a // held.b"
    " + CASE WHEN 2 * abs(held.a % held.b) >= abs(held.b) THEN"
    " CASE WHEN (held.a < 0) = (held.b < 0) THEN 1 ELSE -1 END ELSE 0 END)[1]",
    "spark_shown_date(x) AS CASE WHEN year(x) BETWEEN 1 AND 9999 THEN CAST(x AS VARCHAR) WHEN x IS NULL THEN NULL"
    " ELSE error('Spark alone answers this: a year beyond 9999') END",
    "spark_seconds(x) AS CASE WHEN x BETWEEN -62135596800 AND 253402300799"
    " THEN make_timestamptz(CAST(x AS BIGINT) * 1000000) WHEN x IS NULL THEN NULL"
    " ELSE error('Spark alone answers this: a year beyond 9999') END",
)


def cast(sql: str, source: pa.DataType, target: pa.DataType) -> str:
    """What DuckDB says for `CAST(sql AS target)` of Spark. Raises: `NeedsSpark`."""
    if source == target:
        return sql
    to = duck(target)
    if source == VOID:
        return f"CAST({sql} AS {to})"
    if target == STRING:
        return _to_string(sql, source)
    if source == STRING:
        return _from_string(sql, target)
    if is_number(source) and is_number(target):
        return _number(sql, source, target)
    plain = (
        (source == BOOL and (is_integer(target) or target in (FLOAT, DOUBLE)))
        or (target == BOOL and (is_integer(source) or source == DOUBLE))
        or (source == DATE and is_time(target))
    )
    if plain:
        return f"CAST({sql} AS {to})"
    if is_time(source) and target == DATE:
        return f"CAST({naive(sql, source)} AS DATE)"
    if source == TIMESTAMP and target == TIMESTAMP_NTZ:
        return naive(sql, source)
    if source == TIMESTAMP_NTZ and target == TIMESTAMP:
        return f"({sql} AT TIME ZONE 'UTC')"
    if source == TIMESTAMP and target == DOUBLE:
        return f"(CAST(epoch_us({sql}) AS DOUBLE) / 1000000.0::DOUBLE)"
    if source == TIMESTAMP and target == LONG:
        return f"CAST(floor(epoch_us({sql}) / 1000000) AS BIGINT)"
    if is_integer(source) and target == TIMESTAMP:
        return f"spark_seconds({sql})"
    if is_list(source) and is_list(target):
        return f"list_transform({sql}, lambda each: {cast('each', source.value_type, target.value_type)})"
    raise NeedsSpark(f"a CAST from {shown(source)} to {shown(target)}")


def naive(sql: str, type: pa.DataType) -> str:
    """A time without its zone, which is UTC."""
    if type == TIMESTAMP:
        return f"({sql} AT TIME ZONE 'UTC')"
    return f"CAST({sql} AS TIMESTAMP)" if type == DATE else sql


def _number(sql: str, source: pa.DataType, target: pa.DataType) -> str:
    to = duck(target)
    if is_integer(target) and not is_integer(source):
        return f"CAST(trunc({sql}) AS {to})"
    if is_decimal(target) and source == DOUBLE:
        # Over its shortest text: the digits that a reader sees are the ones that are rounded.
        return f"CAST(CAST({sql} AS VARCHAR) AS {to})"
    if is_decimal(target) and source == FLOAT:
        raise NeedsSpark(f"a CAST from FLOAT to {shown(target)}")
    if is_decimal(source) and is_float(target):
        return f"CAST(CAST({sql} AS VARCHAR) AS {to})"
    return f"CAST({sql} AS {to})"


def _to_string(sql: str, source: pa.DataType) -> str:
    if is_integer(source) or source == BOOL:
        return f"CAST({sql} AS VARCHAR)"
    if is_decimal(source):
        shown_sql = f"CAST({sql} AS VARCHAR)"
        # DuckDB leaves the 0 before the point out where a DECIMAL has no digit there.
        return f"replace({shown_sql}, '.', '0.')" if source.precision == source.scale else shown_sql
    if source == DATE:
        return f"spark_shown_date({sql})"
    if is_time(source):
        return f"spark_shown_date({naive(sql, source)})"
    raise NeedsSpark(f"a CAST from {shown(source)} to STRING")


def _from_string(sql: str, target: pa.DataType) -> str:
    if is_integer(target):
        return f"CAST(spark_integer({sql}) AS {duck(target)})"
    if is_decimal(target):
        return f"CAST(spark_fraction({sql}) AS {duck(target)})"
    if target == DOUBLE:
        return f"spark_double({sql})"
    if target == BOOL:
        return f"spark_boolean({sql})"
    if target == DATE:
        return f"spark_date({sql})"
    if target == TIMESTAMP_NTZ:
        return f"spark_ntz({sql})"
    if target == TIMESTAMP:
        return f"(spark_ntz({sql}) AT TIME ZONE 'UTC')"
    if target == BINARY:
        return f"encode({sql})"
    raise NeedsSpark(f"a CAST from STRING to {shown(target)}")


def try_cast(sql: str, source: pa.DataType, target: pa.DataType) -> str:
    """`TRY_CAST`: NULL for what does not fit. Raises: `NeedsSpark`."""
    if source == STRING and (is_integer(target) or is_decimal(target)):
        form = "[+-]?[0-9]+" if is_integer(target) else r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,3})?"
        fits = f"regexp_full_match(spark_trimmed({sql}), '{form}')"
        return f"TRY_CAST(CASE WHEN {fits} THEN ltrim(spark_trimmed({sql}), '+') END AS {duck(target)})"
    if source == STRING and target == DATE:
        fits = f"regexp_matches(spark_trimmed({sql}), '^[0-9]{{4}}-[0-9]{{1,2}}-[0-9]{{1,2}}([ T]|\\z)')"
        day = f"TRY_CAST(regexp_extract(spark_trimmed({sql}), '^[0-9-]+') AS DATE)"
        other = f"regexp_matches(spark_trimmed({sql}), '^[+-]?[0-9]{{4,}}(-[0-9]{{1,2}})?\\z')"
        return (
            f"CASE WHEN {fits} THEN {day} WHEN {other}"
            f" THEN error('Spark alone answers this: the date ' || {sql}) ELSE NULL END"
        )
    if is_number(source) and is_number(target) and not (is_decimal(target) and is_float(source)):
        inner = f"trunc({sql})" if is_integer(target) and not is_integer(source) else sql
        return f"TRY_CAST({inner} AS {duck(target)})"
    raise NeedsSpark(f"TRY_CAST from {shown(source)} to {shown(target)}")
