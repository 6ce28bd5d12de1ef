"""Views are computed with the tables' fold and are in its checkpoint. Issue 6, "What must work"; promise 4."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from view_rig import Shop, rows_of

from tidegate import Database
from tidegate.pipeline import view_run
from tidegate.pipeline.view_tables import ViewTables

TABLES = (
    "CREATE TABLE orders (id BIGINT PRIMARY KEY, customer BIGINT, amount BIGINT, note STRING) SHARDS 2",
    "CREATE TABLE customers (id BIGINT PRIMARY KEY, region STRING)",
    "CREATE TABLE clicks (customer BIGINT, page STRING)",
)
VIEWS = {
    "big": "SELECT id, amount * 2 AS twice FROM orders WHERE amount > 50",
    "joined": "SELECT o.id, c.region, o.amount FROM orders o JOIN customers c ON o.customer = c.id",
    "regions": "SELECT region, count(*) AS n, sum(amount) AS total FROM joined GROUP BY region",
    "outer_joined": "SELECT c.id, o.id AS o, o.note FROM customers c LEFT JOIN orders o ON o.customer = c.id",
    "paged": "SELECT page, count(*) AS n, min(customer) AS least FROM clicks GROUP BY page",
    "top": "SELECT id, amount FROM orders ORDER BY amount DESC, id LIMIT 3",
    "ranked": "SELECT id, row_number() OVER (PARTITION BY customer ORDER BY amount, id) AS r FROM orders",
    "totals": "SELECT count(*) AS n, sum(amount) AS s FROM orders",
    "above": "SELECT * FROM (SELECT customer, avg(amount) AS a FROM orders GROUP BY customer) WHERE a > 40",
    "clicked": "SELECT k.page, c.region FROM clicks k JOIN customers c ON c.id = k.customer",
    "notes": "SELECT DISTINCT note FROM orders",
    "seen": "SELECT id FROM customers WHERE id IN (SELECT customer FROM clicks)",
}


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    found = Shop(tmp_path / "shop.tide", monkeypatch)
    for each in TABLES:
        found.db.sql(each)
    yield found
    found.close()


def create(db: Database, *names: str) -> None:
    """All of them in one batch."""
    db.engine.pipeline.pause()
    for name in names:
        db.sql(f"CREATE MATERIALIZED VIEW {name} AS {VIEWS[name]}")
    db.engine.pipeline.resume()


def order(id: int, customer: int, amount: int | None, note: str | None = None) -> Any:
    return rows_of(id=id, customer=customer, amount=amount, note=note)


def some_rows(db: Database) -> None:
    db.insert("customers", [{"id": id, "region": "ab"[id % 2]} for id in range(4)])
    db.insert("orders", [order(id, id % 5, id * 10, "xyz"[id % 3]) for id in range(12)])
    db.insert("clicks", [{"customer": n % 6, "page": "pq"[n % 2]} for n in range(9)])


def some_changes(db: Database) -> None:
    with db.transaction() as txn:
        txn.insert("orders", [order(3, 1, 999, None), order(40, 2, 70)])
        txn.delete("orders", [5, 6])
        txn.insert("customers", {"id": 1, "region": "c"})
        txn.delete("customers", [0])
        txn.insert("clicks", {"customer": 3, "page": "r"})


def test_a_view_created_before_the_data_and_one_created_after_it_hold_the_same(shop: Shop) -> None:
    create(shop.db, *VIEWS)
    some_rows(shop.db)
    shop.db.flush()
    shop.check(*VIEWS)
    shop.db.engine.pipeline.pause()
    for name, sql in VIEWS.items():
        if name != "regions":
            shop.db.sql(f"CREATE MATERIALIZED VIEW late_{name} AS {sql}")
    shop.db.engine.pipeline.resume()
    shop.db.flush()
    some_changes(shop.db)
    shop.db.flush()
    shop.check(*VIEWS, *(f"late_{name}" for name in VIEWS if name != "regions"))
    assert shop.stored("joined") == shop.stored("late_joined") and shop.stored("joined")


def test_views_and_tables_of_a_batch_are_in_one_checkpoint(shop: Shop) -> None:
    """Promise 2 for views: every checkpoint there ever was has the view that belongs to its tables."""
    create(shop.db, "joined", "regions", "totals")
    some_rows(shop.db)
    shop.db.flush()
    some_changes(shop.db)
    shop.db.flush()
    store = shop.db.engine.pipeline.store
    history, _ = store.history()
    seen = 0
    for each in history:
        manifest = store.read_manifest(each.file, each.checkpoint)
        for name in ("joined", "regions", "totals"):
            if shop.view(name).id in manifest.views:
                assert shop.stored(name, manifest) == shop.batch(name, manifest)
                seen += 1
    assert seen >= 6


def test_views_on_views_are_of_the_same_checkpoint(shop: Shop) -> None:
    create(shop.db, "joined", "regions")
    shop.db.sql("CREATE MATERIALIZED VIEW best AS SELECT max(total) AS most FROM regions")
    some_rows(shop.db)
    shop.db.flush()
    shop.check("joined", "regions", "best")
    some_changes(shop.db)
    shop.db.flush()
    shop.check("joined", "regions", "best")


def test_a_view_that_is_dropped_leaves_the_manifest_and_others_go_on(shop: Shop) -> None:
    create(shop.db, "big", "joined")
    some_rows(shop.db)
    shop.db.flush()
    gone = shop.view("joined")
    shop.db.sql("DROP MATERIALIZED VIEW joined")
    some_changes(shop.db)
    shop.db.flush()
    shop.check("big")
    assert gone.id not in shop.manifest.views and not any(shop.manifest.files(each.id) for each in gone.nodes)


def test_a_name_dropped_and_created_again_in_one_epoch_is_the_new_view(shop: Shop) -> None:
    shop.db.engine.pipeline.pause()
    create(shop.db, "joined", "big")
    shop.db.sql("DROP MATERIALIZED VIEW big")
    shop.db.sql("CREATE MATERIALIZED VIEW big AS SELECT note, count(*) AS n FROM orders GROUP BY note")
    shop.db.sql("DROP TABLE clicks")
    shop.db.sql("CREATE TABLE clicks (n BIGINT PRIMARY KEY, customer STRING)")
    shop.db.sql("CREATE MATERIALIZED VIEW seen AS SELECT customer, sum(n) AS n FROM clicks GROUP BY customer")
    shop.db.engine.pipeline.resume()
    some_rows_without_clicks(shop.db)
    shop.db.insert("clicks", [{"n": 1, "customer": "x"}, {"n": 2, "customer": None}])
    shop.db.flush()
    shop.check("joined", "big", "seen")
    assert sum(shop.stored("seen").values()) == 2 and sum(shop.stored("big").values()) == 3


def some_rows_without_clicks(db: Database) -> None:
    db.insert("customers", [{"id": id, "region": "ab"[id % 2]} for id in range(4)])
    db.insert("orders", [order(id, id % 5, id * 10, "xyz"[id % 3]) for id in range(12)])


@pytest.mark.parametrize("point", ["folded", "reported"])
def test_a_batch_that_is_done_again_after_a_crash_gives_the_same(shop: Shop, point: str) -> None:
    """Promise 6: the files of a batch that was not committed do not count."""
    create(shop.db, *VIEWS)
    some_rows(shop.db)
    shop.db.flush()
    died: set[int] = set()

    def once(where: str, epoch: int) -> bool:
        if where != point or epoch in died:
            return False
        died.add(epoch)
        return True

    shop.open(once)
    some_changes(shop.db)
    shop.db.flush()
    assert died
    shop.check(*VIEWS)


def test_a_column_added_below_a_view_does_not_change_it(shop: Shop) -> None:
    """`SELECT *` means the columns of the creation for ever; a view created later has the new one."""
    shop.db.sql("CREATE MATERIALIZED VIEW everything AS SELECT * FROM customers")
    some_rows(shop.db)
    shop.db.flush()
    shop.db.sql("ALTER TABLE customers ADD COLUMN vip BOOLEAN")
    shop.db.sql("CREATE MATERIALIZED VIEW vips AS SELECT vip, count(*) AS n FROM customers GROUP BY vip")
    shop.db.insert("customers", [{"id": 7, "region": "z", "vip": True}, {"id": 0, "region": "y", "vip": False}])
    shop.db.flush()
    shop.check("everything", "vips")
    assert shop.view("everything").columns == ("id", "region")
    assert shop.stored("vips") == {"[None, 3]": 1, "[True, 1]": 1, "[False, 1]": 1}


def test_columns_that_no_view_uses_come_and_go(shop: Shop) -> None:
    """A view may use no column at all."""
    shop.db.sql("CREATE MATERIALIZED VIEW n AS SELECT count(*) AS n FROM clicks")
    some_rows(shop.db)
    shop.db.flush()
    shop.db.sql("ALTER TABLE clicks DROP COLUMN customer")
    shop.db.insert("clicks", {"page": "z"})
    shop.db.flush()
    shop.check("n")
    assert shop.stored("n") == {"[10]": 1}


def test_compaction_leaves_a_view_as_it_is(shop: Shop) -> None:
    """Deletes and keys that are NULL among its layers."""
    create(shop.db, "notes", "outer_joined")
    for step in range(12):
        shop.db.insert("customers", {"id": step, "region": None})
        shop.db.insert("orders", order(step, step, step, None if step % 3 else str(step)))
        if step % 2:
            shop.db.delete("orders", [step - 1])
        shop.db.flush()
    before = shop.stored("outer_joined"), shop.stored("notes")
    assert len(shop.manifest.files(shop.view("outer_joined").id)) > 2
    upkeep = shop.upkeep()
    while upkeep.compact_once():
        pass
    assert (shop.stored("outer_joined"), shop.stored("notes")) == before
    assert len(shop.manifest.files(shop.view("outer_joined").id)) < 12
    shop.db.delete("orders", [11])
    shop.db.delete("customers", [0, 11])
    shop.db.flush()
    shop.check("notes", "outer_joined")


@pytest.mark.parametrize("seed", range(3))
def test_at_every_checkpoint_of_a_random_life_views_equal_their_queries(
    shop: Shop, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Promise 4, with restarts, views that come and go, compaction, and recomputation in full."""
    if seed == 1:
        monkeypatch.setattr(view_run, "RECOMPUTE_ROWS", 1)
    dice = random.Random(seed)
    there: list[str] = []

    def some(count: int, of: int) -> list[int]:
        return [dice.randrange(of) for _ in range(count)]

    def number() -> int | None:
        return None if dice.random() < 0.1 else dice.randrange(-50, 100)

    for step in range(30):
        act = dice.choices(["write", "create", "drop", "reopen", "compact"], [20, 6, 2, 2, 2])[0]
        missing = [each for each in VIEWS if each not in there and (each != "regions" or "joined" in there)]
        if act == "create" and missing:
            name = dice.choice(missing)
            create(shop.db, name)
            there.append(name)
        elif act == "drop" and there:
            name = dice.choice([each for each in there if each != "joined" or "regions" not in there])
            shop.db.sql(f"DROP MATERIALIZED VIEW {name}")
            there.remove(name)
        elif act == "reopen":
            shop.open(checkpoint_every=dice.choice([1, 3]))
        elif act == "compact":
            while shop.upkeep().compact_once():
                pass
        else:
            with shop.db.transaction() as txn:
                ids = dict.fromkeys(some(dice.randrange(6), 20))
                txn.insert("orders", [order(id, dice.randrange(6), number(), dice.choice("xyz")) for id in ids])
                gone = [each for each in set(some(dice.randrange(3), 20)) if each not in ids]
                txn.delete("orders", gone) if gone else None
                people = dict.fromkeys(some(dice.randrange(3), 6))
                txn.insert("customers", [{"id": id, "region": dice.choice(["a", "b", None])} for id in people])
                gone = [each for each in set(some(dice.randrange(2), 6)) if each not in people]
                txn.delete("customers", gone) if gone else None
                clicks = [{"customer": id, "page": dice.choice("pqr")} for id in some(dice.randrange(3), 8)]
                txn.insert("clicks", clicks) if clicks else None
        if step % 2:
            shop.db.flush()
            shop.check(*there)


