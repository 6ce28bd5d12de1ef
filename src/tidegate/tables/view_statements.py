"""The SQL of materialized views, read: what a statement asks for, as data.

    CREATE MATERIALIZED VIEW [IF NOT EXISTS] name [(column, ...)] [COMMENT 'text']
        [TBLPROPERTIES ('retention_s' = 'n')] AS query
    DROP MATERIALIZED VIEW [IF EXISTS] name [CASCADE | RESTRICT]
    ALTER MATERIALIZED VIEW name RESUME
    SHOW MATERIALIZED VIEWS        SHOW CREATE MATERIALIZED VIEW name        DESCRIBE [MATERIALIZED VIEW] name
    EXPLAIN MATERIALIZED VIEW name | EXPLAIN [CREATE] MATERIALIZED VIEW ... AS query

`tidegate.tables.parse_views` reads them.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CreateView:
    name: str
    """Empty in EXPLAIN MATERIALIZED VIEW AS query."""
    sql: str
    """The query, exactly as it is written."""
    columns: tuple[str, ...] = ()
    """Names for its columns; none: as the query calls them."""
    if_not_exists: bool = False
    comment: str | None = None
    retention_s: int | None = None
    """How long old checkpoints of it can be read; None: as long as of all others."""


@dataclass(frozen=True, slots=True)
class DropView:
    name: str
    if_exists: bool = False
    cascade: bool = False
    """With all views that read it."""


@dataclass(frozen=True, slots=True)
class ResumeView:
    """Repair it after a failure."""

    name: str


@dataclass(frozen=True, slots=True)
class ShowViews:
    pass


@dataclass(frozen=True, slots=True)
class ShowCreateView:
    name: str


@dataclass(frozen=True, slots=True)
class DescribeView:
    name: str


@dataclass(frozen=True, slots=True)
class ExplainView:
    """How a view is kept up to date: one that is there, or one that could be created."""

    of: str | CreateView


ViewStatement = CreateView | DropView | ResumeView | ShowViews | ShowCreateView | DescribeView | ExplainView
