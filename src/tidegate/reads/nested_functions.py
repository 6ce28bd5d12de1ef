"""Functions of Spark SQL about arrays, maps, structs and JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from tidegate.reads.casts import cast
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
from tidegate.reads.spark_types import (
    BOOL,
    INT,
    LONG,
    STRING,
    VOID,
    NeedsSpark,
    Typed,
    duck,
    is_integer,
    is_list,
    is_map,
    is_nested,
    is_struct,
    quoted,
    shown,
    text,
    wider,
)

MACROS: Final = (
    "spark_at(a, i) AS CASE WHEN a IS NULL OR i IS NULL THEN NULL WHEN i < 0 OR i >= len(a)"
    " THEN error('the index ' || i || ' is out of bounds') ELSE a[i + 1] END",
    "spark_element(a, i) AS CASE WHEN a IS NULL OR i IS NULL THEN NULL WHEN i = 0 OR abs(i) > len(a)"
    " THEN error('the index ' || i || ' is out of bounds') ELSE a[i] END",
    "spark_contains(a, x) AS CASE WHEN x IS NULL THEN NULL WHEN list_contains(a, x) THEN true"
    " WHEN list_position(a, NULL) IS NOT NULL THEN NULL WHEN a IS NULL THEN NULL ELSE false END",
    "spark_distinct(a) AS list_filter(a, lambda each, i: list_position(a, each) = i)",
    "spark_json(s, p) AS CASE WHEN s IS NULL THEN NULL WHEN NOT json_valid(s)"
    " THEN error('Spark alone answers this: JSON that is not strict') ELSE CASE json_type(s, p)"
    " WHEN 'OBJECT' THEN error('Spark alone answers this: an object in JSON')"
    " WHEN 'ARRAY' THEN error('Spark alone answers this: an array in JSON')"
    " WHEN 'DOUBLE' THEN error('Spark alone answers this: a fraction in JSON')"
    " ELSE json_extract_string(s, p) END END",
)


def items(arg: Typed) -> pa.DataType:
    """The type of an array's elements; simple ones, which can be compared."""
    if not is_list(arg.type) or is_nested(arg.type.value_type):
        raise WrongArguments
    return arg.type.value_type


@function("array")
def _array(args: Sequence[Typed]) -> Result:
    if not args:
        raise WrongArguments
    found, type = together(args, "array")
    if type == VOID:
        raise WrongArguments
    return f"[{', '.join(found)}]", pa.list_(type)


@function("size", "cardinality", "array_size")
def _size(args: Sequence[Typed]) -> Result:
    check(args, 1)
    if is_map(args[0].type):
        return f"CAST(cardinality({args[0].sql}) AS INTEGER)", INT
    if is_list(args[0].type):
        return f"CAST(len({args[0].sql}) AS INTEGER)", INT
    raise WrongArguments


def at(arg: Typed, key: Typed) -> Result:
    """`arg[key]`: of an array from 0 on, of a map by its key. Raises: `NeedsSpark`."""
    if is_list(arg.type) and is_integer(key.type):
        return f"spark_at({arg.sql}, {key.sql})", arg.type.value_type
    if is_map(arg.type) and (key.type == arg.type.key_type or (is_integer(key.type) and is_integer(arg.type.key_type))):
        type = wider(arg.type.key_type, key.type, "a key")
        if type != arg.type.key_type:
            raise NeedsSpark("a key wider than those of the map")
        return f"{arg.sql}[{cast(key.sql, key.type, type)}]", arg.type.item_type
    if is_struct(arg.type) and isinstance(key.value, str):
        return field(arg, key.value)
    raise NeedsSpark(f"{shown(arg.type)}[{shown(key.type)}]")


def field(arg: Typed, name: str) -> Result:
    """A field of a struct, or of all structs in an array. Raises: `NeedsSpark`."""
    if not is_struct(arg.type):
        raise NeedsSpark(f"{arg.name}.{name}")
    for each in arg.type:
        if each.name.casefold() == name.casefold():
            return f"struct_extract({arg.sql}, {text(each.name)})", each.type
    raise NeedsSpark(f"{arg.name}.{name}")


