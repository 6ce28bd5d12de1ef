"""`TxnId`: the name of one transaction, 16 bits of coordinator above 112 bits of counter (seed 002).

Invariant: `int(id) == id.coordinator << 112 | id.counter`, so ids of one coordinator sort by age.
A subclass of `int`, so that comparing and hashing cost what they cost for an integer.
"""

from __future__ import annotations

import re
from typing import Final

from tidegate.errors import InvalidArgument

COUNTER_BITS: Final = 112
COORDINATOR_MAX: Final = (1 << 16) - 1
COUNTER_MAX: Final = (1 << COUNTER_BITS) - 1

_TEXT: Final = re.compile(r"([0-9]{1,5})-([0-9a-fA-F]{1,28})")


class TxnId(int):
    """A 128-bit transaction id.

    The counter is the oracle's Timestamp at begin, so an id never repeats, even if the coordinator's log is lost.
    It is never 0: sixteen zero bytes stand for "no transaction" in the log.

    >>> id = TxnId.make(3, 0x18C2F)
    >>> id.coordinator, id.counter
    (3, 101423)
    >>> print(id)
    3-18c2f
    >>> TxnId.parse("3-18c2f") == id
    True
    """

    __slots__ = ()

    def __new__(cls, value: int) -> TxnId:
        if not 0 < value < 1 << 128 or not value & COUNTER_MAX:
            raise InvalidArgument(f"a TxnId has 128 bits and a counter above 0, unlike {value}")
        return int.__new__(cls, value)

    @classmethod
    def make(cls, coordinator: int, counter: int) -> TxnId:
        """Put an id together."""
        if not 0 <= coordinator <= COORDINATOR_MAX:
            raise InvalidArgument(f"a coordinator is a number from 0 to {COORDINATOR_MAX}, not {coordinator}")
        if not 0 < counter <= COUNTER_MAX:
            raise InvalidArgument(f"the counter of a TxnId is above 0 and has at most 112 bits, unlike {counter}")
        return cls(coordinator << COUNTER_BITS | counter)

    @classmethod
    def from_bytes16(cls, raw: bytes) -> TxnId:
        """Read what `to_bytes16` wrote."""
        if len(raw) != 16:
            raise InvalidArgument(f"a TxnId has 16 bytes, not {len(raw)}")
        return cls(int.from_bytes(raw, "big"))

    @classmethod
    def parse(cls, text: str) -> TxnId:
        """Read what `str()` prints."""
        match = _TEXT.fullmatch(text.strip())
        if match is None:
            raise InvalidArgument(
                f"{text!r} is not a transaction id; write COORDINATOR-COUNTER, the counter in hex, such as 0-18c2f"
            )
        return cls.make(int(match[1]), int(match[2], 16))

    @property
    def coordinator(self) -> int:
        """Which coordinator answers for it."""
        return int(self) >> COUNTER_BITS

    @property
    def counter(self) -> int:
        """Its number there: strictly increasing from one transaction to the next."""
        return int(self) & COUNTER_MAX

    def to_bytes16(self) -> bytes:
        """Big endian, so that bytes sort as ids do."""
        return int(self).to_bytes(16, "big")

    def __str__(self) -> str:
        return f"{self.coordinator}-{self.counter:x}"

    def __repr__(self) -> str:
        return f"TxnId({str(self)!r})"
