"""`explain`: what a view stores, which rule maintains each part and why, and the SQL that runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tidegate.views.define import planned
from tidegate.views.definition import Relation
from tidegate.views.delta import Delta, full
from tidegate.views.operators import Node


class _Recorder:
    """Notes what would be computed when `changed` has changes."""

    def __init__(self, changed: str) -> None:
        self._changed = changed
        self.steps: list[str] = []

    def compute(self, name: str, sql: str) -> int:
        self.steps.append(f"{name} = {sql}")
        return 1

    def changed(self, relation: str) -> int:
        return int(relation == self._changed)


def explain(
    sql: str, names: Sequence[str], relations: Mapping[str, Relation], name: str = "view"
) -> list[dict[str, Any]]:
    """A row for each node and each relation whose change it follows."""
    rows = []
    for node in planned(sql, names, relations, name).nodes:
        facts = {
            "node": node.name,
            "rule": node.rule,
            "why": node.why,
            "key": ", ".join(node.key),
            "stores": ", ".join(node.columns.values()),
        }
        for changed in sorted(node.reads):
            rows.append({**facts, "when_changes": changed, "sql": "\n".join(_steps(node, changed))})
        rows.append({**facts, "when_changes": "most of it", "sql": full(node)})
    return rows


def _steps(node: Node, changed: str) -> list[str]:
    recorder = _Recorder(changed)
    Delta(recorder).changes(node)
    return recorder.steps