@function("element_at")
def _element_at(args: Sequence[Typed]) -> Result:
    check(args, 2)
    if is_list(args[0].type):
        return f"spark_element({args[0].sql}, {integer(args[1])})", args[0].type.value_type
    if is_map(args[0].type):
        return at(*args)
    raise WrongArguments


@function("get")
def _get(args: Sequence[Typed]) -> Result:
    check(args, 2)
    if not is_list(args[0].type):
        raise WrongArguments
    index = integer(args[1])
    return f"CASE WHEN {index} >= 0 THEN {args[0].sql}[{index} + 1] END", args[0].type.value_type


@function("array_contains")
def _array_contains(args: Sequence[Typed]) -> Result:
    check(args, 2)
    if args[1].type == VOID:
        raise WrongArguments
    type = wider(items(args[0]), args[1].type, "array_contains")
    return (
        f"spark_contains({cast(args[0].sql, args[0].type, pa.list_(type))}, {cast(args[1].sql, args[1].type, type)})",
        BOOL,
    )


@function("array_position")
def _array_position(args: Sequence[Typed]) -> Result:
    check(args, 2)
    if args[1].type == VOID:
        raise WrongArguments
    type = wider(items(args[0]), args[1].type, "array_position")
    a, x = cast(args[0].sql, args[0].type, pa.list_(type)), cast(args[1].sql, args[1].type, type)
    return (
        f"CASE WHEN {a} IS NULL OR {x} IS NULL THEN NULL ELSE CAST(coalesce(list_position({a}, {x}), 0) AS BIGINT) END",
        LONG,
    )


@function("array_remove")
def _array_remove(args: Sequence[Typed]) -> Result:
    check(args, 2)
    type = items(args[0])
    if args[1].type == VOID or wider(type, args[1].type, "array_remove") != type:
        raise WrongArguments
    x = cast(args[1].sql, args[1].type, type)
    kept = f"list_filter({args[0].sql}, lambda each: each IS DISTINCT FROM {x})"
    return f"CASE WHEN {x} IS NOT NULL THEN {kept} END", args[0].type


@function("array_append")
def _array_append(args: Sequence[Typed]) -> Result:
    check(args, 2)
    type = wider(args[0].type.value_type if is_list(args[0].type) else VOID, args[1].type, "array_append")
    a = cast(args[0].sql, args[0].type, pa.list_(type))
    return f"CASE WHEN {a} IS NOT NULL THEN list_append({a}, {cast(args[1].sql, args[1].type, type)}) END", pa.list_(
        type
    )


@function("array_distinct")
def _array_distinct(args: Sequence[Typed]) -> Result:
    check(args, 1)
    items(args[0])
    return f"spark_distinct({args[0].sql})", args[0].type


for _name in ("max", "min"):

    @function(f"array_{_name}")
    def _array_extreme(args: Sequence[Typed], name: str = _name) -> Result:
        check(args, 1)
        return f"list_{name}({args[0].sql})", items(args[0])


@function("sort_array")
def _sort_array(args: Sequence[Typed]) -> Result:
    check(args, 1, 2)
    items(args[0])
    if len(args) == 2 and not isinstance(args[1].value, bool):
        raise WrongArguments
    down = len(args) == 2 and not args[1].value
    order = "'DESC', 'NULLS LAST'" if down else "'ASC', 'NULLS FIRST'"
    return f"list_sort({args[0].sql}, {order})", args[0].type


@function("array_sort")
def _array_sort(args: Sequence[Typed]) -> Result:
    check(args, 1)
    items(args[0])
    return f"list_sort({args[0].sql}, 'ASC', 'NULLS LAST')", args[0].type


@function("array_join")
def _array_join(args: Sequence[Typed]) -> Result:
    check(args, 2, 3)
    if items(args[0]) != STRING:
        raise WrongArguments
    a, by = args[0].sql, string(args[1])
    if len(args) == 3:
        a = f"list_transform({a}, lambda each: coalesce(each, {string(args[2])}))"
    else:
        a = f"list_filter({a}, lambda each: each IS NOT NULL)"
    return f"CASE WHEN {args[0].sql} IS NOT NULL THEN coalesce(array_to_string({a}, {by}), '') END", STRING


