"""A view that no plan was found for is planned again when somebody asks for it, and by a new worker. Issue 6."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from view_rig import Shop

from tidegate.errors import InvalidArgument
from tidegate.pipeline import view_stage


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    found = Shop(tmp_path / "shop.tide", monkeypatch)
    found.db.sql("CREATE TABLE t (id BIGINT PRIMARY KEY, n BIGINT)")
    found.db.sql("CREATE MATERIALIZED VIEW fine AS SELECT count(*) AS c FROM t")
    found.db.flush()
    yield found
    found.close()


class Planner:
    """Fails for one view, for as long as it is told to, as Spark may that is asked for its types."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, view: str) -> None:
        self.fails = True
        self.asked = 0
        self._view = view
        self._real = view_stage.planned
        monkeypatch.setattr(view_stage, "planned", self)

    def __call__(self, sql: str, columns: Any, relations: Any, name: str, translator: Any) -> Any:
        if name == self._view:
            self.asked += 1
            if self.fails:
                raise InvalidArgument("Spark has ended")
        return self._real(sql, columns, relations, name, translator)


def fail(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> Planner:
    planner = Planner(monkeypatch, "v")
    shop.db.sql("CREATE MATERIALIZED VIEW v AS SELECT sum(n) AS s FROM t")
    shop.db.insert("t", {"id": 1, "n": 2})
    shop.db.flush()
    shop.check("fine")
    assert shop.shown("v")["error"] == (
        "it cannot be planned any more: Spark has ended; ALTER MATERIALIZED VIEW v RESUME tries again; or drop it and"
        " create it anew"
    )
    return planner


def test_it_is_planned_again_when_it_is_resumed_and_not_in_every_batch(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    planner = fail(shop, monkeypatch)
    for number in range(2, 4):
        shop.db.insert("t", {"id": number, "n": 2})
        shop.db.flush()
    assert planner.asked == 1
    shop.db.sql("ALTER MATERIALIZED VIEW v RESUME")
    shop.db.flush()
    shop.check("fine")
    assert planner.asked == 2 and shop.shown("v")["state"] == "failed"
    planner.fails = False
    shop.db.sql("ALTER MATERIALIZED VIEW v RESUME")
    shop.db.flush()
    shop.check("fine", "v")
    shop.db.insert("t", {"id": 9, "n": 2})
    shop.db.flush()
    shop.check("fine", "v")
    assert planner.asked == 3


def test_a_new_worker_plans_it_again_and_it_comes_back_by_itself(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    fail(shop, monkeypatch).fails = False
    shop.open()
    shop.db.insert("t", {"id": 5, "n": 2})
    shop.db.flush()
    shop.check("fine", "v")


def test_a_view_that_was_stored_in_another_form_says_so(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its files cannot be read by the plan that this version makes of its query."""
    real = view_stage.planned

    def planned(sql: str, columns: Any, relations: Any, name: str, translator: Any) -> Any:
        found = real(sql, columns, relations, name, translator)
        return real("SELECT max(n) AS s FROM t", columns, relations, name, translator) if name == "v" else found

    shop.db.sql("CREATE MATERIALIZED VIEW v AS SELECT sum(n) AS s FROM t")
    shop.db.flush()
    shop.check("fine", "v")
    monkeypatch.setattr(view_stage, "planned", planned)
    shop.open()
    shop.db.insert("t", {"id": 5, "n": 2})
    shop.db.flush()
    shop.check("fine")
    error = shop.shown("v")["error"]
    assert error.startswith("it cannot be planned any more: it was created by another version of Tidegate"), error
