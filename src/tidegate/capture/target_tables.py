"""`TableWriter`: a table of ours at a target: which columns go where, and rows as the target takes them.

A table that is not there is created with our columns and key. One that is there must have all of them; what it has
besides must do without a value. Columns that are added or renamed here are added and renamed there, by their ids; one
that is dropped here stays there, and is not written any more.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import pyarrow as pa

from tidegate.capture.target import TableState, Target
from tidegate.cdc.apply_order import Links, Places, Reference
from tidegate.cdc.apply_plan import Row, Statements, TargetColumn, TargetTable, column_quoted, quoted
from tidegate.errors import InvalidArgument
from tidegate.tables.column_type import to_sql
from tidegate.tables.schema import Column, TableSchema

_WIDE: Final = 32
"""Bits of integers that have room for values that nobody has."""


class TableWriter:
    """Of one version of a table's schema."""

    def __init__(self, target: Target, name: str, schema: TableSchema, shape: TargetTable) -> None:
        self.name: Final = name
        self.schema: Final = schema
        self.shape: Final = shape
        self._target = target
        pairs: list[tuple[Column, TargetColumn]] = []
        for each in schema.columns:
            there = shape.column(each.name)
            if there is None:
                raise InvalidArgument(
                    f"{target.shown}: table {shape.name!r} has no column {each.name!r}; add it"
                    f" ({to_sql(each.type)}), or rename the one that is meant"
                )
            if there.is_generated and each.id in schema.key:
                raise InvalidArgument(
                    f"{target.shown}: column {each.name!r} of table {shape.name!r} belongs to the key here, and the"
                    f" target computes it by itself (GENERATED ALWAYS AS); make it a column that can be written"
                )
            if not there.is_generated:
                pairs.append((each, there))
        self.columns: Final = tuple(ours for ours, _ in pairs)
        self.names: Final = [each.name for each in self.columns]
        ids = [each.id for each in self.columns]
        self.key: Final = tuple(ids.index(each.id) for each in schema.key_columns)
        passed_on = {name.casefold() for name in shape.passed_on}
        self._places: Final = {there.name.casefold(): at for at, (_, there) in enumerate(pairs)}
        referred = {name.casefold() for each in shape.children for name in each.parent_columns}
        free = [
            at
            for at, (_, there) in enumerate(pairs)
            if at not in self.key and there.is_nullable and there.name.casefold() not in passed_on
        ]
        self.free: Final = tuple(sorted(free, key=lambda at: pairs[at][1].name.casefold() in referred))
        """Columns that may be NULL for a while, those first that nobody refers to. What is passed on must not be."""
        self._numbered: Final = {
            at: each.type
            for at, (each, there) in enumerate(pairs)
            if at not in self.key
            and there.name.casefold() not in referred | passed_on
            and (pa.types.is_string(each.type) or pa.types.is_integer(each.type))
        }
        self.loose: tuple[int, ...] = ()
        """Columns by which rows may refer to each other in circles, and that may be NULL for a while. See `loosen`."""
        self.is_in_circles = False
        """Whether its foreign keys name itself, or a table behind it in the order."""
        ours = {each.name.casefold() for each in schema.columns}
        self.own: Final = tuple(
            each for each in shape.columns if each.name.casefold() not in ours and not each.is_generated
        )
        """The target's own columns."""
        keys = {each.name.casefold() for each in schema.key_columns}
        self.is_passed_on: Final = bool(passed_on - keys)
        """Whether something is done to rows of others when a column changes that is none of the key."""
        self.sql: Final = Statements(target.dialect, shape.name, [there for _, there in pairs], self.key)

    def loosen(self, order: Sequence[str]) -> None:
        """Find out by which columns rows refer to those of their own table or of one behind it in an order."""
        folded = [each.casefold() for each in order]
        later = set(folded[folded.index(self.name.casefold()) :])
        found: set[int | None] = set()
        self.is_in_circles = False
        for each in self.shape.foreign_keys:
            if each.parent.casefold() in later:
                self.is_in_circles = True
                found.add(self.free_of(each.columns))
        self.loose = tuple(sorted(at for at in found if at is not None))

    def free_of(self, names: Iterable[str]) -> int | None:
        """One of some columns that may be NULL for a while: of those of a foreign key one is enough."""
        places = {self._places.get(each.casefold()) for each in names}
        return next((at for at in self.free if at in places), None)

    def _places_of(self, names: Sequence[str]) -> Places:
        """Where columns are in rows; none when one of them is not among ours."""
        found = tuple([self._places[each.casefold()] for each in names if each.casefold() in self._places])
        return found if len(found) == len(names) else ()

    def links(self, writers: Mapping[str, TableWriter]) -> Links:
        """What its rows need of those of its own and other tables."""
        others = {name.casefold(): each for name, each in writers.items()}
        references = []
        for each in self.shape.foreign_keys:
            parent = others.get(each.parent.casefold())
            own, theirs = self._places_of(each.columns), parent._places_of(each.parent_columns) if parent else ()
            if parent is not None and own and theirs:
                references.append(Reference(own, parent.name, theirs))
        uniques = {places for each in self.shape.keys if (places := self._places_of(sorted(each)))}
        return Links([each for each in sorted(uniques) if set(each) != set(self.key)], references, self.free)

    def values_of(self, names: Sequence[str], row: Row) -> Row | None:
        """What a row has in columns of the target; None where one of them is not among ours, or NULL."""
        found = tuple([row[at] for at in self._places_of(names)])
        return None if not found or None in found else found

    def temporary(self, places: Places, number: int) -> tuple[int, object] | None:
        """A column among some that can have a value that no row has, and that value."""
        for at in places:
            type = self._numbered.get(at)
            if type is None:
                continue
            if pa.types.is_string(type):
                return at, f"tidegate {secrets.token_hex(8)} {number}"
            # Far from what applications count.
            if type.bit_width >= _WIDE:
                return at, -(1 << (type.bit_width - 2)) - secrets.randbelow(1 << (type.bit_width - 3))
        return None

    def loosened(self, row: Row) -> Row:
        """A row without what it refers to in circles."""
        return tuple([None if at in self.loose else value for at, value in enumerate(row)])

    def rows(self, rows: pa.Table) -> list[Row]:
        """Rows as the target takes them, by this schema's columns; those that `rows` lacks are NULL."""
        known = set(rows.column_names)
        columns = [
            self._target.values(rows.column(each)) if each in known else [None] * rows.num_rows for each in self.names
        ]
        return list(zip(*columns, strict=True)) if rows.num_rows else []

    def shown_key(self, key: Row) -> dict[str, object]:
        return {self.names[at]: value for at, value in zip(self.key, key, strict=True)}

    def shown(self, row: Row | None) -> dict[str, object] | None:
        """A row for messages."""
        return None if row is None else dict(zip(self.names, row, strict=True))


