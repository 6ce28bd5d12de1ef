"""What a batch comes to for views, and how the worker tells the owner of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, field
from typing import Any

from tidegate.clock.timestamp import Timestamp
from tidegate.pipeline.fold import entry_of
from tidegate.snapshots.manifest import FileEntry, ViewState


@dataclass(slots=True)
class Outcome:
    """What a batch comes to for views."""

    files: list[FileEntry] = field(default_factory=list)
    states: dict[int, ViewState] = field(default_factory=dict)
    """Of those that stand otherwise than before."""
    emptied: list[int] = field(default_factory=list)
    """Tables whose files before do not count any more."""
    seconds: dict[str, float] = field(default_factory=dict)
    """How long each view took, by name."""

    def reports(self) -> list[dict[str, Any]]:
        """As the worker tells it."""
        found: list[dict[str, Any]] = [{"file": list(astuple(each))} for each in self.files]
        found += [{"view": {"id": view, **asdict(state)}} for view, state in self.states.items()]
        found += [{"emptied": each} for each in self.emptied]
        if self.seconds:
            found.append({"view_seconds": {name: round(each, 4) for name, each in self.seconds.items()}})
        return found

    @classmethod
    def of(cls, reports: Iterable[Mapping[str, Any]]) -> Outcome:
        """What reports tell; those of tables are files too."""
        found = cls()
        for each in reports:
            if "file" in each:
                found.files.append(entry_of(dict(each)))
            elif "view" in each:
                facts = dict(each["view"])
                view = facts.pop("id")
                found.states[view] = ViewState(**{**facts, "timestamp": Timestamp(facts["timestamp"])})
            elif "emptied" in each:
                found.emptied.append(each["emptied"])
            elif "view_seconds" in each:
                found.seconds.update(each["view_seconds"])
        return found

    def layers(self, table: int) -> list[FileEntry]:
        """What it adds to a table."""
        return [each for each in self.files if each.table == table]

    def forget(self, tables: Sequence[int]) -> None:
        """What was staged for them does not count; garbage collection removes it."""
        self.files = [each for each in self.files if each.table not in tables]
        self.emptied = [each for each in self.emptied if each not in tables]


@dataclass(frozen=True, slots=True)
class Batch:
    """The epochs that are folded: what the tables' fold has made of them, up to where."""

    first: int
    last: int
    upto: Timestamp
    catalog_version: int
    files: Sequence[FileEntry]
