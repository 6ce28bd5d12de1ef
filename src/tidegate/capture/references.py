"""`References`: which rows of a target lack what they refer to, and which ones others refer to; asked by row.

Foreign keys that are put off say at the end of a transaction that one does not hold, and not which. Where rows are to
be left out, those are looked for that are broken, and no others.
"""

from __future__ import annotations

from collections.abc import Mapping

from tidegate.capture.target import Target
from tidegate.capture.target_tables import TableWriter
from tidegate.cdc.apply_plan import Child, ForeignKey, Row, column_quoted, quoted


class References:
    """Within a transaction of the target."""

    def __init__(self, target: Target, writers: Mapping[str, TableWriter]) -> None:
        self._target = target
        self._writers = {name.casefold(): each for name, each in writers.items()}

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
        keys = ", ".join(f"o.{column_quoted(writer.names[at])}" for at in writer.key)
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
            keys = [column_quoted(child.names[at]) for at in child.key] if child is not None and has_key else []
            listed = ", ".join(f"c.{name}" for name in keys) or "1"
            same = " AND ".join(f"c.{column_quoted(a)} = o.{column_quoted(b)}" for a, b in _pairs(each))
            if child is writer and keys:
                same += " AND NOT (" + " AND ".join(f"c.{name} = o.{name}" for name in keys) + ")"
            where = " AND ".join(f"o.{column_quoted(writer.names[at])} = {self._mark(writer, at)}" for at in writer.key)
            sql = self._escaped(
                f"SELECT {listed} FROM {quoted(each.table)} AS c JOIN {quoted(writer.shape.name)} AS o ON {same}"
            )
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
            refers = " AND ".join(f"c.{column_quoted(name)} = {mark}" for name in each.columns)
            has = " AND ".join(f"p.{column_quoted(b)} = c.{column_quoted(a)}" for a, b in _pairs(each))
            sql = self._escaped(f"SELECT 1 FROM {quoted(each.table)} AS c WHERE ")
            gone = self._escaped(
                f" AND NOT EXISTS (SELECT 1 FROM {quoted(writer.shape.name)} AS p WHERE {has}) LIMIT 1"
            )
            if self._target.run(f"{sql}{refers}{gone}", values):
                return f"foreign key: rows of {each.table!r} refer to it"
        return ""

    def _mark(self, writer: TableWriter, at: int) -> str:
        column = writer.shape.column(writer.names[at])
        mark = self._target.dialect.mark
        return f"{mark}::{column.exact_type}" if column is not None and column.exact_type else mark

    def _escaped(self, sql: str) -> str:
        return self._target.dialect.escape(sql)

    @staticmethod
    def _lacking(writer: TableWriter, each: ForeignKey) -> str:
        given = " AND ".join(f"o.{column_quoted(name)} IS NOT NULL" for name in each.columns)
        has = " AND ".join(f"p.{column_quoted(b)} = o.{column_quoted(a)}" for a, b in _pairs(each))
        return (
            f"SELECT 1 FROM {quoted(writer.shape.name)} AS o WHERE {given}"
            f" AND NOT EXISTS (SELECT 1 FROM {quoted(each.parent)} AS p WHERE {has})"
        )


def _pairs(each: Child | ForeignKey) -> list[tuple[str, str]]:
    """Columns that refer, and what they refer to."""
    return list(zip(each.columns, each.parent_columns, strict=True))
