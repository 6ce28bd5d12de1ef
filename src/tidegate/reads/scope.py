"""Which columns an expression may name, and what each name means: `Scope`. Upper and lower case are the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from tidegate.errors import InvalidArgument, NotFound
from tidegate.reads.nested_functions import field as field_of
from tidegate.reads.spark_types import NeedsSpark, Typed, is_struct
from tidegate.reads.time_windows import TimeWindow


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a source: its name in Spark, and how DuckDB reaches it."""

    name: str
    type: pa.DataType
    sql: str


@dataclass(frozen=True, slots=True)
class Source:
    """A table, a query or a generator in FROM, under its name."""

    alias: str
    columns: Sequence[Column]
    hidden: frozenset[str] = frozenset()
    """Columns that a join USING them shows once for both of its sides: there by `alias.name` only."""


@dataclass(slots=True)
class Scope:
    """What FROM offers, then what the query around it offers."""

    sources: list[Source] = field(default_factory=list)
    outer: Scope | None = None
    names: Mapping[str, Typed] = field(default_factory=dict)
    """Names of a lambda's arguments; they win."""
    aliases: dict[str, Typed] = field(default_factory=dict)
    """Columns of the same SELECT, named before; they come after the sources' own."""
    merged: list[Column] = field(default_factory=list)
    """Columns that a join USING them shows once."""
    window: TimeWindow | None = None
    """What `window(..)` is in this SELECT."""

    def time_window(self) -> TimeWindow | None:
        """The nearest one."""
        return self.window or (self.outer.time_window() if self.outer else None)

    def resolve(self, parts: Sequence[str]) -> tuple[Typed, bool]:
        """What a name means, and whether it is a field inside of a column. Raises: `NotFound`, `InvalidArgument`."""
        scope: Scope | None = self
        while scope is not None:
            found = scope._own(parts)
            if found is not None:
                return found
            scope = scope.outer
        known = ", ".join(each.name for source in self.sources for each in source.columns)
        raise NotFound(f"there is no column {'.'.join(parts)!r}; there are {known or 'none'}")

    def _own(self, parts: Sequence[str]) -> tuple[Typed, bool] | None:
        head = parts[0].casefold()
        if head in self.names:
            return _inside(self.names[head], parts[1:])
        if len(parts) > 1:
            # Two may have the same alias; then only what one of them has can be said.
            named = [each for source in self.sources if source.alias.casefold() == head for each in source.columns]
            found = _among(named, parts[1])
            if found is not None:
                return _inside(Typed(found.sql, found.type, parts[1]), parts[2:])
        columns = [
            *self.merged,
            *(each for source in self.sources for each in source.columns if each.name.casefold() not in source.hidden),
        ]
        one = _among(columns, parts[0])
        if one is not None:
            return _inside(Typed(one.sql, one.type, parts[0]), parts[1:])
        if head in self.aliases:
            alias = self.aliases[head]
            return _inside(Typed(alias.sql, alias.type, parts[0]), parts[1:])
        return None

    def star(self, alias: str | None = None) -> list[Column]:
        """All columns, or those of one source, or the fields of one column. Raises: `NotFound`."""
        if alias is None:
            shown = list(self.merged)
            for source in self.sources:
                shown += [each for each in source.columns if each.name.casefold() not in source.hidden]
            return shown
        for source in self.sources:
            if source.alias.casefold() == alias.casefold():
                return list(source.columns)
        column = self._own([alias])
        if column is not None and is_struct(column[0].type):
            fields = [_inside(column[0], [each.name])[0] for each in column[0].type]
            return [Column(each.name, one.type, one.sql) for each, one in zip(column[0].type, fields)]
        raise NotFound(f"there is no table {alias!r} in FROM")


def _among(columns: Sequence[Column], name: str) -> Column | None:
    found = [each for each in columns if each.name.casefold() == name.casefold()]
    if len(found) > 1:
        raise InvalidArgument(f"the column {name!r} is ambiguous: write table.{name}")
    return found[0] if found else None


def _inside(found: Typed, fields: Sequence[str]) -> tuple[Typed, bool]:
    for name in fields:
        if not is_struct(found.type):
            raise NeedsSpark(f"{found.name}.{name}")
        sql, type = field_of(found, name)
        found = Typed(sql, type, f"{found.name}.{name}")
    return found, bool(fields)
