"""Statements about materialized views, carried out by the owner (issue 6, "What must work"; views.md).

How a query is looked at is another's part: here a small twin reads `SELECT a, b FROM x`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tidegate.catalog.statements import parse
from tidegate.clock.timestamp import Timestamp
from tidegate.database.ddl import TRIES_MAX, create_view, run_ddl
from tidegate.database.engine import Engine
from tidegate.database.settings import DatabaseSettings
from tidegate.errors import Conflict, InvalidArgument, NotFound
from tidegate.pipeline.view_relations import relations
from tidegate.snapshots.manifest import ViewState
from tidegate.tables.definition import ColumnDef, NodeDef
from tidegate.tables.view_statements import CreateView
from tidegate.views.definition import Relation


@dataclass
class Plain:
    columns: list[str]
    nodes: list[NodeDef]
    inputs: dict[str, tuple[int, int]]
    used: dict[str, frozenset[str]]


def define(sql: str, names: Sequence[str], relations: Mapping[str, Relation]) -> Plain:
    """Of `SELECT a, b FROM x`: those columns, keyed by the first, and a hidden one."""
    chosen, _, name = sql.removeprefix("SELECT ").partition(" FROM ")
    used = chosen.split(", ")
    read = relations[name]
    columns = list(names or used)
    defs = [ColumnDef(column, read.types[source]) for column, source in zip(columns, used, strict=True)]
    node = NodeDef((*defs, ColumnDef("_n", pa.int64(), False)), (columns[0],), 1)
    return Plain(columns, [node], {name: (read.id, read.version)}, {name: frozenset(used)})


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    found = Engine(tmp_path / "db", DatabaseSettings(pipeline=False))
    do(found, "CREATE TABLE orders (id BIGINT PRIMARY KEY, region STRING, amount BIGINT)")
    yield found
    found.close()


def do(engine: Engine, sql: str, define: Any = define) -> list[dict[str, Any]]:
    statement = parse(sql)
    if isinstance(statement, CreateView):
        create_view(engine, statement, define)
        return []
    return run_ddl(engine, statement)  # type: ignore[arg-type]


def names(engine: Engine) -> list[str]:
    return [row["name"] for row in do(engine, "SHOW MATERIALIZED VIEWS")]


def test_a_view_is_created_shown_described_and_dropped(engine: Engine) -> None:
    head = "CREATE MATERIALIZED VIEW v (r, a) COMMENT 'x' TBLPROPERTIES ('retention_s'='90') AS"
    sql = f"{head} SELECT region, amount FROM orders"
    do(engine, sql)
    view = engine.catalog.view("v")
    assert (view.sql, view.columns) == ("SELECT region, amount FROM orders", ("r", "a"))
    assert view.options == {"comment": "x", "retention_s": 90}
    described = [
        {"column": "r", "type": "STRING", "nullable": True, "key": 1},
        {"column": "a", "type": "BIGINT", "nullable": True, "key": None},
    ]
    assert do(engine, "DESCRIBE v") == do(engine, "DESCRIBE MATERIALIZED VIEW v") == described, (
        "nothing hidden is shown"
    )
    [shown] = do(engine, "SHOW CREATE TABLE v")
    assert parse(shown["statement"]) == parse(sql) and do(engine, "SHOW CREATE MATERIALIZED VIEW v") == [shown]
    assert [row["name"] for row in do(engine, "SHOW TABLES")] == ["orders"]
    do(engine, "DROP MATERIALIZED VIEW v")
    assert names(engine) == []


def test_a_view_that_exists_is_left_alone_without_looking_at_the_query(engine: Engine) -> None:
    do(engine, "CREATE MATERIALIZED VIEW v AS SELECT region FROM orders")

    def never(*_: Any) -> Plain:
        raise AssertionError("looked at")

    do(engine, "CREATE MATERIALIZED VIEW IF NOT EXISTS v AS SELECT nonsense", never)
    for name, complaint in (("v", "view 'v' exists"), ("orders", "table 'orders' exists since")):
        with pytest.raises(InvalidArgument, match=complaint):
            do(engine, f"CREATE MATERIALIZED VIEW {name} AS SELECT region FROM orders", never)
    with pytest.raises(InvalidArgument, match="view 'w': `retention_s` is at least 60, not 5"):
        do(engine, "CREATE MATERIALIZED VIEW w TBLPROPERTIES ('retention_s'='5') AS SELECT region FROM orders", never)


def test_a_query_is_looked_at_again_when_what_it_reads_has_changed_meanwhile(engine: Engine) -> None:
    """The record is made while the catalog is as it was looked at."""
    looks = []

    def slow(sql: str, names: Sequence[str], relations: Mapping[str, Relation]) -> Plain:
        found = define(sql, names, relations)
        looks.append(relations["orders"].version)
        if len(looks) == 1:
            do(engine, "ALTER TABLE orders ADD COLUMN note STRING")
        return found

    do(engine, "CREATE MATERIALIZED VIEW v AS SELECT region FROM orders", slow)
    assert looks == [1, 2] and engine.catalog.view("v").inputs == {"orders": (1, 2)}


def test_a_table_that_never_stays_as_it_is_ends_the_patience(engine: Engine) -> None:
    looks = []

    def slower(sql: str, names: Sequence[str], relations: Mapping[str, Relation]) -> Plain:
        looks.append(sql)
        do(engine, f"ALTER TABLE orders ADD COLUMN n{len(looks)} INT")
        return define(sql, names, relations)

    with pytest.raises(Conflict, match="'orders', which it reads, has schema version"):
        do(engine, "CREATE MATERIALIZED VIEW v AS SELECT region FROM orders", slower)
    assert len(looks) == TRIES_MAX and names(engine) == []


def test_views_read_tables_and_views_by_their_visible_columns(engine: Engine) -> None:
    do(engine, "CREATE MATERIALIZED VIEW v (r) AS SELECT region FROM orders")
    do(engine, "ALTER TABLE orders ADD COLUMN note STRING")
    do(engine, "CREATE MATERIALIZED VIEW w AS SELECT r FROM v")
    found = relations(engine.catalog)
    assert {each: (of.id, of.version, of.names, of.key) for each, of in found.items()} == {
        "orders": (1, 2, ["id", "region", "amount", "note"], ("id",)),
        "v": (2, 1, ["r"], ("r",)),
        "w": (3, 1, ["r"], ("r",)),
    }
    assert [found["orders"].schema.field(each).nullable for each in ("id", "region")] == [False, True]
    then = relations(engine.catalog, engine.catalog.view("v"))
    assert list(then) == ["orders"] and then["orders"].names == ["id", "region", "amount"], "as of its creation"
    assert relations(engine.catalog, engine.catalog.view("w")) == {"v": found["v"]}


def test_a_hidden_key_is_told_apart_from_the_visible_columns(engine: Engine) -> None:
    def hiding(sql: str, names: Sequence[str], relations: Mapping[str, Relation]) -> Plain:
        found = define(sql, names, relations)
        found.nodes = [NodeDef(found.nodes[0].columns, ("_n",), 1)]
        return found

    do(engine, "CREATE MATERIALIZED VIEW v AS SELECT region FROM orders", hiding)
    found = relations(engine.catalog)["v"]
    assert (found.names, found.key, found.hidden.names) == (["region"], ("_n",), ["_n"])
    assert found.types == {"region": pa.string(), "_n": pa.int64()}


def test_what_views_read_is_dropped_with_cascade_alone(engine: Engine) -> None:
    do(engine, "CREATE MATERIALIZED VIEW v AS SELECT region FROM orders")
    do(engine, "CREATE MATERIALIZED VIEW w AS SELECT region FROM v")
    for sql in ("DROP TABLE orders", "DROP TABLE orders RESTRICT"):
        with pytest.raises(InvalidArgument, match="table 'orders' is read by views 'w', 'v'; drop them"):
            do(engine, sql)
    with pytest.raises(InvalidArgument, match="view 'v' is read by view 'w'"):
        do(engine, "DROP MATERIALIZED VIEW v")
    with pytest.raises(InvalidArgument, match="column 'region' stays as it is: view 'v' uses it"):
        do(engine, "ALTER TABLE orders DROP COLUMN region")
    do(engine, "DROP TABLE orders CASCADE")
    assert names(engine) == [] and engine.catalog.tables() == ()
    do(engine, "DROP MATERIALIZED VIEW IF EXISTS v CASCADE")


def test_views_are_there_again_after_the_database_was_closed(engine: Engine) -> None:
    do(engine, "CREATE MATERIALIZED VIEW v AS SELECT region FROM orders")
    do(engine, "ALTER MATERIALIZED VIEW v RESUME")
    view = engine.catalog.view("v")
    assert view.resumed > view.created
    engine.close()
    again = Engine(engine.path, DatabaseSettings(pipeline=False))
    try:
        assert again.catalog.view("v") == view
    finally:
        again.close()


def test_show_tells_how_each_view_stands_by_the_newest_checkpoint(engine: Engine) -> None:
    """views.md: a view's state is in the manifest; before it is there the view is being filled."""
    do(engine, "CREATE MATERIALIZED VIEW v AS SELECT region, amount FROM orders")
    do(engine, "CREATE MATERIALIZED VIEW w AS SELECT region FROM v")
    first, second = do(engine, "SHOW MATERIALIZED VIEWS")
    assert first == {
        "name": "v",
        "columns": 2,
        "state": "filling",
        "rows": 0,
        "reads": "orders",
        "created": int(engine.catalog.view("v").created),
        "since": None,
        "age_ms": None,
        "files": 0,
        "bytes": 0,
        "last_batch_s": None,
        "percent": None,
        "left_s": None,
        "error": None,
    }
    assert (second["name"], second["reads"]) == ("w", "v")
    store, when = engine.pipeline.store, Timestamp(engine.catalog.changed + 1)
    states = {2: ViewState("live", 1, when), 3: ViewState("failed", 1, when, "division by zero")}
    store.commit(store.pointer(), views=states, epoch=1, timestamp=when, term=store.pointer().term)
    shown = [(row["state"], row["error"]) for row in do(engine, "SHOW MATERIALIZED VIEWS")]
    assert shown == [("live", None), ("failed", "division by zero")]


