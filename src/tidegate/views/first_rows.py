"""The first rows by an order, kept up to date by what changed.

Rows that are not stored come after the last one that is. So what is left of the stored rows and what came are the
first ones again, as far as they come before that last row. Fewer than wanted: rows moved up that nobody has stored,
and all must be looked at.
"""

from __future__ import annotations

from typing import Final

from tidegate.views import write
from tidegate.views.operators import Node, Top
from tidegate.views.write import W, listed, quoted, same

_MARK: Final = "_mark"


def stored(node: Node, block: Top, relation: str) -> str:
    """The rows that are stored, by the names of the operator."""
    names = ", ".join(f"{quoted(node.columns[each])} AS {quoted(each)}" for each in block.cols)
    return f"SELECT {names} FROM {quoted(relation)}"


def candidates(block: Top, before: str, delta: str) -> str:
    """What is left of the rows `before`, a relation, and what came."""
    keys, names = block.keys, listed(block.cols)
    gone = f"SELECT {listed(keys)} FROM ({delta}) WHERE {W} < 0"
    left = f"SELECT {names} FROM {quoted(before)} AS x LEFT ANTI JOIN ({gone}) AS y ON {same(keys, keys, 'x', 'y')}"
    return f"{left} UNION ALL SELECT {names} FROM ({delta}) WHERE {W} > 0"


def first(block: Top, rows: str) -> str:
    """The first of a relation."""
    return f"SELECT {listed(block.cols)} FROM {quoted(rows)} ORDER BY {_order(block)} LIMIT {block.limit}"


def sure(block: Top, rows: str, before: str) -> str:
    """The first of a relation, as far as they do not come after all of the rows `before`."""
    names, order = listed(block.cols), f"{_order(block)}, {_MARK}"
    backwards = f"SELECT {names}, row_number() OVER (ORDER BY {_order(block)}) AS _place FROM {quoted(before)}"
    last = f"SELECT {names}, 1 AS {_MARK} FROM ({backwards}) WHERE _place = {block.limit}"
    marked = f"SELECT {names}, 0 AS {_MARK} FROM {quoted(rows)} UNION ALL {last}"
    placed = (
        f"SELECT {names}, {_MARK}, row_number() OVER (ORDER BY {order}) AS _place,"
        f" sum({_MARK}) OVER (ORDER BY {order} ROWS UNBOUNDED PRECEDING) AS _passed FROM ({marked})"
    )
    return f"SELECT {names} FROM ({placed}) WHERE {_MARK} = 0 AND _passed = 0 AND _place <= {block.limit}"


def _order(block: Top) -> str:
    return ", ".join(write.text(each) for each in block.order)
