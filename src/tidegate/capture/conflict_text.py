"""What a conflict says to people."""

from __future__ import annotations

from typing import Final

from tidegate.capture.target import Conflict, Target, Violation
from tidegate.capture.target_tables import TableWriter
from tidegate.cdc.apply_plan import Row

OTHER: Final = "the row has other values than it had here before the change"
MISSING: Final = "the row to be changed is not there"
THERE: Final = "a row with this key is there already"
TAKEN: Final = "a foreign key of the target deletes the row, and what its own columns hold, before it can be changed"
UNTAKEN: Final = "the target has not taken the row, and said nothing: a trigger of it may have turned it away"
STAYS: Final = "; it is there without what it refers to, as others refer to it"


def forbidden(violation: Violation, writer: TableWriter, target: Target, row: Row | None) -> str:
    """What a target has against a row."""
    if not violation.is_value:
        return f"a constraint of the target forbids it ({violation})"
    names = [name for name, value in zip(writer.names, row or (), strict=bool(row)) if not target.takes(value)]
    which = f" of column {', '.join(map(repr, names))}" if names else ""
    return f"the target does not take a value{which} ({violation})"


def explain(conflict: Conflict, target: Target, policy: str) -> str:
    """A conflict, and what to do."""
    other = "policy 'skip'" if policy == "overwrite" else "policy 'overwrite' or 'skip'"
    return (
        f"{target.shown}: {conflict}. Nothing of that transaction was applied, and all before it was: mend the row and"
        f" repeat, or go on with {other}"
    )
