"""Which rows come first among those that an order holds equal: in a view, those with the smallest keys.

SQL leaves it open; a view must not, or its stored rows and its query would differ.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from sqlglot import exp

from tidegate.views.names import function_name
from tidegate.views.operators import column

_BY_PLACE: Final = frozenset({"row_number", "ntile", "lag", "lead", "first", "first_value"})
"""Functions that tell rows apart which the order holds equal, whatever the frame is."""


def may_tie(tree: exp.Expr) -> bool:
    """Whether a query has a LIMIT, or a window that tells rows apart which its order may hold equal."""
    for each in tree.find_all(exp.Query):
        if (each.args.get("limit") or each.args.get("offset")) and not isinstance(each.parent, exp.Exists):
            return True
    return any(_tells_apart(each) for each in tree.find_all(exp.Window))


def settled(window: exp.Expr, keys: Iterable[str]) -> exp.Expr:
    """A window whose order goes on by the keys of rows, if it tells equal ones apart. Changed in place."""
    order = window.args.get("order")
    if order is not None and _tells_apart(window):
        known = {each.this.name for each in order.expressions if isinstance(each.this, exp.Column)}
        for each in keys:
            if each not in known:
                order.append("expressions", exp.Ordered(this=column(each), desc=False))
    return window


def _tells_apart(window: exp.Expr) -> bool:
    spec = window.args.get("spec")
    if spec is not None and str(spec.args.get("kind")).upper() == "ROWS":
        return True
    call = window.this
    while isinstance(call, exp.IgnoreNulls | exp.RespectNulls):
        call = call.this
    return isinstance(call, exp.Expr) and function_name(call) in _BY_PLACE
