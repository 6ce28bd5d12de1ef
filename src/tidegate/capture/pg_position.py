"""Positions in a PostgreSQL server's log, and whether what follows one is still there."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tidegate.capture.pg_catalog import server_of, slot_of
from tidegate.capture.pg_connect import explained
from tidegate.capture.pg_stream import lsn_text
from tidegate.errors import InvalidArgument, SourceGone

if TYPE_CHECKING:
    import psycopg

ANEW: Final = "take a new snapshot: restart=True, or --restart"


class Committed(NamedTuple):
    """A commit as the log has it: another history has none that is equal."""

    end_lsn: int
    xid: int
    time_us: int


@dataclass(frozen=True, slots=True)
class Position:
    """A place between commits, of one server in one of its lives (its timeline)."""

    lsn: int
    timeline: int
    system: str
    last: Committed | None = None
    """The last commit up to it that the capture was given. None where an earlier version has not noted it."""

    @classmethod
    def of(cls, text: str) -> Position:
        """Raises: `InvalidArgument`."""
        try:
            lsn, timeline, system, *rest = text.split(" ")
            last = None
            if rest:
                end, xid, time_us = rest[0].split("@")
                last = Committed(_lsn_of(end), int(xid), int(time_us))
            return cls(_lsn_of(lsn), int(timeline), system, last)
        except ValueError:
            raise InvalidArgument(
                f"{text!r} is no position in PostgreSQL: those are like '0/16B3748 1 73 0/16B3700@731@812'"
            ) from None

    @classmethod
    def beginning(cls, lsn: str, timeline: int, system: str) -> Position:
        """Where a slot begins: nothing of ours is before it."""
        place = _lsn_of(lsn)
        return cls(place, timeline, system, Committed(place, 0, 0))

    def __str__(self) -> str:
        text = f"{lsn_text(self.lsn)} {self.timeline} {self.system}"
        return (
            text if self.last is None else f"{text} {lsn_text(self.last.end_lsn)}@{self.last.xid}@{self.last.time_us}"
        )

    def at(self, lsn: int) -> Position:
        """A place further on, with no commit of ours in between."""
        return replace(self, lsn=lsn)

    def behind(self, commit: Committed) -> Position:
        return Position(commit.end_lsn, self.timeline, self.system, commit)


def _lsn_of(text: str) -> int:
    high, low = text.split("/")
    return int(high, 16) << 32 | int(low, 16)


def check_position(connection: psycopg.Connection[Any], where: str, name: str, position: Position) -> int:
    """Whether a slot has all that follows a position; the place that it begins at. Raises: `SourceGone`."""
    with explained(where, f"looking for slot {name!r}"):
        server, slot = server_of(connection), slot_of(connection, name)
    about = f"PostgreSQL at {where}"
    if server.system != position.system:
        raise SourceGone(f"{about} is another server than the one that was captured; connect to that one, or {ANEW}")
    if server.timeline is not None and server.timeline != position.timeline:
        raise SourceGone(
            f"{about} was restored, or another server took over (timeline {server.timeline}, captured was"
            f" {position.timeline}): what was captured last may never have been; {ANEW}"
        )
    if server.lsn < position.lsn:
        raise SourceGone(
            f"{about} went back in time: its log ends at {lsn_text(server.lsn)}, and {lsn_text(position.lsn)} was"
            f" captured; {ANEW}"
        )
    if slot is None:
        raise SourceGone(f"{about} has no slot {name!r} any more, and may have lost changes since; {ANEW}")
    if slot.plugin != "pgoutput":
        raise SourceGone(f"{about}: slot {name!r} is another one now, and not for pgoutput; {ANEW}")
    if slot.wal_status == "lost":
        raise SourceGone(
            f"{about} has removed what slot {name!r} was to read, as it had fallen behind by more than"
            f" max_slot_wal_keep_size; {ANEW}"
        )
    if slot.confirmed > position.lsn:
        raise SourceGone(
            f"{about}: slot {name!r} begins at {lsn_text(slot.confirmed)}, behind {lsn_text(position.lsn)}: it was made"
            f" anew or moved by somebody else; {ANEW}"
        )
    return slot.confirmed
