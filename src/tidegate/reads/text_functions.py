"""Functions of Spark SQL about texts and regular expressions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from tidegate.reads.regex import to_re2, to_re2_replacement
from tidegate.reads.spark_functions import (
    Result,
    WrongArguments,
    check,
    function,
    integer,
    literal_int,
    literal_string,
    string,
    together,
)
from tidegate.reads.spark_types import BINARY, BOOL, INT, STRING, NeedsSpark, Typed, text

MACROS: Final = (
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
)


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


@function("chr", "char")
def _chr(args: Sequence[Typed]) -> Result:
    check(args, 1)
    number = integer(args[0])
    return f"CASE WHEN {number} < 0 THEN '' ELSE chr(CAST({number} & 255 AS INTEGER)) END", STRING


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
