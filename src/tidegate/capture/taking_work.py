"""`Work`: what is known of a transaction of a source while it is written."""

from __future__ import annotations

from dataclasses import dataclass, field

from tidegate.capture.following import names_through
from tidegate.capture.kept_rows import KeptRows
from tidegate.capture.places import Target
from tidegate.capture.source import Reshaped, SourceTable


@dataclass(slots=True)
class Work:
    """Of one transaction, at a point of it."""

    position: str
    shapes: dict[str, SourceTable]
    """What rows of each table look like at this point."""
    steps: dict[str, list[Reshaped]] = field(default_factory=dict)
    """All that happens to the shape of each table, which has its last one already."""
    passed: dict[str, int] = field(default_factory=dict)
    """How many of them lie behind."""
    reshaped: dict[str, Target] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)
    """Tables that were dropped."""
    written: set[str] = field(default_factory=set)
    """Tables that have got rows."""
    emptied: dict[str, int] = field(default_factory=dict)
    skipped: dict[str, int] = field(default_factory=dict)
    """How often each table will still be emptied: its rows until then are not written."""
    kept: KeptRows | None = None
    """What it has written so far, where it is larger than memory and has to know."""

    def names(self, table: str) -> dict[str, str | None]:
        """What columns of the rows at this point are called in the end; nothing when that is what they are called."""
        if table not in self.steps:
            return {}
        shape = self.shapes.get(table)
        names = [] if shape is None else [each.name for each in shape.columns]
        return names_through(names, self.steps[table][self.passed.get(table, 0) :])
