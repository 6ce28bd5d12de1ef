"""How transactions become statements at a target: where they may be cut, in which order rows go, and the SQL of it.

A chunk is one or several whole transactions, as few as reach the wanted number of rows. What it does to a row is its
net effect: only the end of a chunk can be seen at the target. Rows that go make room for those that come, children go
before their parents and parents come before their children, so that keys, unique columns and foreign keys hold.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Final, NamedTuple

Row = tuple[Any, ...]

POLICIES: Final = ("stop", "overwrite", "skip")
STATE_TABLE: Final = "tidegate_applied"
"""Where a target keeps how far it is."""


# -- chunks ----------------------------------------------------------------------------------------------------------


class Chunk(NamedTuple):
    """Transactions from `first` up to, and without, `end`."""

    first: int
    end: int
    is_left_out: bool = False
    """Whether they came from the target itself, and only the position moves."""


def cut(rows: Sequence[int], left_out: Sequence[bool], chunk_rows: int) -> list[Chunk]:
    """Where a run of transactions with so many rows each is cut: behind the one that reaches `chunk_rows`.

    A transaction that is left out is in no chunk with others: what is before it was done without knowing of it.
    """
    found: list[Chunk] = []
    first = count = 0
    for at, (size, out) in enumerate(zip(rows, left_out, strict=True)):
        if out:
            if first < at:
                found.append(Chunk(first, at))
            if found and found[-1].is_left_out and found[-1].end == at:
                found[-1] = Chunk(found[-1].first, at + 1, True)
            else:
                found.append(Chunk(at, at + 1, True))
            first, count = at + 1, 0
            continue
        count += size
        if count >= chunk_rows:
            found.append(Chunk(first, at + 1))
            first, count = at + 1, 0
    if first < len(rows):
        found.append(Chunk(first, len(rows)))
    return found


def cut_by_place(
    rows: Sequence[int], left_out: Sequence[bool], firsts: Sequence[str | None], chunk_rows: int
) -> list[Chunk]:
    """As `cut`; those that are together in a chunk first happened at one place."""
    found: list[Chunk] = []
    for _, places in groupby(range(len(rows)), key=firsts.__getitem__):
        run = list(places)
        begin, end = run[0], run[-1] + 1
        for each in cut(rows[begin:end], left_out[begin:end], chunk_rows):
            found.append(Chunk(begin + each.first, begin + each.end, each.is_left_out))
    return found


# -- what a chunk does to a table ------------------------------------------------------------------------------------


@dataclass(slots=True)
class Work:
    """The net effect of a chunk on one table. `before` is what the rows were, where that is known."""

    deletes: list[tuple[Row, Row | None]] = field(default_factory=list)
    """Keys, and the rows before."""
    updates: list[tuple[Row, Row, Row]] = field(default_factory=list)
    """Keys, the rows before and after."""
    inserts: list[Row] = field(default_factory=list)
    upserts: list[Row] = field(default_factory=list)
    """Rows that come, when it is not known whether others with their keys are there."""

    def __len__(self) -> int:
        return len(self.deletes) + len(self.updates) + len(self.inserts) + len(self.upserts)


def plan(changes: Iterable[tuple[Row, Row | None]], before: Mapping[Row, Row] | None) -> Work:
    """What to do for changes of different keys: each the key and the row it has then, None when it is gone.

    `before` are the rows with these keys as they were; None when nobody has looked. A row that stays as it is is left
    alone, and so is a key that came and went within the chunk.
    """
    work = Work()
    if before is None:
        for key, after in changes:
            if after is None:
                work.deletes.append((key, None))
            else:
                work.upserts.append(after)
        return work
    for key, after in changes:
        there = before.get(key)
        if after is None:
            if there is not None:
                work.deletes.append((key, there))
        elif there is None:
            work.inserts.append(after)
        elif not same(there, after):
            work.updates.append((key, there, after))
    return work


def same(one: Row, other: Row) -> bool:
    """Whether two rows have the same values; NaN is equal to NaN."""
    return one == other or all(a == b or (a != a and b != b) for a, b in zip(one, other, strict=True))


def parents_first(tables: Sequence[str], references: Mapping[str, Iterable[str]]) -> list[str]:
    """The tables, each behind those that its foreign keys name; as given where they do not say. Circles are broken."""
    found: list[str] = []
    state: dict[str, bool] = {}
    for root in tables:
        stack = [root]
        while stack:
            table = stack[-1]
            if table not in state:
                state[table] = False
                stack.extend(each for each in sorted(references.get(table, ())) if each in tables and each not in state)
                continue
            stack.pop()
            if not state[table]:
                state[table] = True
                found.append(table)
    return found


# -- statements ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Dialect:
    """How a kind of database writes what they do not all write in the same way."""

    mark: str
    """Of a value in a statement."""
    same: str
    """What compares NULL-safely."""
    overriding: str = ""
    """What lets values be given for columns that the database would fill by itself."""
    has_schemas: bool = False
    """Whether a dot in the name of a table stands behind that of its schema; else it is part of the name."""

    def table(self, name: str) -> str:
        """A table's name as SQL has it. One that begins with a quote is quoted: its dots are part of it."""
        if not self.has_schemas:
            return quoted(name)
        return name if name.startswith('"') else ".".join(map(quoted, name.split(".")))

    def escape(self, text: str) -> str:
        """A name in a statement that has values: what looks like the mark of one is none."""
        return text.replace("%", "%%") if self.mark.startswith("%") else text


