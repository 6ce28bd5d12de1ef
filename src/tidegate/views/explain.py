"""`explain`: what a view stores, which rule maintains each part and why, and the SQL that runs.

A row for each node and each relation whose change it follows, in the order they are computed in:

    node          what is stored; the last one is the view, those before it are hidden
    rule, why     `linear`, `affected keys` or `full`, and the reason
    stored_for    why a hidden node is stored by itself
    key, stores   what tells its rows apart, and its columns; those that no query sees with what they hold
    when_changes  the relation whose change is followed
    sql           the statements, each after those it reads, with what their relations are
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from tidegate.reads.translate import parse_any, translate
from tidegate.tables.spark_sql import DIALECT
from tidegate.views.define import planned
from tidegate.views.definition import Relation
from tidegate.views.delta import Delta, full
from tidegate.views.operators import Node
from tidegate.views.plan import Translator
from tidegate.views.write import W, text

MOST: Final = "most of what it reads"
"""When a change is so large that the node is computed anew."""
_NAMED: Final = re.compile(r"`((?:[^`]|``)+)@([bdsa])`")
_VERSIONS: Final = {
    "d": f"the rows of {{}} that changed: {W} is -1 for one as it was, 1 for one as it is",
    "s": "the rows of {} that did not change",
    "a": "{} as it is now",
    "b": "{} as it was before",
}


class _Recorder:
    """Notes what would be computed when `changed` has changes, and every statement finds rows."""

    def __init__(self, changed: str) -> None:
        self._changed = changed
        self.steps: list[tuple[str, str]] = []

    def compute(self, name: str, sql: str) -> int:
        self.steps.append((name, sql))
        return 1

    def changed(self, relation: str) -> int:
        return int(relation == self._changed)


def explain(
    sql: str,
    names: Sequence[str],
    relations: Mapping[str, Relation],
    name: str = "view",
    translator: Translator = translate,
) -> list[dict[str, Any]]:
    """Raises: what `define` raises for a query that cannot be a view."""
    rows = []
    for node in planned(sql, names, relations, name, translator).nodes:
        facts = {
            "node": node.name,
            "rule": node.rule,
            "why": node.why,
            "stored_for": node.apart or "it is the view",
            "key": ", ".join(node.key),
            "stores": _stores(node),
        }
        for changed in sorted(node.reads):
            rows.append({**facts, "when_changes": changed, "sql": _written(_steps(node, changed))})
        rows.append({**facts, "when_changes": MOST, "sql": _written([(node.name, full(node))])})
    return rows


def _stores(node: Node) -> str:
    """The columns; with what they hold, where no query sees them."""
    sums = {each.name: each for each in node.accumulators}
    shown = []
    for place, (inner, stored) in enumerate(node.columns.items()):
        if inner in sums:
            what = "how many rows" if inner == node.count else f"of {text(sums[inner].expr)}"
            shown.append(f"{stored} ({what})")
        elif place >= node.visible and stored != inner:
            shown.append(f"{stored} ({inner})")
        elif node.root is None and place >= node.visible:
            shown.append(f"{stored} (which of the rows that are the same)")
        else:
            shown.append(stored)
    return ", ".join(shown)


def _steps(node: Node, changed: str) -> list[tuple[str, str]]:
    recorder = _Recorder(changed)
    Delta(recorder).changes(node)
    return recorder.steps


def _written(steps: Sequence[tuple[str, str]]) -> str:
    used = sorted({each for _, sql in steps for each in _NAMED.findall(sql)})
    notes = [f"-- `{relation}@{version}`: {_VERSIONS[version].format(relation)}" for relation, version in used]
    return "\n".join([*notes, *(f"-- {name}:\n{_pretty(sql)}" for name, sql in steps)])


def _pretty(sql: str) -> str:
    return str(parse_any(sql).sql(DIALECT, pretty=True))
