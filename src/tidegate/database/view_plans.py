"""Views that may take one row or another: how they are computed so that they take those that are stored.

Of rows that an order holds equal, LIMIT, `row_number()` and the like take any; what is stored takes those with the
smallest keys, which the query's text does not say, and its plan does.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from tidegate.catalog.views import View
from tidegate.errors import TidegateError
from tidegate.pipeline.view_relations import relation
from tidegate.reads.translate import NeedsSpark, parse_query, translate
from tidegate.tables.schema import Table
from tidegate.views.define import planned
from tidegate.views.functions import is_function
from tidegate.views.operators import Plan, Scan, walk
from tidegate.views.ties import may_tie
from tidegate.views.write import W

_MAY: Final = re.compile(r"\b(limit|offset|over)\b", re.IGNORECASE)


@lru_cache(maxsize=512)
def ties(sql: str) -> bool:
    """Whether the query of a view may take one row or another."""
    if is_function(sql) or not _MAY.search(sql):
        return False
    try:
        return may_tie(parse_query(sql))
    except (NeedsSpark, TidegateError):
        return True


class Plans:
    """The plans by which views can be computed as they are stored. `under` is all that they read, by id."""

    def __init__(self, under: Iterable[Table | View] = ()) -> None:
        self.under: Final[dict[int, Table | View]] = {}
        self._known: dict[int, Plan | None] = {}
        self.add(under)

    def add(self, under: Iterable[Table | View]) -> None:
        self.under.update((each.id, each) for each in under)

    def of(self, view: View) -> Plan | None:
        """None for one that cannot be computed so."""
        if view.id not in self._known:
            self._known[view.id] = self._of(view)
        return self._known[view.id]

    def _of(self, view: View) -> Plan | None:
        plan = _plan(view, tuple(self.under[id] for id, _ in view.inputs.values()))
        if plan is None:
            return None
        for id, needed in self.hidden(view, plan).items():
            found = self.under[id]
            # Where the rows of a table without a key lie is known to the pipeline alone.
            if needed and (not isinstance(found, View) or self.of(found) is None):
                return None
        return plan

    def hidden(self, view: View, plan: Plan) -> dict[int, set[str]]:
        """The columns that a plan needs of what the view reads and that no query can name, by the ids of those."""
        found: dict[int, set[str]] = {}
        for node in plan.nodes:
            for each in walk(node.root) if node.root is not None else ():
                if isinstance(each, Scan) and each.relation in view.inputs:
                    id, version = view.inputs[each.relation]
                    of = self.under[id]
                    shown = of.columns if isinstance(of, View) else of.version(version).names
                    # Next to the weight of a row, a column that is called like it has another name.
                    named = {name for name in shown if name.lower().rstrip("_") != W}
                    found.setdefault(id, set()).update(set(each.columns.values()).difference(named))
        return found


@lru_cache(maxsize=256)
def _plan(view: View, inputs: tuple[Table | View, ...]) -> Plan | None:
    relations = {}
    for (name, (_, version)), each in zip(view.inputs.items(), inputs, strict=True):
        if isinstance(each, View):
            relations[name] = relation(each.table, each.table.schema, each.columns)
        else:
            relations[name] = relation(each, each.version(version))
    try:
        plan = planned(view.sql, view.columns, relations, view.name, translate)
    except (NeedsSpark, TidegateError):
        return None
    return None if any(each.root is None for each in plan.nodes) else plan
