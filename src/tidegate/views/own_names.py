"""The tables of a query under names of their own, so that none is taken for another one, or for a WITH.

A table's name may have dots and capitals, and a WITH may be called as a table is. Names are resolved without regard to
any of that. So each table gets a plain name first, which nothing else in the query has, and keeps its own as an alias.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from sqlglot import exp

from tidegate.views.names import NotUnderstood
from tidegate.views.operators import Source

_ODD: Final = re.compile(r"[^a-z0-9_]")
_HANGING: Final = ("sample", "pivots", "laterals", "joins", "when", "version")


def find_source(name: str, sources: Mapping[str, Source]) -> Source | None:
    """What a query means by a name: what is called exactly so, else what is but for upper and lower case."""
    for each in sources.values():
        if each.name == name:
            return each
    found = [each for each in sources.values() if each.name.casefold() == name.casefold()]
    return found[0] if len(found) == 1 else None


def with_own_names(tree: exp.Expr, sources: Mapping[str, Source]) -> tuple[exp.Expr, dict[str, Source]]:
    """The query, and what its new names stand for. Raises: `NotUnderstood`."""
    namer = _Namer(tree := tree.copy(), sources)
    namer.visit(tree, frozenset())
    return tree, namer.found


def hangs_on(table: exp.Expr) -> bool:
    """Whether a table in FROM has more than a name and an alias."""
    return any(table.args.get(each) for each in _HANGING)


class _Namer:
    def __init__(self, tree: exp.Expr, sources: Mapping[str, Source]) -> None:
        self._sources = sources
        self._taken = {each.alias.casefold() for each in tree.find_all(exp.CTE)}
        self._own: dict[str, str] = {}
        self.found: dict[str, Source] = {}

    def visit(self, node: exp.Expr, hidden: frozenset[str]) -> None:
        """Rename the tables below a node; `hidden` are the names of those WITH that are in sight."""
        given = node.args.get("with_")
        if given is not None:
            for each in given.expressions:
                name = each.alias.casefold()
                # A WITH sees those before it; itself only where it is RECURSIVE.
                self.visit(each.this, hidden | {name} if given.args.get("recursive") else hidden)
                hidden |= {name}
        for each in list(node.iter_expressions()):
            if each is given:
                continue
            self.visit(each, hidden)
            if isinstance(each, exp.Table) and isinstance(each.this, exp.Identifier | exp.Dot):
                self._rename(each, hidden)

    def _rename(self, table: Any, hidden: frozenset[str]) -> None:
        parts = [each.name for each in table.parts]
        name = ".".join(parts)
        alias = table.args.get("alias") or exp.TableAlias()
        if alias.args.get("this") is None:
            alias.set("this", exp.to_identifier(parts[-1], quoted=True))
            table.set("alias", alias)
        if name.casefold() not in hidden:
            table.set("this", exp.to_identifier(self._name_of(name), quoted=True))
            table.set("db", None)
            table.set("catalog", None)
        if alias.args.get("columns") and not hangs_on(table):
            # `t AS x(a, b)` gives the columns other names: written as a query that does.
            inner = table.copy()
            inner.set("alias", None)
            table.replace(exp.Subquery(this=exp.select("*").from_(inner), alias=alias.copy()))

    def _name_of(self, name: str) -> str:
        source = find_source(name, self._sources)
        if source is None:
            raise NotUnderstood(f"the table {name}")
        if source.name not in self._own:
            plain = own = _ODD.sub("_", source.name.lower())
            number = 1
            while own in self._taken:
                number += 1
                own = f"{plain}_{number}"
            self._taken.add(own)
            self._own[source.name] = own
            self.found[own] = source
        return self._own[source.name]
