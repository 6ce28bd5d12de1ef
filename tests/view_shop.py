"""The tables that views are specified over, random transactions on them, and `follows`: a view follows its query."""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa

from tidegate.reads.translate import Translated, tables_in
from tidegate.views.operators import Plan
from view_world import Change, TableOf, World

STAMP = pa.timestamp("us", tz="UTC")
LONG, TEXT, INT = pa.int64(), pa.string(), pa.int32()
SHOP = {
    # Orders, of customers: a group, an amount, a measure, a number, a time and labels.
    "o": TableOf(
        pa.schema(
            [
                ("id", LONG),
                ("cu", LONG),
                ("g", TEXT),
                ("amt", pa.decimal128(10, 2)),
                ("x", pa.float64()),
                ("n", INT),
                ("ts", STAMP),
                ("tags", pa.list_(TEXT)),
            ]
        ),
        ("id",),
    ),
    # Customers.
    "c": TableOf(pa.schema([("id", LONG), ("region", TEXT), ("lim", LONG)]), ("id",)),
    # Lines of orders.
    "l": TableOf(pa.schema([("od", LONG), ("line", LONG), ("qty", LONG), ("p", TEXT)]), ("od", "line")),
    # Events: rows without a key, so the same one may be there twice.
    "e": TableOf(pa.schema([("who", LONG), ("what", TEXT), ("v", INT)])),
}
START = datetime(2026, 5, 1, 12, tzinfo=UTC)
ORDERS, CUSTOMERS = 24, 7


def random_row(rng: random.Random, table: str) -> dict[str, Any]:
    """Values from few, with NULLs, so that they meet."""

    def maybe(value: Any) -> Any:
        return None if rng.random() < 0.15 else value

    match table:
        case "o":
            return {
                "id": rng.randrange(ORDERS),
                "cu": maybe(rng.randrange(CUSTOMERS)),
                "g": maybe(rng.choice("abc")),
                "amt": maybe(Decimal(rng.randrange(-100, 500)) / 100),
                "x": maybe(rng.randrange(20) / 4),
                "n": maybe(rng.randrange(6)),
                "ts": maybe(START + timedelta(minutes=rng.randrange(60))),
                "tags": maybe([maybe(rng.choice("pqr")) for _ in range(rng.randrange(3))]),
            }
        case "c":
            region = maybe(rng.choice(["n", "s", "e"]))
            return {"id": rng.randrange(CUSTOMERS), "region": region, "lim": maybe(rng.randrange(6))}
        case "l":
            key = {"od": rng.randrange(ORDERS), "line": rng.randrange(3)}
            return {**key, "qty": maybe(rng.randrange(9)), "p": maybe(rng.choice("pqr"))}
        case _:
            return {"who": maybe(rng.randrange(4)), "what": maybe(rng.choice("xy")), "v": maybe(rng.randrange(3))}


def random_changes(rng: random.Random, tables: Collection[str], share: float = 0.65) -> dict[str, Change]:
    """A transaction on some tables: each is part of it with a chance of `share`."""
    found = {}
    for name, table in SHOP.items():
        if name not in tables or rng.random() >= share:
            continue
        rows = [random_row(rng, name) for _ in range(rng.randrange(1, 9))]
        if not table.key:
            found[name] = Change(rows)
            continue
        by_key = {tuple(each[column] for column in table.key): each for each in rows}
        others = (random_row(rng, name) for _ in range(rng.randrange(4)))
        gone = {tuple(each[column] for column in table.key) for each in others} - set(by_key)
        found[name] = Change(list(by_key.values()), sorted(gone))
    return found


def everything_gone(tables: Collection[str]) -> dict[str, Change]:
    """All rows that can be deleted."""
    orders = [(each,) for each in range(ORDERS)]
    lines = [(each, line) for each in range(ORDERS) for line in range(3)]
    customers = [(each,) for each in range(CUSTOMERS)]
    keys: dict[str, list[tuple[Any, ...]]] = {"o": orders, "l": lines, "c": customers}
    return {name: Change((), each) for name, each in keys.items() if name in tables}


def follows(*queries: str, rules: Sequence[str] = (), steps: int = 3) -> Plan:
    """Views follow their queries at every step, made before the data and after it; the plan of the last one.

    `rules` are those of its nodes. Each view may read those before it, as v0, v1, ...
    """
    translated: dict[tuple[str, ...], Translated] = {}
    tables = {name.casefold() for each in queries for name in tables_in(each)}
    plans: list[Plan] = []
    for seed, is_first in ((1, True), (2, False)):
        rng = random.Random(seed)
        world = World(SHOP, translated)
        for _ in range(0 if is_first else 2):
            world.step(random_changes(rng, tables, 1))
        made = [*plans] or [None] * len(queries)
        plans = [world.create(f"v{number}", *each) for number, each in enumerate(zip(queries, made))]
        for each in world.views:
            world.check(each)
        todo = [random_changes(rng, tables) for _ in range(steps if is_first else 2)]
        if is_first:
            todo += [everything_gone(tables), random_changes(rng, tables, 1)]
        for number, changes in enumerate(todo):
            world.step(changes, whole=number == 1 and not is_first)
            for each in world.views:
                world.check(each)
    assert not rules or [each.rule for each in plans[-1].nodes] == list(rules), [
        (each.name, each.rule, each.why) for each in plans[-1].nodes
    ]
    return plans[-1]
