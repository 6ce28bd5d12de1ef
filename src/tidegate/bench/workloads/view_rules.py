"""The page docs/views-queries.md: which rule keeps each query of the benchmarks up to date as a view.

python -m tidegate.bench.workloads.view_rules > docs/views-queries.md
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tidegate.bench.workloads.nexmark import NEXMARK
from tidegate.bench.workloads.tpch import TPCH
from tidegate.bench.workloads.workload import Workload
from tidegate.views.operators import Node, Source
from tidegate.views.plan import plan

WORKLOADS: Final = {"TPC-H": TPCH, "Nexmark": NEXMARK}
_HEAD: Final = """# The queries of TPC-H and Nexmark as views

Written by `python -m tidegate.bench.workloads.view_rules`; a test compares it with what the planner does. The queries
are in `src/tidegate/bench/workloads/`; [views.md](views.md) says what nodes and rules are. A rule is given for every
node, in the order in which they are computed: the last one is the view itself, the others are hidden.

- *linear*: the change is computed from the change; nothing else is looked at but what it joins.
- *affected keys*: the groups, partitions or rows that the change touches are computed anew. First rows, `min()` and
  `max()` are merged with the change, and looked for again only where one of them was taken away.
- *full*: the node is computed anew after every change.

All of them are tested: created before the data and after it, with inserts, updates and deletes during the run, equal
to the query after every transaction (`tests/unit/views/test_benchmark_views.py`).
"""


def nodes_of(workload: Workload, query: str) -> list[Node]:
    """The nodes of a query as a view of its own name."""
    sources = {
        name: Source(name, tuple(schema.names), tuple(workload.keys[name]), dict(zip(schema.names, schema.types)))
        for name, schema in workload.schemas.items()
    }
    return plan(workload.queries[query], sources, name=query).nodes


def page() -> str:
    return "\n".join([_HEAD, *_sections()])


def _sections() -> Iterator[str]:
    for title, workload in WORKLOADS.items():
        found = {name: nodes_of(workload, name) for name in workload.queries}
        without = sum(all(node.rule != "full" for node in nodes) for nodes in found.values())
        linear = sum(all(node.rule == "linear" for node in nodes) for nodes in found.values())
        yield f"## {title}\n\n{without} of {len(found)} without a *full* node, {linear} of them *linear* throughout.\n"
        yield "| query | nodes | rules | what is computed anew |\n| --- | --- | --- | --- |"
        for name, nodes in found.items():
            rules = ", ".join(node.rule for node in nodes)
            why = "<br>".join(f"`{node.name}`: {node.why}" for node in nodes if node.rule != "linear")
            yield f"| {name} | {len(nodes)} | {rules} | {why} |"
        yield ""


if __name__ == "__main__":
    print(page(), end="")
