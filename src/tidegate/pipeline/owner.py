"""`Owner`: what the pipeline asks of the process that owns the database."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from tidegate.catalog.catalog import Catalog
from tidegate.runtime.log import Log


class PipelineSettings(Protocol):
    """See `DatabaseSettings`."""

    @property
    def barrier_interval_ms(self) -> int: ...

    @property
    def checkpoint_every(self) -> int: ...

    @property
    def snapshot_retention_s(self) -> int: ...

    @property
    def spark_ui(self) -> bool: ...

    @property
    def spark_options(self) -> Mapping[str, str]: ...


class Owner(Protocol):
    """The owner of a database."""

    @property
    def path(self) -> Path: ...

    @property
    def log(self) -> Log: ...

    @property
    def channels(self) -> list[str]: ...

    @property
    def catalog(self) -> Catalog: ...

    @property
    def settings(self) -> PipelineSettings: ...
