"""How a table's columns come to be and change: what is asked for, checked against the rules, as the next columns.

    define(name, columns, key)  ──▶ columns with their ids, ids of the key
    define_node(view, node)     ──▶ the same for what a view stores, whose key may be NULL
    alter(table, changes)       ──▶ the columns after them; None when nothing is to do

Pure functions: the catalog plans with them and, when the record is in the log, folds with them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final, assert_never

import pyarrow as pa

from tidegate.errors import InvalidArgument, LimitExceeded, NotFound
from tidegate.tables.column_type import KEY_TYPES, may_be_key, to_sql
from tidegate.tables.schema import SYSTEM_COLUMNS, Column, Table

COLUMNS_MAX: Final = 2000
COLUMN_NAME_LENGTH_MAX: Final = 200


@dataclass(frozen=True, slots=True)
class ColumnDef:
    """A column that is asked for. Columns of the key are never null, whatever is said here."""

    name: str
    type: pa.DataType
    nullable: bool = True


@dataclass(frozen=True, slots=True)
class NodeDef:
    """What a view stores for one part of its query: rows with a key, like a table's.

    Invariant: of `columns` the last `hidden` are the view's own business: keys and accumulators, named with `_`.
    Key columns are nullable where their definition says so, and NULL equals NULL, NaN equals NaN, -0.0 equals 0.0.
    """

    columns: tuple[ColumnDef, ...]
    key: tuple[str, ...]
    """Names of columns; none if rows are only ever added."""
    hidden: int = 0

    @property
    def visible(self) -> tuple[ColumnDef, ...]:
        return self.columns[: len(self.columns) - self.hidden]


@dataclass(frozen=True, slots=True)
class AddColumn:
    """A new column, behind all others, null in every row there is."""

    name: str
    type: pa.DataType
    nullable: bool = True
    if_not_exists: bool = False


@dataclass(frozen=True, slots=True)
class DropColumn:
    """Take a column away. One of the same name that is added later is another one."""

    name: str
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class RenameColumn:
    """Give a column another name; its values stay."""

    name: str
    to: str


ColumnChange = AddColumn | DropColumn | RenameColumn


def define(
    table: str, columns: Sequence[ColumnDef], key: Sequence[str], *, columns_max: int = COLUMNS_MAX
) -> tuple[tuple[Column, ...], tuple[int, ...]]:
    """The columns of a new table, numbered from 1, and the numbers of its key.

    Raises: `InvalidArgument` for what cannot be a table; `LimitExceeded`.
    """
    made, ids = _define(f"table {table!r}", columns, key, columns_max=columns_max, key_types=KEY_TYPES, may=may_be_key)
    marked = (replace(each, nullable=each.nullable and each.id not in ids) for each in made)
    return tuple(marked), ids


def define_node(
    view: str, node: NodeDef, *, columns_max: int = COLUMNS_MAX
) -> tuple[tuple[Column, ...], tuple[int, ...]]:
    """As `define`, for what a view stores.

    Raises: `InvalidArgument` for what cannot be a node; `LimitExceeded`.
    """
    about = f"view {view!r}"
    if not 0 <= node.hidden <= len(node.columns):
        raise InvalidArgument(f"{about}: of {len(node.columns)} columns {node.hidden} cannot be hidden")
    types = f"{KEY_TYPES}, FLOAT and DOUBLE"
    return _define(about, node.columns, node.key, columns_max=columns_max, key_types=types, may=_may_be_node_key)


def _may_be_node_key(type: pa.DataType) -> bool:
    """Floats too: whatever compares a node's keys takes NaN for equal to itself."""
    return not pa.types.is_nested(type)


def _define(
    about: str,
    columns: Sequence[ColumnDef],
    key: Sequence[str],
    *,
    columns_max: int,
    key_types: str,
    may: Callable[[pa.DataType], bool],
) -> tuple[tuple[Column, ...], tuple[int, ...]]:
    if not columns:
        raise InvalidArgument(f"{about} has no columns; it needs at least one")
    _check_count(about, len(columns), columns_max)
    made: dict[str, Column] = {}
    for number, each in enumerate(columns, 1):
        _check(about, each.name, each.type, made)
        made[each.name.casefold()] = Column(number, each.name, each.type, each.nullable)
    ids: list[int] = []
    for name in key:
        found = made.get(name.casefold())
        if found is None:
            raise InvalidArgument(f"{about}: its key names {name!r}, but it has {_names(made.values())}")
        if found.id in ids:
            raise InvalidArgument(f"{about}: its key names {name!r} twice")
        if not may(found.type):
            raise InvalidArgument(
                f"{about}: column {found.name!r} is {to_sql(found.type)}, which cannot be part of a key;"
                f" {key_types} can"
            )
        ids.append(found.id)
    return tuple(made.values()), tuple(ids)


