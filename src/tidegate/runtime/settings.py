"""Every setting of a log, with its default and its limits, in one place."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import StrEnum

from tidegate.errors import InvalidArgument
from tidegate.log.write_ahead_buffer import DEFAULT_AGE_S, DEFAULT_BYTES


class Durability(StrEnum):
    """When an append is acknowledged."""

    SYNC = "sync"
    """After `fdatasync`: survives the loss of power."""
    INTERVAL = "interval"
    """After the write; synced in the background. Survives `kill -9`, and a loss of power up to the last sync."""
    NONE = "none"
    """After the write; the operating system syncs when it likes. Survives `kill -9` only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """Keyword-only, immutable, checked when made."""

    durability: Durability = Durability.SYNC
    sync_interval_ms: int = 100
    """For durability `interval`."""
    tick_interval_ms: int = 200
    segment_bytes: int = 64 << 20
    message_bytes_max: int = 16 << 20
    batch_rows_max: int = 1 << 17
    """Rows in one appended batch; each takes a TimeTick of the same millisecond."""
    block_bytes_max: int = 64 << 20
    """One appended batch, encoded."""
    commit_bytes_max: int = 8 << 20
    """What one group commit gathers before it writes."""
    in_flight_bytes_max: int = 64 << 20
    """Appended and not yet acknowledged, per channel; more waits."""
    channels_max: int = 256
    buffer_bytes_max: int = DEFAULT_BYTES
    """Write-ahead buffer of one channel, for tailing readers."""
    buffer_age_max_s: float = DEFAULT_AGE_S
    retention_age_s: float | None = None
    """Sealed segments older than this may be removed, unless somebody needs them."""
    retention_bytes: int | None = None
    """The oldest segments beyond this many bytes a channel may be removed, unless somebody needs them."""

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "durability", Durability(self.durability))
        except ValueError:
            choices = ", ".join(Durability)
            raise InvalidArgument(f"durability is one of {choices}, not {self.durability!r}") from None
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name == "durability" or (value is None and field.default is None):
                continue
            if type(value) is not int and (type(value) is not float or type(field.default) is int):
                raise InvalidArgument(f"setting `{field.name}` is a number, not {value!r}")
            if not value > 0:
                raise InvalidArgument(f"setting `{field.name}` is above zero, not {value}")
        if self.batch_rows_max > 1 << 18:
            raise InvalidArgument(f"`batch_rows_max` is at most 262144 (one millisecond), not {self.batch_rows_max}")
        if self.segment_bytes < 4 << 10 or self.segment_bytes > 1 << 39:
            raise InvalidArgument(f"`segment_bytes` is from 4 KiB to 512 GiB, not {self.segment_bytes:,}")
        if self.block_bytes_max > 1 << 30 or self.message_bytes_max > self.block_bytes_max:
            raise InvalidArgument("`message_bytes_max` is at most `block_bytes_max`, and that at most 1 GiB")
        if self.in_flight_bytes_max < self.block_bytes_max:
            raise InvalidArgument("`in_flight_bytes_max` is at least `block_bytes_max`")
