"""Which columns a query holds to one value: only where no row with another can reach it. ARCHITECTURE, reads."""

import pyarrow as pa
import pytest

from tidegate.reads.translate import translate

SCHEMAS = {
    "t": pa.schema([("id", pa.int64()), ("small", pa.int8()), ("name", pa.string()), ("x", pa.float64())]),
    "u": pa.schema([("id", pa.int64())]),
    "s": pa.schema([("t", pa.struct([("id", pa.int64())])), ("id", pa.int64()), ("list", pa.list_(pa.int64()))]),
}


def pinned(sql):
    found = translate(sql, SCHEMAS).pinned
    return None if found is None else (found.table, dict(found.values))


@pytest.mark.parametrize(
    ("condition", "values"),
    [
        ("id = 7", {"id": 7}),
        ("7 = id", {"id": 7}),
        ("ID = 7L", {"id": 7}),
        ("t.id = -7", {"id": -7}),
        ("(id = (-7))", {"id": -7}),
        ("id = 7 AND x > 1", {"id": 7}),
        ("x > 1 AND (name = 'it\\'s' AND id = 7)", {"id": 7, "name": "it's"}),
        ("id = 9223372036854775807", {"id": 2**63 - 1}),
        ("small = 127", {"small": 127}),
        ("id = 7 AND id = 8", {"id": 7}),
        ("id = 7 AND (x = 1 OR x = 2)", {"id": 7}),
    ],
)
def test_a_column_that_equals_a_literal_in_every_row_is_pinned(condition, values):
    assert pinned(f"SELECT x FROM t WHERE {condition}") == ("t", values)


@pytest.mark.parametrize(
    "condition",
    [
        "id = 7 OR x = 1",
        "NOT id = 7",
        "id <> 7",
        "id <=> 7",
        "id >= 7",
        "id IN (7, 8)",
        "id + 0 = 7",
        "id = small",
        "id = 7.0",
        "id = 9223372036854775808",
        "small = 128",
        "x = 7",
        "name = 'a' OR true",
        "CASE WHEN id = 7 THEN true ELSE false END",
    ],
)
def test_nothing_is_pinned_by_a_condition_that_other_rows_may_meet(condition):
    assert pinned(f"SELECT x FROM t WHERE {condition}") is None


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT id FROM t",
        "SELECT a.id FROM t a JOIN u ON a.id = u.id WHERE a.id = 7",
        "SELECT a.id FROM t a, t b WHERE a.id = 7",
        "SELECT id, (SELECT count(*) FROM t) AS n FROM t WHERE id = 7",
        "SELECT id FROM t WHERE id = 7 AND EXISTS (SELECT 1 FROM u)",
        "SELECT id FROM t WHERE id = 7 UNION ALL SELECT id FROM t",
        "SELECT id FROM (SELECT id FROM t) WHERE id = 7",
        "WITH c AS (SELECT id FROM t) SELECT id FROM c WHERE id = 7",
        "SELECT id FROM t AS y(a, id, c, d) WHERE id = 7",
        "SELECT max(id) FROM t HAVING max(id) = 7",
        "SELECT id FROM t ORDER BY id = 7",
        "SELECT explode(list) AS id FROM s WHERE id = 7",
    ],
)
def test_nothing_is_pinned_in_a_query_that_reads_more_than_one_table_once(sql):
    assert pinned(sql) is None


def test_a_field_of_a_struct_is_no_column():
    assert pinned("SELECT id FROM s AS other WHERE t.id = 7") is None
    assert pinned("SELECT id FROM s AS t WHERE t.id = 7") == ("s", {"id": 7})
