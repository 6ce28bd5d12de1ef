"""What a view's query may read, and what it comes to: plain values between the catalog and the planning of views."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa

from tidegate.tables.definition import NodeDef

__all__ = ["Define", "Defined", "NodeDef", "Relation"]


@dataclass(frozen=True, slots=True)
class Relation:
    """A table, or a view, as queries see it."""

    name: str
    id: int
    version: int
    """Of its schema; 1 for a view."""
    schema: pa.Schema
    """The visible columns."""
    key: tuple[str, ...] = ()
    """Its key's columns. A view's may be hidden, and NULL; none in a table that only grows."""
    hidden: pa.Schema = field(default_factory=lambda: pa.schema([]))
    """Columns of the key that are not visible."""

    @property
    def names(self) -> list[str]:
        """Of the visible columns."""
        return list(self.schema.names)

    @property
    def types(self) -> dict[str, pa.DataType]:
        """Of the visible columns, then of the hidden ones of the key."""
        return {each.name: each.type for each in (*self.schema, *self.hidden)}


class Defined(Protocol):
    """A query that can be a view."""

    @property
    def columns(self) -> Sequence[str]:
        """The visible columns, in order: those of the last node that are not hidden."""

    @property
    def nodes(self) -> Sequence[NodeDef]:
        """What it stores; the last is the view."""

    @property
    def inputs(self) -> Mapping[str, tuple[int, int]]:
        """What it reads, by name: id and schema version."""

    @property
    def used(self) -> Mapping[str, frozenset[str]]:
        """Of each input the columns that it uses."""


class Define(Protocol):
    """Looks at a query. Raises: `InvalidArgument` for one that cannot be a view."""

    def __call__(self, sql: str, names: Sequence[str], relations: Mapping[str, Relation]) -> Defined:
        """`names` are for its columns; none: as the query calls them."""
