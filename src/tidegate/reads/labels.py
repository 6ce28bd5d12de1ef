"""How Spark names a column that is a call and has no alias."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tidegate.reads.spark_types import Typed

_CAPITALS: Final = frozenset(
    {
        "ceil",
        "floor",
        "sqrt",
        "power",
        "log10",
        "log2",
        "exp",
        "signum",
        "pi",
        "sin",
        "cos",
        "tan",
        "atan",
        "degrees",
        "radians",
        "regexp_like",
        "rank",
        "dense_rank",
        "percent_rank",
    }
)
_OTHERS: Final = {"array_agg": "collect_list", "string_agg": "listagg"}
_DEFAULTS: Final = {
    ("round", 1): ["0"],
    ("substring", 2): ["2147483647"],
    ("substr", 2): ["2147483647"],
    ("lpad", 2): [" "],
    ("rpad", 2): [" "],
    ("replace", 2): [""],
    ("locate", 2): ["1"],
    ("position", 2): ["1"],
    ("regexp_replace", 3): ["1"],
    ("regexp_extract", 2): ["1"],
    ("split", 2): ["-1"],
    ("months_between", 2): ["true"],
    ("unix_timestamp", 1): ["yyyy-MM-dd HH:mm:ss"],
    ("to_unix_timestamp", 1): ["yyyy-MM-dd HH:mm:ss"],
    ("sort_array", 1): ["true"],
    ("percentile", 2): ["1"],
    ("listagg", 1): ["NULL"],
    ("string_agg", 1): ["NULL"],
    ("lag", 1): ["1", "NULL"],
    ("lead", 1): ["1", "NULL"],
    ("lag", 2): ["NULL"],
    ("lead", 2): ["NULL"],
}
"""Arguments that Spark shows although they were not given."""
_VARIABLE: Final = "namedlambdavariable()"
_IN_ORDER: Final = (
    "lambdafunction((IF(((x IS NULL) AND (x IS NULL)), 0, (IF((x IS NULL), 1, (IF((x IS NULL), -1, (IF((x < x), -1,"
    " (IF((x > x), 1, 0)))))))))), x, x)"
).replace("x", _VARIABLE)


def called(name: str, args: Sequence[Typed], distinct: str = "") -> str:
    """The name of a call of a function."""
    names = [each.name for each in args]
    if name in ("isnull", "isnotnull"):
        return f"({names[0]} IS {'NOT ' if name == 'isnotnull' else ''}NULL)"
    if name in ("first", "first_value", "last", "last_value", "any_value"):
        # That NULLs are left out is not shown.
        names = names[:1]
    names += _DEFAULTS.get((name, len(names)), [])
    if name == "array_sort":
        names.append(_IN_ORDER)
    shown = name.upper() if name in _CAPITALS else _OTHERS.get(name, name)
    return f"{shown}({distinct}{', '.join(names)})"
