"""TPC-H and Nexmark: drawn from a seed, changed by transactions, and asked in Spark SQL (issue 6, proof)."""

from __future__ import annotations

import duckdb
import pyarrow as pa
import pytest

import tidegate
from database_rig import quick
from tidegate.bench.workloads import nexmark, tpch
from tidegate.bench.workloads.workload import applied
from tidegate.reads.translate import SETUP, as_spark, tables_in, translate
from tidegate.tables.parse_ddl import create
from tidegate.tables.spark_sql import Source

TPCH, NEXMARK = (tpch, tpch.TPCH, 0.0005), (nexmark, nexmark.NEXMARK, 1000)
BOTH = pytest.mark.parametrize(("module", "workload", "size"), [TPCH, NEXMARK], ids=["tpch", "nexmark"])
QUERIES = [(module, name) for module in (tpch, nexmark) for name in module.QUERIES]


def in_order(tables, keys):
    return {name: table.sort_by([(each, "ascending") for each in keys[name]]) for name, table in tables.items()}


@pytest.mark.parametrize(("module", "name"), QUERIES, ids=lambda each: getattr(each, "__name__", each).split(".")[-1])
def test_every_query_is_answered_by_duckdb(module, name):
    """That the answers are Spark's is proved in tests/spark/test_benchmark_queries.py."""
    translated = translate(module.QUERIES[name], module.SCHEMAS)
    assert translated.names and tables_in(module.QUERIES[name]) <= set(module.SCHEMAS)


@pytest.mark.parametrize(("module", "size"), [(tpch, 0.002), (nexmark, 3000)], ids=["tpch", "nexmark"])
@pytest.mark.parametrize("seed", [1, 2])
def test_no_answer_is_empty(module, size, seed):
    with duckdb.connect() as duck:
        for each in SETUP:
            duck.execute(each)
        for name, table in module.tables(size, seed).items():
            duck.register(name, table)
        for name, sql in module.QUERIES.items():
            translated = translate(sql, module.SCHEMAS)
            found = as_spark(duck.sql(translated.sql).to_arrow_table(), translated)
            assert found.num_rows and any(each.null_count < found.num_rows for each in found.columns), name


@BOTH
def test_a_seed_means_the_same_rows_and_transactions(module, workload, size):
    def life(seed):
        tables = module.tables(size, seed)
        changes = module.Changes(tables, seed)
        return tables, [changes.next() for _ in range(5)]

    assert life(1) == life(1)
    assert life(1)[0] != life(2)[0]
    assert life(1)[1] != life(2)[1]


@BOTH
def test_tables_have_their_schemas_and_every_key_once(module, workload, size):
    for name, table in module.tables(size).items():
        assert table.schema == workload.schemas[name]
        key = table.select(list(workload.keys[name]))
        assert key.group_by(key.column_names).aggregate([]).num_rows == table.num_rows
        assert table.column(0).to_pylist() == sorted(table.column(0).to_pylist())
        assert not any(column.null_count for column in table.columns)


@BOTH
def test_transactions_applied_one_by_one_give_the_tables_at_the_end(module, workload, size):
    """The transactions themselves, against what their author knows of the tables."""
    tables = module.tables(size)
    changes = module.Changes(tables)
    now = tables
    put, deleted = set(), set()
    for _ in range(60):
        transaction = changes.next()
        put |= {each.table for each in transaction if each.rows.num_rows}
        deleted |= {each.table for each in transaction if each.deleted.num_rows}
        now = applied(now, transaction, workload.keys)
    assert in_order(now, workload.keys) == in_order(changes.tables(), workload.keys)
    assert put == set(workload.schemas) - {"region"}
    assert deleted >= {"orders", "lineitem", "customer", "part"} if module is tpch else deleted == set(workload.schemas)


@BOTH
def test_transactions_change_rows_that_were_there_and_not_only_add(module, workload, size):
    tables = module.tables(size)
    changes = module.Changes(tables)
    for _ in range(30):
        changes.next()
    for name, table in tables.items():
        if name == "region":
            continue
        key = list(workload.keys[name])
        after = changes.tables()[name]
        kept = after.join(table.select(key), key, join_type="inner").select(table.column_names)
        same = kept.join(table, table.column_names, join_type="inner")
        assert same.num_rows < kept.num_rows, name


@BOTH
def test_ddl_creates_the_tables(module, workload, size):
    statements = [create(Source(each)) for each in workload.ddl()]
    assert [each.name for each in statements] == list(workload.schemas)
    for each in statements:
        schema = pa.schema([(column.name, column.type) for column in each.columns])
        assert schema.types == workload.schemas[each.name].types


@pytest.mark.parametrize(("module", "size"), [(tpch, 0.0005), (nexmark, 1000)], ids=["tpch", "nexmark"])
def test_a_database_answers_every_query_over_its_tables_and_the_transactions_behind(module, size, tmp_path):
    """The same answer as over the tables that the transactions' author holds."""
    workload = tpch.TPCH if module is tpch else nexmark.NEXMARK
    tables = module.tables(size)
    changes = module.Changes(tables)
    with tidegate.open(tmp_path / "db.tide", settings=quick()) as db, duckdb.connect() as duck:
        for each in workload.ddl():
            db.sql(each)
        for name, table in tables.items():
            db.insert(name, table)
        for _ in range(5):
            with db.transaction() as txn:
                for name, rows, deleted in changes.next():
                    txn.upsert(name, rows)
                    txn.delete(name, deleted)
        for each in SETUP:
            duck.execute(each)
        for name, table in changes.tables().items():
            duck.register(name, table)
        for name, sql in workload.queries.items():
            translated = translate(sql, module.SCHEMAS)
            expected = as_spark(duck.sql(translated.sql).to_arrow_table(), translated)
            found = db.query(sql, engine="duckdb").to_arrow()
            assert found.schema == expected.schema, name
            assert rounded(found) == rounded(expected), name


def rounded(table):
    """Rows in one order; a sum of DOUBLEs depends on the order in which they are added."""
    rows = [[f"{each:.9g}" if isinstance(each, float) else each for each in row.values()] for row in table.to_pylist()]
    return sorted(map(repr, rows))
