"""`Noted`: what a capture remembers of its tables at the server, in the comment of its publication.

Tables and columns are known by their numbers, so that one that is renamed stays what it is, also while nobody listens.
The comment also says that the publication is ours.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Final

from tidegate.capture.pg_look import Look
from tidegate.capture.pg_partitions import Part

_OURS: Final = "tidegate "
_LOOKS: Final = 8
"""Of a table that are noted."""


@dataclass(slots=True)
class Noted:
    """All is by the numbers of tables."""

    names: dict[int, str] = field(default_factory=dict)
    """What they are captured as."""
    looks: dict[int, list[Look]] = field(default_factory=dict)
    """Which columns they had, the latest last: a capture may go on from before some of it."""
    files: dict[int, int] = field(default_factory=dict)
    """Where their rows lie: another number once the server has written all of them again."""
    partitions: dict[int, Part] | None = None
    """Their parts, by the parts' numbers; None when they were not noted."""
    joining: list[int] = field(default_factory=list)
    """Those whose rows may not have come yet: see `Joining`."""

    def look(self, oid: int, look: Look) -> bool:
        """Note what a table looks like from here on; whether that is news."""
        some = self.looks.setdefault(oid, [])
        if some and some[-1] == look:
            return False
        some.append(look)
        del some[:-_LOOKS]
        return True

    def looked(self, oid: int, columns: list[str]) -> Look | None:
        """What a table looked like when it had these columns, as far as it is noted."""
        return next((each for each in reversed(self.looks.get(oid, [])) if list(each.numbers) == columns), None)

    @staticmethod
    def is_ours(comment: str) -> bool:
        return comment.startswith(_OURS)

    @classmethod
    def of(cls, comment: str) -> Noted:
        found = json.loads(comment.removeprefix(_OURS))
        names, looks, files = (
            {int(oid): each for oid, each in found[part].items()} for part in ("names", "looks", "files")
        )
        parts = found.get("partitions")
        return cls(
            names,
            {oid: [Look.read(each) for each in some] for oid, some in looks.items()},
            files,
            None if parts is None else {int(oid): Part(*each) for oid, each in parts.items()},
            list(found.get("joining", ())),
        )

    def __str__(self) -> str:
        looks = {oid: [each.facts() for each in some] for oid, some in self.looks.items()}
        found = {"names": self.names, "looks": looks, "files": self.files, "partitions": self.partitions}
        return _OURS + json.dumps(found | ({"joining": self.joining} if self.joining else {}))