def create_sql(target: Target, name: str, schema: TableSchema) -> str:
    """The statement that creates a table of ours at a target."""
    key = schema.key_columns
    single = len(key) == 1
    parts = []
    for each in schema.columns:
        is_only_key = single and each.id == key[0].id
        text = f"{column_quoted(each.name)} {target.column_type(each.type)}"
        if not each.nullable:
            text += " NOT NULL"
        parts.append(text + (" PRIMARY KEY" if is_only_key else ""))
    if len(key) > 1:
        parts.append(f"PRIMARY KEY ({', '.join(column_quoted(each.name) for each in key)})")
    return f"CREATE TABLE {quoted(name)} ({', '.join(parts)})"


def fit(target: Target, name: str, schema: TableSchema, known: TableState | None) -> TableWriter:
    """Make a target ready for rows of a schema, within its transaction. `known` is how the table was there before.

    Raises: `InvalidArgument`, naming the column that does not fit.
    """
    _check_names(target, name, schema)
    shape = target.shape(name)
    if shape is None:
        if known is not None:
            raise InvalidArgument(
                f"{target.shown}: table {name!r} is gone; put it back, or start anew with restart=True"
            )
        target.run(create_sql(target, name, schema))
        shape = _there(target, name)
    elif known is not None:
        shape = _follow(target, shape, schema, known)
    writer = TableWriter(target, name, schema, shape)
    for each in writer.own:
        if not (each.is_nullable or each.has_default):
            raise InvalidArgument(
                f"{target.shown}: column {each.name!r} of table {name!r} must have a value, and there is no such column"
                f" here; give it a default, or let it be NULL"
            )
    _check_key(target, name, schema, shape)
    return writer


