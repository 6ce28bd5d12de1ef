"""Operators as Spark SQL. Each is written over the texts of its children; what version those are of is the caller's.

`weighted` texts have the column `_w` beside the operator's own: -1 for a row that was, 1 for one that is, and NULL for
one that did not change.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

from sqlglot import exp

from tidegate.tables.column_type import to_sql
from tidegate.tables.spark_sql import DIALECT
from tidegate.views.operators import (
    Aggregate,
    Constant,
    Explode,
    Filter,
    Op,
    Project,
    SetOperation,
    Top,
    Union,
    Window,
)

W: Final = "_w"
NO_WEIGHT: Final = f"CAST(NULL AS INT) AS {W}"
_LIKE_WEIGHT: Final = re.compile(rf"{W}_*", re.IGNORECASE)


def beside_weight(name: str) -> str:
    """How a column of a table is called in `t@d` and the like, where `_w` is the weight, in upper or lower case."""
    return f"{name}_" if _LIKE_WEIGHT.fullmatch(name) else name


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def text(node: exp.Expr) -> str:
    if type(node) is exp.Column and not node.comments:
        # Most are columns by their name alone: a generator for each takes longer than all else that is written.
        parts = [each for each in node.args.values() if each]
        if len(parts) == 1 and type(parts[0]) is exp.Identifier and parts[0].args.get("quoted"):
            return quoted(parts[0].name)
    return node.sql(DIALECT)


def listed(names: Iterable[str]) -> str:
    """Of no columns: something, so that rows can be counted."""
    return ", ".join(map(quoted, names)) or "1 AS `_none`"


def selected(exprs: dict[str, exp.Expr]) -> str:
    return ", ".join(f"{text(each)} AS {quoted(name)}" for name, each in exprs.items()) or "1 AS `_none`"


def conjunction(conds: Sequence[exp.Expr]) -> str:
    """Of no conditions: true."""
    return " AND ".join(f"({text(each)})" for each in conds) or "true"


def same(left: Sequence[str], right: Sequence[str], left_alias: str, right_alias: str) -> str:
    """That columns are equal, NULLs too."""
    pairs = zip(left, right, strict=True)
    found = (f"{left_alias}.{quoted(one)} <=> {right_alias}.{quoted(other)}" for one, other in pairs)
    return " AND ".join(found) or "true"


def unary(op: Op, child: str, *, weighted: bool) -> str:
    """An operator with one child that works row by row."""
    tail = f", {W}" if weighted else ""
    match op:
        case Filter():
            return f"SELECT {listed(op.cols)}{tail} FROM ({child}) WHERE {text(op.cond)}"
        case Project():
            return f"SELECT {selected(op.exprs)}{tail} FROM ({child})"
        case Explode():
            outer = "OUTER " if op.is_outer else ""
            names = listed([op.at, *op.names])
            return f"SELECT {listed(op.cols)}{tail} FROM ({child}) LATERAL VIEW {outer}{text(op.generator)} AS {names}"
    raise TypeError(type(op).__name__)


def constant(op: Constant) -> str:
    return f"SELECT {selected(op.exprs)}"


def union(op: Union, parts: Sequence[tuple[int, str]], *, weighted: bool) -> str:
    """`parts` are the children that are to be in it, by their number."""
    tail = f", {W}" if weighted else ""
    texts = []
    for number, child in parts:
        have = set(op.children[number].cols)
        exprs = {name: quoted(name) for name in op.columns}
        for name, type in op.key_types.items():
            if name not in exprs:
                exprs[name] = quoted(name) if name in have else f"CAST(NULL AS {to_sql(type)})"
        exprs[op.tag] = str(number)
        shown = ", ".join(f"{exprs[name]} AS {quoted(name)}" for name in op.cols) or "1 AS `_none`"
        texts.append(f"SELECT {shown}{tail} FROM ({child})")
    return " UNION ALL ".join(texts)


def blocking(op: Aggregate | Window | Top, child: str) -> str:
    match op:
        case Aggregate():
            aggregates = [selected(op.aggregates)] if op.aggregates else []
            if not op.groups:
                return f"SELECT {', '.join([f'0 AS {quoted(op.one)}', *aggregates])} FROM ({child})"
            return f"SELECT {', '.join([listed(op.groups), *aggregates])} FROM ({child}) GROUP BY {listed(op.groups)}"
        case Window():
            return f"SELECT {listed(op.child.cols)}, {selected(op.exprs)} FROM ({child})"
        case Top():
            limit = "" if op.limit is None else f" LIMIT {op.limit}"
            offset = f" OFFSET {op.offset}" if op.offset else ""
            order = ", ".join(text(each) for each in op.order)
            return f"SELECT {listed(op.cols)} FROM ({child}) ORDER BY {order}{limit}{offset}"


def set_operation(op: SetOperation, left: str, right: str) -> str:
    names = listed(op.columns)
    all_ = " ALL" if op.number else ""
    found = f"SELECT {names} FROM ({left}) {op.word}{all_} SELECT {names} FROM ({right})"
    if not op.number:
        return found
    number = f"row_number() OVER (PARTITION BY {names} ORDER BY 1) AS {quoted(op.number)}"
    return f"SELECT {names}, {number} FROM ({found})"
