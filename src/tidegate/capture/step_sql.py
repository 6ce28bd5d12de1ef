"""`op_of`: the statement by which a row goes one step further, when rows are written in turn (`apply_in_turn`)."""

from __future__ import annotations

from typing import Literal, NamedTuple

from tidegate.capture.target_tables import TableWriter
from tidegate.cdc.apply_order import Step
from tidegate.cdc.apply_plan import Row

Phase = Literal["aside", "in place", "late"]
"""What is put aside to make room, what becomes of the row, and the values that had to wait."""


class Op(NamedTuple):
    """A statement for one row."""

    sql: str
    values: Row
    is_counted: bool = True
    """Whether it must change one row."""


def op_of(writer: TableWriter, phase: Phase, step: Step) -> Op:
    """What a phase does to a row."""
    sql, key, before, after = writer.sql, step.key, step.before, step.after
    if phase == "aside":
        columns = tuple(sorted(step.aside))
        values = tuple([step.aside[at] for at in columns])
        is_same = step.is_known and before is not None
        tail = sql.deletes(key, before) if is_same and before is not None else key
        if step.is_removed:
            return Op(sql.delete_same if is_same else sql.delete, tail)
        return Op(sql.some(columns, is_same=is_same), (*values, *tail))
    if after is None:
        if not step.is_known or step.aside or before is None:
            return Op(sql.delete, key, is_counted=step.is_known)
        return Op(sql.delete_same, sql.deletes(key, before))
    if phase == "late":
        return Op(sql.some(step.late), (*[after[at] for at in step.late], *key))
    row = tuple([None if at in step.late else value for at, value in enumerate(after)]) if step.late else after
    if step.is_removed:
        return Op(sql.insert, row)
    if not step.is_known:
        # Where there is nothing but the key, a row that is there stays and is not counted.
        return Op(sql.upsert, row, is_counted=len(writer.names) > len(writer.key))
    if before is None:
        return Op(sql.insert, row)
    if step.aside:  # The same statement as for all others: they go together.
        before = tuple([step.aside.get(at, value) for at, value in enumerate(before)])
    return Op(sql.update_same, sql.updates(key, before, row))