@pytest.mark.parametrize(
    ("sql", "complaint"),
    [
        ("DROP MATERIALIZED VIEW orders", "'orders' is a table, not a materialized view"),
        ("DROP MATERIALIZED VIEW nope", "there is no materialized view 'nope'"),
        ("ALTER MATERIALIZED VIEW nope RESUME", "there is no materialized view 'nope'"),
        ("SHOW CREATE MATERIALIZED VIEW orders", "'orders' is a table, not a materialized view"),
        ("DESCRIBE MATERIALIZED VIEW orders", "'orders' is a table, not a materialized view"),
        ("DESCRIBE nope", "there is no table 'nope'"),
        ("EXPLAIN MATERIALIZED VIEW nope", "there is no materialized view 'nope'"),
        ("ALTER TABLE nope ADD COLUMN a INT", "there is no table 'nope'"),
        ("ALTER TABLE v ADD COLUMN a INT", "'v' is a materialized view, not a table"),
        ("DROP TABLE v CASCADE", "'v' is a materialized view, not a table"),
    ],
)
def test_what_is_not_there_is_said_to_be_so(engine: Engine, sql: str, complaint: str) -> None:
    do(engine, "CREATE MATERIALIZED VIEW v AS SELECT region FROM orders")
    with pytest.raises(NotFound, match=complaint):
        do(engine, sql)
