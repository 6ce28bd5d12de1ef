"""What is called as Tidegate calls its own, a column, a table or a text, is what it is. Issue 6, promise 4."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from view_rig import Shop

from helpers import eventually
from tidegate.pipeline import view_fill
from tidegate.pipeline.view_names import relations_in, renamed, renamed_in_duckdb, version_of


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    found = Shop(tmp_path / "shop.tide", monkeypatch)
    yield found
    found.close()


def create(shop: Shop, *queries: str) -> list[str]:
    names = [f"v{number}" for number in range(len(queries))]
    for name, sql in zip(names, queries):
        shop.db.sql(f"CREATE MATERIALIZED VIEW {name} AS {sql}")
    return names


def follow(shop: Shop, names: list[str], *steps: Mapping[str, list[dict[str, Any]]]) -> None:
    """Every view is its query after each step."""
    for step in steps:
        for table, rows in step.items():
            shop.db.insert(table, rows)
        shop.db.flush()
        shop.check(*names)


IN_FULL = "CASE WHEN {} IN (SELECT a FROM k) THEN 1 ELSE 0 END"
"""A query that no rule covers."""


@pytest.mark.parametrize(("w", "is_filled_beside"), [("_w", False), ("_W", True)])
def test_columns_that_begin_with_an_underscore_are_like_any_other(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, w: str, is_filled_beside: bool
) -> None:
    """docs/tables.md: only _ts, _seq and _op are Tidegate's own."""
    if is_filled_beside:
        monkeypatch.setattr(view_fill, "FILL_ABOVE", 0)
    db = shop.db
    db.sql(f"CREATE TABLE t (id BIGINT PRIMARY KEY, `{w}` BIGINT, `_w__` BIGINT, `_shard` BIGINT, `_k0` BIGINT)")
    db.sql(f"CREATE TABLE k (`{w}` BIGINT, `_shard` BIGINT, `_none` BIGINT, a BIGINT) SHARDS 2")
    db.sql(f"CREATE TABLE keyed (`{w}` BIGINT PRIMARY KEY, `_a0` BIGINT)")
    one = {"id": 1, w: 7, "_w__": 1, "_shard": 5, "_k0": 1}
    log = {w: 9, "_shard": 4, "_none": 1, "a": 1}
    if is_filled_beside:
        db.insert("t", [one])
        db.insert("k", [log])
        db.insert("keyed", [{w: 1, "_a0": 2}])
        db.flush()
    names = create(
        shop,
        f"SELECT id, `{w}` AS w, `_w__` AS x FROM t",
        "SELECT id, `_shard` AS s, `_k0` AS y FROM t",
        f"SELECT id, {IN_FULL.format(f'`{w}`')} AS h FROM t",
        f"SELECT `{w}` AS w, count(*) AS c, sum(`_shard`) AS s FROM t GROUP BY `{w}`",
        "SELECT `_shard` AS s, a FROM k",
        f"SELECT `{w}` AS w, `_none` AS n, a FROM k",
        f"SELECT t.id, k.a FROM t JOIN k ON t.`{w}` = k.a",
        "SELECT count(*) AS c FROM k",
        f"SELECT t.id, d.`_a0` AS a FROM t LEFT JOIN keyed d ON d.`{w}` = t.`{w}`",
        f"SELECT max(`_a0`) AS m, sum(`{w}`) AS s FROM keyed",
    )

    def are_filled() -> bool:
        """Meanwhile rows change, which is made up for in the end."""
        db.insert("k", [log])
        db.insert("keyed", [{w: 5, "_a0": 2}])
        db.flush()
        return all(shop.shown(each)["state"] == "live" for each in names)

    eventually(are_filled, 60.0)
    follow(
        shop,
        names,
        {"t": [one], "k": [log]},
        {"t": [{**one, w: 8}, {**one, "id": 2, w: -1}], "k": [{**log, w: -1}, {**log, w: -1, "a": 2}]},
        {"keyed": [{w: 8, "_a0": 4}, {w: -1, "_a0": 3}]},
        {"t": [{**one, w: 1}], "keyed": [{w: -1, "_a0": 1}]},
    )
    shop.db.delete("t", [1])
    shop.db.delete("keyed", [-1])
    shop.db.flush()
    shop.check(*names)


