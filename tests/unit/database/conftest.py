"""Fixtures of the tests of the engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from engine_rig import House


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
