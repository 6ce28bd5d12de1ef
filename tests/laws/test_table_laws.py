"""Laws of tables: whatever transactions, statements and changes of schema come, a table at every Timestamp equals a
dictionary.

Promises 2, 4 and 5 of the design; issue 4, "Proof": for random schemas, transactions, deletes, updates and DDL. The
database runs without its pipeline, so that every answer comes out of the log.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tidegate
from tidegate import DatabaseSettings, LogSettings, Timestamp, errors
from tidegate.database.database import Database

TABLES = ("t", "u")
Row = dict[str, Any]
keys = st.integers(0, 5)
numbers = st.none() | st.integers(-3, 3)
tables = st.sampled_from(TABLES)
upserts = st.tuples(
    st.just("upsert"), tables, st.lists(st.tuples(keys, numbers), min_size=1, max_size=4), st.booleans()
)
deletes = st.tuples(st.just("delete"), tables, st.lists(keys, min_size=1, max_size=3))
updates = st.tuples(st.just("update"), tables, st.integers(-2, 3))
removals = st.tuples(st.just("remove"), tables, st.integers(-2, 3))
moves = st.tuples(st.just("move"), tables)
copies = st.tuples(st.just("copy"), tables, tables)
keeps = st.tuples(st.just("keep"), tables, keys, numbers)
writes = st.one_of(upserts, deletes, updates, removals, moves, copies, keeps)
transactions = st.tuples(st.just("txn"), st.lists(writes, min_size=1, max_size=4), st.booleans())
ddl = st.tuples(st.sampled_from(["add", "drop column", "rename", "create again", "reopen"]), tables)
plans = st.lists(st.one_of(transactions, transactions, transactions, ddl), min_size=1, max_size=7)


class Model:
    """Tables as dictionaries. Columns but `id` and `n` come and go; each is known by a number."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[int, Row]] = {name: {} for name in TABLES}
        self.extra: dict[str, list[str]] = {name: [] for name in TABLES}

    def copy(self) -> Model:
        found = Model()
        found.rows = {name: {key: dict(row) for key, row in rows.items()} for name, rows in self.rows.items()}
        found.extra = {name: list(each) for name, each in self.extra.items()}
        return found

    def put(self, table: str, key: int, n: int | None) -> None:
        self.rows[table][key] = {"id": key, "n": n, **dict.fromkeys(self.extra[table])}

    def write(self, step: tuple[Any, ...]) -> None:
        table = step[1]
        rows = self.rows[table]
        match step:
            case ("upsert", _, put, _):
                for key, n in put:
                    self.put(table, key, n)
            case ("delete", _, gone):
                for key in gone:
                    rows.pop(key, None)
            case ("update", _, limit):
                for row in rows.values():
                    if row["n"] is not None and row["n"] < limit:
                        row.update({"n": row["n"] + row["id"], **dict.fromkeys(self.extra[table], limit)})
            case ("remove", _, limit):
                self.rows[table] = {key: row for key, row in rows.items() if row["n"] is None or row["n"] >= limit}
            case ("move", _):
                self.rows[table] = {5 - key: {**row, "id": 5 - key} for key, row in rows.items()}
            case ("copy", _, source):
                for key, row in list(self.rows[source].items()):
                    self.put(table, key, row["n"])
            case ("keep", _, key, n):
                if key not in rows:
                    self.put(table, key, n)


def carry_out(txn: tidegate.Transaction, model: Model, step: tuple[Any, ...]) -> None:
    """The same through the API. `model` says how the table looks."""
    table = step[1]
    match step:
        case ("upsert", _, put, as_arrow):
            if as_arrow:
                ids, ns = zip(*put, strict=True)
                txn.upsert(table, pa.table({"id": pa.array(ids, pa.int64()), "n": pa.array(ns, pa.int64())}))
            else:
                txn.insert(table, [{"id": key, "n": n} for key, n in put])
        case ("delete", _, gone):
            txn.delete(table, gone)
        case ("update", _, limit):
            extra = "".join(f", {name} = {limit}" for name in model.extra[table])
            txn.sql(f"UPDATE {table} SET n = n + id{extra} WHERE n < {limit}")
        case ("remove", _, limit):
            txn.sql(f"DELETE FROM {table} WHERE n < {limit}")
        case ("move", _):
            txn.sql(f"UPDATE {table} SET id = 5 - id")
        case ("copy", _, source):
            txn.sql(f"INSERT INTO {table} (id, n) SELECT id, n FROM {source}")
        case ("keep", _, key, n):
            value = "NULL" if n is None else n
            txn.sql(f"INSERT INTO {table} (id, n) VALUES ({key}, {value}) ON CONFLICT DO NOTHING")


