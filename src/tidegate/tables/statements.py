"""The SQL of tables, read: what a statement asks for, as data.

    CREATE TABLE [IF NOT EXISTS] name (column TYPE [NOT NULL] [PRIMARY KEY], ... [, PRIMARY KEY (column, ...)])
        [SHARDS n | WITH (shards = n, ...) | TBLPROPERTIES ('shards' = 'n', 'retention_s' = 'n', 'beside' = 'table')]
    ALTER TABLE [IF EXISTS] name ADD COLUMN[S] ... | DROP COLUMN[S] ... | RENAME COLUMN old TO new
    DROP TABLE [IF EXISTS] name [CASCADE | RESTRICT]
    SHOW TABLES        DESCRIBE [TABLE] name        SHOW CREATE TABLE name
    INSERT INTO name [(column, ...)] VALUES (...), ... | SELECT ... [ON CONFLICT [(column, ...)] DO NOTHING]
    UPDATE name SET column = expression, ... [WHERE condition]
    DELETE FROM name [WHERE condition]

Expressions and queries stay sqlglot's trees, read as Spark SQL: `node.sql("duckdb")` or `node.sql("spark")` translates
them. `tidegate.catalog.statements.parse` reads any statement; it loads sqlglot only when one of these comes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidegate.tables.definition import ColumnChange, ColumnDef

if TYPE_CHECKING:
    from sqlglot import exp


@dataclass(frozen=True, slots=True)
class CreateTable:
    name: str
    columns: tuple[ColumnDef, ...]
    key: tuple[str, ...] = ()
    shards: int | None = None
    if_not_exists: bool = False
    retention_s: int | None = None
    """How long old checkpoints of it can be read; None: as long as of all others."""
    beside: str | None = None
    """A table in whose channel it is to lie."""


@dataclass(frozen=True, slots=True)
class AlterTable:
    """All changes of one statement take effect at once."""

    name: str
    changes: tuple[ColumnChange, ...]
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class DropTable:
    name: str
    if_exists: bool = False
    cascade: bool = False
    """With all views that read it."""


@dataclass(frozen=True, slots=True)
class ShowTables:
    pass


@dataclass(frozen=True, slots=True)
class ShowCreateTable:
    """Of a view too, as in Spark."""

    name: str


@dataclass(frozen=True, slots=True)
class DescribeTable:
    """A table or a view."""

    name: str


@dataclass(frozen=True, slots=True)
class Insert:
    """Rows for a table. Exactly one of `constants`, `rows` and `query` says which.

    Invariant: rows are as wide as `columns`, and as each other.
    """

    table: str
    columns: tuple[str, ...] | None = None
    """Which columns the values are for; None: all, in the table's order."""
    constants: list[tuple[Any, ...]] | None = None
    """VALUES of nothing but literals, as Python values: None, bool, int, Decimal (1.5), float (15e-1), str."""
    rows: tuple[tuple[exp.Expr, ...], ...] | None = None
    """VALUES with other expressions, which read no columns."""
    query: exp.Query | None = None
    by_name: bool = False
    """INSERT ... BY NAME: the query's columns go where their names say."""
    keep_existing: bool = False
    """ON CONFLICT DO NOTHING: a row whose key is there is left out, instead of replacing it."""
    conflict_columns: tuple[str, ...] = ()
    """ON CONFLICT (...): must be the table's key; empty when not said."""


@dataclass(frozen=True, slots=True)
class Update:
    table: str
    assignments: tuple[tuple[str, exp.Expr], ...]
    """Each column once, and the expression over the row before."""
    where: exp.Expr | None = None
    alias: str | None = None


@dataclass(frozen=True, slots=True)
class Delete:
    table: str
    where: exp.Expr | None = None
    alias: str | None = None


TableStatement = (
    CreateTable | AlterTable | DropTable | ShowTables | ShowCreateTable | DescribeTable | Insert | Update | Delete
)