SQLITE: Final = Dialect("?", "IS")
POSTGRES: Final = Dialect("%s", "IS NOT DISTINCT FROM", " OVERRIDING SYSTEM VALUE", has_schemas=True)


class TargetColumn(NamedTuple):
    """A column as the target has it."""

    name: str
    type: str = ""
    """What values are cast to when they are written, where the database wants that."""
    exact_type: str = ""
    """What they are cast to when they are compared, with lengths and digits."""
    is_nullable: bool = True
    has_default: bool = False
    is_generated: bool = False
    is_fixed: bool = False
    """Whether it takes a value when its row comes, and no other one later."""


class ForeignKey(NamedTuple):
    """What columns of a table refer to."""

    parent: str
    columns: tuple[str, ...]
    parent_columns: tuple[str, ...]
    """In the order of `columns`."""


class Child(NamedTuple):
    """Columns that refer to a table."""

    table: str
    columns: tuple[str, ...]
    parent_columns: tuple[str, ...]
    """In the order of `columns`."""


@dataclass(frozen=True, slots=True)
class TargetTable:
    """A table as the target has it."""

    name: str
    columns: tuple[TargetColumn, ...]
    keys: tuple[frozenset[str], ...]
    """The columns of each unique constraint that is checked at once; those of the primary key first."""
    foreign_keys: tuple[ForeignKey, ...] = ()
    dependents: frozenset[str] = frozenset()
    """The tables to whose rows deleting one of its rows does something, as ON DELETE CASCADE does, or that refuse it at
    once."""
    passed_on: frozenset[str] = frozenset()
    """The columns whose change does something to rows of others, as ON UPDATE CASCADE does."""
    is_acting: bool = False
    """Whether its own foreign keys change or delete its rows when what they refer to is changed or deleted."""
    late_keys: tuple[frozenset[str], ...] = ()
    """The columns of each unique constraint that may be checked at the end of a transaction."""
    children: tuple[Child, ...] = ()
    """All foreign keys that refer to it, also those of other tables."""
    is_lenient: bool = False
    """Whether a constraint of it may do something else than turn a row away, unless a statement says not to."""
    called: str = ""
    """What foreign keys call it, where that may be another name."""

    @property
    def folded(self) -> str:
        """What foreign keys call it, in lower case."""
        return (self.called or self.name).casefold()

    @property
    def is_acted_on(self) -> bool:
        return bool(self.dependents)

    def column(self, name: str) -> TargetColumn | None:
        """By its name; where no case fits, by any."""
        exact = next((each for each in self.columns if each.name == name), None)
        return exact or next((each for each in self.columns if each.name.casefold() == name.casefold()), None)


def quoted(name: str) -> str:
    """A name as SQL has it; that of a table says `Dialect.table`."""
    return '"' + name.replace('"', '""') + '"'


