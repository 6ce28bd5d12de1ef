"""`References`: which rows of a target lack what they refer to, and which ones others refer to; asked by row.

Foreign keys that are put off say at the end of a transaction that one does not hold, and not which. Where rows are to
be left out, those are looked for that are broken, and no others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tidegate.capture.target import Target
from tidegate.capture.target_tables import TableWriter
from tidegate.cdc.apply_plan import Child, ForeignKey, Row, quoted


class References:
    """Within a transaction of the target."""

    def __init__(self, target: Target, writers: Mapping[str, TableWriter]) -> None:
        self._target = target
        self._table: Final = target.dialect.table
        self._writers = {each.shape.folded: each for each in writers.values()}

    def broken(self, writer: TableWriter, key: Row) -> str:
        """What a row refers to that is not there, for a message; empty when all of it is, or the row is not."""
        for each in writer.shape.foreign_keys:
            sql = f"{self._escaped(self._lacking(writer, each))} AND {writer.sql.where}"
            if self._target.run(sql, key):
                return f"foreign key: it refers to a row of {each.parent!r} that is not there"
        return ""

    def loosening(self, writer: TableWriter, key: Row) -> tuple[int, ...]:
        """The columns without which a row refers to nothing that is not there; none when one cannot be NULL."""
        found = []
        for each in writer.shape.foreign_keys:
            sql = f"{self._escaped(self._lacking(writer, each))} AND {writer.sql.where}"
            if self._target.run(sql, key):
                column = writer.free_of(each.columns)
                if column is None:
                    return ()
                found.append(column)
        return tuple(sorted(set(found)))

    def all_broken(self, writer: TableWriter) -> list[Row]:
        """The keys of all rows that refer to what is not there."""
        keys = ", ".join(f"o.{quoted(writer.there[at].name)}" for at in writer.key)
        found: dict[Row, None] = {}
        for each in writer.shape.foreign_keys:
            sql = self._lacking(writer, each).replace("SELECT 1", f"SELECT {keys}", 1)
            found.update(dict.fromkeys(map(tuple, self._target.run(sql))))
        return list(found)

    def children(self, writer: TableWriter, key: Row) -> list[tuple[Child, TableWriter | None, Row]]:
        """Others that refer to a row: by which foreign key, and their tables, if they are ours, and keys."""
        found = []
        for each in writer.shape.children:
            child = self._writers.get(each.table.casefold())
            has_key = child is not None and bool(child.key)
            keys = [quoted(child.there[at].name) for at in child.key] if child is not None and has_key else []
            listed = ", ".join(f"c.{name}" for name in keys) or "1"
            same = " AND ".join(f"c.{quoted(a)} = o.{quoted(b)}" for a, b in _pairs(each))
            if child is writer and keys:
                same += " AND NOT (" + " AND ".join(f"c.{name} = o.{name}" for name in keys) + ")"
            where = " AND ".join(self._is_key(writer, at) for at in writer.key)
            tables = f"{self._table(each.table)} AS c JOIN {self._table(writer.shape.name)} AS o"
            sql = self._escaped(f"SELECT {listed} FROM {tables} ON {same}")
            for row in self._target.run(f"{sql} WHERE {where}", key):
                found.append((each, child if has_key else None, tuple(row)))
        return found

    def left_behind(self, writer: TableWriter, before: Row) -> str:
        """Whose rows refer to values that a row had and nobody has now, for a message; empty when none do."""
        for each in writer.shape.children:
            values = writer.values_of(each.parent_columns, before)
            if values is None:
                continue
            mark = self._target.dialect.mark
            refers = " AND ".join(f"c.{self._escaped(quoted(name))} = {mark}" for name in each.columns)
            has = " AND ".join(f"p.{quoted(b)} = c.{quoted(a)}" for a, b in _pairs(each))
            sql = self._escaped(f"SELECT 1 FROM {self._table(each.table)} AS c WHERE ")
            gone = self._escaped(
                f" AND NOT EXISTS (SELECT 1 FROM {self._table(writer.shape.name)} AS p WHERE {has}) LIMIT 1"
            )
            if self._target.run(f"{sql}{refers}{gone}", values):
                return f"foreign key: rows of {each.table!r} refer to it"
        return ""

    def _is_key(self, writer: TableWriter, at: int) -> str:
        there, mark = writer.there[at], self._target.dialect.mark
        cast = f"::{self._escaped(there.exact_type)}" if there.exact_type else ""
        return f"o.{self._escaped(quoted(there.name))} = {mark}{cast}"

    def _escaped(self, sql: str) -> str:
        return self._target.dialect.escape(sql)

    def _lacking(self, writer: TableWriter, each: ForeignKey) -> str:
        given = " AND ".join(f"o.{quoted(name)} IS NOT NULL" for name in each.columns)
        has = " AND ".join(f"p.{quoted(b)} = o.{quoted(a)}" for a, b in _pairs(each))
        return (
            f"SELECT 1 FROM {self._table(writer.shape.name)} AS o WHERE {given}"
            f" AND NOT EXISTS (SELECT 1 FROM {self._table(each.parent)} AS p WHERE {has})"
        )


def _pairs(each: Child | ForeignKey) -> list[tuple[str, str]]:
    """Columns that refer, and what they refer to."""
    return list(zip(each.columns, each.parent_columns, strict=True))