def _check_names(target: Target, name: str, schema: TableSchema) -> None:
    """A longer name is cut off by the database, without a word, and may be that of another one then."""
    if why := target.taken_for(name):
        raise InvalidArgument(
            f"{target.shown}: table {name!r} cannot be applied there, as {why}; have its rows in a table of another"
            f" name here, and apply that one"
        )
    longest = target.name_bytes
    if longest is None:
        return
    for part in name.split("."):
        if len(part.encode()) > longest:
            raise InvalidArgument(
                f"{target.shown}: the name of table {name!r} has {len(part.encode())} bytes, and a name there has at"
                f" most {longest}; apply a table with a shorter one"
            )
    for each in schema.names:
        if len(each.encode()) > longest:
            raise InvalidArgument(
                f"{target.shown}: the name of column {each!r} of table {name!r} has {len(each.encode())} bytes, and a"
                f" name there has at most {longest}; rename it here: ALTER TABLE {name} RENAME COLUMN ... TO ..."
            )


def check_is_apart(target: Target, name: str, others: Iterable[str]) -> None:
    """Rows of two tables in one would be each other's conflicts, or be lost without a word.

    Ordering: after `fit`. Raises: `InvalidArgument`.
    """
    for other in others:
        if other != name and target.is_one(name, other):
            raise InvalidArgument(
                f"{target.shown}: {name!r} and {other!r} are two tables here and one there; apply each to a database of"
                f" its own, or, if {other!r} was dropped here, start anew with restart=True"
            )


def _check_key(target: Target, name: str, schema: TableSchema, shape: TargetTable) -> None:
    wanted = {each.name.casefold() for each in schema.key_columns}
    if not wanted or any(_folded(each) == wanted for each in shape.keys):
        return
    names = ", ".join(each.name for each in schema.key_columns)
    if any(_folded(each) == wanted for each in shape.late_keys):
        raise InvalidArgument(
            f"{target.shown}: the key or unique constraint of table {name!r} on ({names}) is DEFERRABLE, and rows"
            f" cannot be told apart by one that is checked late; make it NOT DEFERRABLE, or create a unique index"
            f" beside it"
        )
    raise InvalidArgument(
        f"{target.shown}: table {name!r} has no primary key or unique constraint on ({names}), by which its rows"
        f" are told apart here; create one"
    )


def _folded(names: Iterable[str]) -> set[str]:
    return {each.casefold() for each in names}


def state_of(table_id: int, writer: TableWriter, known: TableState | None) -> TableState:
    """What a target is to remember of a table: also columns that were dropped here, for as long as it has them."""
    columns = {each.id: each.name for each in writer.schema.columns}
    taken = {name.casefold() for name in columns.values()}
    for id, name in known.columns.items() if known is not None else ():
        if id not in columns and name.casefold() not in taken and writer.shape.column(name) is not None:
            columns[id] = name
    return TableState(table_id, columns)


