"""INSERT, UPDATE and DELETE: what they read and write, as calls of a transaction.

UPDATE, DELETE, INSERT ... SELECT and ON CONFLICT DO NOTHING read at one Timestamp, strongly, the transaction's own
rows on top, and note the keys they found: if somebody else writes one of them before the commit, it fails with
`Conflict`, so that no update is lost. A statement by itself is then run again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from sqlglot import exp

from tidegate.catalog.statements import parse
from tidegate.database.cut_reader import tables_in
from tidegate.database.row_taker import RowTaker
from tidegate.errors import InvalidArgument
from tidegate.tables.schema import Table, TableSchema
from tidegate.tables.spark_sql import DIALECT
from tidegate.tables.statements import Delete, Insert, Update

if TYPE_CHECKING:
    from tidegate.database.database import Database
    from tidegate.database.transaction import Transaction

_STARTS: Final = ("insert", "update", "delete", "with", "select", "values")
_OLD: Final = "_old_"
Rows = list[dict[str, Any]]


def run_alone(database: Database, sql: str) -> Rows | None:
    """Run a statement as a transaction of its own; None when it is none that reads or writes rows."""
    words = sql.split(None, 1)
    if not words or not words[0].lower().lstrip("(").startswith(_STARTS):
        return None
    statement = parse(sql)
    if isinstance(statement, Insert) and not statement.keep_existing and statement.query is None:
        return _wrote(database.insert(statement.table, _values(database, statement)).messages)
    if isinstance(statement, Insert | Update | Delete):
        return database.run(lambda txn: _run(database, txn, statement))
    return database.query(sql).rows()


def run_in(database: Database, txn: Transaction, sql: str) -> Rows:
    """Run a statement as part of a transaction.

    Raises: `InvalidArgument` for anything but INSERT, UPDATE and DELETE.
    """
    statement = parse(sql)
    if not isinstance(statement, Insert | Update | Delete):
        raise InvalidArgument(
            "a transaction runs INSERT, UPDATE and DELETE; use db.sql or db.query for other statements"
        )
    return _run(database, txn, statement)


def _run(database: Database, txn: Transaction, statement: Insert | Update | Delete) -> Rows:
    match statement:
        case Insert():
            return _wrote(_insert(database, txn, statement))
        case Update():
            return _wrote(_update(database, txn, statement))
        case Delete():
            return _wrote(_delete(database, txn, statement))


def _wrote(count: int) -> Rows:
    return [{"rows": count}]


# -- INSERT ----------------------------------------------------------------------------------------------------------


def _insert(database: Database, txn: Transaction, statement: Insert) -> int:
    taker = database.table(statement.table)
    rows = _values(database, statement) if statement.query is None else _selected(database, txn, taker, statement)
    if not statement.keep_existing:
        return txn.insert(statement.table, rows)
    key = _key(taker.table, "ON CONFLICT DO NOTHING")
    if statement.conflict_columns:
        asked = {taker.table.schema.column(each).name for each in statement.conflict_columns}
        if asked != set(key):
            raise InvalidArgument(f"ON CONFLICT names ({', '.join(sorted(asked))}), and the key is ({', '.join(key)})")
    batch = taker.batch(rows)
    there = _found(database, txn, taker, f"SELECT {_list(key)} FROM {_quote(statement.table)}", batch.select(key))
    new = _absent(batch, there, key)
    return txn.insert(statement.table, new) if new.num_rows else 0


def _values(database: Database, statement: Insert) -> Any:
    """The rows of VALUES, by name."""
    names = _names(database.table(statement.table).table.schema, statement)
    if statement.constants is not None:
        _check_width(statement, names, len(statement.constants[0]) if statement.constants else len(names))
        return [dict(zip(names, row, strict=True)) for row in statement.constants]
    rows = statement.rows or ()
    _check_width(statement, names, len(rows[0]) if rows else len(names))
    selects = [
        exp.select(*[exp.alias_(each.copy(), name, quoted=True) for each, name in zip(row, names, strict=True)])
        for row in rows
    ]
    query: exp.Query = selects[0]
    for each in selects[1:]:
        query = exp.union(query, each, distinct=False)
    return database.cut_reader.query(query.sql(DIALECT), {}, database.last_seen)


def _selected(database: Database, txn: Transaction, taker: RowTaker, statement: Insert) -> pa.Table:
    sql = statement.query.sql(DIALECT) if statement.query is not None else ""
    found = read(database, txn, sql)
    if statement.by_name:
        return found
    names = _names(taker.table.schema, statement)
    _check_width(statement, names, found.num_columns)
    return found.rename_columns(names)


def _names(schema: TableSchema, statement: Insert) -> list[str]:
    if statement.columns is None:
        return schema.names
    return [schema.column(each).name for each in statement.columns]


def _check_width(statement: Insert, names: list[str], width: int) -> None:
    if width != len(names):
        raise InvalidArgument(
            f"INSERT INTO {statement.table}: {width} values are given for the {len(names)} columns {', '.join(names)}"
        )


# -- UPDATE and DELETE -----------------------------------------------------------------------------------------------


def _update(database: Database, txn: Transaction, statement: Update) -> int:
    taker = database.table(statement.table)
    schema = taker.table.schema
    key = _key(taker.table, "UPDATE")
    changed = {schema.column(name).name: value for name, value in statement.assignments}
    columns = [
        exp.alias_(changed[name].copy() if name in changed else exp.column(name, quoted=True), name, quoted=True)
        for name in schema.names
    ]
    columns += [exp.alias_(exp.column(name, quoted=True), _OLD + name, quoted=True) for name in key]
    found = read(database, txn, _select(statement, columns))
    if not found.num_rows:
        return 0
    old = found.select([_OLD + name for name in key]).rename_columns(key)
    txn.read(statement.table, _keys(old))
    if set(key) & set(changed):
        new_keys = found.select(key)
        if new_keys.group_by(key).aggregate([]).num_rows != new_keys.num_rows:
            raise InvalidArgument(f"UPDATE {statement.table}: several rows would get the same key")
        txn.delete(statement.table, old)
    txn.insert(statement.table, found.select(schema.names))
    return int(found.num_rows)


def _delete(database: Database, txn: Transaction, statement: Delete) -> int:
    taker = database.table(statement.table)
    key = _key(taker.table, "DELETE")
    found = read(database, txn, _select(statement, [exp.column(name, quoted=True) for name in key]))
    if not found.num_rows:
        return 0
    txn.read(statement.table, _keys(found))
    return txn.delete(statement.table, found)


def _select(statement: Update | Delete, columns: list[Any]) -> str:
    table = exp.to_identifier(statement.table, quoted=True)
    query = exp.select(*columns).from_(exp.Table(this=table))
    if statement.alias:
        query.args["from_"].this.set("alias", exp.TableAlias(this=exp.to_identifier(statement.alias)))
    if statement.where is not None:
        query = query.where(statement.where.copy())
    return query.sql(DIALECT)


# -- reading ---------------------------------------------------------------------------------------------------------


def read(database: Database, txn: Transaction, sql: str) -> pa.Table:
    """The answer to a query at the Timestamp of the transaction's reads, its own rows on top."""
    names = sorted(tables_in(sql))
    takers = {name: database.table(name) for name in names}
    at = txn.read(names[0], []) if names else database.last_seen
    if names:
        database.wait_visible(at)
    own = {each.table.id: txn.own_changes(each.table) for each in takers.values()}
    return database.cut_reader.query(sql, {name: each.table for name, each in takers.items()}, at, own)


def _found(database: Database, txn: Transaction, taker: RowTaker, sql: str, keys: pa.RecordBatch) -> pa.Table:
    """The keys of these that are there; all of them count as read."""
    txn.read(taker.table.name, _keys(pa.Table.from_batches([keys])))
    return read(database, txn, sql)


def _absent(batch: pa.RecordBatch, there: pa.Table, key: list[str]) -> pa.Table:
    """The rows whose key is not there; of several with one key the first."""
    known = set(_keys(there))
    keep = []
    for each in _keys(pa.Table.from_batches([batch.select(key)])):
        keep.append(each not in known)
        known.add(each)
    return pa.Table.from_batches([batch]).filter(pa.array(keep, pa.bool_()))


def _keys(rows: pa.Table) -> list[Any]:
    columns = [each.to_pylist() for each in rows.columns]
    return columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))


def _key(table: Table, what: str) -> list[str]:
    if not table.schema.key:
        raise InvalidArgument(f"{what}: table {table.name!r} has no primary key: its rows stay as they are")
    return [each.name for each in table.schema.key_columns]


def _list(names: list[str]) -> str:
    return ", ".join(_quote(each) for each in names)


def _quote(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