def test_a_text_that_looks_like_a_step_of_the_computation_is_a_text(shop: Shop) -> None:
    """Steps are called `#1`, `#2`: in a query those are what it says."""
    sql = """SELECT o.id, '"#1"' AS a, c.region FROM orders o JOIN customers c ON c.id = o.customer"""
    shop.db.sql(f"""CREATE MATERIALIZED VIEW quoted AS {sql} WHERE note <> '"#2"'""")
    some_rows(shop.db)
    shop.db.flush()
    shop.db.insert("orders", [order(1, 1, 1, '"#2"'), order(2, 1, 1, '"#1"')])
    shop.db.flush()
    shop.check("quoted")
    assert any("#1" in each for each in shop.stored("quoted"))


def test_views_that_join_the_same_compute_it_once(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Issue 6: ten views over the same tables cost less than four times one."""
    for number in range(3):
        head = f"CREATE MATERIALIZED VIEW v{number} AS SELECT o.id, o.amount + {number} AS n, c.region"
        shop.db.sql(f"{head} FROM orders o JOIN customers c ON o.customer = c.id")
    some_rows(shop.db)
    shop.db.flush()
    statements: list[str] = []
    real = ViewTables._computed

    def computed(self: ViewTables, sql: str) -> Any:
        statements.append(sql)
        return real(self, sql)

    monkeypatch.setattr(ViewTables, "_computed", computed)
    some_changes(shop.db)
    shop.db.flush()
    shop.check("v0", "v1", "v2")
    joins = [each for each in statements if "orders@d" in each]
    assert len(joins) == 1 and len(statements) > 3
