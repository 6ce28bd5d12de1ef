"""Spark's meanings as macros of DuckDB, made when they are first called (promise 3: answers are Spark's)."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import duckdb
import pytest

from tidegate.database.macros import Macros
from tidegate.reads.translate import SETUP


@pytest.fixture
def duck() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect(config={"threads": 1}) as found:
        yield found


def made(duck: duckdb.DuckDBPyConnection) -> set[str]:
    return {name for (name,) in duck.sql("SELECT function_name FROM duckdb_functions() WHERE NOT internal").fetchall()}


@pytest.mark.parametrize("statement", [each for each in SETUP if " MACRO " in each], ids=lambda each: each.split()[5])
def test_each_can_be_called_when_it_alone_was_asked_for(duck: duckdb.DuckDBPyConnection, statement: str) -> None:
    """With all that it calls itself."""
    head = statement.partition(" MACRO ")[2].partition(" AS ")[0]
    name, _, arguments = head.rstrip(")").partition("(")
    call = f"{name}({', '.join('NULL' for _ in arguments.split(','))})"
    Macros(duck.cursor).make(f"SELECT {call}")
    assert name in made(duck)
    try:
        duck.execute(f"SELECT {call}")
    except duckdb.BinderException as error:
        assert "does not exist" not in str(error)  # NULL has no type that every function takes.


def test_a_query_that_calls_none_makes_none_and_no_other_is_made(duck: duckdb.DuckDBPyConnection) -> None:
    macros = Macros(duck.cursor)
    macros.make("SELECT 'spark_unknown(' || x FROM t")
    assert not made(duck)
    macros.make("SELECT spark_substring(x, 1, 2) FROM t")
    assert made(duck) == {"spark_substring", "spark_between", "spark_start"}


def test_many_threads_may_ask_for_the_same_ones(duck: duckdb.DuckDBPyConnection) -> None:
    macros = Macros(duck.cursor)
    texts = ["SELECT spark_average(1, 2, 3)", "SELECT spark_date('2020-01-01')", "SELECT spark_scaled(1, 2)"] * 10
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(macros.make, texts))
    assert {"spark_average", "spark_date", "spark_scaled", "spark_trimmed"} <= made(duck)
