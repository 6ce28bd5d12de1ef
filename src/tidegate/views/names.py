"""What a query's functions are to views: which are aggregates, which have no fixed answer."""

from __future__ import annotations

import re
from typing import Final

from sqlglot import exp

AGGREGATES: Final = frozenset(
    [
        "any",
        "any_value",
        "approx_count_distinct",
        "approx_percentile",
        "approx_top_k",
        "array_agg",
        "avg",
        "bit_and",
        "bit_or",
        "bit_xor",
        "bool_and",
        "bool_or",
        "collect_list",
        "collect_set",
        "corr",
        "count",
        "count_if",
        "count_min_sketch",
        "covar_pop",
        "covar_samp",
        "every",
        "first",
        "first_value",
        "grouping",
        "grouping_id",
        "histogram_numeric",
        "hll_sketch_agg",
        "hll_union_agg",
        "kurtosis",
        "last",
        "last_value",
        "listagg",
        "max",
        "max_by",
        "mean",
        "median",
        "min",
        "min_by",
        "mode",
        "percentile",
        "percentile_approx",
        "percentile_cont",
        "percentile_disc",
        "regr_avgx",
        "regr_avgy",
        "regr_count",
        "regr_intercept",
        "regr_r2",
        "regr_slope",
        "regr_sxx",
        "regr_sxy",
        "regr_syy",
        "skewness",
        "some",
        "std",
        "stddev",
        "stddev_pop",
        "stddev_samp",
        "string_agg",
        "sum",
        "try_avg",
        "try_sum",
        "var_pop",
        "var_samp",
        "variance",
        "bitmap_construct_agg",
        "bitmap_or_agg",
    ]
)
UNSETTLED: Final = {
    **dict.fromkeys(
        ("now", "current_timestamp", "localtimestamp", "current_date", "curdate", "current_time", "unix_timestamp"),
        "gives another answer every time",
    ),
    **dict.fromkeys(("sysdate", "getdate"), "gives another answer every time"),
    **dict.fromkeys(
        ("rand", "randn", "random", "uuid", "shuffle", "uniform", "randstr", "aes_encrypt"),
        "is random",
    ),
    **dict.fromkeys(
        ("monotonically_increasing_id", "spark_partition_id", "input_file_name", "current_timezone", "version"),
        "depends on how and where it is computed",
    ),
    **dict.fromkeys(("input_file_block_length", "input_file_block_start"), "depends on how and where it is computed"),
    **dict.fromkeys(("reflect", "try_reflect", "java_method"), "may give another answer every time"),
    **dict.fromkeys(
        ("current_user", "user", "session_user", "current_catalog", "current_database", "current_schema"),
        "depends on who asks",
    ),
}
"""Functions whose answer is not decided by their arguments, and why."""


class NotGrouped(Exception):
    """A column that is shown beside groups, and is not of them: the query has no meaning."""

    def __init__(self, column: str) -> None:
        super().__init__(column)
        self.column = column


