"""Fixtures of the tests of the engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from read_shop import TABLE, Shop

from engine_rig import House
from folding import folding
from tidegate.database import engine as engine_module


@pytest.fixture
def open_house(tmp_path: Path) -> Iterator[Callable[..., House]]:
    """Opens a database with other settings than usual."""
    opened: list[House] = []

    def open_(**settings: Any) -> House:
        house = House(tmp_path / f"house{len(opened)}", **settings)
        opened.append(house)
        return house

    yield open_
    for each in opened:
        each.close()


@pytest.fixture
def house(open_house: Callable[..., House]) -> House:
    return open_house()


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    monkeypatch.setattr(engine_module, "spark_worker", folding())
    found = Shop(tmp_path / "shop.tide")
    found.owner.sql(TABLE)
    yield found
    found.close()


@pytest.fixture(params=["owner", "client"])
def db(shop: Shop, request: pytest.FixtureRequest) -> Any:
    return shop.owner if request.param == "owner" else shop.open()