def _follow(target: Target, shape: TargetTable, schema: TableSchema, known: TableState) -> TargetTable:
    """Add and rename what was added and renamed since, by the ids of the columns.

    Raises: `InvalidArgument` when the target has another column under a name that one has now.
    """
    there = {id: found.name for id, name in known.columns.items() if (found := shape.column(name)) is not None}
    holders = {name.casefold(): id for id, name in there.items()}
    ids = {each.id for each in schema.columns}
    renamed: dict[int, tuple[str, str]] = {}
    added: list[Column] = []
    for each in schema.columns:
        before = there.get(each.id)
        if before is not None and before.casefold() == each.name.casefold():
            continue
        holder = holders.get(each.name.casefold())
        if holder is not None and holder not in ids:
            raise _taken(target, shape, each, before, "it had that name here before it was dropped")
        is_own = holder is None and shape.column(each.name) is not None
        if is_own and (before is not None or (each.id not in known.columns and _has_values(target, shape, each.name))):
            raise _taken(target, shape, each, before, "it is its own")
        if before is not None:
            renamed[each.id] = before, each.name
        elif each.id not in known.columns and not is_own:
            added.append(each)
    table = quoted(shape.name)
    for old, new in _in_turn(dict(renamed), shape):
        target.run(f"ALTER TABLE {table} RENAME COLUMN {column_quoted(old)} TO {column_quoted(new)}")
    for each in added:
        target.run(f"ALTER TABLE {table} ADD COLUMN {column_quoted(each.name)} {target.column_type(each.type)}")
    return _there(target, shape.name) if renamed or added else shape


def renew(target: Target, name: str, schema: TableSchema, known: TableState | None) -> None:
    """Give a table that was filled from here, and is to be emptied, the columns that it lacks.

    `known` is how it was, if it is still the table that it was: then columns that were renamed are, where the new name
    is free. Nothing else there is touched. Ordering: before `fit`, which is not told what was known.
    """
    shape = target.shape(name)
    if shape is None:
        return
    table = quoted(shape.name)
    renamed: dict[int, tuple[str, str]] = {}
    for each in schema.columns:
        before = None if known is None else shape.column(known.columns.get(each.id, ""))
        if before is not None and before.name.casefold() != each.name.casefold():
            renamed[each.id] = before.name, each.name
    while taken := [id for id, (_, new) in renamed.items() if _stays(shape, new, renamed)]:
        for id in taken:
            del renamed[id]
    for old, new in _in_turn(renamed, shape):
        target.run(f"ALTER TABLE {table} RENAME COLUMN {column_quoted(old)} TO {column_quoted(new)}")
    shape = _there(target, name)
    for each in schema.columns:
        if shape.column(each.name) is None:
            target.run(f"ALTER TABLE {table} ADD COLUMN {column_quoted(each.name)} {target.column_type(each.type)}")


def _stays(shape: TargetTable, name: str, renamed: Mapping[int, tuple[str, str]]) -> bool:
    """Whether a column has a name and keeps it."""
    return shape.column(name) is not None and name.casefold() not in _folded(old for old, _ in renamed.values())


def _in_turn(renamed: dict[int, tuple[str, str]], shape: TargetTable) -> Iterator[tuple[str, str]]:
    """Old and new names, each new one when it is free; those that go round have another one for a while."""
    while renamed:
        old_names = {old.casefold() for old, _ in renamed.values()}
        id = next((id for id, (_, new) in renamed.items() if new.casefold() not in old_names), None)
        if id is not None:
            yield renamed.pop(id)
            continue
        id, (old, new) = next(iter(renamed.items()))
        aside = f"tidegate_{id}"
        while shape.column(aside) is not None:
            aside += "_"
        yield old, aside
        renamed[id] = aside, new


def _has_values(target: Target, shape: TargetTable, name: str) -> bool:
    column = shape.column(name)
    if column is None or column.is_generated:
        return False
    return bool(
        target.run(f"SELECT 1 FROM {quoted(shape.name)} WHERE {column_quoted(column.name)} IS NOT NULL LIMIT 1")
    )


def _taken(target: Target, shape: TargetTable, column: Column, before: str | None, why: str) -> InvalidArgument:
    was = "was added" if before is None else f"was {before!r} before"
    return InvalidArgument(
        f"{target.shown}: column {column.name!r} of table {shape.name!r} {was}, and there is another column of that"
        f" name at the target ({why}), whose values are not ours; rename or drop it there and repeat, or start anew"
        f" with restart=True"
    )


def _there(target: Target, name: str) -> TargetTable:
    found = target.shape(name)
    if found is None:
        raise InvalidArgument(f"{target.shown}: table {name!r} is gone; put it back, or start anew with restart=True")
    return found
