"""Values that a view must follow exactly: sums at the ends of their types, and the sign of zero. Promise 4, issue 6."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pytest
from view_rig import Shop


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    found = Shop(tmp_path / "shop.tide", monkeypatch)
    yield found
    found.close()


def test_a_sum_of_decimals_whose_change_is_beyond_their_type_is_computed_anew(shop: Shop) -> None:
    """6e37 becomes -6e37: the difference has 39 digits, and there are 38."""
    db = shop.db
    db.sql("CREATE TABLE t (id BIGINT PRIMARY KEY, g STRING, d DECIMAL(38, 0))")
    db.sql("CREATE MATERIALIZED VIEW by_g AS SELECT g, sum(d) AS s, min(d) AS m FROM t GROUP BY g")
    db.sql("CREATE MATERIALIZED VIEW total AS SELECT sum(d) AS s FROM t WHERE g = 'a'")
    large = Decimal(6 * 10**37)
    for value in (large, -large, large):
        db.insert("t", [{"id": 1, "g": "a", "d": value}, {"id": 2, "g": "b", "d": Decimal(1)}])
        db.flush()
        shop.check("by_g", "total")
    db.delete("t", [1])
    db.flush()
    shop.check("by_g", "total")
    db.insert("t", [{"id": 3, "g": "c", "d": large}, {"id": 4, "g": "c", "d": large}])
    db.flush()
    shop.check("total")
    state = shop.state("by_g")
    assert state is not None and state.state == "failed", "its query fails too"


def test_a_row_whose_zero_changes_its_sign_is_changed(shop: Shop) -> None:
    """0.0 and -0.0 are equal and not the same: as texts they differ."""
    db = shop.db
    db.sql("CREATE TABLE t (id BIGINT PRIMARY KEY, x DOUBLE, f FLOAT, l ARRAY<STRUCT<y: DOUBLE>>)")
    db.sql("CREATE MATERIALIZED VIEW same AS SELECT id, x, f, l FROM t")
    db.sql("CREATE MATERIALIZED VIEW above AS SELECT id, x, l FROM same")
    for x, f, y in ((0.0, 0.0, 0.0), (-0.0, 0.0, 0.0), (-0.0, -0.0, 0.0), (-0.0, -0.0, -0.0), (0.0, 0.0, 0.0)):
        db.insert("t", [{"id": 1, "x": x, "f": f, "l": [{"y": y}]}, {"id": 2, "x": 1.5, "f": None, "l": None}])
        db.flush()
        shop.check("same", "above")
