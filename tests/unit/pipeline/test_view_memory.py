"""A view that needs more memory than it may use is stopped, says so, and everything else goes on. Issue 6."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from view_rig import Shop

from helpers import eventually
from tidegate.pipeline import view_fill, view_stage

ROWS = 40_000
LARGE = "SELECT size(collect_list(repeat(concat(g, CAST(id AS STRING)), 500))) AS l FROM t"
"""About 120 MB in one list."""


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    monkeypatch.setattr(view_stage, "MEMORY", "60MB")
    monkeypatch.setattr(view_fill, "MEMORY", "50MB")
    found = Shop(tmp_path / "shop.tide", monkeypatch)
    found.db.sql("CREATE TABLE t (id BIGINT PRIMARY KEY, g STRING)")
    found.db.sql("CREATE MATERIALIZED VIEW fine AS SELECT g, count(*) AS c FROM t GROUP BY g")
    found.db.flush()
    yield found
    found.close()


def rows(count: int) -> pa.Table:
    return pa.table({"id": range(count), "g": ["x"] * count})


@pytest.mark.parametrize("is_filled_beside", [False, True])
def test_a_new_view_that_is_too_large_is_stopped_alone(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, is_filled_beside: bool
) -> None:
    if is_filled_beside:
        monkeypatch.setattr(view_fill, "FILL_ABOVE", 1000)
    db = shop.db
    db.insert("t", rows(ROWS))
    db.flush()
    db.sql(f"CREATE MATERIALIZED VIEW v AS {LARGE}")
    eventually(lambda: (db.flush(), shop.shown("v")["state"] == "failed")[1], 60.0)
    shop.check("fine")
    memory = "47.6 MiB" if is_filled_beside else "57.2 MiB"
    assert shop.shown("v")["error"] == (
        f"its computation needs more memory than the {memory} that a view may use; reduce what view 'v' reads or"
        " collects and then: ALTER MATERIALIZED VIEW v RESUME"
    )
    db.insert("t", {"id": -1, "g": "y"})
    db.flush()
    shop.check("fine")


def test_one_that_grows_too_large_is_stopped_where_it_was_and_comes_back_when_it_reads_less(shop: Shop) -> None:
    db = shop.db
    db.sql(f"CREATE MATERIALIZED VIEW v AS {LARGE}")
    db.insert("t", rows(10))
    db.flush()
    shop.check("fine", "v")
    good = shop.stored("v")
    db.insert("t", rows(ROWS))
    db.flush()
    shop.check("fine")
    assert shop.shown("v")["state"] == "failed" and shop.stored("v") == good
    db.delete("t", list(range(20, ROWS)))
    db.sql("ALTER MATERIALIZED VIEW v RESUME")
    db.flush()
    shop.check("fine", "v")