class Statements:
    """The statements for one table. Rows are tuples in the order of `columns`, keys in that of `key`."""

    def __init__(
        self,
        dialect: Dialect,
        table: str,
        columns: Sequence[TargetColumn],
        key: Sequence[int],
        *,
        is_lenient: bool = False,
    ) -> None:
        """`key` are places among the columns; none in a table that only grows. `is_lenient` as `TargetTable` has it."""
        self._key = tuple(key)
        self._rest = tuple(at for at in range(len(columns)) if at not in self._key)
        self._escape = dialect.escape
        self._plain, self._columns = dialect.table(table), [each.name for each in columns]
        name = dialect.escape(self._plain)
        names = [dialect.escape(quoted(each.name)) for each in columns]
        types = [dialect.escape(each.type) for each in columns]
        exact_types = [dialect.escape(each.exact_type) for each in columns]
        marks = [_cast(dialect.mark, each) for each in types]

        def is_key(at: int) -> str:
            return f"{names[at]} = {_cast(dialect.mark, exact_types[at])}"

        def is_same(at: int) -> str:
            kind = exact_types[at]
            if kind == "json":  # It cannot be compared.
                return f"{names[at]}::jsonb {dialect.same} {dialect.mark}::jsonb"
            return f"{names[at]} {dialect.same} {_cast(dialect.mark, kind)}"

        listed = ", ".join(names)
        where = " AND ".join(map(is_key, self._key))
        # With nothing but a key there is nothing more to compare.
        unchanged = " AND ".join([where, *map(is_same, self._rest)])
        sets = ", ".join(f"{names[at]} = {marks[at]}" for at in self._rest)
        excluded = ", ".join(f"{names[at]} = excluded.{names[at]}" for at in self._rest)
        self._table, self._names, self._marks = name, names, marks
        self.where, self._unchanged = where, unchanged
        self._some: dict[tuple[tuple[int, ...], bool], str] = {}
        # Triggers would have to obey it, too: so it is said only where it must be.
        strictly = " OR ABORT" if is_lenient else ""
        self._update = f"UPDATE{strictly} {name}"
        self.insert = f"INSERT{strictly} INTO {name} ({listed}){dialect.overriding} VALUES ({', '.join(marks)})"
        conflict = ", ".join(names[at] for at in self._key)
        self.upsert = f"{self.insert} ON CONFLICT ({conflict}) DO " + (
            f"UPDATE SET {excluded}" if excluded else "NOTHING"
        )
        self.update = f"{self._update} SET {sets} WHERE {where}"
        self.update_same = f"{self._update} SET {sets} WHERE {unchanged}"
        self.delete = f"DELETE FROM {name} WHERE {where}"
        self.delete_same = f"DELETE FROM {name} WHERE {unchanged}"
        self.select = f"SELECT {listed} FROM {name} WHERE {where}"
        self.select_same = f"SELECT 1 FROM {name} WHERE {unchanged}"
        # These have no values, and so nothing in them stands for one.
        self.clear = f"DELETE FROM {self._plain}"
        self.any = f"SELECT 1 FROM {self._plain} LIMIT 1"

    def some(self, columns: tuple[int, ...], *, is_same: bool = False) -> str:
        """What sets columns of a row; its values are theirs, then those of the key, or with `is_same` of `deletes`."""
        found = self._some.get((columns, is_same))
        if found is None:
            sets = ", ".join(f"{self._names[at]} = {self._marks[at]}" for at in columns)
            where = self._unchanged if is_same else self.where
            found = self._some[columns, is_same] = f"{self._update} SET {sets} WHERE {where}"
        return found

    def loosen_all(self, columns: Sequence[int]) -> str:
        """What makes columns of all rows NULL."""
        sets = ", ".join(f"{quoted(self._columns[at])} = NULL" for at in columns)
        return f"UPDATE {self._plain} SET {sets}"

    def has_any(self, columns: Sequence[str]) -> str:
        """What finds a row, by its key, in which one of these columns has a value."""
        some = " OR ".join(f"{self._escape(quoted(each))} IS NOT NULL" for each in columns)
        return f"SELECT 1 FROM {self._table} WHERE {self.where} AND ({some})"

    def key_of(self, row: Row) -> Row:
        return tuple([row[at] for at in self._key])

    def updates(self, key: Row, before: Row, after: Row) -> Row:
        """The values of `update_same`."""
        rest = self._rest
        return (*[after[at] for at in rest], *key, *[before[at] for at in rest])

    def update_only(self, key: Row, after: Row) -> Row:
        """The values of `update`."""
        return (*[after[at] for at in self._rest], *key)

    def deletes(self, key: Row, before: Row) -> Row:
        """The values of `delete_same` and `select_same`."""
        return (*key, *[before[at] for at in self._rest])


def _cast(mark: str, type: str) -> str:
    return f"{mark}::{type}" if type else mark
