"""Triggers that record tables in databases with triggers of the user or cascades, where one update runs within another.

Between the BEFORE and the AFTER of an update its row may be changed, moved or removed by what the update causes. So the
record has the row as it is found when the update ends: the last record of a row always says what became of it. Which
columns a statement sets is only hinted at, by marks of the updates at work; columns that changed are flagged anyway.

Where the user's triggers shall not recurse, SQLite does not tell which rows a REPLACE removes. They are looked up
before, and those that are gone afterwards are recorded in front of what replaced them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from tidegate.capture.images import flags_of, image, update_images
from tidegate.capture.sqlite_triggers import (
    MOST_ARGUMENTS,
    PREFIX,
    ImageRow,
    Log,
    Slot,
    Table,
    entry,
    holds_of,
    key_columns,
    key_names,
    quoted,
    text,
    values_of,
)
from tidegate.cdc.record import Value

MOST_FRAMES: Final = 1000
"""SQLite's triggers go no deeper."""
_CHANGED: Final = text("*")
"""The tag of rows that were changed while another statement for the table was at work, which may replace them too."""
_OPEN: Final = text("o")
"""How the tags of statements at work begin; those of rows begin otherwise."""
_BEHIND_OPEN: Final = text("p")


@dataclass(slots=True)
class Frame:
    """An update at work: of which table, from which key to which."""

    slot: int
    ids: tuple[Value, ...]
    """The key before and, behind it, after."""
    columns: dict[int, Value] = field(default_factory=dict)
    """The columns that it sets, and to what."""
    latest: tuple[Value, ...] | None = None
    """The row as another update has left it since."""


