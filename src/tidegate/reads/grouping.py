"""GROUP BY: its keys, and the sets of them that ROLLUP, CUBE and GROUPING SETS make."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from sqlglot import exp

from tidegate.reads.aggregates import one_zero
from tidegate.reads.operators import only
from tidegate.reads.spark_types import NeedsSpark, Typed, is_float

ALL_KEYS: Final = "@keys@"
"""In the SQL of an expression that was written before the keys were known: all of them."""
_PLAIN: Final = re.compile(r's\d+\.("[^"]+"|c\d+)')


@dataclass(slots=True)
class Groups:
    """What a SELECT groups by."""

    keys: list[Typed] = field(default_factory=list)
    parts: list[str] = field(default_factory=list)
    has_sets: bool = False

    @property
    def sql(self) -> str:
        return f" GROUP BY {', '.join(self.parts)}" if self.parts else ""

    def add(self, key: Typed) -> str:
        """A key, and how GROUP BY writes it. Raises: `NeedsSpark`."""
        if key.value is not None or not key.sql:
            raise NeedsSpark(f"GROUP BY {key.name}")
        if is_float(key.type) and not _PLAIN.fullmatch(key.sql):
            raise NeedsSpark("GROUP BY an expression of the type DOUBLE")
        if all(each.sql != key.sql for each in self.keys):
            self.keys.append(key)
        return one_zero(key.sql, key.type)


def written(group: exp.Expr, write: Callable[[exp.Expr], Typed]) -> Groups:
    """A GROUP BY other than ALL; `write` gives a key. Raises: `NeedsSpark`."""
    only(group, "expressions", "rollup", "cube", "grouping_sets")
    found = Groups()
    found.parts = [_part(each, found, write) for each in group.expressions]
    for name, word in (("rollup", "ROLLUP"), ("cube", "CUBE")):
        if group.args.get(name):
            # GROUP BY a, b WITH ROLLUP
            if found.has_sets or len(group.args[name]) != 1 or len(found.parts) != len(group.expressions):
                raise NeedsSpark(f"GROUP BY WITH {word}")
            found.has_sets = True
            found.parts = [f"{word} ({', '.join(found.parts)})"]
    if group.args.get("grouping_sets"):
        # GROUP BY a, b GROUPING SETS (..), without a comma: what stands before are the keys that the sets are made of.
        known = len(found.keys)
        if found.has_sets or len(group.args["grouping_sets"]) != 1:
            raise NeedsSpark("grouping sets beside others")
        found.parts = [_part(group.args["grouping_sets"][0], found, write)]
        if len(found.keys) > known:
            raise NeedsSpark("grouping sets of what GROUP BY does not name")
    if not found.keys:
        raise NeedsSpark("GROUP BY ()")
    return found


def _part(node: exp.Expr, found: Groups, write: Callable[[exp.Expr], Typed]) -> str:
    if isinstance(node, exp.Tuple):
        raise NeedsSpark("GROUP BY with several keys in parentheses")
    if not isinstance(node, exp.Rollup | exp.Cube | exp.GroupingSets):
        return found.add(write(node))
    found.has_sets = True
    only(node, "expressions")
    if isinstance(node, exp.GroupingSets):
        sets = [f"({', '.join(_members(each, found, write))})" for each in node.expressions]
        return f"GROUPING SETS ({', '.join(sets)})"
    word = "ROLLUP" if isinstance(node, exp.Rollup) else "CUBE"
    return f"{word} ({', '.join(_set(each, found, write) for each in node.expressions)})"


def _members(node: exp.Expr, found: Groups, write: Callable[[exp.Expr], Typed]) -> list[str]:
    if isinstance(node, exp.Rollup | exp.Cube | exp.GroupingSets):
        raise NeedsSpark("grouping sets inside of others")
    keys: Sequence[Any] = node.expressions if isinstance(node, exp.Tuple) else [node]
    return [found.add(write(each.unnest() if isinstance(each, exp.Paren) else each)) for each in keys]


def _set(node: exp.Expr, found: Groups, write: Callable[[exp.Expr], Typed]) -> str:
    members = _members(node, found, write)
    return f"({', '.join(members)})" if isinstance(node, exp.Tuple) else members[0]
