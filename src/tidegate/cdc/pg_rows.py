"""Changes of one table within a transaction, as pgoutput sends them, into what is left of them: `reduce`.

Of each key the last change counts: rows that come or replace others, keys that go, and rows of which the server left
out large values that did not change. Many messages are taken apart column by column; a few, or those that leave values
out, one by one (`reduce_slowly`). Law: both say the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from struct import error as StructError
from typing import Any, Final

import numpy as np
import pyarrow as pa

from tidegate.cdc.pgoutput import UNCHANGED, Cells, Unchanged, expect, read_cells
from tidegate.errors import SourceUnreadable

MANY: Final = 96
"""From here on columns are faster than rows."""
Key = tuple[str, ...]
Texts = tuple[str | None, ...]
_HEAD: Final = 6
"""Bytes before a message's first row: what it is, the table, which row."""
_I, _U, _D, _N = b"IUDN"
_PAD: Final = bytes(8)
_LONG: Final = 64
"""Bytes of a text from which on it is copied by itself."""
_UNCHANGED_SINCE: Final = "keeps a value that it cannot have had"


class Keyless(ValueError):
    """An update or delete of a table whose rows nothing identifies."""


@dataclass(frozen=True, slots=True)
class Patched:
    """A row whose values are all there but those that are UNCHANGED: these are in the row that had the key `was`."""

    was: Key
    row: Cells


@dataclass(slots=True)
class Reduced:
    """What is left. Keys of `patches`, `deletes` and new rows are all different, unless all that came were new rows."""

    patches: list[Patched] = field(default_factory=list)
    """`was` is as before all of these changes: what they keep is to be read before anything is written."""
    deletes: list[Key] = field(default_factory=list)
    rows: list[Texts] = field(default_factory=list)
    columns: list[pa.Array] | None = None
    """The new rows as columns of texts, when they are many; `rows` is empty then."""


def reduce(messages: Sequence[bytes], width: int, key: tuple[int, ...]) -> Reduced:
    """What inserts, updates and deletes of a table with so many columns come to; `key` is the places of its key.

    Raises: `Keyless`; `SourceUnreadable` for messages that are none.
    """
    if len(messages) >= MANY:
        found = _reduce_columns(messages, width, key)
        if found is not None:
            return found
    return reduce_slowly(messages, width, key)


def reduce_slowly(messages: Sequence[bytes], width: int, key: tuple[int, ...]) -> Reduced:
    """`reduce`, row by row."""
    last: dict[Key, tuple[Cells, Key | None] | None] = {}
    plain: list[Texts] = []
    gone: Cells | None
    row: Cells | None
    for data in messages:
        try:
            # The commonest, at once; whatever is odd about it is said by `_parse`.
            if data[_HEAD - 1] == _N and data[0] != _D:
                row, at = read_cells(data, _HEAD)
                gone, whole = None, False
                if at != len(data) or len(row) != width or (UNCHANGED in row and data[0] == _I):
                    gone, whole, row = _parse(data, width)
            else:
                gone, whole, row = _parse(data, width)
        except (StructError, IndexError, ValueError) as error:
            raise SourceUnreadable(f"PostgreSQL sent what is no row: {data[:40].hex()}: {error}") from error
        if not key:
            if data[0] != _I:
                raise Keyless
            plain.append(_complete(row))
            continue
        before = None if gone is None else _key(gone, key)
        if row is None:
            if before is not None:
                last[before] = None
            continue
        now = _key(row, key)
        was: Key | None = None
        if UNCHANGED in row:
            row, was = _filled(row, gone if whole else None, last, before or now)
        if before is not None and before != now:
            last[before] = None
        last[now] = row, was
    out = Reduced(rows=plain)
    for each, state in last.items():
        if state is None:
            out.deletes.append(each)
        elif state[1] is None:
            out.rows.append(state[0])  # type: ignore[arg-type]
        else:
            out.patches.append(Patched(state[1], state[0]))
    return out


def _parse(data: bytes, width: int) -> tuple[Cells | None, bool, Cells | None]:
    """The row before, if it was sent; whether all of it was; the row after."""
    kind = expect(data[0], "IUD")
    gone = row = None
    at, which = _HEAD, expect(data[_HEAD - 1], {"I": "N", "U": "NKO", "D": "KO"}[kind])
    if which != "N":
        gone, at = read_cells(data, at)
        if kind == "U":
            expect(data[at], "N")
            at += 1
    if kind != "D":
        row, at = read_cells(data, at)
    if at != len(data):
        raise ValueError(f"{len(data) - at} bytes are left over")
    if kind == "I" and row is not None and UNCHANGED in row:
        raise ValueError("a new row has a value that did not change")
    if any(each is not None and len(each) != width for each in (gone, row)):
        raise ValueError(f"it has not {width} values")
    return gone, which == "O", row


def _key(row: Cells, key: tuple[int, ...]) -> Key:
    found = tuple([row[place] for place in key])
    if None in found or UNCHANGED in found:
        raise SourceUnreadable(f"PostgreSQL sent a row whose key is {found}")
    return found  # type: ignore[return-value]


def _complete(row: Cells | None) -> Texts:
    if row is None or UNCHANGED in row:
        raise SourceUnreadable(f"PostgreSQL sent a row that {_UNCHANGED_SINCE}")
    return row  # type: ignore[return-value]


def _filled(
    row: Cells, gone: Cells | None, last: dict[Key, tuple[Cells, Key | None] | None], before: Key
) -> tuple[Cells, Key | None]:
    """The row with what is known of the values that were left out, and where the others are if any are."""
    was: Key | None = before
    earlier: Cells | None = gone
    if earlier is None and before in last:
        state = last[before]
        if state is None:
            raise SourceUnreadable(f"PostgreSQL sent a row that {_UNCHANGED_SINCE}")
        earlier, was = state
    if earlier is not None:
        row = tuple(old if isinstance(each, Unchanged) else each for each, old in zip(row, earlier))
    return row, was if UNCHANGED in row else None


