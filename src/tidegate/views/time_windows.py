"""The column `window` that Spark makes of `GROUP BY window(ts, ...)`, written out as the call."""

from __future__ import annotations

from sqlglot import exp

from tidegate.views.names import function_name


def with_windows(tree: exp.Expr) -> exp.Expr:
    """A query in which nothing names `window` that no source has."""
    tree = tree.copy()
    for select in tree.find_all(exp.Select):
        group = select.args.get("group")
        calls = [each for each in (group.expressions if group else []) if function_name(each) == "window"]
        sources = [select.args.get("from_"), *(select.args.get("joins") or [])]
        if len(calls) != 1 or any(each is not None and each.this.alias_or_name == "window" for each in sources):
            continue
        for each in select.expressions:
            _write_out(each, calls[0])
        for name in ("having", "order", "qualify"):
            if (part := select.args.get(name)) is not None:
                _write_out(part, calls[0])
    return tree


def _write_out(node: exp.Expr, call: exp.Expr) -> None:
    for each in list(node.find_all(exp.Column)):
        name, table = each.name.lower(), each.table.lower()
        if table == "window":
            new: exp.Expr = exp.Dot(this=call.copy(), expression=exp.to_identifier(each.name))
        elif name == "window" and not table:
            new = call.copy()
        else:
            continue
        is_shown = isinstance(each.parent, exp.Select)
        each.replace(exp.alias_(new, each.name) if is_shown else new)
