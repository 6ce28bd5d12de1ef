"""Every setting of a database beyond those of its log, with its default, in one place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from tidegate.errors import InvalidArgument
from tidegate.runtime.settings import LogSettings

_NOT_NUMBERS: Final = ("log", "pipeline", "spark_ui", "spark_options")


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseSettings:
    """Keyword-only, immutable, checked when made.

    `channels` and `coordinators` are fixed when a database is created; later openings keep what they find.
    """

    log: LogSettings = field(default_factory=LogSettings)
    channels: int = 4
    """Channels that tables and topics are spread over."""
    coordinators: int = 4
    """Transaction coordinators, each with a log of its own."""
    transaction_timeout_ms: int = 60_000
    """How long a transaction may stay open, unless it asks for another time."""
    transaction_timeout_max_ms: int = 900_000
    transactions_max: int = 100_000
    """Open at the same time, per coordinator."""
    remember_ms: int = 900_000
    """How long the outcome of a finished transaction is remembered."""
    remembered_max: int = 100_000
    """Outcomes remembered, per coordinator."""
    transaction_buffer_bytes: int = 1 << 20
    """What a transaction gathers before its messages are written ahead of its commit."""
    redo_bytes: int = 256 << 10
    """Messages of a commit over several channels that the coordinator's log carries; more is written ahead."""
    conflict_keys_max: int = 1_000_000
    """Keys of recent commits that are kept to check what was read."""
    lease_ms: int = 10_000
    """How long a client in another process may be silent."""
    connect_ms: int = 30_000
    """How long a client waits for an answer of the owner, and for one that answers when this one does not."""
    snapshot_records: int = 2_000
    """Records after which a state machine's snapshot is written, so that opening reads little."""
    receive_buffer: int = 10_000
    """Messages of a subscription in memory, delivered or not, and not yet acknowledged."""

    pipeline: bool = True
    """Whether the owner runs the pipeline that folds tables into snapshots, once there is a table."""
    barrier_interval_ms: int = 1_000
    """How often what was written becomes visible in a checkpoint; at least 50."""
    checkpoint_every: int = 1
    """Every so many barriers one is a checkpoint."""
    snapshot_retention_s: int = 86_400
    """How long old checkpoints can be read; at least 60, so that no query outlives its files."""
    spark_ui: bool = False
    """Whether the worker has Spark's web page, on a free port; the status says where."""
    spark_options: Mapping[str, str] = field(default_factory=dict)
    """Spark's own settings for the worker, such as `spark.master` or `spark.driver.memory`."""

    def __post_init__(self) -> None:
        for name in ("pipeline", "spark_ui"):
            if type(getattr(self, name)) is not bool:
                raise InvalidArgument(f"setting `{name}` is True or False, not {getattr(self, name)!r}")
        for option, value in self.spark_options.items():
            if not isinstance(option, str) or not isinstance(value, str):
                raise InvalidArgument(f"`spark_options` are texts by name, unlike {option!r}: {value!r}")
        for name in self.__slots__:
            value = getattr(self, name)
            if name not in _NOT_NUMBERS and (type(value) is not int or value < 1):
                raise InvalidArgument(f"setting `{name}` is a whole number above zero, not {value!r}")
        if self.snapshot_retention_s < 60:
            raise InvalidArgument(f"`snapshot_retention_s` is at least 60, not {self.snapshot_retention_s}")
        if not isinstance(self.log, LogSettings):
            raise InvalidArgument(f"setting `log` is a LogSettings, not {self.log!r}")
        if self.channels > self.log.channels_max - 1:
            raise InvalidArgument(f"`channels` is below the log's `channels_max` of {self.log.channels_max}")
        if self.coordinators > 1 << 10:
            raise InvalidArgument(f"`coordinators` is at most 1024, not {self.coordinators}")
