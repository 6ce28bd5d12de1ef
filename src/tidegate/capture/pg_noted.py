"""`Noted`: what a capture remembers of its tables at the server, in the comment of its publication.

Tables and columns are known by their numbers, so that one that is renamed stays what it is, also while nobody listens.
The comment also says that the publication is ours.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Final

from tidegate.capture.pg_partitions import Part

_OURS: Final = "tidegate "


@dataclass(slots=True)
class Noted:
    """All is by the numbers of tables."""

    names: dict[int, str] = field(default_factory=dict)
    """What they are captured as."""
    columns: dict[int, dict[str, int]] = field(default_factory=dict)
    """All names that their columns have had, and the columns' numbers."""
    files: dict[int, int] = field(default_factory=dict)
    """Where their rows lie: another number once the server has written all of them again."""
    partitions: dict[int, Part] | None = None
    """Their parts, by the parts' numbers; None when they were not noted."""
    joining: list[int] = field(default_factory=list)
    """Those whose rows may not have come yet: see `Joining`."""

    @staticmethod
    def is_ours(comment: str) -> bool:
        return comment.startswith(_OURS)

    @classmethod
    def of(cls, comment: str) -> Noted:
        found = json.loads(comment.removeprefix(_OURS))
        names, columns, files = (
            {int(oid): each for oid, each in found[part].items()} for part in ("names", "columns", "files")
        )
        parts = found.get("partitions")
        return cls(
            names,
            columns,
            files,
            None if parts is None else {int(oid): Part(*each) for oid, each in parts.items()},
            list(found.get("joining", ())),
        )

    def __str__(self) -> str:
        found = {"names": self.names, "columns": self.columns, "files": self.files, "partitions": self.partitions}
        return _OURS + json.dumps(found | ({"joining": self.joining} if self.joining else {}))
