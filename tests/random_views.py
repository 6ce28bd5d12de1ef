"""Random queries over random schemas, with random transactions: a maintained view equals its query at every step.

`case(seed)` draws tables, a query and steps; `replay(case)` runs them and fails where the view differs. A failure
prints the case as a fixture that can be pasted into tests/unit/views/test_views_found_by_chance.py.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import duckdb
import pyarrow as pa

from tidegate.reads.translate import NeedsSpark
from view_world import Change, TableOf, World

TYPES = {
    "BIGINT": pa.int64(),
    "INT": pa.int32(),
    "STRING": pa.string(),
    "DOUBLE": pa.float64(),
    "BOOLEAN": pa.bool_(),
}
NUMBERS = ("BIGINT", "INT")
LEVELS_MAX = 3


@dataclass(frozen=True)
class Case:
    """Tables as name -> (columns and types, key); steps as table -> (rows, keys that are deleted)."""

    tables: dict[str, tuple[dict[str, str], tuple[str, ...]]]
    sql: str
    filled: int
    """So many of the steps come before the view is created."""
    steps: list[dict[str, tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]]]
    seed: int | None = field(default=None, compare=False)

    def fixture(self) -> str:
        lines = [f"    tables={self.tables!r},", f"    sql={self.sql!r},", f"    filled={self.filled},", "    steps=["]
        lines += [f"        {each!r}," for each in self.steps]
        return "\n".join(["Case(", *lines, "    ],", ")"])


class Differs(AssertionError):
    """A view that is not its query."""


def world_of(case: Case) -> World:
    return World(
        {
            name: TableOf(pa.schema([(column, TYPES[type]) for column, type in columns.items()]), key)
            for name, (columns, key) in case.tables.items()
        }
    )


def changes_of(case: Case, step: dict[str, Any]) -> dict[str, Change]:
    return {
        name: Change([dict(zip(case.tables[name][0], row)) for row in rows], gone)
        for name, (rows, gone) in step.items()
    }


def replay(case: Case) -> World | None:
    """Run a case; None where only Spark can answer its query. Raises: `Differs`, with the fixture."""
    world = world_of(case)
    try:
        for number, step in enumerate(case.steps):
            if number == case.filled:
                try:
                    world.create("v", case.sql)
                except NeedsSpark:
                    return None
                world.check("v")
            world.step(changes_of(case, step), whole=number % 5 == 4)
            if number >= case.filled:
                world.check("v")
    except duckdb.BinderException as error:
        # A partition by what may raise, as `a % b`: DuckDB takes it for volatile. So says the query itself, too.
        if "cannot be volatile" not in str(error):
            raise
        return None
    except Exception as error:
        raise Differs(f"{type(error).__name__}: {error}\n\nseed {case.seed}\n{case.fixture()}") from error
    return world


def smaller(case: Case) -> Case:
    """With as few steps and changes as still fail."""

    def fails(tried: Case) -> bool:
        try:
            replay(tried)
        except Differs:
            return True
        return False

    steps = [*case.steps]
    for at in reversed(range(len(steps))):
        filled = case.filled - (at < case.filled)
        tried = Case(case.tables, case.sql, filled, [*steps[:at], *steps[at + 1 :]], case.seed)
        if len(tried.steps) > tried.filled and fails(tried):
            case, steps = tried, [*tried.steps]
    for at, step in enumerate(case.steps):
        for name, (rows, gone) in list(step.items()):
            for part in (0, 1):
                for place in reversed(range(len((rows, gone)[part]))):
                    less = [[*rows], [*gone]]
                    del less[part][place]
                    steps = [*case.steps]
                    steps[at] = {**steps[at], name: (less[0], less[1])}
                    tried = Case(case.tables, case.sql, case.filled, steps, case.seed)
                    if fails(tried):
                        case, (rows, gone) = tried, less
    return case


def case(seed: int) -> Case:
    return _Draw(seed).case()


# -- drawing -----------------------------------------------------------------------------------------------------


Columns = list[tuple[str, str]]
"""Names, as an expression may use them, and types."""


class _Draw:
    """One seed. Queries are written so that every answer is decided: orders are complete, no rows are `any`."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.tables: dict[str, tuple[dict[str, str], tuple[str, ...]]] = {}
        self.names = 0
        self.ctes: dict[str, Columns] = {}

    def case(self) -> Case:
        rng = self.rng
        for number in range(rng.randint(1, 3)):
            width = rng.randint(2, 5)
            columns = {f"{chr(97 + number)}{place}": rng.choice([*TYPES, *NUMBERS, "STRING"]) for place in range(width)}
            keys = [name for name, type in columns.items() if type in ("BIGINT", "INT", "STRING")]
            rng.shuffle(keys)
            # Keys from few values: rows are replaced often.
            key = tuple(keys[: rng.randint(1, 2)]) if keys and rng.random() < 0.8 else ()
            self.tables[f"t{number}"] = columns, key
        sql = self.query()
        filled = rng.choice([0, 0, 1, 2])
        return Case(self.tables, sql, filled, [self.step() for _ in range(filled + rng.randint(2, 4))], self.seed)

    def step(self) -> dict[str, tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]]:
        found: dict[str, tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]] = {}
        for name, (columns, key) in self.tables.items():
            if self.rng.random() < 0.3:
                continue
            rows = [self.row(columns, key) for _ in range(self.rng.randint(0, 6))]
            if not key:
                found[name] = rows, []
                continue
            places = [list(columns).index(each) for each in key]
            by_key = {tuple(row[place] for place in places): row for row in rows}
            others = [self.row(columns, key) for _ in range(self.rng.randint(0, 3))]
            gone = {tuple(row[place] for place in places) for row in others} - set(by_key)
            found[name] = list(by_key.values()), sorted(gone, key=repr)
        return found

    def row(self, columns: dict[str, str], key: Sequence[str]) -> tuple[Any, ...]:
        return tuple(self.value(type, name not in key) for name, type in columns.items())

    def value(self, type: str, may_be_null: bool) -> Any:
        if may_be_null and self.rng.random() < 0.2:
            return None
        match type:
            case "STRING":
                return self.rng.choice(["a", "b", "c", ""])
            case "DOUBLE":
                return self.rng.choice([0.0, -0.0, 0.5, 1.0, 2.25, -1.5])
            case "BOOLEAN":
                return self.rng.random() < 0.5
            case _:
                return self.rng.randint(-1, 5)

    def name(self, hint: str = "x") -> str:
        self.names += 1
        return f"{hint}{self.names}"

    # -- queries -------------------------------------------------------------------------------------------------

    def query(self) -> str:
        head = ""
        if self.rng.random() < 0.2:
            sql, columns = self.relation_query(1)
            name = self.name("w")
            self.ctes[name] = columns
            head = f"WITH {name} AS ({sql}) "
        return head + self.relation_query(0)[0]

    def relation_query(self, level: int) -> tuple[str, Columns]:
        """A query and its columns."""
        kind = self.rng.random()
        if kind < 0.15 and level < LEVELS_MAX:
            return self.set_operation(level)
        if kind < 0.5:
            return self.grouped(level)
        if kind < 0.62:
            return self.windowed(level)
        if kind < 0.70:
            return self.distinct(level)
        if kind < 0.75:
            return self.top(level)
        return self.plain(level)

    def plain(self, level: int) -> tuple[str, Columns]:
        source, columns = self.source(level)
        shown = [(self.expr(columns, level), self.name("c")) for _ in range(self.rng.randint(1, 4))]
        items = ", ".join(f"{text} AS {name}" for (text, _), name in shown)
        return f"SELECT {items} FROM {source}{self.where(columns, level)}", [(name, type) for (_, type), name in shown]

    def distinct(self, level: int) -> tuple[str, Columns]:
        sql, columns = self.plain(level)
        return sql.replace("SELECT", "SELECT DISTINCT", 1), columns

    def top(self, level: int) -> tuple[str, Columns]:
        sql, columns = self.plain(level)
        order = ", ".join(
            f"{name}{self.rng.choice(['', ' DESC', ' NULLS LAST', ' DESC NULLS FIRST'])}" for name, _ in columns
        )
        offset = self.rng.choice(["", "", " OFFSET 1"])
        # The order is of all columns: rows that are tied are the same.
        return f"{sql} ORDER BY {order} LIMIT {self.rng.randint(1, 4)}{offset}", columns

    def grouped(self, level: int) -> tuple[str, Columns]:
        source, columns = self.source(level)
        groups = [self.group_expr(columns) for _ in range(self.rng.choice([0, 1, 1, 1, 2]))]
        calls = [self.aggregate(columns) for _ in range(self.rng.randint(1, 3))]
        shown = [*((text, type, self.name("g")) for text, type in groups if self.rng.random() < 0.9)]
        shown += [(text, type, self.name("s")) for text, type in calls]
        items = ", ".join(f"{text} AS {name}" for text, _, name in shown)
        sql = f"SELECT {items} FROM {source}{self.where(columns, level)}"
        if groups:
            texts = ", ".join(dict.fromkeys(text for text, _ in groups))
            how = self.rng.random()
            by = f"ROLLUP ({texts})" if how < 0.1 else f"CUBE ({texts})" if how < 0.15 else texts
            sql += f" GROUP BY {by}"
        if self.rng.random() < 0.2:
            text = self.aggregate(columns, NUMBERS)[0]
            sql += f" HAVING {text} {self.rng.choice(['>', '<=', '<>'])} {self.rng.randint(0, 4)}"
        return sql, [(name, type) for _, type, name in shown]

    def windowed(self, level: int) -> tuple[str, Columns]:
        source, columns = self.source(level)
        partition = "" if self.rng.random() < 0.15 else f"PARTITION BY {self.group_expr(columns)[0]}"
        every = ", ".join(name for name, _ in columns)
        made: list[tuple[str, str, str]] = []
        for _ in range(self.rng.randint(1, 2)):
            kind = self.rng.random()
            number = self.number(columns)
            if kind < 0.35:
                name, type = self.rng.choice([("rank()", "INT"), ("dense_rank()", "INT")])
                key = self.rng.choice(columns)[0]
                made.append((f"{name} OVER ({partition} ORDER BY {key})", type, self.name("w")))
            elif kind < 0.55:
                # Rows that are the same by all columns may be numbered either way: they are the same.
                made.append((f"row_number() OVER ({partition} ORDER BY {every})", "INT", self.name("w")))
            elif kind < 0.7:
                call = f"{self.rng.choice(['lag', 'lead'])}({number})"
                made.append((f"{call} OVER ({partition} ORDER BY {every})", "BIGINT", self.name("w")))
            else:
                call = self.rng.choice(["sum", "min", "max", "count"])
                made.append((f"{call}({number}) OVER ({partition})", "BIGINT", self.name("w")))
        kept = [(name, type) for name, type in columns if self.rng.random() < 0.6]
        renamed = [(name, type, self.name("c")) for name, type in kept]
        items = ", ".join(f"{text} AS {name}" for text, _, name in [*renamed, *made])
        sql = f"SELECT {items} FROM {source}{self.where(columns, level)}"
        found = [(name, type) for _, type, name in [*renamed, *made]]
        if self.rng.random() < 0.4:  # The first rows of each group.
            alias = self.name("q")
            sql = f"SELECT * FROM ({sql}) AS {alias} WHERE {found[-1][0]} <= {self.rng.randint(1, 3)}"
        return sql, found

    def set_operation(self, level: int) -> tuple[str, Columns]:
        types = [self.rng.choice(["BIGINT", "STRING"]) for _ in range(self.rng.randint(1, 2))]
        word = self.rng.choice(["UNION", "UNION ALL", "EXCEPT", "INTERSECT", "EXCEPT ALL", "INTERSECT ALL"])
        sides = []
        for _ in range(self.rng.choice([2, 2, 3])):
            source, columns = self.source(level + 1)
            texts = [self.of_type(columns, type) for type in types]
            where = self.where(columns, level + 1)
            distinct = "DISTINCT " if self.rng.random() < 0.15 else ""
            items = ", ".join(f"{text} AS k{place}" for place, text in enumerate(texts))
            sides.append(f"SELECT {distinct}{items} FROM {source}{where}")
        return f" {word} ".join(sides), [(f"k{place}", type) for place, type in enumerate(types)]

    # -- FROM and WHERE ------------------------------------------------------------------------------------------

    def one_source(self, level: int) -> tuple[str, Columns]:
        alias = self.name("r")
        if level < LEVELS_MAX and self.rng.random() < 0.25:
            sql, columns = self.relation_query(level + 1)
            return f"({sql}) AS {alias}", [(f"{alias}.{name}", type) for name, type in columns]
        named = {**{name: list(columns.items()) for name, (columns, _) in self.tables.items()}, **self.ctes}
        name = self.rng.choice(list(named))
        return f"{name} AS {alias}", [(f"{alias}.{column}", type) for column, type in named[name]]

    def source(self, level: int) -> tuple[str, Columns]:
        text, columns = self.one_source(level)
        for _ in range(self.rng.choice([0, 0, 0, 1, 1, 2])):
            other, more = self.one_source(level)
            kind = self.rng.choice(["JOIN", "JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN", "SEMI", "ANTI", "CROSS"])
            if kind == "CROSS":
                text, columns = f"{text} CROSS JOIN {other}", [*columns, *more]
                continue
            type = self.rng.choice(["BIGINT", "STRING"])
            on = f"{self.of_type(columns, type, plain=True)} = {self.of_type(more, type, plain=True)}"
            if self.rng.random() < 0.2:
                on += f" AND {self.number(columns)} <= {self.number(more)}"
            if self.rng.random() < 0.1:
                on += f" AND {self.condition(more)}"
            if kind in ("SEMI", "ANTI"):
                text = f"{text} LEFT {kind} JOIN {other} ON {on}"
            else:
                text, columns = f"{text} {kind} {other} ON {on}", [*columns, *more]
        return text, columns

    def where(self, columns: Columns, level: int) -> str:
        found = [self.condition(columns) for _ in range(self.rng.choice([0, 0, 1, 1, 2]))]
        if level < 2 and self.rng.random() < 0.25:
            found.append(self.subquery_condition(columns, level))
        return f" WHERE {' AND '.join(found)}" if found else ""

    def condition(self, columns: Columns) -> str:
        kind = self.rng.random()
        name = self.rng.choice(columns)[0]
        if kind < 0.2:
            return f"{name} IS {self.rng.choice(['', 'NOT '])}NULL"
        if kind < 0.6:
            return f"{self.number(columns)} {self.rng.choice(['>', '<', '<=', '<>', '='])} {self.rng.randint(0, 4)}"
        if kind < 0.75:
            return f"{self.of_type(columns, 'STRING')} {self.rng.choice(['=', '<>', '<=>'])} 'a'"
        one, other = self.condition(columns), self.condition(columns)
        return f"({one} OR {other})" if kind < 0.92 else f"NOT ({one} AND {other})"

    def subquery_condition(self, columns: Columns, level: int) -> str:
        kind = self.rng.random()
        source, inner = self.one_source(level + 1)
        type = self.rng.choice(["BIGINT", "STRING"])
        mine, theirs = self.of_type(columns, type, plain=True), self.of_type(inner, type, plain=True)
        no = self.rng.choice(["", "NOT "])
        link = f"{theirs} = {mine}"
        if self.rng.random() < 0.3:
            link += f" AND {self.condition(inner)}"
        if kind < 0.35:
            return f"{no}EXISTS (SELECT 1 FROM {source} WHERE {link})"
        if kind < 0.65:
            where = self.where(inner, LEVELS_MAX)
            text = f"{mine} {no}IN (SELECT {theirs} FROM {source}{where})"
            return text if no or self.rng.random() < 0.7 else f"({text} OR {self.condition(columns)})"
        call = self.aggregate(inner, NUMBERS)[0]
        linked = f" WHERE {link}" if kind < 0.85 else ""
        sign = self.rng.choice([">", "<=", "="])
        return f"{self.number(columns)} {sign} (SELECT {call} FROM {source}{linked})"

    # -- expressions ---------------------------------------------------------------------------------------------

    def of_type(self, columns: Columns, type: str, *, plain: bool = False) -> str:
        """An expression of a type; `plain`: a column, where there is one."""
        fitting = [name for name, each in columns if each == type or (type == "BIGINT" and each in NUMBERS)]
        if fitting and (plain or self.rng.random() < 0.7):
            name = self.rng.choice(fitting)
            return name if type == "STRING" else f"CAST({name} AS BIGINT)" if self.rng.random() < 0.2 else name
        if type == "STRING":
            return f"CAST({self.number(columns)} AS STRING)"
        return f"CAST({self.number(columns)} AS BIGINT)"

    def number(self, columns: Columns) -> str:
        name, type = self.rng.choice(columns)
        if type in NUMBERS:
            return name if self.rng.random() < 0.8 else f"({name} + {self.rng.randint(1, 3)})"
        if type == "STRING":
            return f"length({name})"
        if type == "BOOLEAN":
            return f"CAST({name} AS INT)"
        return f"CAST(floor({name}) AS INT)" if type == "DOUBLE" else f"size({name})"

    def expr(self, columns: Columns, level: int) -> tuple[str, str]:
        kind = self.rng.random()
        name, type = self.rng.choice(columns)
        if kind < 0.6:
            return name, type
        if kind < 0.75:
            return self.number(columns), "BIGINT"
        if kind < 0.85:
            return f"CASE WHEN {self.condition(columns)} THEN {self.number(columns)} END", "BIGINT"
        if kind < 0.92 or level >= 2:
            return f"coalesce({self.of_type(columns, 'STRING')}, 'none')", "STRING"
        source, inner = self.one_source(LEVELS_MAX)
        link = f"{self.of_type(inner, 'BIGINT', plain=True)} = {self.of_type(columns, 'BIGINT', plain=True)}"
        call = self.aggregate(inner, NUMBERS)[0]
        return f"(SELECT {call} FROM {source} WHERE {link})", "BIGINT"

    def group_expr(self, columns: Columns) -> tuple[str, str]:
        name, type = self.rng.choice(columns)
        if self.rng.random() < 0.8:
            return name, type
        return f"({self.number(columns)} % 2)", "BIGINT"

    def aggregate(self, columns: Columns, types: Sequence[str] = ()) -> tuple[str, str]:
        number = self.number(columns)
        name, type = self.rng.choice(columns)
        choices = [("count(*)", "BIGINT"), (f"count({name})", "BIGINT"), (f"sum({number})", "BIGINT")]
        choices += [(f"max({number})", "BIGINT"), (f"min({number})", "BIGINT")]
        choices += [(f"count(DISTINCT {name})", "BIGINT"), (f"sum(DISTINCT {number})", "BIGINT")]
        choices += [(f"sum({number}) FILTER (WHERE {self.condition(columns)})", "BIGINT")]
        if not types:
            choices += [(f"avg({number})", "DOUBLE"), (f"stddev({number})", "DOUBLE"), (f"max({name})", type)]
            choices += [(f"min({name})", type)]
        return self.rng.choice(choices)
