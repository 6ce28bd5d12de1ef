"""`Answer`: what a statement came to, as data: rows of a cut, a count, or a word; printing is somebody else's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from tidegate.clock.timestamp import Timestamp

if TYPE_CHECKING:
    import pyarrow as pa

    from tidegate.database.result import Result

_NUMBERS: Final = frozenset({int, float, Decimal})


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows with named columns. `total` counts them all, `rows` may be the first of them.

    `shows_null` is off where an empty cell says it better, as in lists of tables.
    """

    columns: tuple[str, ...]
    rows: Sequence[Sequence[Any]]
    is_number: tuple[bool, ...]
    total: int
    shows_null: bool = True


@dataclass(frozen=True, slots=True)
class Answer:
    """What one statement came to: one of `rows`, `written`, `text` and `word` is set.

    `timestamp` is the cut that rows are of, or when a transaction was committed.
    """

    statement: str
    line: int
    rows: Rows | None = None
    written: int | None = None
    text: str | None = None
    """To be printed as it is."""
    word: str | None = None
    timestamp: Timestamp | None = None
    elapsed_s: float | None = None
    note: str = ""
    is_remark: bool = False
    """About the shell itself: people are told, programs are not."""


def rows_of_result(result: Result, limit: int) -> Rows:
    """The first `limit` rows of a query's answer, or all if it is 0."""
    table = result.to_arrow()
    total = len(result)
    part = table.slice(0, limit) if limit and total > limit else table
    columns = [_values(each) for each in part.columns]
    rows = list(zip(*columns)) if columns else []
    return Rows(tuple(table.column_names), rows, tuple(_is_number(each.type) for each in table.columns), total)


def rows_of_dicts(found: Sequence[dict[str, Any]], limit: int) -> Rows:
    """The rows of a statement that is no query; all have the same names."""
    names = tuple(found[0]) if found else ()
    part = found[:limit] if limit else found
    rows = [[row[name] for name in names] for row in part]
    numbers = tuple(_are_numbers([row[name] for row in found]) for name in names)
    return Rows(names, rows, numbers, len(found), shows_null=False)


def unique_names(columns: Sequence[str]) -> list[str]:
    """Names that can be the keys of an object: the second `n` is `n_2`."""
    taken = set(columns)
    seen: set[str] = set()
    found = []
    for name in columns:
        number, unique = 2, name
        while unique in seen or (unique != name and unique in taken):
            unique, number = f"{name}_{number}", number + 1
        seen.add(unique)
        found.append(unique)
    return found


def _values(column: pa.ChunkedArray) -> list[Any]:
    found: list[Any]
    try:
        found = column.to_pylist(maps_as_pydicts="strict")
    except (KeyError, TypeError):  # A key that comes twice or is a structure: pairs.
        found = column.to_pylist()
    return found


def _is_number(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _are_numbers(values: Sequence[Any]) -> bool:
    kinds = {type(each) for each in values} - {type(None)}
    return bool(kinds) and kinds <= _NUMBERS
