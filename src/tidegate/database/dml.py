"""INSERT, UPDATE and DELETE: what they read and write, as calls of a transaction.

UPDATE, DELETE, INSERT ... SELECT and ON CONFLICT DO NOTHING read at one Timestamp, strongly, the transaction's own
rows on top, and note the keys that they change: if somebody else writes one of them before the commit, it fails with
`Conflict`, so that no update is lost. A statement by itself is then run again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from sqlglot import exp

from tidegate.catalog.statements import Query, parse
from tidegate.database.cut_reader import TableAt
from tidegate.database.row_taker import RowTaker
from tidegate.database.view_reads import Views, inline, naming
from tidegate.errors import InvalidArgument, NotFound, SchemaMismatch
from tidegate.log.batch import Batch
from tidegate.reads.params import Params, bind
from tidegate.reads.spark_types import NeedsSpark
from tidegate.reads.translate import tables_in
from tidegate.tables.schema import Table, TableSchema
from tidegate.tables.spark_sql import DIALECT
from tidegate.tables.statements import Delete, Insert, Update

if TYPE_CHECKING:
    from tidegate.database.database import Database
    from tidegate.database.session import Memory
    from tidegate.database.transaction import Transaction

_ATTEMPTS: Final = 100
"""How often a statement by itself is run when others are faster at the same rows."""
_AS_OF: Final = re.compile(r"\b(VERSION|TIMESTAMP|SYSTEM_TIME)\s+AS\s+OF\b", re.IGNORECASE)
_GIVEN: Final = "given rows"
"""No table has a blank in its name."""
Rows = list[dict[str, Any]]


def run_alone(database: Database, sql: str, memory: Memory) -> Rows | None:
    """Run a statement as a transaction of its own; None when it is none that reads or writes rows."""
    statement = parse(sql)
    if isinstance(statement, Insert) and not statement.keep_existing and statement.query is None:
        sent = database.insert(statement.table, _values(database, statement))
        memory.wrote(sent.timestamp)
        return _wrote(sent.messages)
    if isinstance(statement, Insert | Update | Delete):

        def work(txn: Transaction) -> Rows:
            txn.on_commit = memory.wrote
            return _run(database, txn, statement)

        return database.run(work, attempts=_ATTEMPTS)
    return database.read(sql, memory.settings, memory).rows() if isinstance(statement, Query) else None


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
        if statement.query is not None and taker.table.schema.key:
            rows = taker.batch(rows)
            txn.read(statement.table, rows.select([each.name for each in taker.table.schema.key_columns]))
        return txn.insert(statement.table, rows)
    key = _key(taker.table, "ON CONFLICT DO NOTHING")
    if statement.conflict_columns:
        asked = {taker.table.schema.column(each).name for each in statement.conflict_columns}
        if asked != set(key):
            raise InvalidArgument(f"ON CONFLICT names ({', '.join(sorted(asked))}), and the key is ({', '.join(key)})")
    batch = taker.batch(rows)
    keys = pa.Table.from_batches([batch.select(key)])
    txn.read(statement.table, keys)
    new = _absent(batch, _there(database, txn, statement.table, keys), key)
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
    return database.cut_reader.constants(query.sql(DIALECT))


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
    table = _target(database, txn, statement.table)
    schema = table.schema
    key = _key(table, "UPDATE")
    changed = {schema.column(name).name: value for name, value in statement.assignments}
    columns = [
        exp.alias_(changed[name].copy() if name in changed else exp.column(name, quoted=True), name, quoted=True)
        for name in schema.names
    ]
    columns += [exp.column(name, quoted=True) for name in key]  # As they were; by their place, not their name.
    found = read(database, txn, _select(statement, columns))
    if not found.num_rows:
        return 0
    width = len(schema.names)
    old = found.select(list(range(width, width + len(key)))).rename_columns(key)
    new = found.select(list(range(width))).rename_columns(schema.names)
    txn.read(statement.table, old)
    if set(key) & set(changed):
        new_keys = new.select(key)
        if new_keys.group_by(key).aggregate([]).num_rows != new_keys.num_rows:
            raise InvalidArgument(f"UPDATE {statement.table}: several rows would get the same key")
        txn.delete(statement.table, old)
    return txn.insert(statement.table, new)


def _delete(database: Database, txn: Transaction, statement: Delete) -> int:
    key = _key(_target(database, txn, statement.table), "DELETE")
    found = read(database, txn, _select(statement, [exp.column(name, quoted=True) for name in key]))
    if not found.num_rows:
        return 0
    txn.read(statement.table, found)
    return txn.delete(statement.table, found)


def _target(database: Database, txn: Transaction, name: str) -> Table:
    """The table that a statement changes.

    Raises: `SchemaMismatch` when it was changed or dropped since the Timestamp of the transaction's reads: what was
    read would not fit it.
    """
    at = txn.read(name, [])
    table = database.table_at(name, at)
    if table.dropped is not None or table.at(at) is not table.schema:
        since = table.schema.since if table.dropped is None else table.dropped
        raise SchemaMismatch(
            f"table {name!r} was altered or dropped at {since}, and transaction {txn.id} reads as of {at};"
            f" run it again",
            table=name,
            timestamp=int(since),
        )
    return table


def _select(statement: Update | Delete, columns: list[Any]) -> str:
    table = exp.to_identifier(statement.table, quoted=True)
    query = exp.select(*columns).from_(exp.Table(this=table))
    if statement.alias:
        query.args["from_"].this.set("alias", exp.TableAlias(this=exp.to_identifier(statement.alias)))
    if statement.where is not None:
        query = query.where(statement.where.copy())
    return query.sql(DIALECT)


# -- reading ---------------------------------------------------------------------------------------------------------


def read(
    database: Database,
    txn: Transaction,
    sql: str,
    given: Mapping[str, pa.Table] | None = None,
    params: Params = None,
) -> pa.Table:
    """The answer to a query at the Timestamp of the transaction's reads, its own rows on top; over `given` too."""
    sql = bind(sql, params)
    if _AS_OF.search(sql):
        raise InvalidArgument(f"a transaction reads at one time, and {sql!r} names another; read that with db.query")
    names = sorted(tables_in(sql).difference(given or ()))
    if not names:
        return _answer(database, sql, {}, None, given)
    at = txn.read(names[0], [])
    database.wait_visible(at)
    found = Views({})
    for name in names:
        try:
            found.tables[name] = TableAt(database.table_at(name, at), at)
        except NotFound:
            place = database.place_at([name], at)
            # Computed from the tables, so that the transaction's own rows count.
            found.inlined |= {each: (view, place) for each, view in place.views.items()}
    text = inline(sql, found)
    own = {each.table.id: txn.own_changes(each.table) for each in found.tables.values()}
    with naming(sql, text):
        return _answer(database, text, found.tables, own, given, sql)


def _answer(
    database: Database,
    sql: str,
    tables: Mapping[str, TableAt],
    own: Mapping[int, Sequence[Batch]] | None = None,
    given: Mapping[str, pa.Table] | None = None,
    asked: str = "",
) -> pa.Table:
    """`asked` is what messages name, if that is another text."""
    try:
        return database.cut_reader.query(sql, tables, own, given)
    except NeedsSpark as error:
        raise InvalidArgument(
            f"{asked or sql!r} cannot be computed inside a transaction as Spark would: {error.reason}; read it with"
            f" db.query, and write the result"
        ) from error


def _there(database: Database, txn: Transaction, name: str, keys: pa.Table) -> pa.Table:
    """Those of the keys that have a row."""
    same = " AND ".join(f"found.{_quote(each)} = given.{_quote(each)}" for each in keys.column_names)
    listed = ", ".join(f"found.{_quote(each)}" for each in keys.column_names)
    sql = f"SELECT {listed} FROM {_quote(name)} AS found LEFT SEMI JOIN {_quote(_GIVEN)} AS given ON {same}"
    return read(database, txn, sql, {_GIVEN: keys})


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


def _quote(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
