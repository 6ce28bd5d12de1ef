"""Reads the statements that create, change, drop and show tables."""

from __future__ import annotations

from typing import Final

from sqlglot import TokenType, exp

from tidegate.errors import InvalidArgument
from tidegate.tables.definition import AddColumn, ColumnChange, ColumnDef, DropColumn, RenameColumn
from tidegate.tables.spark_sql import Source, shorten
from tidegate.tables.statements import (
    AlterTable,
    CreateTable,
    DescribeTable,
    DropTable,
    ShowCreateTable,
    ShowTables,
)

_CREATE: Final = "CREATE TABLE [IF NOT EXISTS] name (column TYPE [NOT NULL] [PRIMARY KEY], ...) [SHARDS n]"
_ALTER: Final = (
    "ALTER TABLE name followed by ADD COLUMN column TYPE, DROP COLUMN column or RENAME COLUMN column TO column"
)
_DROP: Final = "DROP TABLE [IF EXISTS] name [CASCADE | RESTRICT]"
_DESCRIBE: Final = "DESCRIBE [TABLE] name"
_NAME_OF_COLUMN: Final = "the name of a column"


_CALLED: Final = {"shards": "the number of shards", "retention_s": "`retention_s`", "beside": "`beside`"}


def create(source: Source) -> CreateTable:
    """Raises: `InvalidArgument`."""
    shards = _trailing_shards(source)
    node = source.parse(_CREATE, leave=0 if shards is None else 2)
    if not isinstance(node, exp.Create) or node.kind != "TABLE":
        raise source.unexpected(
            source.tokens[1] if len(source.tokens) > 1 else None, "TABLE, MATERIALIZED VIEW or TOPIC"
        )
    source.only(node, ("this", "kind", "exists", "properties"), _CREATE)
    schema = node.this
    if not isinstance(schema, exp.Schema):
        raise source.unexpected(node.args.get("properties"), f"(column TYPE, ...), as in {_CREATE}")
    name = source.table_name(schema.this, _CREATE)
    columns, key = _columns(source, schema)
    found: dict[str, str] = {}
    for each in node.args["properties"].expressions if node.args.get("properties") else ():
        what, text = _property(source, each)
        if what in found or (what == "shards" and shards is not None):
            raise source.unexpected(each, f"{_CALLED[what]} once")
        found[what] = text
    if "shards" in found:
        shards = _number(source, found["shards"])
    retention_s = _number(source, found["retention_s"], "retention_s") if "retention_s" in found else None
    return CreateTable(name, columns, key, shards, bool(node.args.get("exists")), retention_s, found.get("beside"))


def alter(source: Source) -> AlterTable:
    """Raises: `InvalidArgument`."""
    node = source.parse(_ALTER)
    if not isinstance(node, exp.Alter) or node.kind != "TABLE":
        raise source.unexpected(source.tokens[1] if len(source.tokens) > 1 else None, "TABLE or MATERIALIZED VIEW")
    source.only(node, ("this", "kind", "exists", "actions"), _ALTER)
    changes: list[ColumnChange] = []
    for action in node.args["actions"]:
        changes += _changes(source, action)
    return AlterTable(source.table_name(node.this, _ALTER), tuple(changes), bool(node.args.get("exists")))


def drop(source: Source) -> DropTable:
    """Raises: `InvalidArgument`."""
    node = source.parse(_DROP)
    if not isinstance(node, exp.Drop) or node.kind != "TABLE":
        known = "TABLE, MATERIALIZED VIEW, TOPIC or SUBSCRIPTION"
        raise source.unexpected(source.tokens[1] if len(source.tokens) > 1 else None, known)
    source.only(node, ("tables", "kind", "exists", "cascade", "restrict"), _DROP)
    tables = node.args.get("tables") or []
    if len(tables) != 1:
        raise source.unexpected(tables[1] if tables else None, "the name of one table")
    name = source.table_name(tables[0], _DROP)
    return DropTable(name, bool(node.args.get("exists")), bool(node.args.get("cascade")))


def describe(source: Source) -> DescribeTable:
    """Raises: `InvalidArgument`."""
    node = source.parse(_DESCRIBE)
    if not isinstance(node, exp.Describe) or node.args.get("kind") not in (None, "TABLE"):
        raise source.unexpected(
            source.tokens[1] if len(source.tokens) > 1 else None, "TABLE, MATERIALIZED VIEW or TOPIC"
        )
    source.only(node, ("this", "kind"), _DESCRIBE)
    return DescribeTable(source.table_name(node.this, _DESCRIBE))


def show(source: Source) -> ShowTables | ShowCreateTable:
    """Raises: `InvalidArgument`. sqlglot takes what follows SHOW for one text; a name is read as in DESCRIBE."""
    start = source.tokens[0].end + 1
    rest = Source(" " * start + source.sql[start:])
    tokens = rest.tokens
    if rest.keyword(0) == "TABLES":
        if len(tokens) > 1:
            raise source.unexpected(tokens[1], "the end of the statement")
        return ShowTables()
    if rest.keyword(0) == "CREATE" and rest.keyword(1) == "TABLE":
        if len(tokens) == 2:
            raise source.unexpected(None, "the name of a table")
        try:
            return ShowCreateTable(describe(Source("DESCRIBE TABLE " + source.sql[tokens[2].start :])).name)
        except InvalidArgument:
            raise source.unexpected(tokens[2], "the name of a table") from None
    known = "TABLES, MATERIALIZED VIEWS, TOPICS, SUBSCRIPTIONS, TRANSACTIONS, CREATE TABLE or CREATE MATERIALIZED VIEW"
    raise source.unexpected(tokens[0] if tokens else None, known)


