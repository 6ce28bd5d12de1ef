"""The schema of a table, and how it changed: columns keep their number for ever, whatever they are called.

A message or a file says which version it was written with. `Table` says what that meant, and `since` when a
version took effect, so whatever was written can be read by the schema of any time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from tidegate.clock.timestamp import Timestamp
from tidegate.errors import InvalidArgument, NotFound

VERSION_KEY = b"tidegate.schema_version"
"""In the metadata of an Arrow schema: with which version its rows were written."""
TS = "_ts"
OP = "_op"
SEQ = "_seq"
BESIDE = "beside"
RETENTION_S = "retention_s"
"""An option of a table: how long old checkpoints of it can be read."""
RETENTION_S_MIN = 60
COMMENT = "comment"
"""An option of a view: what people say about it."""
HIDDEN = "hidden_columns"
"""An option of what a view stores: how many of its columns, the last ones, are not part of any answer."""
SYSTEM_COLUMNS = (TS, OP, SEQ)
"""Names that no column of a table may have."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column. `id` is given once and never again, also after the column was dropped."""

    id: int
    name: str
    type: pa.DataType
    nullable: bool = True


@dataclass(frozen=True, slots=True)
class TableSchema:
    """One version of a table's columns.

    Invariants: versions count up from 1; key columns exist; names differ, also when their case is ignored. Key columns
    of a table are not nullable; those of what a view stores may be, and then NULL is a key like any other.
    """

    version: int
    since: Timestamp
    columns: tuple[Column, ...]
    key: tuple[int, ...] = ()
    """The ids of the primary key's columns, in its order; none in a table that only grows."""

    def column(self, name: str) -> Column:
        """A column by its name; upper and lower case are the same, as in Spark SQL.

        Raises: `NotFound`.
        """
        folded = name.casefold()
        for each in self.columns:
            if each.name.casefold() == folded:
                return each
        raise NotFound(f"there is no column {name!r}; there are {', '.join(each.name for each in self.columns)}")

    def by_id(self, id: int) -> Column | None:
        return next((each for each in self.columns if each.id == id), None)

    @property
    def names(self) -> list[str]:
        return [each.name for each in self.columns]

    @property
    def key_columns(self) -> tuple[Column, ...]:
        found = {each.id: each for each in self.columns}
        return tuple(found[id] for id in self.key)

    @property
    def key_may_be_null(self) -> bool:
        """Whether a part of the key may be NULL, as in what a view stores: keys must be compared accordingly."""
        return any(each.nullable for each in self.key_columns)

    @property
    def arrow(self) -> pa.Schema:
        """Its columns as Arrow fields, with the version in the metadata."""
        fields = [pa.field(each.name, each.type, each.nullable) for each in self.columns]
        return pa.schema(fields, metadata={VERSION_KEY: str(self.version).encode()})

    @property
    def arrow_key(self) -> pa.Schema:
        """The key's columns, for messages that delete."""
        fields = [pa.field(each.name, each.type, each.nullable) for each in self.key_columns]
        return pa.schema(fields, metadata={VERSION_KEY: str(self.version).encode()})


@dataclass(frozen=True, slots=True)
class Table:
    """A table and all versions of its schema, oldest first. One dropped and created again has another `id`."""

    id: int
    name: str
    shards: int
    created: Timestamp
    versions: tuple[TableSchema, ...]
    dropped: Timestamp | None = None
    """From when on it is no more; cuts before still have it."""
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def existed(self, at: Timestamp) -> bool:
        """Whether a cut at this time has it. At the timestamp of its creation it does, at that of its end not."""
        return self.created <= at and (self.dropped is None or at < self.dropped)

    @property
    def schema(self) -> TableSchema:
        """The newest."""
        return self.versions[-1]

    @property
    def is_view(self) -> bool:
        """Whether it holds the rows of a view: it has no channels, only checkpoints."""
        return HIDDEN in self.options

    def visible(self, schema: TableSchema) -> list[str]:
        """The columns that queries see."""
        return schema.names[: len(schema.names) - int(self.options.get(HIDDEN, 0))]

    def version(self, number: int) -> TableSchema:
        """Raises: `NotFound`."""
        if 0 < number <= len(self.versions):
            return self.versions[number - 1]
        raise NotFound(f"table {self.name!r} has the schema versions 1 to {len(self.versions)}, not {number}")

    def at(self, timestamp: Timestamp) -> TableSchema:
        """The schema that was in effect at a time. Raises: `NotFound` before and after the table."""
        if self.dropped is not None and timestamp >= self.dropped:
            raise NotFound(f"table {self.name!r} was dropped at {self.dropped}: at {timestamp} there is none")
        for each in reversed(self.versions):
            if each.since <= timestamp:
                return each
        raise NotFound(f"table {self.name!r} was created at {self.created}, after {timestamp}")

    def vchannel(self, shard: int) -> str:
        """The virtual channel of one shard."""
        if not 0 <= shard < self.shards:
            raise InvalidArgument(f"table {self.name!r} has the shards 0 to {self.shards - 1}, not {shard}")
        return f"table/{self.id}.{self.name}/{shard}"

    @property
    def vchannels(self) -> tuple[str, ...]:
        return tuple(self.vchannel(shard) for shard in range(self.shards))
