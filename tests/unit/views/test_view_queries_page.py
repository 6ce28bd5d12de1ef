"""docs/views-queries.md says which rule each query of the benchmarks has (issue 6, proof)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidegate.bench.workloads.view_rules import WORKLOADS, nodes_of, page

PAGE = Path(__file__).parents[3] / "docs" / "views-queries.md"
WITHOUT_FULL = {"TPC-H": 20, "Nexmark": 18}
"""So many queries at least must not be computed in full (issue 6)."""


def test_the_page_is_what_the_planner_does() -> None:
    assert PAGE.read_text() == page(), "python -m tidegate.bench.workloads.view_rules > docs/views-queries.md"


@pytest.mark.parametrize("title", WORKLOADS)
def test_every_query_is_understood_and_most_are_not_computed_in_full(title: str) -> None:
    found = {name: nodes_of(WORKLOADS[title], name) for name in WORKLOADS[title].queries}
    assert not [name for name, nodes in found.items() if any(node.root is None for node in nodes)]
    without = [name for name, nodes in found.items() if all(node.rule != "full" for node in nodes)]
    assert len(without) >= WITHOUT_FULL[title], sorted(found.keys() - set(without))
