"""How a captured table is made, and how it follows when its source changes its shape: statements of SQL.

Every column but those of the key may be NULL here: a source may drop a NOT NULL without a word.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from tidegate.capture.places import BESIDE
from tidegate.capture.source import Column, Reshaped, SourceTable
from tidegate.catalog.names import check_name
from tidegate.errors import InvalidArgument, SourceUnreadable

_ASIDE: Final = "_tidegate_renaming_"
"""What a column is called while others take its name, and its place behind it."""
Into = str | Mapping[str, str] | None
"""What goes in front of the names of tables, or the name of each."""


def target_name(table: str, into: Into) -> str:
    """What a table of the source is called here.

    Raises: `InvalidArgument` for what cannot be a name.
    """
    name = into.get(table, table) if isinstance(into, Mapping) else f"{into or ''}{table}"
    try:
        check_name("table", name)
    except InvalidArgument as error:
        raise InvalidArgument(f"{error}; choose one with into={{{table!r}: ...}}") from None
    return name


def create(name: str, shape: SourceTable) -> str:
    """The statement that makes a table for rows of this shape."""
    columns = [f"{_quoted(each.name)} {each.type}" for each in shape.columns]
    if shape.key:
        columns.append(f"PRIMARY KEY ({', '.join(map(_quoted, shape.key))})")
    return f"CREATE TABLE IF NOT EXISTS {_quoted(name)} ({', '.join(columns)}) {BESIDE}"


def check_fits(name: str, shape: SourceTable, columns: Sequence[Column], key: Sequence[str]) -> None:
    """Raises: `InvalidArgument` when a table that is there is not one for rows of this shape."""
    wanted = {each.name: each.type.upper() for each in shape.columns}
    there = {each.name: each.type.upper() for each in columns}
    if wanted == there and tuple(key) == shape.key:
        return
    differ = sorted(each for each in wanted.keys() | there.keys() if wanted.get(each) != there.get(each))
    what = f"its columns {', '.join(differ)} differ" if differ else f"its key is ({', '.join(key)})"
    raise InvalidArgument(
        f"table {name!r} is there already, and not as {shape.name!r} of the source is: {what}."
        f" Drop it, or choose another name with into={{{shape.name!r}: ...}}"
    )


def names_through(names: Iterable[str], steps: Iterable[Reshaped]) -> dict[str, str | None]:
    """What columns are called behind some changes of their table; None for those that are gone."""
    found: dict[str, str | None] = {name: name for name in names}
    for step in steps:
        there = {each.name for each in step.table.columns}
        taken = set(step.renamed.values())
        for name, now in found.items():
            if now is None:
                continue
            if now in step.renamed:
                now = step.renamed[now]
            elif now in taken:  # It has made room for another one.
                now = None
            found[name] = now if now in there else None
    return found


def follow(
    name: str, known: SourceTable, steps: Sequence[Reshaped], there: Sequence[str], here: Sequence[str] | None = None
) -> list[str]:
    """The statements that make a table for rows as `known` one for rows as they are behind the steps.

    `there` are the names of its columns now, and `here` what they were when it was one for rows as `known`: those of
    `known` in the same order, unless it is said.
    They may be repeated from the start when they were interrupted: columns stay in their places while they are renamed,
    and one that is dropped and added once more is empty both times.
    Raises: `SourceUnreadable` for a change that says nothing of the rows that are there: they must be read anew.
    """
    shape = steps[-1].table
    names = names_through((each.name for each in known.columns), steps)
    wanted = {each.name: each for each in shape.columns}
    types = {each.name: each.type.upper() for each in known.columns}
    changed = [old for old, new in names.items() if new is not None and wanted[new].type.upper() != types[old]]
    if changed or tuple(names[each] for each in known.key) != shape.key:
        what = (
            f"column {names[changed[0]]!r} from {types[changed[0]]} to {wanted[names[changed[0]] or ''].type}"
            if changed
            else f"its key from ({', '.join(known.key)}) to ({', '.join(shape.key)})"
        )
        raise SourceUnreadable(f"the source has changed table {shape.name!r}: {what}. {_anew(name)}")
    there = list(there)
    kept = {new for new in names.values() if new is not None}
    statements = []
    was = _places(name, [each.name for each in known.columns], names, there, here)
    if was:
        goals = [names.get(each) for each in was]
        moved = [at for at, goal in enumerate(goals) if there[at] != goal and (goal is not None or there[at] in kept)]
        aside = {at: f"{_ASIDE}{at}" for at in moved if there[at] != f"{_ASIDE}{at}"}
        straight = {at for at in aside if goals[at] is not None and goals[at] not in there}
        for at in aside:
            new = goals[at] if at in straight else aside[at]
            statements.append(f"ALTER TABLE {_quoted(name)} RENAME COLUMN {_quoted(there[at])} TO {_quoted(str(new))}")
        for at in moved:
            there[at] = str(goals[at]) if at in straight else f"{_ASIDE}{at}"
        for at in moved:
            if at not in straight and (goal := goals[at]) is not None:
                statements.append(f"ALTER TABLE {_quoted(name)} RENAME COLUMN {_quoted(there[at])} TO {_quoted(goal)}")
                there[at] = goal
    gone = [each for each in there if each not in kept]
    statements += [f"ALTER TABLE {_quoted(name)} DROP COLUMN {_quoted(each)}" for each in gone]
    statements += [
        f"ALTER TABLE {_quoted(name)} ADD COLUMN {_quoted(each.name)} {each.type}"
        for each in wanted.values()
        if each.name not in kept
    ]
    return statements


def unfillable(name: str, table: str, column: str) -> SourceUnreadable:
    """What is said of a new column with a value for the rows of a table whose rows nothing identifies."""
    return SourceUnreadable(
        f"table {table!r} of the source has got column {column!r} with a value for the rows that are there, and no key"
        f" by which rows of {name!r} here could be given it. {_anew(name)}"
    )


def _places(
    name: str, known: list[str], names: Mapping[str, str | None], there: list[str], here: Sequence[str] | None
) -> list[str]:
    """What columns that may have to be renamed were called before, place by place; nothing if none has to be any more.

    Raises: `SourceUnreadable` if that cannot be told: values would get into each other's columns.
    """
    if all(new in (old, None) for old, new in names.items()):
        return []
    was = list(known if here is None else here)
    if len(there) == len(was) and all(
        now in (old, names.get(old), f"{_ASIDE}{at}") for at, (old, now) in enumerate(zip(was, there))
    ):
        return was
    goals = [new for old in was if (new := names.get(old)) is not None]
    if [each for each in there if each in goals] == goals:  # Renamed, and others have been dropped or added.
        return []
    if set(known) <= set(there):  # In another order than is known: nothing was done yet.
        return there.copy()
    raise SourceUnreadable(
        f"the columns of table {name!r} here are {', '.join(there)}: they are not those that it had, {', '.join(was)},"
        f" on the way to what the source has now. {_anew(name)}"
    )


def _anew(name: str) -> str:
    return (
        f"Its rows must be read anew: drop table {name!r} here and capture with restart=True"
        f" (tidegate capture ... --restart)"
    )


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