def alter(
    table: Table, changes: Iterable[ColumnChange], *, columns_max: int = COLUMNS_MAX
) -> tuple[Column, ...] | None:
    """The columns after these changes, one after the other; None when they leave all as it is.

    Raises: `InvalidArgument` for a change that cannot be, `NotFound` for an unknown column, `LimitExceeded`.
    """
    columns = {each.name.casefold(): each for each in table.schema.columns}
    next_id = next_column_id(table)
    for change in changes:
        match change:
            case AddColumn():
                if change.if_not_exists and change.name.casefold() in columns:
                    continue
                _add(table.name, columns, change, next_id)
                next_id += 1
            case DropColumn():
                if change.if_exists and change.name.casefold() not in columns:
                    continue
                _drop(table, columns, change.name)
            case RenameColumn():
                columns = _rename(table, columns, change)
            case _:
                assert_never(change)
    _check_count(f"table {table.name!r}", len(columns), columns_max)
    after = tuple(columns.values())
    return None if after == table.schema.columns else after


def next_column_id(table: Table) -> int:
    """A number that no column of the table ever had."""
    return 1 + max(each.id for version in table.versions for each in version.columns)


def _check(about: str, name: str, type: pa.DataType, beside: Mapping[str, Column]) -> None:
    """Raises: `InvalidArgument` for a column that cannot be, or not `beside` these."""
    if not isinstance(name, str) or not 1 <= len(name) <= COLUMN_NAME_LENGTH_MAX:
        raise InvalidArgument(
            f"{about}: {_shown(name)} cannot name a column: a name has 1 to {COLUMN_NAME_LENGTH_MAX} characters"
        )
    if name.casefold() in SYSTEM_COLUMNS:
        raise InvalidArgument(f"{about}: {name!r} cannot name a column: {', '.join(SYSTEM_COLUMNS)} are Tidegate's own")
    there = beside.get(name.casefold())
    if there is not None:
        same = "" if there.name == name else "; upper and lower case are the same in columns"
        raise InvalidArgument(f"{about} has a column {there.name!r}{same}; take another name than {name!r}")
    try:
        to_sql(type)
    except InvalidArgument as error:
        raise InvalidArgument(f"{about}, column {name!r}: {error}") from None


def _add(table: str, columns: dict[str, Column], change: AddColumn, id: int) -> None:
    _check(f"table {table!r}", change.name, change.type, columns)
    if not change.nullable:
        raise InvalidArgument(
            f"table {table!r}: the new column {change.name!r} cannot be NOT NULL, because rows that exist have no value"
            f" for it; leave NOT NULL away"
        )
    columns[change.name.casefold()] = Column(id, change.name, change.type)


def _drop(table: Table, columns: dict[str, Column], name: str) -> None:
    dropped = _find(table, columns, name)
    if dropped.id in table.schema.key:
        raise InvalidArgument(
            f"table {table.name!r}: column {dropped.name!r} is part of the key and stays; create another table"
        )
    if len(columns) == 1:
        raise InvalidArgument(f"table {table.name!r}: {dropped.name!r} is its last column; use DROP TABLE")
    del columns[name.casefold()]


def _rename(table: Table, columns: dict[str, Column], change: RenameColumn) -> dict[str, Column]:
    """The same columns in the same order, one with another name."""
    old = _find(table, columns, change.name)
    others = {folded: each for folded, each in columns.items() if each is not old}
    _check(f"table {table.name!r}", change.to, old.type, others)
    renamed = [replace(each, name=change.to) if each is old else each for each in columns.values()]
    return {each.name.casefold(): each for each in renamed}


def _find(table: Table, columns: Mapping[str, Column], name: str) -> Column:
    found = columns.get(name.casefold())
    if found is None:
        raise NotFound(f"table {table.name!r} has no column {name!r}; it has {_names(columns.values())}")
    return found


def _check_count(about: str, count: int, limit: int) -> None:
    if count > limit:
        raise LimitExceeded(f"{about}: its number of columns", count, limit, "columns_max", instead="take fewer")


def _names(columns: Collection[Column]) -> str:
    shown = ", ".join(repr(each.name) for each in islice(columns, 10))
    return shown if len(columns) <= 10 else f"{shown} and {len(columns) - 10} others"


def _shown(name: object) -> str:
    return repr(name) if not isinstance(name, str) or len(name) <= 40 else repr(name[:40] + "...")
