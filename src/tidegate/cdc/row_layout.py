"""`Layout`: records of one table as rows of its types, as fast as plain Python reads them.

What a record's values are is said by its header, and rows of a table have few different ones: how to read a record is
worked out once for each header, the check of its types included, and kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from struct import Struct
from struct import error as StructError
from typing import Any, Final

from tidegate.cdc.record import Value, decode, read_varint
from tidegate.cdc.sqlite_types import convert
from tidegate.errors import SourceUnreadable

MOST_KEPT: Final = 4096
"""Headers whose reading is kept: texts of many lengths make many."""
_FORMATS: Final = ("", "b", "h", "3s", "i", "6s", "q", "d", "", "")
"""Of values by types 0 to 9, for `struct`; some have no bytes."""
_LENGTHS: Final = (0, 1, 2, 3, 4, 6, 8, 8, 0, 0)

Read = Callable[[bytes], tuple[Any, ...]]
Plan = tuple[Read, tuple[Any, ...]]
"""What makes a row of a record, and the values that follow because the record has none."""


class TooLong(SourceUnreadable):
    """A record has more values than its table has columns, as far as is known."""


class Layout:
    """How the records of a table are read; of its columns all, or those `picked`, in the order of the columns."""

    def __init__(
        self,
        table: str,
        names: Sequence[str],
        types: Sequence[str],
        defaults: Sequence[Value],
        picked: Sequence[int] | None = None,
    ) -> None:
        """`defaults` are what a row has in columns that were added after its record was made."""
        self._table = table
        self._names = names
        self._types = types
        self._defaults = defaults
        self._picked = range(len(names)) if picked is None else picked
        self._plans: dict[bytes, Plan] = {}

    def read(self, record: bytes, row: int | None = None) -> tuple[Any, ...]:
        """The values of a record; `row` is its rowid, for messages.

        Raises: `SourceUnreadable` for bytes that are no record, more values than columns, and a value that does not
        fit its column's type.
        """
        return self.read_all([(row, record)])[0]

    def read_all(self, records: Iterable[tuple[int | None, bytes]]) -> list[tuple[Any, ...]]:
        """As `read`, for records with their rowids."""
        plans, found = self._plans, []
        for row, record in records:
            plan = plans.get(record[: record[0]]) if record else None
            read, rest = plan or self._plan(record, row)
            try:
                found.append(read(record) + rest if rest else read(record))
            except (StructError, ValueError) as error:
                raise self._misfit(record, row) from error
        return found

    def _plan(self, record: bytes, row: int | None) -> Plan:
        try:
            length, at = read_varint(record, 0)
            kinds: list[int] = []
            while at < length:
                kind, at = read_varint(record, at)
                kinds.append(kind)
        except IndexError as error:
            raise self._misfit(record, row) from error
        if len(kinds) > len(self._names) or at != length or 10 in kinds or 11 in kinds:
            raise self._misfit(record, row)
        parts, made = [f">{length}x"], []
        picked = set(self._picked)
        taken = 0
        for column, kind in enumerate(kinds):
            size = _LENGTHS[kind] if kind < 10 else (kind - 12) // 2
            if column not in picked:
                parts.append(f"{size}x")
                continue
            made.append(_expression(kind, self._types[column], f"v[{taken}]"))
            if size or kind > 9:
                parts.append(_FORMATS[kind] if kind < 10 else f"{size}s")
                taken += 1
        missing = [column for column in self._picked if column >= len(kinds)]
        rest = tuple(convert(self._defaults[column], self._types[column]) for column in missing)
        is_plain = made == [f"v[{at}]" for at in range(taken)]
        take = Struct("".join(parts)).unpack
        plan = (take if is_plain else _made(", ".join(made))(take), rest)
        if record[0] < 0x80:
            if len(self._plans) >= MOST_KEPT:
                self._plans.clear()
            self._plans[record[:length]] = plan
        return plan

    def _misfit(self, record: bytes, row: int | None) -> SourceUnreadable:
        """What is wrong with a record."""
        where = f"table {self._table!r}" + ("" if row is None else f", row {row}")
        values = decode(record)
        if len(values) > len(self._names):
            return TooLong(
                f"{where}: a record of {len(values)} values, and {len(self._names)} columns are known"
                f" ({', '.join(self._names)}): the table was altered by a connection that does not record;"
                f" take a new snapshot: restart=True, or --restart"
            )
        for name, type, value in zip(self._names, self._types, values):
            try:
                convert(value, type)
            except ValueError:
                return misfit(self._table, name, row, value, type)
        return SourceUnreadable(f"{where}: no record: {record[:40].hex()}")


def misfit(table: str, column: str, row: int | None, value: Value, type: str) -> SourceUnreadable:
    """A value that its column's type does not have."""
    said = repr(value)
    said = said if len(said) <= 60 else f"{said[:57]}..."
    where = f"table {table!r}, column {column!r}" + ("" if row is None else f", row {row}")
    other = "BINARY" if isinstance(value, bytes) else "STRING"
    return SourceUnreadable(
        f'{where}: {said} is no {type}; choose the column\'s type: types={{"{table}.{column}": "{other}"}}'
    )


def _expression(kind: int, type: str, value: str) -> str:
    """What makes the value of a record, `value`, one of a type: Python, because it runs for every value."""
    plain, own = value, ""
    if kind == 0:
        return "None"
    if kind in (8, 9):
        plain, own = str(kind - 8), "BIGINT"
    elif kind < 7:
        plain, own = (f"integer({value}, 'big', signed=True)" if kind in (3, 5) else value), "BIGINT"
    elif kind == 7:
        own = "DOUBLE"
    elif kind % 2 == 0:
        own = "BINARY"
    else:
        plain, own = f"{value}.decode()", "STRING"
    return plain if type == own else f"convert({plain}, {type!r})"


@lru_cache(MOST_KEPT)
def _made(expressions: str) -> Callable[[Read], Read]:
    """Texts of many lengths make many headers, but few ways to make a row of their values."""
    names: dict[str, Any] = {"convert": convert, "integer": int.from_bytes}
    exec(_READ.format(expressions=expressions), names)
    found: Callable[[Read], Read] = names["reader"]
    return found


_READ: Final = """
def reader(take):
    def read(record):
        v = take(record)
        return ({expressions},)
    return read
"""
