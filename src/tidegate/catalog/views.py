"""A materialized view: its query, what it reads, and the tables that hold its rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tidegate.clock.timestamp import Timestamp
from tidegate.tables.schema import Table


@dataclass(frozen=True, slots=True)
class View:
    """A view. One dropped and created again has another `id`.

    Invariants: `nodes` is not empty, its last is the view's own, with the view's name and id; the hidden ones before it
    are `name#1`, `name#2`. Whatever it reads was there before it, so ids rise along dependencies.
    """

    id: int
    name: str
    sql: str
    """The query, exactly as it was written."""
    created: Timestamp
    columns: tuple[str, ...]
    """The visible columns, in order: the first ones of its own node."""
    inputs: Mapping[str, tuple[int, int]] = field(hash=False)
    """The tables and views that the query reads: their ids and schema versions when the view was created."""
    used: Mapping[str, frozenset[str]] = field(hash=False)
    """For each input the columns that the query uses, by their names."""
    nodes: tuple[Table, ...]
    """What it stores: tables with one schema each, whose key may be NULL; they live and end with the view."""
    dropped: Timestamp | None = None
    """From when on it is no more; cuts before still have it."""
    resumed: Timestamp = Timestamp.ZERO
    """When somebody last asked to repair it: a failure that is older is to be tried again."""
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @property
    def table(self) -> Table:
        """Its own node: the rows of the view."""
        return self.nodes[-1]

    def existed(self, at: Timestamp) -> bool:
        """Whether a cut at this time has it. At the timestamp of its creation it does, at that of its end not."""
        return self.created <= at and (self.dropped is None or at < self.dropped)

    def reads(self, id: int) -> bool:
        """Whether its query names a table or view."""
        return any(id == each for each, _ in self.inputs.values())
