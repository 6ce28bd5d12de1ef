"""One failing view is stopped at its last good checkpoint, says why, and everything else goes on. Issue 6."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import duckdb
import pytest
from view_rig import Shop

from helpers import eventually
from tidegate.errors import DiskFull
from tidegate.pipeline import view_run
from tidegate.pipeline.view_errors import plain


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    found = Shop(tmp_path / "shop.tide", monkeypatch)
    found.db.sql("CREATE TABLE t (id BIGINT PRIMARY KEY, n BIGINT, s STRING)")
    found.db.sql("CREATE MATERIALIZED VIEW fine AS SELECT count(*) AS c FROM t")
    found.db.sql("CREATE MATERIALIZED VIEW v AS SELECT id, 100 DIV n AS x FROM t")
    found.db.sql("CREATE MATERIALIZED VIEW w AS SELECT sum(x) AS s FROM v")
    found.db.sql("CREATE MATERIALIZED VIEW z AS SELECT s + 1 AS s FROM w")
    found.db.insert("t", [row(1, 5), row(2, 10)])
    found.db.flush()
    found.check("fine", "v", "w", "z")
    yield found
    found.close()


def row(id: int, n: int, s: str = "1") -> dict[str, Any]:
    return {"id": id, "n": n, "s": s}


def break_v(shop: Shop) -> None:
    shop.db.insert("t", [row(3, 0), row(4, 4)])
    shop.db.flush()


def test_it_stops_at_its_last_good_checkpoint_and_everything_else_goes_on(shop: Shop) -> None:
    good = {name: shop.stored(name) for name in ("v", "w", "z")}
    break_v(shop)
    shop.check("fine")
    shop.db.insert("t", row(5, 1))
    shop.db.flush()
    shop.check("fine")
    assert shop.stored("fine") == {"[5]": 1}
    assert {name: shop.stored(name) for name in good} == good, "as they were"


def test_its_error_is_plain_and_says_since_when_and_what_to_do(shop: Shop) -> None:
    before = shop.manifest.timestamp
    break_v(shop)
    state = shop.state("v")
    assert state is not None and state.state == "failed" and before < state.timestamp <= shop.manifest.timestamp
    assert state.error == (
        "division by zero; correct the rows that it reads and then: ALTER MATERIALIZED VIEW v RESUME"
    )
    shop.db.insert("t", row(5, 1))
    shop.db.flush()
    assert shop.state("v") == state, "since the first time"
    shown = shop.shown("v")
    assert (shown["state"], shown["error"]) == ("failed", state.error)


def test_views_that_read_it_wait_say_so_and_come_back_by_themselves(shop: Shop) -> None:
    break_v(shop)
    for name, of in (("w", "v"), ("z", "w")):
        state = shop.state(name)
        assert state is not None and state.state == "failed"
        assert state.error == f"it waits for the view {of!r}, which has failed or waits itself"
    shop.db.insert("t", row(3, 2))
    shop.db.flush()
    shop.check("fine"), "not before somebody has asked for it"
    shop.db.sql("ALTER MATERIALIZED VIEW v RESUME")
    shop.db.flush()
    shop.check("fine", "v", "w", "z")
    shop.db.insert("t", row(6, 1))
    shop.db.flush()
    shop.check("fine", "v", "w", "z")


def test_a_second_failure_is_reported_again_and_not_tried_in_every_batch(shop: Shop) -> None:
    break_v(shop)
    first = shop.state("v")
    shop.db.sql("ALTER MATERIALIZED VIEW v RESUME")
    shop.db.flush()
    second = shop.state("v")
    assert first is not None and second is not None and second.state == "failed"
    assert second.error == first.error and second.timestamp > first.timestamp
    shop.db.insert("t", row(3, 1))
    shop.db.flush()
    assert shop.state("v") == second


def test_a_view_that_fails_while_it_is_filled_says_so(shop: Shop) -> None:
    shop.db.sql("CREATE MATERIALIZED VIEW bad AS SELECT id, CAST(s AS INT) AS i FROM t")
    shop.db.flush()
    shop.check("fine", "v", "w", "z", "bad")
    shop.db.insert("t", row(9, 1, "nine"))
    shop.db.sql("CREATE MATERIALIZED VIEW worse AS SELECT sum(CAST(s AS INT)) AS i FROM t")
    shop.db.flush()
    for name in ("bad", "worse"):
        state = shop.state(name)
        assert state is not None and state.error.startswith("cannot cast 'nine' to an integer; correct the rows")
    assert not shop.manifest.files(shop.view("worse").id)
    shop.db.delete("t", [9])
    shop.db.sql("ALTER MATERIALIZED VIEW bad RESUME")
    shop.db.sql("ALTER MATERIALIZED VIEW worse RESUME")
    shop.db.flush()
    shop.check("fine", "v", "w", "z", "bad", "worse")


def test_an_overflow_stops_the_view_alone(shop: Shop) -> None:
    shop.db.sql("CREATE MATERIALIZED VIEW big AS SELECT id, n + 9223372036854775700 AS b FROM t")
    shop.db.flush()
    shop.check("fine", "v", "w", "z", "big")
    shop.db.insert("t", row(7, 200))
    shop.db.flush()
    state = shop.state("big")
    assert state is not None and state.error.startswith("Overflow in addition of INT64 (200 + 9223372036854775700); ")


def test_a_failed_view_can_be_dropped_and_a_restart_leaves_it_as_it_is(shop: Shop) -> None:
    break_v(shop)
    state = shop.state("v")
    shop.open()
    shop.db.insert("t", row(8, 1))
    shop.db.flush()
    assert shop.state("v") == state
    shop.db.sql("DROP MATERIALIZED VIEW v CASCADE")
    shop.db.flush()
    shop.check("fine")
    assert list(shop.manifest.views) == [shop.view("fine").id]


@pytest.mark.parametrize(
    "error",
    [
        DiskFull("no room"),
        duckdb.OutOfMemoryException("Out of Memory Error: no"),
        duckdb.IOException("IO Error: no"),
        OSError("a disk"),
        MemoryError(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_the_machine_cannot_do_fails_the_batch_and_nothing_is_lost(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    real, failures = view_run.Run._write, [error]

    def write(self: Any, *arguments: Any) -> None:
        if failures:
            raise failures.pop()
        real(self, *arguments)

    monkeypatch.setattr(view_run.Run, "_write", write)
    shop.db.insert("t", row(3, 2))
    shop.db.flush()
    assert not failures
    shop.check("fine", "v", "w", "z")


def test_a_defect_in_the_computation_of_one_view_is_no_matter_of_the_others(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = view_run.Run._write

    def write(self: Any, table: Any, rows: Any) -> None:
        if table.name == "w":
            raise TypeError("Window")
        real(self, table, rows)

    monkeypatch.setattr(view_run.Run, "_write", write)
    shop.db.insert("t", row(3, 2))
    shop.db.flush()
    shop.check("fine", "v")
    assert shop.shown("w")["error"].startswith("a defect of Tidegate, TypeError: Window; ")


def test_errors_are_cleaned_for_people() -> None:
    """The texts that DuckDB gives, as they are shown."""
    for text, clean in (
        ("Invalid Input Error: division by zero", "division by zero"),
        (
            "Conversion Error: Type INT64 with value 99 can't be cast because the value is out of range for the"
            " destination type INT32 when casting from source column a\n\nLINE 1: SELECT ...",
            "the value 99 is out of range: INT64 cannot be cast to INT32",
        ),
        (
            "Invalid Input Error: Division by zero in expression (10 // a). Use TRY(...) to return NULL for this"
            " expression, or SET error_on_division_by_zero=false to return NULL for all divisions by zero.",
            "division by zero",
        ),
    ):
        assert plain(duckdb.DataError(text)) == clean


def test_how_views_stand_is_part_of_the_status(shop: Shop) -> None:
    break_v(shop)
    found = {each["name"]: each for each in shop.db.status()["views"]}
    assert sorted(found) == ["fine", "v", "w", "z"]
    fine, failed = found["fine"], found["v"]
    assert (fine["state"], fine["error"]) == ("live", None)
    assert 1 <= fine["rows"] <= fine["files"], "one for each layer, at most"
    assert fine["files"] >= 1 and fine["last_batch_s"] >= 0 and fine["age_ms"] >= 0
    assert failed["state"] == "failed" and failed["error"].startswith("division by zero")
    eventually(lambda: shop.shown("v")["age_ms"] > shop.shown("fine")["age_ms"] - 1)


@pytest.mark.parametrize(
    ("term", "span"),
    [(-1, (1, 1)), (0, (900, 901))],
    ids=["of a worker that was replaced", "of epochs nobody gave out"],
)
def test_a_report_that_is_not_taken_changes_no_view(shop: Shop, term: int, span: tuple[int, int]) -> None:
    """Seed 001, fencing: not its files alone, also what it says of views and of files that do not count any more."""
    pipeline = shop.db.engine.pipeline
    before, view = shop.manifest, shop.view("v")
    state = {"id": view.id, **asdict(before.views[view.id]), "state": "failed", "error": "nonsense"}
    reports = [{"view": state}, {"emptied": view.id}, {"emptied": view.nodes[0].id}]
    batch = {"id": 0, "first": span[0], "last": span[1], "seconds": 0.0, "reports": reports}
    pipeline.heard(pipeline.current_term + term, {"batch": batch})
    shop.db.insert("t", row(3, 20))
    shop.db.flush()
    assert shop.manifest.checkpoint > before.checkpoint
    assert shop.state("v") is not None and shop.shown("v")["state"] == "live"
    shop.check("fine", "v", "w", "z")
