"""`Partitions`: what becomes of a partitioned table's parts that the server's log has no word of.

A partitioned table is published as one. So PostgreSQL says nothing when a part of it is truncated, detached, dropped or
attached with rows in it, and not which rows came or went: that is found out in the catalog, by comparing its parts with
those that were noted, and it ends the capture with `SourceGone`. A part that is made for the table, or attached while
it is empty, is nothing of that kind. Nor is one that is written anew (VACUUM FULL, CLUSTER), as far as that can be
told: by a row in it that is older than the last look at it.

A part that is truncated lies in another file. So it does when the whole table is truncated, which is said, in its
transaction: parts that this very transaction has changed last are noted as they are then. Hence a truncation of the
whole table within a subtransaction, or with other changes of its parts' definition right behind it, is taken for one of
its parts.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tidegate.capture.pg_connect import client, explained
from tidegate.capture.pg_position import ANEW
from tidegate.errors import SourceGone

if TYPE_CHECKING:
    import psycopg

# The tables themselves are among them: one that is not has been dropped.
_TREE: Final = """
WITH RECURSIVE tree(root, part, since) AS (
  SELECT oid, oid, '0'::xid FROM pg_class WHERE oid = ANY(%s::oid[]) AND relkind = 'p'
  UNION ALL
  SELECT tree.root, i.inhrelid, i.xmin FROM tree JOIN pg_inherits i ON i.inhparent = tree.part
)
SELECT t.root, t.part, n.nspname, c.relname, c.relfilenode, t.since::text, c.xmin::text,
  pg_snapshot_xmin(pg_current_snapshot())::text
FROM tree t JOIN pg_class c ON c.oid = t.part JOIN pg_namespace n ON n.oid = c.relnamespace
"""
# What a table had before it was made a part: by earlier transactions, or earlier in the one that attached it.
_BROUGHT: Final = """
SELECT EXISTS (
  SELECT FROM {} r, pg_inherits i, pg_attribute a
  WHERE i.inhrelid = {part} AND a.attrelid = {part} AND a.attname = 'tableoid'
    AND ((a.xmin <> i.xmin AND age(r.xmin) > age(i.xmin))
      OR (r.xmin = i.xmin AND r.cmin::text::bigint < i.cmin::text::bigint))
)
"""
_OLDER: Final = "SELECT EXISTS (SELECT FROM {} WHERE age(xmin) > age({}::xid))"
_XIDS: Final = 1 << 32


class Part(NamedTuple):
    """A part as it was seen."""

    root: int
    schema: str
    name: str
    file: int
    """Where its rows lie."""
    since: str
    """The transaction that made it a part."""
    horizon: int
    """Transactions before this one had ended when it was seen."""


class Partitions:
    """The parts of captured tables. `noted` is what is kept of them, by their numbers."""

    def __init__(self, connection: psycopg.Connection[Any], where: str) -> None:
        self._sql = connection
        self._where = where
        self.noted: dict[int, Part] | None = None
        """None: as they are when they are looked at next."""
        self._moved: dict[int, int] = {}
        """Parts that lie in another file than noted, and in which."""
        self._behind = 0
        """A place in the log behind what has moved them."""

    def note(self, reading: psycopg.Connection[Any], names: Mapping[int, str]) -> None:
        """Note them as the transaction of a snapshot sees them."""
        self._moved = {}
        self.noted = {oid: part for oid, (part, _) in self._look(reading, names).items() if oid != part.root}

    def _look(self, connection: psycopg.Connection[Any], names: Mapping[int, str]) -> dict[int, tuple[Part, int]]:
        """All parts and the tables themselves, and the transactions that have changed them last."""
        with explained(self._where, "looking at its partitions"):
            rows = connection.execute(_TREE, [list(names)]).fetchall()
        return {
            part: (Part(root, schema, name, file, since, int(horizon)), int(by))
            for root, part, schema, name, file, since, by, horizon in rows
        }

    def watch(self, names: Mapping[int, str]) -> bool:
        """Compare the parts of tables with those that were noted; whether there is more to note now.

        Raises: `SourceGone`, naming the part, when rows came or went with one.
        """
        there = self._look(self._sql, names)
        self._moved = {}
        if self.noted is None:
            self.noted = {oid: part for oid, (part, _) in there.items() if oid != part.root}
            return bool(self.noted)
        before, is_more = self.noted, False
        for oid, was in before.items():
            if was.root in there and (oid not in there or there[oid][0].since != was.since):
                raise self._gone(was, names, "was detached or dropped")
        now: dict[int, Part] = {}
        for oid, (part, _) in there.items():
            old = before.get(oid)
            if oid == part.root:
                continue
            if old is None:
                if self._has(_BROUGHT, part, oid):
                    raise self._gone(part, names, "was attached with rows in it")
            elif old.file != part.file and not self._has(_OLDER, part, old.horizon % _XIDS):
                self._moved[oid] = part.file
                part = old
            now[oid] = part
            is_more = is_more or old is None or old.file != part.file
        self.noted = now
        if self._moved:
            self._behind = self._end()
        return is_more

    def _end(self) -> int:
        with explained(self._where, "asking where it is"):
            row = self._sql.execute("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn").fetchone()
        return int(row[0]) if row else 0

    def settle(self, seen: int, names: Mapping[int, str]) -> bool:
        """Everything up to a place in the log was given: what moved parts by then was no truncation of whole tables.

        Whether there is more to note now. Raises: `SourceGone`, naming the part.
        """
        if not self._moved or seen < self._behind:
            return False
        moved = self._moved
        is_more = self.watch(names)
        for oid, file in moved.items():
            if self._moved.get(oid) == file and self.noted is not None:
                raise self._gone(self.noted[oid], names, "was truncated")
        return is_more

    def emptied(self, root: int, xid: int, names: Mapping[int, str]) -> bool:
        """A transaction has truncated all of a table; whether there is more to note now."""
        noted = self.noted
        if not noted or all(part.root != root for part in noted.values()):
            return False
        is_more = False
        for oid, (part, by) in self._look(self._sql, names).items():
            old = noted.get(oid)
            if old is not None and old.root == root and old.file != part.file and by == xid % _XIDS:
                noted[oid] = part
                is_more = True
        return is_more

    def _has(self, query: str, part: Part, number: int) -> bool:
        """Whether a part has such rows. One that may not be read has none."""
        from psycopg import sql

        table = sql.Identifier(part.schema, part.name)
        asked = (
            sql.SQL(query).format(table, part=sql.Literal(number))
            if query is _BROUGHT
            else sql.SQL(query).format(table, sql.Literal(str(number)))
        )
        errors = client().errors
        unread = (errors.InsufficientPrivilege, errors.FeatureNotSupported, errors.UndefinedTable)
        with explained(self._where, f"looking into partition {part.name!r}"), suppress(*unread):
            row = self._sql.execute(asked).fetchone()
            return bool(row and row[0])
        return False

    def _gone(self, part: Part, names: Mapping[int, str], what: str) -> SourceGone:
        return SourceGone(
            f"partition {part.name!r} of table {names.get(part.root, part.root)!r} at {self._where} {what}, and"
            f" PostgreSQL does not say which rows came or went; {ANEW}"
        )
