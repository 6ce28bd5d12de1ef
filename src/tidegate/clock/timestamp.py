"""`Timestamp`: one point on the timeline, 46 bits of unix milliseconds and 18 logical bits.

Invariant: `int(ts) == ts.physical_ms << 18 | ts.logical`, so integer order is time order.
A subclass of `int`, so that comparing, hashing and packing cost what they cost for an integer.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import ClassVar, Final

from tidegate.errors import InvalidArgument

LOGICAL_BITS: Final = 18
LOGICAL_COUNT: Final = 1 << LOGICAL_BITS
"""How many timestamps one millisecond holds."""
PHYSICAL_MS_MAX: Final = (1 << 46) - 1
PLAUSIBLE_MS: Final = range(1_546_300_800_000, 253_402_300_799_001)
"""2019-01-01 to the end of year 9999: what a physical part taken from a clock can be."""


class Timestamp(int):
    """A 64-bit hybrid timestamp.

    >>> ts = Timestamp.compose(1_700_000_000_123, 7)
    >>> ts.physical_ms, ts.logical
    (1700000000123, 7)
    >>> print(ts)
    2023-11-14T22:13:20.123Z+7
    >>> ts.add(seconds=-5).logical
    7
    """

    __slots__ = ()

    ZERO: ClassVar[Timestamp]
    MAX: ClassVar[Timestamp]

    def __new__(cls, value: int) -> Timestamp:
        if not 0 <= value < 1 << 64:
            raise InvalidArgument(f"a Timestamp is an unsigned 64-bit number, not {value}")
        return int.__new__(cls, value)

    @classmethod
    def compose(cls, physical_ms: int, logical: int = 0) -> Timestamp:
        """Put a timestamp together. A logical part above 18 bits carries into the physical part."""
        if physical_ms < 0 or logical < 0:
            raise InvalidArgument(f"neither part of a Timestamp is negative: ({physical_ms}, {logical})")
        return cls((physical_ms << LOGICAL_BITS) + logical)

    @classmethod
    def from_datetime(cls, when: datetime) -> Timestamp:
        """The first timestamp of the millisecond of `when`, which must carry a time zone."""
        if when.tzinfo is None:
            raise InvalidArgument(f"{when!r} has no time zone; use datetime(..., tzinfo=UTC)")
        physical_ms = (when - _EPOCH) // _MILLISECOND
        if not 0 <= physical_ms <= PHYSICAL_MS_MAX:
            last = cls.MAX.to_datetime()
            raise InvalidArgument(
                f"{when} is not on the timeline, which goes from {_EPOCH:%Y-%m-%d} to {last:%Y-%m-%d}"
            )
        return cls.compose(physical_ms)

    @classmethod
    def parse(cls, text: str) -> Timestamp:
        """Read what `str()` prints, a plain 64-bit number, or an ISO time with a zone."""
        text = text.strip()
        when, plus, logical = text.partition("Z+")
        try:
            if text.isdecimal():
                return cls(int(text))
            if plus:
                return cls.from_datetime(datetime.fromisoformat(when + "+00:00"))._with_logical(int(logical))
            read = datetime.fromisoformat(text)
            if read.tzinfo is None:
                raise InvalidArgument(f"{text!r} has no time zone; write 2026-01-31T12:00:00Z, or +01:00 instead of Z")
            return cls.from_datetime(read)
        except InvalidArgument:
            raise
        except (ValueError, OverflowError) as error:
            raise InvalidArgument(
                f"{text!r} is not a Timestamp; write 2026-01-31T12:00:00.000Z, with +LOGICAL after it"
                f" if you like, or the 64-bit number"
            ) from error

    @property
    def physical_ms(self) -> int:
        """Unix milliseconds."""
        return int(self) >> LOGICAL_BITS

    @property
    def logical(self) -> int:
        """The counter within the millisecond."""
        return int(self) & (LOGICAL_COUNT - 1)

    @property
    def is_plausible(self) -> bool:
        """Whether the physical part lies between 2019 and 9999: raw milliseconds do not."""
        return self.physical_ms in PLAUSIBLE_MS

    def add(self, *, milliseconds: float = 0, seconds: float = 0) -> Timestamp:
        """Move the physical part, in whole milliseconds; the logical part stays as it is."""
        moved = self.physical_ms + int(milliseconds + seconds * 1000)
        if not 0 <= moved <= PHYSICAL_MS_MAX:
            raise InvalidArgument(f"{self} moved by {milliseconds} ms and {seconds} s leaves the timeline")
        return Timestamp((moved << LOGICAL_BITS) | self.logical)

    def ms_since(self, other: Timestamp) -> int:
        """Signed milliseconds from `other` to this one, by physical parts alone."""
        return self.physical_ms - other.physical_ms

    def next(self) -> Timestamp:
        """The smallest timestamp above this one."""
        return Timestamp(int(self) + 1)

    def to_datetime(self) -> datetime:
        """The physical part as a UTC time."""
        return _EPOCH + timedelta(milliseconds=self.physical_ms)

    def _with_logical(self, logical: int) -> Timestamp:
        if not 0 <= logical < LOGICAL_COUNT:
            raise InvalidArgument(f"the logical part is below {LOGICAL_COUNT}, not {logical}")
        return Timestamp(int(self) | logical)

    def __str__(self) -> str:
        if self.physical_ms >= PLAUSIBLE_MS.stop:
            return f"{int(self)}"
        when = self.to_datetime()
        return f"{when:%Y-%m-%dT%H:%M:%S}.{when.microsecond // 1000:03d}Z+{self.logical}"

    def __repr__(self) -> str:
        return f"Timestamp({int(self)})"


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)

Timestamp.ZERO = Timestamp(0)
Timestamp.MAX = Timestamp((1 << 64) - 1)
