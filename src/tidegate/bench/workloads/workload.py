"""What a workload is: tables with keys, queries in Spark SQL, and transactions that change the tables.

Everything is drawn from a seed: the same seed gives the same rows and the same transactions, on every machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.tables.column_type import to_sql

Row = dict[str, Any]
Key = tuple[Any, ...]
Numbers = np.ndarray[Any, Any]
_SEARCHES_MAX: Final = 50


class Change(NamedTuple):
    """What one transaction does to one table: `rows` are put in, or in the place of those with their keys."""

    table: str
    rows: pa.Table
    deleted: pa.Table
    """The keys of rows that go."""


@dataclass(frozen=True, slots=True)
class Workload:
    """Tables and queries that belong together."""

    name: str
    schemas: Mapping[str, pa.Schema]
    keys: Mapping[str, Sequence[str]]
    queries: Mapping[str, str]
    """Spark SQL by name. Each has one answer: where rows could tie in an order that cuts them, keys decide."""

    def ddl(self) -> Iterator[str]:
        """A CREATE TABLE for each table."""
        for name, schema in self.schemas.items():
            columns = ", ".join(f"{each.name} {to_sql(each.type)}" for each in schema)
            yield f"CREATE TABLE {name} ({columns}, PRIMARY KEY ({', '.join(self.keys[name])}))"


class Rows:
    """A table that changes: the rows it began with, sorted by the first column of its key, and what came after.

    Invariant: the cost of a change does not depend on how many rows there are.
    """

    def __init__(self, name: str, base: pa.Table, key: Sequence[str]) -> None:
        self.name = name
        self.key = key
        self._base = base
        self._first = base.column(key[0]).to_numpy()
        self._changed: dict[Key, Row | None] = {}
        self._new: list[Key] = []
        self._touched: set[Key] = set()

    def key_of(self, row: Row) -> Key:
        return tuple(row[each] for each in self.key)

    def get(self, key: Key) -> Row | None:
        """The row of a key as it is now; None: there is none."""
        if key in self._changed:
            return self._changed[key]
        return self._begun(key)

    def _begun(self, key: Key) -> Row | None:
        low, high = np.searchsorted(self._first, key[0], "left"), np.searchsorted(self._first, key[0], "right")
        for row in self._base.slice(int(low), int(high - low)).to_pylist():
            if self.key_of(row) == key:
                return dict(row)
        return None

    def pick(self, random: np.random.Generator) -> Row | None:
        """Any row; None where few are left."""
        for _ in range(_SEARCHES_MAX):
            place = int(random.integers(0, max(1, self._base.num_rows + len(self._new))))
            if place < self._base.num_rows:
                key = self.key_of(self._base.slice(place, 1).to_pylist()[0])
            elif self._new:
                key = self._new[place - self._base.num_rows]
            else:
                return None
            found = self.get(key)
            if found is not None:
                return found
        return None

    def put(self, row: Row) -> None:
        key = self.key_of(row)
        if key not in self._changed and self._begun(key) is None:
            self._new.append(key)
        self._changed[key] = row
        self._touched.add(key)

    def delete(self, key: Key) -> None:
        self._changed[key] = None
        self._touched.add(key)

    def take(self) -> Change | None:
        """What has changed since the last call; None: nothing."""
        if not self._touched:
            return None
        touched = sorted(self._touched)
        self._touched.clear()
        rows = [self._changed[key] for key in touched]
        put = pa.Table.from_pylist([each for each in rows if each is not None], self._base.schema)
        gone = [dict(zip(self.key, key)) for key, row in zip(touched, rows) if row is None]
        keys = pa.schema([self._base.schema.field(each) for each in self.key])
        return Change(self.name, put, pa.Table.from_pylist(gone, keys))

    def table(self) -> pa.Table:
        """All rows as they are now."""
        return applied({self.name: self._base}, [self._all()], {self.name: self.key})[self.name]

    def _all(self) -> Change:
        before = self._touched
        self._touched = set(self._changed)
        found = self.take()
        self._touched = before
        return found or Change(self.name, self._base.slice(0, 0), self._base.slice(0, 0).select(list(self.key)))


class Transactions:
    """Random transactions over tables, of steps that a workload has in `steps`; one that is there twice is twice as
    likely."""

    steps: Sequence[Callable[[], None]]

    def __init__(self, tables: Mapping[str, pa.Table], keys: Mapping[str, Sequence[str]], seed: Sequence[int]) -> None:
        self._random = np.random.default_rng(seed)
        self._rows = {name: Rows(name, table, keys[name]) for name, table in tables.items()}

    def next(self, steps: int = 10) -> list[Change]:
        """One transaction of so many steps: what it puts and deletes, table by table."""
        for _ in range(steps):
            self.steps[self._number(0, len(self.steps))]()
        found = (each.take() for each in self._rows.values())
        return [each for each in found if each is not None]

    def tables(self) -> dict[str, pa.Table]:
        """All tables as the transactions so far have left them."""
        return {name: each.table() for name, each in self._rows.items()}

    def _any(self, table: str) -> Row | None:
        return self._rows[table].pick(self._random)

    def _number(self, low: int, high: int) -> int:
        return int(self._random.integers(low, high))

    def _put_all(self, table: str, rows: pa.Table) -> None:
        for each in rows.to_pylist():
            self._rows[table].put(each)


def applied(
    tables: Mapping[str, pa.Table], changes: Sequence[Change], keys: Mapping[str, Sequence[str]]
) -> dict[str, pa.Table]:
    """Tables behind a transaction, without a database: what a test compares with."""
    found = dict(tables)
    for name, rows, deleted in changes:
        key = list(keys[name])
        gone = pa.concat_tables([rows.select(key), deleted.select(key)])
        found[name] = pa.concat_tables([found[name].join(gone, key, join_type="left anti"), rows]).combine_chunks()
    return found


# -- columns -------------------------------------------------------------------------------------------------


def decimals(values: Numbers, type: pa.DataType) -> pa.Array:
    """Integers as the digits of a DECIMAL: 150 is 1.50 where it has two places."""
    pairs = np.empty((len(values), 2), np.int64)
    pairs[:, 0] = values
    pairs[:, 1] = values >> 63
    return pa.Array.from_buffers(type, len(values), [None, pa.py_buffer(pairs.tobytes())])


def days(values: Numbers) -> pa.Array:
    """Days since 1970 as DATE."""
    return pa.array(values.astype(np.int32)).view(pa.date32())


def words(random: np.random.Generator, among: Sequence[str], count: int) -> pa.Array:
    return chosen(among, random.integers(0, len(among), count))


def chosen(among: Sequence[str], places: Numbers) -> pa.Array:
    return pa.array(among, pa.string()).take(pa.array(places))


def phrases(random: np.random.Generator, among: Sequence[str], length: int, count: int) -> pa.Array:
    """Texts of so many words each."""
    return pc.binary_join_element_wise(*(words(random, among, count) for _ in range(length)), " ")


def numbered(form: str, values: Numbers) -> pa.Array:
    return pa.array([form % each for each in values.tolist()], pa.string())