def test_a_view_keeps_the_columns_of_when_it_was_created_also_if_others_use_newer_ones(shop: Shop) -> None:
    """docs/views.md: SELECT * means the columns that were there when the view was created; so does NATURAL JOIN."""
    db = shop.db
    db.sql("CREATE TABLE t (id BIGINT PRIMARY KEY, x BIGINT)")
    db.sql("CREATE TABLE k (id BIGINT PRIMARY KEY, a BIGINT)")
    names = create(
        shop,
        f"SELECT id, {IN_FULL.format('id')} AS h FROM t NATURAL JOIN k",
        f"SELECT *, {IN_FULL.format('id')} AS h FROM t",
    )
    for table in ("t", "k"):
        db.sql(f"ALTER TABLE {table} ADD COLUMN b BIGINT")
    db.sql(f"CREATE MATERIALIZED VIEW newer AS SELECT *, {IN_FULL.format('b')} AS h FROM t")
    db.sql("CREATE MATERIALIZED VIEW both AS SELECT t.id, t.b, k.b AS kb FROM t JOIN k ON t.id = k.id")
    row, other = {"id": 2, "x": 2, "b": 3}, {"id": 2, "a": 2, "b": 4}
    follow(shop, [*names, "newer", "both"], {"t": [row], "k": [other]})
    db = shop.open()
    follow(shop, [*names, "newer", "both"], {"t": [{**row, "id": 3}]}, {"k": [{**other, "a": 3, "b": 5}]})
    assert shop.stored("v0") == {"[2, 0]": 1}
    assert list(shop.view("v1").columns) == ["id", "x", "h"]


def test_names_and_texts_that_look_like_relations_are_none(shop: Shop) -> None:
    db = shop.db
    db.sql("CREATE TABLE t (id BIGINT PRIMARY KEY, `a@b` BIGINT, `t@a` STRING, `#1` BIGINT, `a'b` BIGINT)")
    names = create(
        shop,
        "SELECT id, `t@a` AS g FROM t WHERE `t@a` = '`#1`' OR `t@a` = 'a'",
        "SELECT id, `t@a` AS g FROM t WHERE `t@a` = '`zz@a`' OR `t@a` = 'a'",
        "SELECT id, `t@a` AS `zz@a` FROM t",
        "SELECT id, `#1` FROM t",
        "SELECT `t@a` AS `a``b`, sum(`#1`) AS `x@d`, count(*) AS `c c` FROM t GROUP BY `t@a`",
        "SELECT `t@a` AS g, count(*) AS c FROM t WHERE `t@a` <> 'FROM `#7` it''s' GROUP BY `t@a`",
        "SELECT a.id, b.`#1` AS `#2` FROM t a JOIN t b ON a.`#1` = b.id WHERE a.`t@a` <> '`#1`'",
        "SELECT `a@b` AS k, count(*) AS c FROM t GROUP BY `a@b`",
        "SELECT t.id, row_number() OVER (PARTITION BY t.`a'b` ORDER BY t.id) AS r FROM t JOIN t u ON t.`a'b` = u.`a'b`"
        " AND t.id = u.id",
        "SELECT t.id, u.`#1` AS `#1` FROM t LEFT JOIN t u ON t.`a'b` = u.id -- it's `#1`",
    )
    row = {"id": 1, "a@b": 1, "t@a": "a", "#1": 3, "a'b": 1}
    follow(
        shop,
        names,
        {"t": [row]},
        {"t": [{**row, "id": 2}, {**row, "id": 3, "t@a": "`#1`", "#1": 1}]},
        {"t": [{**row, "#1": 2, "a'b": 2}, {**row, "id": 3, "t@a": "`zz@a`", "a@b": None}]},
    )


def test_tables_whose_names_differ_by_upper_and_lower_case_are_two(shop: Shop) -> None:
    db = shop.db
    for table in ("t", "T"):
        db.sql(f"CREATE TABLE {table} (id BIGINT PRIMARY KEY, n BIGINT)")
    db.sql("CREATE MATERIALIZED VIEW lower AS SELECT sum(n) AS s FROM t")
    db.sql("CREATE MATERIALIZED VIEW upper AS SELECT sum(n) AS s FROM T")
    follow(
        shop,
        ["lower", "upper"],
        {"t": [{"id": 1, "n": 1}], "T": [{"id": 1, "n": 10}]},
        {"t": [{"id": 2, "n": 2}], "T": [{"id": 1, "n": 20}]},
        {"T": [{"id": 3, "n": 30}]},
    )
    assert shop.stored("lower") == {"[3]": 1} and shop.stored("upper") == {"[50]": 1}


def test_relations_are_what_stands_in_backticks_behind_from_or_join() -> None:
    sql = (
        "SELECT `a@b`, '`x@a` FROM `x@a`' AS t, \"FROM `y@a`\" /* FROM `z@a` */ FROM `it``s@d` AS x0"
        " LEFT SEMI JOIN `#1` AS y ON x0.`#2` = 'it\\'s FROM `#3`' -- JOIN `#4`\n WHERE `from` = `#5`"
    )
    assert relations_in(sql) == ("it`s@d", "#1")
    assert version_of("it`s@d") == ("it`s", "d") and version_of("#1") is None
    assert renamed(sql, {"#1": "step 7", "#2": "no"}.get) == sql.replace("JOIN `#1`", "JOIN `step 7`")
    duckdb = """SELECT c."#1", 'FROM "#1"' AS "a'b" FROM "#1" AS c SEMI JOIN "#2" AS d ON c."#2" = d."FROM"  """
    assert renamed_in_duckdb(duckdb, {"#1": "step 7"}.get) == duckdb.replace('FROM "#1" AS', 'FROM "step 7" AS')