class Twins:
    """A database, a client of it, its model, and what was seen when."""

    def __init__(self, path: Path, shards: int, buffer_bytes: int) -> None:
        self.path = path
        self.settings = DatabaseSettings(
            pipeline=False, channels=2, transaction_buffer_bytes=buffer_bytes, log=LogSettings(tick_interval_ms=5)
        )
        self.shards = shards
        self.model = Model()
        self.columns = 0
        self.history: list[tuple[Timestamp, Model]] = []
        self.open()
        for name in TABLES:
            self.create(name)
        self.note()

    def open(self) -> None:
        self.owner: Database = tidegate.open(self.path, settings=self.settings)
        self.client: Database = tidegate.open(self.path, settings=self.settings)

    def close(self) -> None:
        self.client.close()
        self.owner.close()

    def create(self, name: str) -> None:
        self.owner.sql(f"CREATE TABLE {name} (id BIGINT PRIMARY KEY, n BIGINT) SHARDS {self.shards}")

    def note(self, at: Timestamp | None = None) -> None:
        self.history.append((at or self.owner.query("SELECT 1 AS one", "strong").timestamp, self.model.copy()))

    def transact(self, steps: list[tuple[Any, ...]], aborts: bool, db: Database) -> None:
        try:
            self._try(steps, aborts, db)
        except errors.SchemaMismatch:
            # A client that knew an older schema. It has looked again by now.
            assert db is self.client
            self._try(steps, aborts, db)

    def _try(self, steps: list[tuple[Any, ...]], aborts: bool, db: Database) -> None:
        after, txn = self.model.copy(), db.transaction()
        try:
            for step in steps:
                carry_out(txn, after, step)
                after.write(step)
            if aborts:
                txn.abort()
                return
            at = txn.commit()
        except errors.InvalidTransactionState:  # It was written ahead, and cannot read its own rows any more.
            txn.abort()
            return
        self.model = after
        self.note(at)

    def change(self, what: str, name: str) -> None:
        extra = self.model.extra[name]
        if what == "add":
            self.columns += 1
            column = f"c{self.columns}"
            self.owner.sql(f"ALTER TABLE {name} ADD COLUMN {column} BIGINT")
            extra.append(column)
            for row in self.model.rows[name].values():
                row[column] = None
        elif what == "drop column" and extra:
            column = extra.pop()
            self.owner.sql(f"ALTER TABLE {name} DROP COLUMN {column}")
            for row in self.model.rows[name].values():
                del row[column]
        elif what == "rename" and extra:
            self.columns += 1
            old, column = extra[0], f"r{self.columns}"
            self.owner.sql(f"ALTER TABLE {name} RENAME COLUMN {old} TO {column}")
            extra[0] = column
            for row in self.model.rows[name].values():
                row[column] = row.pop(old)
        elif what == "create again":
            self.owner.sql(f"DROP TABLE {name}")
            self.create(name)
            self.model.rows[name], self.model.extra[name] = {}, []
        elif what == "reopen":
            self.close()
            self.open()
        self.note()

    def check(self, db: Database, at: Timestamp | None, model: Model) -> None:
        for name in TABLES:
            found = db.query(f"SELECT * FROM {name}", "strong" if at is None else at)
            assert {row["id"]: row for row in found.rows()} == model.rows[name], (name, at)
            assert len(found) == len(model.rows[name])
            assert set(found.to_arrow().schema.names) == {"id", "n", *model.extra[name]}


@pytest.mark.slow
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(plans, st.integers(1, 3), st.sampled_from([1 << 20, 1 << 20, 60]), st.data())
def test_a_table_at_every_timestamp_equals_a_dictionary(
    plan: list[tuple[Any, ...]], shards: int, buffer_bytes: int, data: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        twins = Twins(Path(directory) / "law.tide", shards, buffer_bytes)
        try:
            for step in plan:
                if step[0] == "txn":
                    db = data.draw(st.sampled_from([twins.owner, twins.client]), label="through")
                    twins.transact(step[1], step[2], db)
                else:
                    twins.change(step[0], step[1])
            for db in (twins.owner, twins.client):
                twins.check(db, None, twins.model)
            for at, model in data.draw(st.lists(st.sampled_from(twins.history), max_size=4), label="looked at"):
                twins.check(twins.owner, at, model)
                twins.check(twins.client, at, model)
        finally:
            twins.close()