@function("slice")
def _slice(args: Sequence[Typed]) -> Result:
    check(args, 3)
    start, count = literal_int(args[1]), literal_int(args[2])
    if not is_list(args[0].type) or start < 1 or count < 0:
        raise WrongArguments
    return f"list_slice({args[0].sql}, {start}, {start + count - 1})", args[0].type


@function("flatten")
def _flatten(args: Sequence[Typed]) -> Result:
    check(args, 1)
    if not is_list(args[0].type) or not is_list(args[0].type.value_type):
        raise WrongArguments
    a = args[0].sql
    return f"CASE WHEN list_position({a}, NULL) IS NULL THEN flatten({a}) END", args[0].type.value_type


@function("sequence")
def _sequence(args: Sequence[Typed]) -> Result:
    check(args, 2)
    (low, high), type = together(args, "sequence")
    if not is_integer(type):
        raise WrongArguments
    step = f"CASE WHEN {low} <= {high} THEN 1 ELSE -1 END"
    return f"CAST(generate_series({low}, {high}, {step}) AS {duck(pa.list_(type))})", pa.list_(type)


# -- maps and structs ----------------------------------------------------------------------------------------


@function("map")
def _map(args: Sequence[Typed]) -> Result:
    if not args or len(args) % 2:
        raise WrongArguments
    keys, key_type = together(args[::2], "map")
    values, value_type = together(args[1::2], "map")
    if is_nested(key_type) or VOID in (key_type, value_type):
        raise WrongArguments
    return f"map([{', '.join(keys)}], [{', '.join(values)}])", pa.map_(key_type, value_type)


@function("map_from_arrays")
def _map_from_arrays(args: Sequence[Typed]) -> Result:
    check(args, 2)
    if not is_list(args[1].type):
        raise WrongArguments
    return f"map({args[0].sql}, {args[1].sql})", pa.map_(items(args[0]), args[1].type.value_type)


@function("map_keys")
def _map_keys(args: Sequence[Typed]) -> Result:
    check(args, 1)
    if not is_map(args[0].type):
        raise WrongArguments
    return f"map_keys({args[0].sql})", pa.list_(args[0].type.key_type)


@function("map_values")
def _map_values(args: Sequence[Typed]) -> Result:
    check(args, 1)
    if not is_map(args[0].type):
        raise WrongArguments
    return f"map_values({args[0].sql})", pa.list_(args[0].type.item_type)


@function("map_contains_key")
def _map_contains_key(args: Sequence[Typed]) -> Result:
    check(args, 2)
    if not is_map(args[0].type) or args[1].type != args[0].type.key_type:
        raise WrongArguments
    return f"list_contains(map_keys({args[0].sql}), {args[1].sql})", BOOL


@function("named_struct")
def _named_struct(args: Sequence[Typed]) -> Result:
    if not args or len(args) % 2:
        raise WrongArguments
    return struct([literal_string(each) for each in args[::2]], args[1::2])


def struct(names: Sequence[str], values: Sequence[Typed]) -> Result:
    """Raises: `NeedsSpark` for two fields of one name, which DuckDB does not tell apart."""
    if len({each.casefold() for each in names}) < len(names) or VOID in [each.type for each in values]:
        raise NeedsSpark("a struct with such fields")
    packed = ", ".join(f"{quoted(name)} := {each.sql}" for name, each in zip(names, values))
    return f"struct_pack({packed})", pa.struct([(name, each.type) for name, each in zip(names, values)])


@function("get_json_object")
def _get_json_object(args: Sequence[Typed]) -> Result:
    check(args, 2)
    path = literal_string(args[1])
    if not path.startswith("$.") or not all(each.isidentifier() for each in path[2:].split(".")):
        raise NeedsSpark(f"the path {path!r} in JSON")
    return f"spark_json({string(args[0])}, {text(path)})", STRING
