"""Where transactions are cut, in which order rows go, and the statements that carry them (facts 22 to 26)."""

from __future__ import annotations

import sqlite3

from tidegate.cdc.apply_plan import (
    POSTGRES,
    SQLITE,
    Chunk,
    Statements,
    TargetColumn,
    cut,
    parents_first,
    plan,
    quoted,
)


def test_a_chunk_ends_behind_the_transaction_that_reaches_the_threshold() -> None:
    """Fact 26: the threshold counts operations; several small ones are merged, a large one overshoots."""
    assert cut([1, 1, 1, 7, 1, 1], [False] * 6, 3) == [Chunk(0, 3), Chunk(3, 4), Chunk(4, 6)]
    assert cut([10], [False], 3) == [Chunk(0, 1)]
    assert cut([], [], 3) == []


def test_a_transaction_that_is_left_out_is_in_no_chunk_with_others() -> None:
    """What is before it was done without knowing of it, what is behind it knew it."""
    found = cut([1, 1, 1, 1, 1], [False, True, True, False, False], 100)
    assert found == [Chunk(0, 1), Chunk(1, 3, True), Chunk(3, 5)]
    assert cut([1, 1], [True, False], 1) == [Chunk(0, 1, True), Chunk(1, 2)]


def test_the_rows_before_say_what_is_to_be_done() -> None:
    before = {(1,): (1, "a"), (2,): (2, "b"), (3,): (3, None), (6,): (6, float("nan"))}
    work = plan(
        [
            ((1,), (1, "A")),
            ((2,), None),
            ((3,), (3, None)),
            ((4,), (4, "d")),
            ((5,), None),
            ((6,), (6, float("nan"))),
        ],
        before,
    )
    assert work.updates == [((1,), (1, "a"), (1, "A"))]
    assert work.deletes == [((2,), (2, "b"))]
    assert work.inserts == [(4, "d")]
    assert len(work) == 3


def test_without_them_rows_come_over_whatever_is_there() -> None:
    work = plan([((1,), (1, "A")), ((2,), None)], None)
    assert (work.upserts, work.deletes, work.updates, work.inserts) == ([(1, "A")], [((2,), None)], [], [])


def test_parents_stand_before_their_children() -> None:
    assert parents_first(["c", "b", "a"], {"c": ["b"], "b": ["a"]}) == ["a", "b", "c"]
    assert parents_first(["x", "y"], {}) == ["x", "y"]
    assert parents_first(["t"], {"t": ["t"]}) == ["t"]
    # A circle has no order; each is there once.
    assert sorted(parents_first(["a", "b"], {"a": ["b"], "b": ["a"]})) == ["a", "b"]
    # What is not applied has no place.
    assert parents_first(["c"], {"c": ["elsewhere"]}) == ["c"]


COLUMNS = [TargetColumn("n"), TargetColumn("k"), TargetColumn("v")]


def test_a_row_is_changed_only_where_it_is_what_it_was() -> None:
    """Fact 25: NULL-safe predicates, values from the image before, key columns in the key's order."""
    sql = Statements(SQLITE, "t", COLUMNS, key=[1, 0])
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE TABLE t (n, k, v, PRIMARY KEY (n, k))")
    connection.executemany(sql.insert, [(1, "a", None), (1, "b", 5)])
    assert sql.key_of((1, "a", None)) == ("a", 1)
    change = sql.updates(("a", 1), (1, "a", None), (1, "a", 9))
    assert connection.execute(sql.update_same, change).rowcount == 1
    assert connection.execute(sql.update_same, change).rowcount == 0
    assert connection.execute(sql.delete_same, sql.deletes(("b", 1), (1, "b", None))).rowcount == 0
    assert connection.execute(sql.delete_same, sql.deletes(("b", 1), (1, "b", 5))).rowcount == 1
    assert connection.execute("SELECT * FROM t").fetchall() == [(1, "a", 9)]


def test_a_row_is_put_over_another_with_its_key() -> None:
    sql = Statements(SQLITE, "t", COLUMNS, key=[1])
    only_key = Statements(SQLITE, "u", [TargetColumn("k")], key=[0])
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE TABLE t (n, k PRIMARY KEY, v)")
    connection.execute("CREATE TABLE u (k PRIMARY KEY)")
    connection.executemany(sql.upsert, [(1, "a", 1), (2, "a", 2)])
    connection.executemany(only_key.upsert, [(1,), (1,)])
    assert connection.execute("SELECT * FROM t").fetchall() == [(2, "a", 2)]
    assert connection.execute("SELECT * FROM u").fetchall() == [(1,)]
    assert connection.execute(only_key.delete_same, only_key.deletes((1,), (1,))).rowcount == 1


def test_postgresql_is_told_the_types() -> None:
    columns = [TargetColumn("id", "pg_catalog.int8", "bigint"), TargetColumn("d", "pg_catalog.json", "json")]
    sql = Statements(POSTGRES, "shop.orders", columns, key=[0])
    assert sql.insert == (
        'INSERT INTO "shop"."orders" ("id", "d") OVERRIDING SYSTEM VALUE'
        " VALUES (%s::pg_catalog.int8, %s::pg_catalog.json)"
    )
    assert sql.delete_same.endswith('WHERE "id" = %s::bigint AND "d"::jsonb IS NOT DISTINCT FROM %s::jsonb')


def test_names_are_quoted() -> None:
    assert quoted('a"b') == '"a""b"'
    sql = Statements(SQLITE, 'odd "t', [TargetColumn('c "1'), TargetColumn("select")], key=[0])
    connection = sqlite3.connect(":memory:")
    connection.execute('CREATE TABLE "odd ""t" ("c ""1" PRIMARY KEY, "select")')
    connection.execute(sql.upsert, (1, 2))
    assert connection.execute(sql.select, (1,)).fetchall() == [(1, 2)]
