"""Tables whose names have several parts, such as captured ones of other schemas: `sales.orders` (issues 5 and 7)."""

from __future__ import annotations

import pytest

import tidegate
from tidegate.database.settings import DatabaseSettings
from tidegate.errors import NotFound
from tidegate.reads.dotted import with_single_names


@pytest.fixture(scope="module")
def db(tmp_path_factory):
    path = tmp_path_factory.mktemp("dotted") / "x.tide"
    with tidegate.open(path, settings=DatabaseSettings(pipeline=False)) as found:
        for schema in ("shop", "old"):
            found.sql(f"CREATE TABLE {schema}.orders (id BIGINT PRIMARY KEY, v STRING, s STRUCT<f: INT>)")
            found.insert(f"{schema}.orders", [{"id": 1, "v": schema, "s": {"f": 7}}])
        found.sql("CREATE TABLE shop.items (id BIGINT PRIMARY KEY, order_id BIGINT)")
        found.insert("shop.items", [{"id": 10, "order_id": 1}])
        yield found


@pytest.mark.parametrize(
    ("query", "answer"),
    [
        ("SELECT shop.orders.v FROM shop.orders", "shop"),
        ("SELECT orders.v FROM shop.orders", "shop"),
        ("SELECT Shop.ORDERS.v FROM shop.orders", "shop"),
        ("SELECT `shop.orders`.v FROM shop.orders", "shop"),
        ("SELECT `shop.orders`.v FROM `shop.orders`", "shop"),
        ("SELECT shop.orders.s.f FROM shop.orders", 7),
        ("SELECT max(old.orders.v) FROM shop.orders JOIN old.orders ON shop.orders.id = old.orders.id", "old"),
        ("SELECT shop.items.id FROM shop.orders JOIN shop.items ON shop.items.order_id = shop.orders.id", 10),
        (
            "SELECT o.v FROM shop.orders o WHERE EXISTS (SELECT 1 FROM shop.items WHERE shop.items.order_id = o.id)",
            "shop",
        ),
        (
            "SELECT v FROM shop.orders WHERE (SELECT count(*) FROM shop.items WHERE order_id = shop.orders.id) = 1",
            "shop",
        ),
        ("WITH orders AS (SELECT 9 AS n) SELECT orders.n FROM shop.items, orders", 9),
        ("SELECT count(shop.orders.id) FROM shop.orders GROUP BY shop.orders.v ORDER BY shop.orders.v", 1),
    ],
)
def test_columns_may_be_written_with_a_tables_whole_name(db, query, answer):
    (row,) = db.query(query, "strong", engine="duckdb").rows()
    assert list(row.values()) == [answer]


def test_all_columns_of_one_of_them(db):
    (row,) = db.query("SELECT shop.items.* FROM shop.orders, shop.items", "strong", engine="duckdb").rows()
    assert row == {"id": 10, "order_id": 1}


def test_a_table_that_is_not_there_is_no_column_either(db):
    with pytest.raises(NotFound, match=r"shop\.items\.id"):
        db.query("SELECT shop.items.id FROM shop.orders", "strong")


def test_changes_may_name_them_so(db):
    assert db.sql("UPDATE shop.items SET order_id = 2 WHERE shop.items.id = 10")[0] == {"rows": 1}
    assert db.sql("UPDATE shop.items SET order_id = 1 WHERE shop.items.order_id = 2")[0] == {"rows": 1}
    assert db.sql("DELETE FROM shop.items WHERE shop.items.id = 99")[0] == {"rows": 0}


def test_views_may_name_them_so(db):
    db.create_view("by_order", "SELECT shop.items.order_id, count(shop.items.id) AS n FROM shop.items GROUP BY 1")
    assert db.query("SELECT * FROM by_order", "strong").rows() == [{"order_id": 1, "n": 1}]
    db.sql("DROP MATERIALIZED VIEW by_order")


@pytest.mark.parametrize(
    ("query", "written"),
    [
        ("SELECT 1", "SELECT 1"),
        ("SELECT id /* why */ FROM t", "SELECT id /* why */ FROM t"),
        ("select  shop.orders.id\nfrom shop.orders", "select  `orders`.id\nfrom `shop.orders` AS `orders`"),
        ("SELECT o.id FROM `shop`.`orders` o", "SELECT o.id FROM `shop.orders` o"),
        (
            "SELECT a.t.x, b.t.x FROM a.t, b.t",
            "SELECT `a.t`.x, `b.t`.x FROM `a.t` AS `a.t`, `b.t` AS `b.t`",
        ),
        ("SELECT s.f.g FROM t", "SELECT s.f.g FROM t"),
        ("SELECT (", "SELECT ("),
    ],
)
def test_for_spark_each_name_is_one(query, written):
    assert with_single_names(query) == written
