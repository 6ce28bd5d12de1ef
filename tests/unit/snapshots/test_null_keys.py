"""Keys that may be NULL, as views have them; and that tables, which have none, are read as ever (views.md)."""

from __future__ import annotations

import pyarrow as pa
import pytest
from snapshot_rig import ACCOUNTS, SnapshotRig, at, schema

from tidegate.errors import InvalidArgument
from tidegate.snapshots.layer_writer import file_schema
from tidegate.snapshots.manifest import BASE, FileEntry
from tidegate.snapshots.merge_sql import merge_sql
from tidegate.tables.schema import Column, Table

REGION, TOTAL = Column(1, "region", pa.string()), Column(2, "total", pa.int64())
TOTALS = Table(9, "totals", 1, at(0), (schema(1, [REGION, TOTAL]),))


def files(*levels: int, table: int) -> list[FileEntry]:
    return [FileEntry(table, 0, level, n, n, 1, 1, 1, 0, 0, 0, f"f{n}") for n, level in enumerate(levels)]


def test_the_row_of_null_is_replaced_and_deleted_like_any_other(snapshots: SnapshotRig) -> None:
    snapshots.write(TOTALS, [{"region": None, "total": 1}, {"region": "", "total": 2}, {"region": "eu", "total": 3}])
    snapshots.compact(TOTALS, level=BASE)
    snapshots.write(TOTALS, [{"region": None, "total": 10}])
    assert {row["region"]: row["total"] for row in snapshots.rows(TOTALS)} == {None: 10, "": 2, "eu": 3}
    wanted = pa.table({"region": pa.array([None, "eu"], pa.string())})
    assert snapshots.reader.lookup(snapshots.store.manifest(), TOTALS, wanted).num_rows == 2
    snapshots.write(TOTALS, [{"region": None, "_op": -1}, {"region": "eu", "total": 4}])
    assert {row["region"]: row["total"] for row in snapshots.rows(TOTALS)} == {"": 2, "eu": 4}


def test_a_table_is_joined_by_its_key_as_ever() -> None:
    """Its key is never NULL, and USING is what DuckDB answers fastest: not a letter of its SQL is another."""
    sql = merge_sql(ACCOUNTS, ACCOUNTS.schema, files(BASE, 0, table=7), "/r", columns=["balance"], keys="wanted")
    base = """SELECT "balance" AS "balance", "id" AS "id" FROM read_parquet(['/r/f0'], hive_partitioning = false)"""
    layers = (
        """SELECT "balance" AS "balance", "id" AS "id", "_ts", "_op", "_seq" FROM read_parquet(['/r/f1'],"""
        """ hive_partitioning = false)"""
    )
    assert sql == (
        f"""WITH layers AS MATERIALIZED (SELECT * FROM ({layers}) SEMI JOIN wanted USING ("id")), newest AS (SELECT *"""
        f""" FROM layers QUALIFY row_number() OVER (PARTITION BY "id" ORDER BY "_ts" DESC, "_seq" DESC) = 1) SELECT"""
        f""" "balance" FROM ({base}) SEMI JOIN wanted USING ("id") ANTI JOIN layers USING ("id") UNION ALL SELECT"""
        f""" "balance" FROM newest WHERE "_op" = 1"""
    )


def test_only_a_key_that_may_be_null_is_joined_with_nulls_in_mind() -> None:
    sql = merge_sql(TOTALS, TOTALS.schema, files(BASE, 0, table=9), "/r", keys="wanted")
    assert "USING" not in sql
    assert sql.count('stored."region" IS NOT DISTINCT FROM wanted."region"') == 2
    assert sql.count('stored."region" IS NOT DISTINCT FROM layers."region"') == 1


def test_a_table_refuses_a_key_that_is_null_and_a_node_takes_it(snapshots: SnapshotRig) -> None:
    assert file_schema(TOTALS.schema).field("region").nullable
    assert not file_schema(ACCOUNTS.schema).field("id").nullable
    with pytest.raises(InvalidArgument, match="column 'id' has 1 NULLs; it is part of every row"):
        snapshots.stage(ACCOUNTS, [{"id": None, "balance": 1}, {"id": 1, "balance": 1}], 1)
    assert snapshots.stage(TOTALS, [{"region": None, "total": 1}, {"region": "a", "total": 1}], 1).rows == 2
