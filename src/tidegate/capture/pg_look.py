"""`Look`: which columns a captured table of PostgreSQL had when its rows were last read, and what became of them since.

What cannot be told ends the capture: PostgreSQL's log has no word of what happens to columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from tidegate.capture.pg_catalog import Shape
from tidegate.capture.source import Reshaped, SourceTable
from tidegate.cdc.pg_columns import numbers_of
from tidegate.cdc.pg_types import Reading
from tidegate.cdc.pg_values import Unfit, value
from tidegate.errors import SourceGone, SourceUnreadable

_TEXTS: Final = {25, 1043}
"""text and varchar: the same values."""


@dataclass(frozen=True, slots=True)
class Look:
    """Invariant: the columns stand in the order of their numbers."""

    numbers: dict[str, int]
    types: dict[int, tuple[int, int]]
    """PostgreSQL's own, with their modifiers, by number."""
    highest: int
    """The highest number that a column ever had."""

    @classmethod
    def of(cls, shape: Shape) -> Look:
        """A table as the catalog has it."""
        numbers = {each.name: shape.places[each.name].number for each in shape.table.columns}
        return cls(numbers, dict(zip(numbers.values(), shape.types)), shape.width)

    def facts(self) -> list[Any]:
        """For JSON."""
        return [self.numbers, {str(number): list(each) for number, each in self.types.items()}, self.highest]

    @classmethod
    def read(cls, facts: list[Any]) -> Look:
        numbers, types, highest = facts
        return cls(numbers, {int(number): (each[0], each[1]) for number, each in types.items()}, highest)


def followed(look: Look, shape: Shape, was: SourceTable, *, file: int, where: str, anew: str) -> tuple[Look, Reshaped]:
    """What a table looks like from here on, and what became of its columns. `file` is where its rows lay then.

    Raises: `SourceGone` for what cannot be told.
    """
    said = [each.name for each in shape.table.columns]
    now = {name: place.number for name, place in shape.places.items()}
    numbers = numbers_of(look.numbers, look.highest, said, now, shape.width)
    if numbers is None:
        raise SourceGone(
            f"columns of table {was.name!r} at {where} were changed, and PostgreSQL does not say which is which now:"
            f" one was dropped and another took its name, or there were several changes before the capture could look;"
            f" {anew}"
        )
    before = {number: name for name, number in look.numbers.items()}
    exchanged = [name for name, number in zip(said, numbers) if look.numbers.get(name, number) != number]
    if exchanged:
        raise SourceGone(f"columns of {was.name!r} at {where} exchanged names, as {min(exchanged)!r} did; {anew}")
    renamed = {before[number]: name for name, number in zip(said, numbers) if before.get(number, name) != name}
    by_number = {place.number: place for place in shape.places.values()}
    types_here = {column.name: column.type for column in was.columns}
    filled: dict[str, Any] = {}
    for name, number, reading, type in zip(said, numbers, shape.readings, shape.types):
        place = by_number.get(number)
        if number in before:
            old = look.types.get(number, type)
            # One that is another type here, too, is refused by whoever takes it.
            is_same_here = reading.sql == types_here.get(before[number])
            if old != type and is_same_here and file != shape.file and not {old[0], type[0]} <= _TEXTS:
                raise SourceGone(
                    f"column {name!r} of table {was.name!r} at {where} has another type, and its values were written"
                    f" again; {anew}"
                )
        elif place is not None and place.is_mixed:
            raise SourceGone(
                f"column {name!r} of table {was.name!r} at {where} was added with other values in some partitions;"
                f" {anew}"
            )
        elif place is not None and place.missing is not None:
            filled[name] = _value(place.missing, reading, was.name, name)
        elif place is not None and place.has_default and file != shape.file:
            raise SourceGone(
                f"column {name!r} of table {was.name!r} at {where} was added with a value for each row that was there,"
                f" and PostgreSQL does not say which; {anew}"
            )
    highest = shape.width if said == list(now) else max(look.highest, *numbers)
    found = Look(dict(zip(said, numbers)), dict(zip(numbers, shape.types)), highest)
    return found, Reshaped(shape.table, renamed, filled)


def by_names(shape: Shape, was: SourceTable) -> Reshaped:
    """What became of a table of which no numbers are known: by its columns' names alone."""
    before = {column.name for column in was.columns}
    filled = {}
    for column, reading in zip(shape.table.columns, shape.readings):
        place = shape.places.get(column.name)
        if place is not None and place.missing is not None and column.name not in before:
            filled[column.name] = _value(place.missing, reading, was.name, column.name)
    return Reshaped(shape.table, {}, filled)


def _value(text: str, reading: Reading, table: str, column: str) -> Any:
    try:
        return value(text, reading)
    except Unfit as unfit:
        raise SourceUnreadable(
            f"table {table!r}, column {column!r}, which was added with a value for the rows that were there: {unfit};"
            f" change it in them at the source and capture the table anew, or leave the table out"
        ) from None