# Columns ----------------------------------------------------------------------------------------------------------


class _Grid:
    """Where the cells of many rows lie in a buffer."""

    __slots__ = ("_buffer", "_cells", "_raw", "behind", "rows")

    def __init__(self, raw: bytes, places: Any, width: int) -> None:
        """Raises: `ValueError` for what is better looked at row by row."""
        self._raw = raw
        self._buffer = buffer = np.frombuffer(raw, np.uint8)
        self.rows = len(places)
        if not self.rows:
            self._cells: list[tuple[Any, Any, Any]] = [(places, places, places.astype(bool))] * width
            self.behind = places
            return
        # A row that is cut off would reach beyond; the place where it ends then tells.
        most = len(buffer) - len(_PAD)
        if ((buffer[places].astype(np.int64) << 8 | buffer[places + 1]) != width).any():
            raise ValueError
        places = places + 2
        self._cells = []
        for _ in range(width):
            if places.max() > most:
                raise ValueError
            kinds = buffer[places]
            is_text = kinds == 0x74  # t
            if not is_text.all() and not (is_text | (kinds == 0x6E)).all():  # n
                raise ValueError
            lengths = (
                buffer[places + 1].astype(np.int64) << 24
                | buffer[places + 2].astype(np.int64) << 16
                | buffer[places + 3].astype(np.int64) << 8
                | buffer[places + 4]
            )
            lengths *= is_text
            self._cells.append((places + 5, lengths, is_text))
            places = places + np.where(is_text, lengths + 5, 1)
        self.behind = places

    def column(self, number: int, chosen: Any = None) -> pa.Array:
        """A column's texts, of some rows only if they are named."""
        starts, lengths, is_text = self._cells[number]
        if chosen is not None:
            starts, lengths, is_text = starts[chosen], lengths[chosen], is_text[chosen]
        offsets = np.zeros(len(starts) + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        total = int(offsets[-1])
        if total > _LONG * len(starts):
            # Byte by byte, a place of each would take more room than the texts.
            data = b"".join([self._raw[at:end] for at, end in zip(starts.tolist(), (starts + lengths).tolist())])
        else:
            where = np.repeat((starts - offsets[:-1]).astype(np.int32), lengths)
            where += np.arange(total, dtype=np.int32)
            data = self._buffer[where]
        valid = None if is_text.all() else pa.py_buffer(np.packbits(is_text, bitorder="little"))
        return pa.Array.from_buffers(
            pa.string(),
            len(starts),
            [valid, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(data)],
        )

    def has_nulls(self, columns: tuple[int, ...]) -> bool:
        return not all(self._cells[number][2].all() for number in columns)

    def keys(self, key: tuple[int, ...]) -> list[Key]:
        if self.has_nulls(key):
            raise ValueError
        return list(zip(*(self.column(place).to_pylist() for place in key)))


def _reduce_columns(messages: Sequence[bytes], width: int, key: tuple[int, ...]) -> Reduced | None:
    """None for what has to be looked at row by row."""
    raw = b"".join([*messages, _PAD])
    buffer = np.frombuffer(raw, np.uint8)
    ends = np.cumsum(np.fromiter(map(len, messages), np.int64, len(messages)))
    starts = np.concatenate(([0], ends[:-1]))
    kinds, which = buffer[starts], buffer[starts + _HEAD - 1]
    is_delete = kinds == _D
    is_plain = ~is_delete & (which == _N)
    places = starts + _HEAD
    try:
        if is_plain.all():
            if not key and (kinds != _I).any():
                raise Keyless
            rows = _Grid(raw, places, width)
            if (rows.behind != ends).any() or rows.has_nulls(key):
                return None
            chosen = None
            if (kinds != _I).any():
                # The server may have sent a row and its update: only the last is wanted.
                last = {each: index for index, each in enumerate(rows.keys(key))}
                if len(last) < len(messages):
                    chosen = np.fromiter(last.values(), np.int64, len(last))
            return Reduced(columns=[rows.column(number, chosen) for number in range(width)])
        if not key:
            raise Keyless
        return _mixed(raw, places, ends, is_delete, is_plain, width, key)
    except Keyless:
        raise
    except (ValueError, IndexError):
        return None


def _mixed(
    raw: bytes, places: Any, ends: Any, is_delete: Any, is_plain: Any, width: int, key: tuple[int, ...]
) -> Reduced | None:
    has_old = ~is_plain
    old = _Grid(raw, places[has_old], width)
    is_moved = ~is_delete[has_old]
    behind = old.behind
    if (behind[~is_moved] != ends[is_delete]).any() or (np.frombuffer(raw, np.uint8)[behind[is_moved]] != _N).any():
        return None
    firsts = places.copy()
    firsts[has_old] = behind + 1
    new = _Grid(raw, firsts[~is_delete], width)
    if (new.behind != ends[~is_delete]).any():
        return None
    gone, come = iter(old.keys(key)), enumerate(new.keys(key))
    last: dict[Key, int | None] = {}
    for plain, delete in zip(is_plain.tolist(), is_delete.tolist()):
        if not plain:
            last[next(gone)] = None
        if not delete:
            index, each = next(come)
            last[each] = index
    left = [index for index in last.values() if index is not None]
    chosen = np.array(left, np.int64)
    return Reduced(
        deletes=[each for each, index in last.items() if index is None],
        columns=[new.column(number, chosen) for number in range(width)] if left else None,
    )
