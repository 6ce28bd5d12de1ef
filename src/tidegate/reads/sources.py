"""What stands in FROM: tables, queries, VALUES, ranges, generators, and how they are joined."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import pyarrow as pa
from sqlglot import exp

from tidegate.errors import NotFound
from tidegate.reads.casts import cast
from tidegate.reads.expressions import Expressions
from tidegate.reads.operators import QueryCompiler, only
from tidegate.reads.scope import Column, Scope, Source
from tidegate.reads.spark_types import INT, LONG, NeedsSpark, Typed, is_list, is_map, quoted, shown, spark_type, wider

Schemas = Mapping[str, pa.Schema]
_GENERATORS: Final = ("explode", "explode_outer", "posexplode", "posexplode_outer")
_SIDES: Final = {"LEFT": "LEFT JOIN", "RIGHT": "RIGHT JOIN", "FULL": "FULL JOIN", "": "JOIN"}


class Sources:
    """Writes the FROM of one SELECT. `numbers` gives every source a name of its own; `ctes` are those in sight."""

    def __init__(
        self,
        schemas: Schemas,
        ctes: Mapping[str, tuple[str, list[Typed]]],
        fresh: Callable[[], str],
        query: QueryCompiler,
        outer: Scope | None,
    ) -> None:
        self._schemas = schemas
        self._ctes = ctes
        self._fresh = fresh
        self._query = query
        self.scope = Scope(outer=outer)
        self.sql = ""

    def expressions(self, scope: Scope | None = None) -> Expressions:
        return Expressions(scope or self.scope, self._query)

    def add_from(self, node: exp.Expr) -> None:
        """Raises: `NeedsSpark`, `NotFound`."""
        only(node, "this")
        source, sql = self._source(node.this)
        self.scope.sources.append(source)
        self.sql = f" FROM {sql}"

    def _source(self, node: exp.Expr) -> tuple[Source, str]:
        match node:
            case exp.Table() if isinstance(node.this, exp.Anonymous):
                return self._range(node)
            case exp.Table():
                return self._table(node)
            case exp.Subquery():
                only(node, "this", "alias")
                sql, columns = self._query(node.this, Scope())
                return self._named(node, f"({sql})", columns)
            case exp.Values():
                only(node, "expressions", "alias")
                sql, columns = self.values(node)
                return self._named(node, f"({sql})", columns)
            case _:
                raise NeedsSpark(f"{type(node).__name__} in FROM")

    def _table(self, node: exp.Expr) -> tuple[Source, str]:
        only(node, "this", "db", "catalog", "alias")
        name = ".".join(each.name for each in node.parts)  # type: ignore[attr-defined]
        cte = self._ctes.get(name.casefold())
        if cte is not None:
            return self._named(node, cte[0], cte[1], name)
        schema = self._schemas.get(name)
        if schema is None:
            raise NotFound(f"there is no table {name!r}")
        alias = self._fresh()
        columns = [Column(each.name, spark_type(each.type), f"{alias}.{quoted(each.name)}") for each in schema]
        return self._renamed(node, columns, name.rsplit(".", 1)[-1]), f"{quoted(name)} AS {alias}"

    def _range(self, node: exp.Expr) -> tuple[Source, str]:
        only(node, "this", "alias")
        args = node.this.expressions
        if node.this.name.lower() != "range" or not 1 <= len(args) <= 3:
            raise NeedsSpark(f"{node.this.name}() in FROM")
        numbers = self.expressions(Scope()).all(args)
        if any(not isinstance(each.value, int) for each in numbers) or (len(numbers) == 3 and numbers[2].value == 0):
            raise NeedsSpark("range() of anything but literals")
        given = [str(each.value) for each in numbers]
        sql = f"(SELECT unnest(range({', '.join(given)})) AS c0)"
        return self._named(node, sql, [Typed("c0", LONG, "id")])

    def _named(
        self, node: exp.Expr, sql: str, columns: list[Typed], name: str = "__auto_generated_subquery_name"
    ) -> tuple[Source, str]:
        """A source whose columns DuckDB knows as c0, c1 and so on."""
        alias = self._fresh()
        found = [Column(each.name, each.type, f"{alias}.{each.sql}") for each in columns]
        return self._renamed(node, found, name), f"{sql} AS {alias}"

    def _renamed(self, node: exp.Expr, columns: list[Column], name: str) -> Source:
        given = node.args.get("alias")
        if given is None:
            return Source(name, columns)
        only(given, "this", "columns")
        names = [each.name for each in given.args.get("columns") or []]
        if names and len(names) != len(columns):
            raise NeedsSpark(f"{len(names)} names for {len(columns)} columns")
        if names:
            columns = [Column(new, each.type, each.sql) for new, each in zip(names, columns)]
        return Source(given.name or name, columns)

    def values(self, node: exp.Expr) -> tuple[str, list[Typed]]:
        """`VALUES`, as a query. Raises: `NeedsSpark`."""
        write = self.expressions(Scope())
        rows = [
            write.all(
                each.expressions
                if isinstance(each, exp.Tuple)
                else [each.this if isinstance(each, exp.Paren) else each]
            )
            for each in node.expressions
        ]
        if len({len(row) for row in rows}) != 1:
            raise NeedsSpark("VALUES of different lengths")
        types = [_all_wider(each) for each in zip(*rows)]
        lines = ", ".join(
            "(" + ", ".join(cast(each.sql, each.type, type) for each, type in zip(row, types)) + ")" for row in rows
        )
        alias = self._fresh()
        names = ", ".join(f"c{index}" for index in range(len(types)))
        columns = [Typed(f"c{index}", type, f"col{index + 1}") for index, type in enumerate(types)]
        return f"SELECT {names} FROM (VALUES {lines}) AS {alias}({names})", columns

    # -- joins -----------------------------------------------------------------------------------------------

    def add_join(self, node: exp.Expr) -> None:
        """Raises: `NeedsSpark`, `NotFound`."""
        only(node, "this", "side", "kind", "on", "using", "method")
        side, kind = (node.args.get("side") or "").upper(), (node.args.get("kind") or "").upper()
        source, sql = self._source(node.this)
        on: Any = node.args.get("on")
        using = node.args.get("using")
        if node.args.get("method"):
            using = self._common(str(node.args["method"]), source)
            if kind not in ("INNER", "OUTER", "") or (side and not using):
                raise NeedsSpark(f"NATURAL {side} {kind} JOIN")
        if kind == "CROSS" or not (on or using):
            if side or kind not in ("CROSS", "INNER", "") or on or using:
                raise NeedsSpark(f"{side} {kind} JOIN without a condition".strip())
            self.sql += f" CROSS JOIN {sql}"
            self.scope.sources.append(source)
            return
        if kind in ("SEMI", "ANTI"):
            if side not in ("LEFT", ""):
                raise NeedsSpark(f"{side} {kind} JOIN")
            if using:
                merged = self.scope.merged
                condition = self._using(using, source, side)
                self.scope.merged = merged
            else:
                both = Scope([*self.scope.sources, source], self.scope.outer, merged=self.scope.merged)
                condition = self.expressions(both).condition(on).sql
            self.sql += f" {kind} JOIN {sql} ON {condition}"
            return
        if kind not in ("INNER", "OUTER", ""):
            raise NeedsSpark(f"{kind} JOIN")
        condition = self._using(using, source, side) if using else ""
        self.scope.sources.append(source)
        if not using:
            condition = self.expressions().condition(on).sql
        else:
            hidden = frozenset(each.name.casefold() for each in using)
            self.scope.sources = [Source(each.alias, each.columns, each.hidden | hidden) for each in self.scope.sources]
        self.sql += f" {_SIDES[side]} {sql} ON {condition}"

    def _common(self, method: str, source: Source) -> list[Any]:
        """The columns that NATURAL joins by."""
        if method.upper() != "NATURAL":
            raise NeedsSpark(f"{method} JOIN")
        theirs = {each.name.casefold() for each in source.columns}
        return [exp.to_identifier(each.name) for each in self.scope.star() if each.name.casefold() in theirs]

    def _using(self, using: list[Any], source: Source, side: str) -> str:
        conditions, merged = [], []
        right = Scope([source])
        for each in using:
            one, other = self.scope.resolve([each.name])[0], right.resolve([each.name])[0]
            if one.type != other.type:
                raise NeedsSpark(f"USING of {shown(one.type)} and {shown(other.type)}")
            conditions.append(f"{one.sql} = {other.sql}")
            both = {"RIGHT": other.sql, "FULL": f"coalesce({one.sql}, {other.sql})"}.get(side, one.sql)
            merged.append(Column(each.name, one.type, both))
        names = {each.name.casefold() for each in merged}
        self.scope.merged = merged + [each for each in self.scope.merged if each.name.casefold() not in names]
        return " AND ".join(conditions)

    # -- generators ------------------------------------------------------------------------------------------

    def add_lateral(self, node: exp.Expr) -> None:
        """`LATERAL VIEW [OUTER] explode(..) name AS column`. Raises: `NeedsSpark`."""
        only(node, "this", "view", "outer", "alias")
        alias = node.args.get("alias")
        names = [each.name for each in (alias.args.get("columns") or [])] if alias else []
        columns = self.generate(node.this, names, bool(node.args.get("outer")))
        self.scope.sources.append(Source(alias.name if alias and alias.name else "", columns))

    def generate(self, node: exp.Expr, names: list[str], outer: bool = False) -> list[Column]:
        """A row for every element of an array or a map. Raises: `NeedsSpark`."""
        if not is_generator(node) or len(node.expressions) != 1:
            raise NeedsSpark(f"LATERAL VIEW {node.sql('spark')[:40]}")
        function = node.name.lower()
        arg = self.expressions().write(node.expressions[0])
        alias = self._fresh()
        at = f"{alias}.i + 1"
        if is_list(arg.type):
            length = f"len({arg.sql})"
            columns = [Column("col", arg.type.value_type, f"{arg.sql}[{at}]")]
        elif is_map(arg.type):
            length = f"len(map_keys({arg.sql}))"
            columns = [
                Column("key", arg.type.key_type, f"map_keys({arg.sql})[{at}]"),
                Column("value", arg.type.item_type, f"map_values({arg.sql})[{at}]"),
            ]
        else:
            raise NeedsSpark(f"{function} of {shown(arg.type)}")
        if function.startswith("pos"):
            columns.insert(0, Column("pos", INT, f"CAST({alias}.i AS INTEGER)"))
        if names and len(names) != len(columns):
            raise NeedsSpark(f"{len(names)} names for the {len(columns)} columns of {function}")
        rows = f"(SELECT unnest(range(0, {length})) AS i) AS {alias}"
        if not self.sql:
            self.sql = " FROM (SELECT 1) AS one"
        keep = outer or function.endswith("_outer")
        self.sql += f" LEFT JOIN LATERAL {rows} ON true" if keep else f" CROSS JOIN LATERAL {rows}"
        return [Column(name, each.type, each.sql) for name, each in zip(names or [c.name for c in columns], columns)]


def is_generator(node: exp.Expr) -> bool:
    return isinstance(node, exp.Anonymous) and node.name.lower() in _GENERATORS


def _all_wider(column: tuple[Typed, ...]) -> pa.DataType:
    found = column[0].type
    for each in column[1:]:
        found = wider(found, each.type, "VALUES")
    return found