class NotUnderstood(Exception):
    """A query, or a part of it, that no rule covers."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what


def function_name(node: exp.Expr) -> str | None:
    """In small letters; None where a node is no call."""
    return node.name.lower() if isinstance(node, exp.Anonymous) else None


def is_aggregate(node: exp.Expr) -> bool:
    """Whether a node is the call of an aggregate, with its FILTER."""
    if isinstance(node, exp.Filter | exp.WithinGroup | exp.IgnoreNulls | exp.RespectNulls):
        return is_aggregate(node.this)
    return function_name(node) in AGGREGATES


def aggregates_in(node: exp.Expr) -> list[exp.Expr]:
    """The outermost calls of aggregates in an expression; those of windows and of subqueries are not its own."""
    if is_aggregate(node):
        return [node]
    if isinstance(node, exp.Query):
        return []
    if isinstance(node, exp.Window):
        # The function of a window is no aggregate of the group, but what it is given may be.
        function = node.this
        inner = list(window_function(node).iter_expressions()) if function is not None else []
        rest = [each for each in node.iter_expressions() if each is not function]
        return [found for each in (*inner, *rest) for found in aggregates_in(each)]
    return [found for each in node.iter_expressions() for found in aggregates_in(each)]


def window_function(node: exp.Expr) -> exp.Expr:
    """The function of a window, without IGNORE NULLS."""
    found: exp.Expr = node.this
    while isinstance(found, exp.IgnoreNulls | exp.RespectNulls):
        found = found.this
    return found


def windows_in(node: exp.Expr) -> list[exp.Expr]:
    if isinstance(node, exp.Window):
        return [node]
    if isinstance(node, exp.Query):
        return []
    return [found for each in node.iter_expressions() for found in windows_in(each)]


def subqueries_in(node: exp.Expr) -> list[exp.Expr]:
    """The outermost subqueries of an expression: EXISTS, IN, and those in parentheses."""
    if isinstance(node, exp.Exists | exp.Subquery):
        return [node]
    if isinstance(node, exp.In) and node.args.get("query") is not None:
        return [node]
    if isinstance(node, exp.Query | exp.Any | exp.All):
        return [node]
    return [found for each in node.iter_expressions() for found in subqueries_in(each)]


def conjuncts(node: exp.Expr | None) -> list[exp.Expr]:
    if node is None:
        return []
    if isinstance(node, exp.And):
        return [*conjuncts(node.this), *conjuncts(node.expression)]
    if isinstance(node, exp.Paren):
        inner = conjuncts(node.this)
        return inner if len(inner) > 1 else [node]
    return [node]


_MOMENTS: Final = re.compile(r"\s*(now|today|tomorrow|yesterday)\b.*", re.IGNORECASE | re.DOTALL)
_TO_A_TIME: Final = frozenset(
    [
        "date",
        "timestamp",
        "to_date",
        "to_timestamp",
        "to_timestamp_ltz",
        "to_timestamp_ntz",
        "try_to_timestamp",
        # As sqlglot calls them.
        "str_to_time",
        "ts_or_ds_to_date",
        "ts_or_ds_to_timestamp",
    ]
)


def _moment(node: exp.Expr) -> str:
    """What Spark takes for the time at which it computes: a text such as 'now', as a date or a time."""
    value = None
    if isinstance(node, exp.Cast):
        value = node.this if node.to.this in exp.DataType.TEMPORAL_TYPES else None
    elif function_name(node) in _TO_A_TIME:
        value = next(iter(node.expressions), None)
    elif isinstance(node, exp.Func) and node.sql_name().lower() in _TO_A_TIME:
        value = node.this
    while isinstance(value, exp.Paren):
        value = value.this
    if isinstance(value, exp.Literal) and value.is_string and _MOMENTS.fullmatch(value.name):
        return f"the time {value.name!r}"
    return ""


def unsettled_in(node: exp.Expr) -> tuple[str, str] | None:
    """A function without a fixed answer in a query, and why that is so."""
    for each in node.walk():
        if moment := _moment(each):
            return moment, "is another one every time"
        name = function_name(each)
        if name is None and isinstance(each, exp.Func):
            name = each.sql_name().lower()
        if name == "unix_timestamp" and getattr(each, "expressions", None):
            continue
        if name in UNSETTLED:
            return name, UNSETTLED[name]
        if isinstance(each, exp.TableSample):
            return "TABLESAMPLE", "is random"
        if isinstance(each, exp.Column) and not each.table and each.name.lower() in (
            "current_timestamp", "current_date", "localtimestamp", "current_user",
        ):  # fmt: skip
            return each.name.lower(), UNSETTLED.get(each.name.lower(), "has no fixed answer")
    return None


def cut_without_order(node: exp.Expr) -> str:
    """LIMIT or OFFSET of a query that has no order, and so no first rows; empty where there is none."""
    for each in node.find_all(exp.Query):
        cut = each.args.get("limit") or each.args.get("offset")
        if cut is None or each.args.get("order") is not None or isinstance(each.parent, exp.Exists):
            continue
        number = cut.expression
        if isinstance(number, exp.Var) and number.name.upper() == "ALL":
            continue
        return f"{'LIMIT' if isinstance(cut, exp.Limit) else 'OFFSET'} {number.sql()}"
    return ""