def _trailing_shards(source: Source) -> int | None:
    """The number in `... SHARDS n`, which is ours and not Spark's."""
    tokens = source.tokens
    if len(tokens) < 4 or source.keyword(len(tokens) - 2) != "SHARDS":
        return None
    if tokens[-1].token_type != TokenType.NUMBER or tokens[-3].token_type != TokenType.R_PAREN:
        return None
    return _number(source, tokens[-1].text)


def _property(source: Source, node: exp.Expr) -> tuple[str, str]:
    name = node.name.lower() if type(node) is exp.Property else ""
    if name not in _CALLED:
        raise source.unexpected(
            node, "SHARDS n, WITH (shards = n, retention_s = n), TBLPROPERTIES ('shards' = 'n') or the end"
        )
    return name, node.args["value"].name


def _number(source: Source, text: str, of: str = "shards") -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 9):
        raise InvalidArgument(f"{_CALLED[of]} cannot be {text!r}; in {shorten(source.sql)}")
    return int(text)


def _columns(source: Source, schema: exp.Schema) -> tuple[tuple[ColumnDef, ...], tuple[str, ...]]:
    columns: list[ColumnDef] = []
    keys: list[tuple[str, ...]] = []
    for each in schema.expressions:
        node = each.expressions[0] if isinstance(each, exp.Constraint) and len(each.expressions) == 1 else each
        match node:
            case exp.ColumnDef():
                column, is_key = _column(source, node)
                columns.append(column)
                keys += [(column.name,)] if is_key else []
            case exp.PrimaryKey():
                keys.append(tuple(source.column_name(one, _NAME_OF_COLUMN) for one in node.expressions))
            case exp.Identifier():
                raise source.refused(node, "this column has no type; write column TYPE")
            case _:
                raise source.unexpected(each, "column TYPE or PRIMARY KEY (column, ...)")
    if len(keys) > 1:
        named = ", ".join(dict.fromkeys(name for key in keys for name in key))
        raise InvalidArgument(
            f"a table has one primary key; write PRIMARY KEY ({named}) behind the columns if these are its columns:"
            f" {shorten(source.sql)}"
        )
    return tuple(columns), keys[0] if keys else ()


def _column(source: Source, node: exp.ColumnDef) -> tuple[ColumnDef, bool]:
    """The column, and whether it says PRIMARY KEY."""
    source.only(node, ("this", "kind", "constraints", "exists"), "column TYPE [NOT NULL] [PRIMARY KEY]")
    name = source.column_name(node.this, _NAME_OF_COLUMN)
    if node.kind is None:
        raise source.refused(node, "this column has no type; write column TYPE")
    nullable, is_key = True, False
    for each in node.constraints:
        match each.kind:
            case exp.NotNullColumnConstraint() as kind:
                nullable = bool(kind.args.get("allow_null"))
            case exp.PrimaryKeyColumnConstraint() as kind:
                source.only(kind, (), "PRIMARY KEY")
                is_key = True
            case _:
                raise InvalidArgument(
                    f"column {name!r}: {shorten(each.sql('spark'))} is not understood: NOT NULL or PRIMARY KEY is"
                    f" expected in {shorten(source.sql)}"
                )
    return ColumnDef(name, source.type(node.kind), nullable), is_key


def _changes(source: Source, action: exp.Expr) -> list[ColumnChange]:
    match action:
        case exp.ColumnDef():
            return [_add(source, action)]
        case exp.Schema() if action.this is None:
            return [_add(source, each) for each in action.expressions]
        case exp.Drop() if action.kind in ("COLUMN", "COLUMNS"):
            source.only(action, ("tables", "kind", "exists"), _ALTER)
            dropped: list[exp.Expr] = []
            for each in action.args["tables"]:
                dropped += each.expressions if isinstance(each, exp.Schema) else [each]
            exists = bool(action.args.get("exists"))
            return [DropColumn(source.column_name(each, _NAME_OF_COLUMN), exists) for each in dropped]
        case exp.RenameColumn():
            source.only(action, ("this", "to"), _ALTER)
            old, new = (source.column_name(action.args.get(each), _NAME_OF_COLUMN) for each in ("this", "to"))
            return [RenameColumn(old, new)]
        case _:
            raise source.unexpected(action, _ALTER)


def _add(source: Source, node: exp.Expr) -> AddColumn:
    if not isinstance(node, exp.ColumnDef):
        raise source.unexpected(node, "column TYPE")
    column, is_key = _column(source, node)
    if is_key:
        raise source.refused(node, "the primary key of a table stays; create another table")
    return AddColumn(column.name, column.type, column.nullable, bool(node.args.get("exists")))