class Nest:
    """What the functions of a nested table's triggers share; as a `Slot`, it outlives its table."""

    def __init__(self, slot: Slot, frames: list[Frame]) -> None:
        self._slot = slot
        self._frames = frames
        """Of all tables of the connection. Updates that were passed over leave theirs behind."""
        self._parts = 0
        self._key: frozenset[int] = frozenset()
        self._computed: frozenset[int] = frozenset()

    def serve(self, table: Table) -> None:
        """Serves this table from now on."""
        self._parts = len(table.identity)
        self._key = frozenset(key_columns(table))
        self._computed = table.computed

    def mark(self, column: int, value: Value, *ids: Value) -> int:
        """An update is about to set a column."""
        frames, number = self._frames, self._slot.number
        top = frames[-1] if frames else None
        if top is None or top.slot != number or top.ids != ids or column in top.columns or top.latest is not None:
            if len(frames) >= MOST_FRAMES:
                del frames[: MOST_FRAMES // 2]
            top = Frame(number, ids)
            frames.append(top)
        top.columns[column] = value
        return 1

    def update(self, was_there: int, is_there: int, *values: Value) -> int:
        """Makes what the triggers write about an update. Arguments: whether there are rows with the old and the new
        key, the two keys, then the row before, as it was to become, and as it is. Returns: 0 if nothing is written."""
        slot = self._slot
        ids, values = values[: 2 * self._parts], values[2 * self._parts :]
        if slot.held:
            values = tuple(slot.held)
            slot.held.clear()
        width = slot.columns
        old, new, now = values[:width], values[width : 2 * width], values[2 * width :]
        moved = ids[: self._parts] != ids[self._parts :]
        hinted, latest = self._end(ids, new)
        before = old if latest is None else latest
        if is_there and not moved:
            self._changed(ids, now)
        if moved or self._key & hinted:
            self._delete_and_insert(before if not moved else old, now, moved and not was_there, bool(is_there), moved)
            return 1
        if not is_there:
            return 0  # Removed since, which was recorded.
        mode, images = slot.mode, slot.images
        pops: tuple[bytes | None, ...] = (None, None, None)
        if mode == "full":
            changed = {at for at in range(width) if not _same(before[at], now[at])} - self._computed
            pops = update_images(before, now, flags_of(width, frozenset(hinted | changed)))
        elif mode == "before":
            pops = (None, None, image(*before))
        elif mode == "after":
            pops = (None, image(*now), None)
        images[:] = (0, *pops, 0, 1)
        return 1

    def _delete_and_insert(
        self, before: Sequence[Value], now: Sequence[Value], gone: bool, is_there: bool, moved: bool
    ) -> None:
        mode = self._slot.mode
        gone = gone or (is_there and not moved)
        images: list[int | bytes | None] = []
        if is_there:
            images += [image(*now) if mode in ("after", "full") else None]
        images += [int(is_there)]
        if gone:
            images += [None, None, image(*before) if mode in ("before", "full") else None, -1]
        images += [int(gone)]
        self._slot.images[:] = images

    def _end(self, ids: tuple[Value, ...], new: Sequence[Value]) -> tuple[frozenset[int], tuple[Value, ...] | None]:
        """An update has ended. Returns: the columns that it set, as far as is known, and the row as others left it."""
        frames = self._frames
        for at in range(len(frames) - 1, -1, -1):
            frame = frames[at]
            if frame.slot == self._slot.number and frame.ids == ids:
                break
        else:
            return frozenset(), None
        del frames[at + 1 :]  # Passed over.
        width = len(new)
        own = {column for column, value in frame.columns.items() if column >= width or _same(value, new[column])}
        for column in own:
            del frame.columns[column]
        if not frame.columns:
            frames.pop()
        return frozenset(own), frame.latest

    def _changed(self, ids: tuple[Value, ...], now: tuple[Value, ...]) -> None:
        """Tells the updates at work that their row was changed by another."""
        for frame in self._frames:
            if frame.slot == self._slot.number and frame.ids[: self._parts] == ids[self._parts :]:
                frame.latest = now


def _same(one: Value, other: Value) -> bool:
    return type(one) is type(other) and one == other


def nested_triggers(table: Table, slot: int, log: Log) -> Iterator[str]:
    """The triggers of a table, as SQL. They call the functions of a slot and its nest."""
    make = f"CREATE TEMP TRIGGER {PREFIX}{slot}"
    on = f"ON {_name(table)}"
    old, new = values_of(table, "old"), values_of(table, "new")
    inserted = _inserted(table, slot, log) if table.followed else ImageRow(table, slot, log, "new", 1, after=new).whole
    delete = ImageRow(table, slot, log, "old", -1, before=old)
    looked = bool(table.uniques)
    forget = f"; {_forget(table, slot)}" if looked else ""
    # A statement replaces rows or does not: of two triggers with a body each, one runs.
    plain, replacing = ("WHEN NOT tidegate_replaces() ", "WHEN tidegate_replaces() ") if looked else ("", "")
    yield f"{make}_insert AFTER INSERT {on} {plain}BEGIN {inserted}; END"
    if looked:
        replaced = _replaced(table, slot, log, "i")
        yield f"{make}_replace AFTER INSERT {on} {replacing}BEGIN {replaced}; {inserted}; END"
    if table.guarded:
        gone = f"NOT EXISTS (SELECT 1 FROM {_name(table)} AS t WHERE {_same_key(table, 't', 'old')})"
        yield f"{make}_delete AFTER DELETE {on} WHEN {gone} BEGIN {delete.whole}{forget}; END"
    else:
        yield f"{make}_delete BEFORE DELETE {on} BEGIN {delete.whole}{forget}; END"
    ends, updated = _ends(table, slot, old, new), _updated(table, log)
    if looked:
        yield f"{make}_update AFTER UPDATE {on} {plain}AND {ends} BEGIN {updated}; END"
        replaced = _replaced(table, slot, log, "u")
        yield f"{make}_replace_update AFTER UPDATE {on} {replacing}AND {ends} BEGIN {replaced}; {updated}; END"
    else:
        yield f"{make}_update AFTER UPDATE {on} WHEN {ends} BEGIN {updated}; END"
    names = {at: (table.columns[at],) if table.key else key_names(table) for at in key_columns(table)}
    if log.mode in ("before", "full"):
        names |= {at: (name,) for at, name in enumerate(table.columns) if at not in names}
    ids = ", ".join((*_ids(table, "old"), *_ids(table, "new")))
    for at, of in sorted(names.items()):
        value = f"new.{quoted(table.columns[at])}" if at < len(table.columns) else "NULL"
        columns = ", ".join(map(quoted, of))
        yield (
            f"{make}_mark_{at} BEFORE UPDATE OF {columns} {on}"
            f" BEGIN SELECT tidegate_mark_{slot}({at}, {value}, {ids}); END"
        )
    if looked:
        keys = ", ".join(f"k{at}" for at in range(len(table.identity)))
        yield (f"CREATE TEMP TABLE IF NOT EXISTS {_found(table, slot)}(statement, tag, {keys}, image)")
        index = f"{_found(table, slot)}_tags"
        yield f"CREATE INDEX IF NOT EXISTS temp.{index} ON {_found(table, slot)}(statement, tag)"
        yield f"{make}_look BEFORE INSERT {on} {replacing}BEGIN {_look(table, slot, log, 'i')}; END"
        yield f"{make}_look_update BEFORE UPDATE {on} {replacing}BEGIN {_look(table, slot, log, 'u')}; END"


def _inserted(table: Table, slot: int, log: Log) -> str:
    """A row about an insert, as other triggers that ran already have left it; none if they removed it."""
    picture = _picture(table, slot, "t") if log.mode in ("after", "full") else "NULL"
    into, values = entry(log, table, "1", _id(table, "new"), ("NULL", picture, "NULL"))
    return f"{into} SELECT {values} FROM {_name(table)} AS t WHERE {_same_key(table, 't', 'new')}"


def _ends(table: Table, slot: int, old: Sequence[str], new: Sequence[str]) -> str:
    """The end of an update, with the row as it is now."""
    was_there = f"EXISTS (SELECT 1 FROM {_name(table)} AS t WHERE {_same_key(table, 't', 'old')})"
    was_there = f"CASE WHEN {_same_key(table, 'old', 'new')} THEN 1 ELSE {was_there} END"
    arguments = [was_there, f"t.{quoted(table.identity[0])} IS NOT NULL", *_ids(table, "old"), *_ids(table, "new")]
    values = [*old, *new, *values_of(table, "t")]
    before = ""
    if len(arguments) + len(values) <= MOST_ARGUMENTS:
        arguments += values
    else:
        before = "".join(f"{hold} AND " for hold in holds_of(slot, values))
    return (
        f"(SELECT {before}tidegate_nested_{slot}({', '.join(arguments)})"
        f" FROM (SELECT 1) LEFT JOIN {_name(table)} AS t ON {_same_key(table, 't', 'new')})"
    )


def _updated(table: Table, log: Log) -> str:
    """What is written of an update: a row about it, or a delete and an insert, of which each may be left out."""
    pop = "tidegate_pop()"
    first = entry(log, table, pop, _id(table, "old"), (pop, pop, pop))
    second = entry(log, table, "1", _id(table, "new"), ("NULL", pop, "NULL"))
    return "; ".join(f"{into} SELECT {values} WHERE {pop}" for into, values in (first, second))


def _look(table: Table, slot: int, log: Log, kind: str) -> str:
    """Notes the rows that a new one is in conflict with."""
    found, tag = _found(table, slot), _tag(table, kind)
    into = f"INSERT INTO {found} SELECT tidegate_replaces()"
    ids = ", ".join(_ids(table, "t"))
    conflict = " OR ".join(f"({each})" for each in table.uniques)
    own = f" AND NOT ({_same_key(table, 't', 'old')})" if kind == "u" else ""
    nothing = ", 0" * len(table.identity)
    opened = f"; {into}, {_OPEN} || {tag}{nothing}, NULL" if table.interrupted else ""
    return (
        f"DELETE FROM {found} WHERE statement < tidegate_replaces();"
        f" DELETE FROM {found} WHERE statement = tidegate_replaces() AND tag = {tag};"
        f" {into}, {tag}, {ids}, {_noted(table, slot, log, 't')} FROM {_name(table)} AS t"
        f" WHERE ({conflict}){own}{opened}"
    )


def _noted(table: Table, slot: int, log: Log, row: str) -> str:
    """The image that a row is noted with."""
    return _picture(table, slot, row) if log.mode in ("before", "full") else "NULL"


def _picture(table: Table, slot: int, row: str) -> str:
    """The image of a row."""
    values = values_of(table, row)
    if len(values) > MOST_ARGUMENTS:
        return f"CASE WHEN {' AND '.join(holds_of(slot, values))} THEN tidegate_image_{slot}() END"
    return f"tidegate_image({', '.join(values)})"


def _replaced(table: Table, slot: int, log: Log, kind: str) -> str:
    """Records the rows noted that are gone."""
    found, tag = _found(table, slot), _tag(table, kind)
    key = [(f"k{at}", quoted(name)) for at, name in enumerate(table.identity)]
    taken = " AND ".join(f"r.{noted} = new.{name} COLLATE BINARY" for noted, name in key)
    there = " AND ".join(f"t.{name} = r.{noted}" for noted, name in key)
    if table.key:
        there += "".join(f" AND t.{name} = r.{noted} COLLATE BINARY" for noted, name in key)
    gone = f"(({taken}) OR NOT EXISTS (SELECT 1 FROM {_name(table)} AS t WHERE {there}))"
    tags = f"({tag}, {_CHANGED})" if table.interrupted else f"({tag})"
    into, values = entry(log, table, "-1", "NULL" if table.rowid is None else "r.k0", ("r.image", "NULL", "NULL"))
    at_work = "statement = tidegate_replaces()"
    parts = [
        f"{into} SELECT {values} FROM temp.{found} AS r WHERE {at_work} AND tag IN {tags} AND {gone}",
        f"DELETE FROM {found} WHERE {at_work} AND tag = {tag}",
    ]
    if table.interrupted:
        keys = ", ".join(noted for noted, _ in key)
        left = f"SELECT {keys} FROM temp.{found} AS r WHERE {at_work} AND tag = {_CHANGED} AND {gone}"
        ids = ", ".join(_ids(table, "new"))
        parts += [
            f"DELETE FROM {found} WHERE {at_work} AND tag = {_CHANGED} AND ({keys}) IN ({left})",
            f"DELETE FROM {found} WHERE rowid = (SELECT max(rowid) FROM temp.{found}"
            f" WHERE {at_work} AND tag = {_OPEN} || {tag})",
            f"DELETE FROM {found} WHERE {at_work} AND tag = {_CHANGED} AND ({keys}) = ({ids})",
            f"INSERT INTO {found} SELECT tidegate_replaces(), {_CHANGED}, {ids},"
            f" {_noted(table, slot, log, 'new')} WHERE EXISTS"
            f" (SELECT 1 FROM temp.{found} WHERE {at_work} AND tag >= {_OPEN} AND tag < {_BEHIND_OPEN})",
        ]
    return "; ".join(parts)


def _forget(table: Table, slot: int) -> str:
    """A row that was noted is deleted otherwise."""
    own = " AND ".join(f"k{at} = old.{quoted(name)}" for at, name in enumerate(table.identity))
    return f"DELETE FROM {_found(table, slot)} WHERE statement = tidegate_replaces() AND {own}"


def _tag(table: Table, kind: str) -> str:
    """Tells one statement's row from another's: the same before and after. A rowid may be chosen in between."""
    names = table.identity if kind == "u" else [name for name in table.columns if name != table.rowid][:50]
    row = "old" if kind == "u" else "new"
    parts = [text(kind), *(f"quote({row}.{quoted(name)})" for name in names or table.identity)]
    return " || ',' || ".join(parts)


def _found(table: Table, slot: int) -> str:
    return f"{PREFIX}{slot}_found_{len(table.identity)}"


def _name(table: Table) -> str:
    return f"{quoted(table.schema)}.{quoted(table.name)}"


def _id(table: Table, row: str) -> str:
    return "NULL" if table.rowid is None else f"{row}.{quoted(table.rowid)}"


def _ids(table: Table, row: str) -> tuple[str, ...]:
    return tuple(f"{row}.{quoted(name)}" for name in table.identity)


def _same_key(table: Table, one: str, other: str) -> str:
    same = [f"{one}.{quoted(name)} = {other}.{quoted(name)}" for name in table.identity]
    # Found by the key's index, whose collation may take different values for one.
    same += [f"{each} COLLATE BINARY" for each in same if table.key]
    return " AND ".join(same)
